"""The command line as a process: what it prints, how it ends."""

import asyncio
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from app import __version__
from app.api import server as api_server
from app.cli import main
from app.engine import probe
from app.engine.offload import Offload
from app.engine.probe import Trial
from app.engine.sizes import Sizes
from app.errors import ModelError, StartError
from app.settings import Settings
from tests.servers import Server, envelope, one_line, running, segue


def test_help_names_every_command_and_setting() -> None:
    for flag in ("--help", "-h"):
        done = CliRunner().invoke(main, [flag])
        assert done.exit_code == 0
        assert all(f"\n  {name} " in done.stdout for name in ("serve", "complete", "bench", "doctor", "completion"))
        assert done.stderr == ""
    done = CliRunner().invoke(main, ["serve", "--help"])
    assert done.exit_code == 0
    for name in {*Settings.__struct_fields__, "config"} - {"models"}:
        assert f"--{name.replace('_', '-')}" in done.stdout


def test_version() -> None:
    done = segue("--version")
    assert done.returncode == 0
    assert done.stdout.strip() == f"segue, version {__version__}"


def test_an_unknown_command_or_option_is_refused() -> None:
    for arguments in (["nonsense"], ["serve", "--nonsense"], ["serve", "--port", "abc"]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 2
        assert arguments[-1] in done.stderr


def test_a_missing_model_is_named_with_the_remedy() -> None:
    done = segue("serve", "--port", "0")
    assert done.returncode == 2
    line = one_line(done.stderr)
    assert "--model" in line
    assert done.stdout == ""


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nope.gguf"
    done = segue("serve", "--port", "0", "--model", str(missing))
    assert done.returncode == 1
    assert str(missing) in one_line(done.stderr)


def unserved(path: Path, *flags: str) -> str:
    """The line in which a model is refused."""
    done = segue("serve", "--port", "0", "--model", str(path), *flags)
    assert done.returncode == 1
    line = one_line(done.stderr)
    assert str(path) in line
    return line


def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path: Path, toy_folder: Path) -> None:
    whole = (toy_folder / "toy-spm.gguf").read_bytes()
    for content, reason in ((b"", "empty"), (whole[:-100_000], "not within the file bounds")):
        path = tmp_path / "broken.gguf"
        path.write_bytes(content)
        line = unserved(path)
        assert reason in line
        assert "download it again" in line


def test_a_model_that_kills_its_probe_is_refused_in_one_line(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy_folder / "toy-spm.gguf"
    dying = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(probe, "_child", lambda: [sys.executable, "-c", dying])
    done = CliRunner().invoke(main, ["serve", "--port", "0", "--model", str(path)])
    assert done.exit_code == 1
    line = one_line(done.stderr)
    assert str(path) in line
    assert "SIGKILL" in line
    assert "--no-repack" in line


def test_the_hidden_command_is_the_probe(toy_folder: Path, tmp_path: Path) -> None:
    """A server in one file has no other interpreter to start than itself."""
    trial = Trial(str(toy_folder / "toy-bpe.gguf"), Offload(gpu_layers=0), Sizes(0, 0, 1, 16, 1, 1))
    assert segue("probe", msgspec.json.encode(trial).decode()).returncode == 0
    done = segue("probe", msgspec.json.encode(trial._replace(path=str(tmp_path / "nowhere.gguf"))).decode())
    assert probe.REFUSALS[done.returncode] is ModelError
    assert "nowhere.gguf" in one_line(done.stdout)
    assert "probe" not in segue("--help").stdout


def test_a_bad_setting_is_named_with_its_source(tmp_path: Path) -> None:
    done = segue("serve", extra={"SEGUE_PORT": "many"})
    assert done.returncode == 2
    line = one_line(done.stderr)
    assert "port" in line
    assert "'many'" in line
    assert "environment" in line
    config = tmp_path / "a.toml"
    config.write_text("colour = 1\n")
    done = segue("serve", "--config", str(config))
    assert done.returncode == 2
    assert "colour" in one_line(done.stderr)


def test_a_context_larger_than_the_cache_is_refused(toy_folder: Path) -> None:
    model = str(toy_folder / "toy-spm.gguf")
    done = segue("serve", "--port", "0", "--model", model, "--ctx-size", "4096", "--cache-size", "1024")
    assert done.returncode == 2
    line = one_line(done.stderr)
    assert "4096" in line
    assert "1024" in line


def test_a_port_in_use_is_named_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # The model is missing too: the port is complained of first.
        done = segue("serve", "--port", str(port), "--model", str(tmp_path / "nope.gguf"))
    assert done.returncode == 1
    line = one_line(done.stderr)
    assert str(port) in line
    assert "--port" in line


def test_a_port_is_taken_as_soon_as_a_server_starts() -> None:
    """While a model loads, its server is not listening yet; another one must not get the same port."""
    first = api_server.bind("127.0.0.1", 0)
    try:
        with pytest.raises(StartError):
            api_server.bind("127.0.0.1", first.getsockname()[1]).close()
    finally:
        first.close()


def test_a_host_that_does_not_exist_is_named() -> None:
    done = segue("serve", "--host", "no.such.host.invalid", "--model", "x.gguf")
    assert done.returncode == 1
    assert "no.such.host.invalid" in one_line(done.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_success_though_a_connection_is_open(
    toy_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    server = Server(tmp_path / "log", "--model", str(toy_folder / "toy-spm.gguf"), "--threads", "1")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        assert server.stop(number) == 0
    assert "Traceback" not in server.said


Lines = AsyncIterator[str]
LONG = {"prompt": "a", "n": 128, "max_tokens": 8000, "ignore_eos": True}
"""Minutes of work."""


@contextmanager
def ending(log: Path, model: Path, *flags: str) -> Iterator[Server]:
    """A server that is to end by itself within the block."""
    server = Server(log, "--model", str(model), "--threads", "1", *flags)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
    assert "Traceback" not in server.said


async def refused(client: httpx.AsyncClient) -> httpx.Response:
    """The answer to who comes after a signal, once that has been noticed."""
    while (await client.get("/health")).status_code == 200:
        pass
    return await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})


@asynccontextmanager
async def streaming(server: Server, request: dict[str, Any]) -> AsyncIterator[tuple[httpx.AsyncClient, Lines]]:
    """A client, and the lines of a stream that has begun."""
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=request | {"stream": True}) as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines)
        yield client, lines


