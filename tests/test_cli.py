"""The command line as a process: what it prints, how it ends."""

import asyncio
import json
import os
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from app import __version__
from app.api import server as api_server
from app.cli import main
from app.errors import StartError
from app.settings import Settings
from tests.servers import Server, envelope, one_line, running, segue


def test_help_names_every_command_and_setting() -> None:
    for flag in ("--help", "-h"):
        done = CliRunner().invoke(main, [flag])
        assert done.exit_code == 0
        assert "serve" in done.stdout
        assert done.stderr == ""
    done = CliRunner().invoke(main, ["serve", "--help"])
    assert done.exit_code == 0
    for name in (*Settings.__struct_fields__, "config"):
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


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF", b"not a model at all" * 100, b"GGUF\x03\x00\x00\x00" + b"\xff" * 64],
    ids=["empty", "cut", "text", "absurd"],
)
def test_a_file_that_is_no_model_is_named_last(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    done = segue("serve", "--port", "0", "--model", str(path))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert str(path) in last
    assert "llama.cpp cannot load" in last
    assert "Traceback" not in done.stderr


def test_a_cut_model_is_named_last(tmp_path: Path, toy_folder: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes((toy_folder / "toy-spm.gguf").read_bytes()[:-100_000])
    done = segue("serve", "--port", "0", "--model", str(path))
    assert done.returncode == 1
    assert str(path) in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


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


async def test_what_is_still_running_when_its_grace_is_over_is_told_so(toy_folder: Path, tmp_path: Path) -> None:
    """A plain request gets a 503 in the envelope, a stream an error event: minutes of work, and seconds for it."""
    server = Server(tmp_path / "log", "--model", str(toy_folder / "toy-spm.gguf"), "--threads", "1")
    request = {"prompt": "a", "n": 128, "max_tokens": 8000, "ignore_eos": True}
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            async with client.stream("POST", "/v1/completions", json=request | {"stream": True}) as response:
                lines = response.aiter_lines()
                assert await anext(lines)
                plain = asyncio.ensure_future(client.post("/v1/completions", json=request))
                for _ in range(5):  # sent behind the plain request: when they are answered, it has arrived
                    assert (await client.get("/health")).status_code == 200
                server.process.send_signal(signal.SIGTERM)
                rest = [line async for line in lines if line]
            refused = await plain
        assert server.process.wait(60) == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert "Traceback" not in server.said
    assert refused.status_code == 503
    assert envelope(refused)["code"] == "shutting_down"
    assert int(refused.headers["retry-after"]) >= 1
    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "shutting_down")


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
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):  # noqa: PTH110
        pytest.skip("no IPv6 here")
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 here")
    flags = ("--host", "::1", "--model", str(toy_folder / "toy-bpe.gguf"), "--threads", "1")
    with running(tmp_path / "log", *flags) as server:
        assert server.url.startswith("http://[::1]:")