async def test_what_is_still_running_when_its_time_is_over_is_told_so(toy_folder: Path, tmp_path: Path) -> None:
    """A plain request gets a 503 in the envelope, a stream an error event: minutes of work, and a second for it."""
    with ending(tmp_path / "log", toy_folder / "toy-spm.gguf", "--drain-seconds", "1") as server:
        async with streaming(server, LONG) as (client, lines):
            plain = asyncio.ensure_future(client.post("/v1/completions", json=LONG))
            for _ in range(5):  # sent behind the plain request: when they are answered, it has arrived
                assert (await client.get("/health")).status_code == 200
            server.process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines if line]
            told = await plain
        assert server.process.wait(60) == 0
    assert told.status_code == 503
    assert envelope(told)["code"] == "shutting_down"
    assert int(told.headers["retry-after"]) >= 1
    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "shutting_down")


async def test_after_a_signal_who_runs_finishes_and_who_comes_is_refused(toy_folder: Path, tmp_path: Path) -> None:
    request = {"prompt": "a", "n": 4, "max_tokens": 1500, "ignore_eos": True}
    with ending(tmp_path / "log", toy_folder / "toy-spm.gguf", "--drain-seconds", "600") as server:
        async with streaming(server, request) as (client, lines):
            server.process.send_signal(signal.SIGTERM)
            reading = asyncio.ensure_future(last(lines))
            answer = await refused(client)
            assert await reading == "data: [DONE]"
        assert server.process.wait(60) == 0
    assert answer.status_code == 503
    assert envelope(answer)["code"] == "shutting_down"


async def last(lines: Lines) -> str:
    return [line async for line in lines if line][-1]


async def test_a_second_signal_ends_it_at_once(toy_folder: Path, tmp_path: Path) -> None:
    with ending(tmp_path / "log", toy_folder / "toy-spm.gguf", "--drain-seconds", "600") as server:
        async with streaming(server, LONG | {"n": 4}) as (client, _):
            server.process.send_signal(signal.SIGTERM)
            assert (await refused(client)).status_code == 503
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
def test_an_address_that_others_reach_without_a_key_is_warned_of(toy_folder: Path, tmp_path: Path, host: str) -> None:
    flags = ("--host", host, "--model", str(toy_folder / "toy-bpe.gguf"), "--threads", "1")
    with ending(tmp_path / "open", toy_folder / "toy-bpe.gguf", *flags) as server:
        assert re.match(r"WARNING.*--api-key", server.said.splitlines()[-1]), "said last, where it is seen"
    with ending(tmp_path / "guarded", toy_folder / "toy-bpe.gguf", *flags, "--api-key", "k") as server:
        assert "WARNING" not in server.said


def test_the_banner_says_where_and_with_what(toy_folder: Path, tmp_path: Path) -> None:
    flags = ("--threads", "1", "--ctx-size", "1024", "--parallel", "3", "--gpu-layers", "5")
    extra = {"SEGUE_MODEL": str(toy_folder / "toy-bpe.gguf"), "SEGUE_ALIAS": "x,y/z"}
    with running(tmp_path / "log", *flags, extra=extra) as server:
        said = server.said
        models = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["toy-bpe", "x", "y/z"]
    assert models[0]["max_model_len"] == 1024
    for word in (__version__, "toy-bpe, x, y/z", "1024", "3 sequences", "1 threads", server.url, "curl"):
        assert word in said
    if "CPU" in said:
        assert re.search(r"WARNING.*--gpu-layers", said)


def test_the_printed_curl_line_works(toy_folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "log", "--model", str(toy_folder / "toy-bpe.gguf"), "--threads", "1") as server:
        command = re.search(r"curl (\S+) -H '([^:]+): (.+?)' \\\n  -d '(.+)'\n", server.said)
        assert command
        url, name, value, body = command.groups()
        response = httpx.post(url, content=body, headers={name: value})
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] <= 5


def test_a_server_can_listen_on_ipv6(toy_folder: Path, tmp_path: Path) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 here")
    flags = ("--host", "::1", "--model", str(toy_folder / "toy-bpe.gguf"), "--threads", "1")
    with running(tmp_path / "log", *flags) as server:
        assert server.url.startswith("http://[::1]:")
