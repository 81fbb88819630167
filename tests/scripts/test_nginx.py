"""deploy/nginx.conf, run before two servers. Skipped where there is no nginx (scripts/check-nginx)."""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.servers import ROOT, Json, Server

NGINX = shutil.which("nginx") or ""
if not NGINX:
    pytest.skip("nginx is not here (apt install nginx-light)", allow_module_level=True)

TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
URL = "/v1/completions"
PATIENCE = 60.0
SHORT: Json = {"prompt": "a", "max_tokens": 4}
LONG: Json = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True}
"""Seconds of work."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def address(server: Server) -> str:
    return server.url.removeprefix("http://")


@dataclass
class Site:
    """nginx and the servers behind it, by the address that nginx knows them by."""

    url: str
    servers: dict[str, Server]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE) as http:
            yield http


@pytest.fixture
def site(toy_folder: Path, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        servers = {}
        for name in "ab":
            flags = ("--model", str(toy_folder / "toy-spm.gguf"), "--threads", "1", "--drain-seconds", "60")
            server = Server(tmp_path / name, *flags)
            stack.callback(server.process.wait)
            stack.callback(server.process.kill)
            servers[address(server)] = server
        port = free_port()
        config = tmp_path / "nginx.conf"
        config.write_text(written_for(list(servers), port, tmp_path))
        with (tmp_path / "nginx.log").open("wb") as log:
            nginx = subprocess.Popen(
                [NGINX, "-e", "stderr", "-p", str(tmp_path), "-c", str(config), "-g", "daemon off;"],
                stdout=log, stderr=log,
            )  # fmt: skip
        stack.callback(nginx.wait)
        stack.callback(nginx.terminate)
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + PATIENCE
        while not listens(port):
            assert nginx.poll() is None, (tmp_path / "nginx.log").read_text()
            assert time.monotonic() < deadline
        yield Site(url, servers)


def written_for(servers: list[str], port: int, folder: Path) -> str:
    """The file with these addresses, and with a folder that is there for whoever runs this."""
    scratch = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in TEMPORARY)
    text = (ROOT / "scripts" / "deploy" / "nginx.conf").read_text()
    for written, real in (
        *zip(("127.0.0.1:8001", "127.0.0.1:8002"), servers, strict=True),
        ("127.0.0.1:8000", f"127.0.0.1:{port}"),
        ("/run/nginx-segue.pid", str(folder / "pid")),
        ("http {", f"http {{ {scratch}"),
    ):
        assert written in text
        text = text.replace(written, real)
    return text


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Reader:
    """A long stream that has begun, and is read to whatever end it has."""

    def __init__(self, response: httpx.Response) -> None:
        self.server = response.headers["x-segue-server"]
        self.payloads: list[str] = []
        self.is_whole = False
        self._lines = response.aiter_lines()

    @classmethod
    async def opened(cls, http: httpx.AsyncClient) -> "Reader":
        response = await http.send(http.build_request("POST", URL, json=LONG), stream=True)
        assert response.status_code == 200
        reader = cls(response)
        reader.payloads.append(await anext(reader._lines))
        return reader

    async def finish(self) -> None:
        try:
            self.payloads += [line async for line in self._lines if line]
            self.is_whole = self.payloads[-1] == "data: [DONE]"
        except httpx.RemoteProtocolError:
            self.is_whole = False


async def readers_of_both(http: httpx.AsyncClient, site: Site) -> list[Reader]:
    """Two streams from each server: the next request goes to whom has fewest."""
    readers = [await Reader.opened(http) for _ in range(4)]
    assert {reader.server for reader in readers} == set(site.servers)
    return readers


async def test_a_killed_server_costs_its_own_streams_alone(site: Site) -> None:
    async with site.client() as http:
        readers = await readers_of_both(http, site)
        victim = readers[0].server
        site.servers[victim].process.kill()
        await asyncio.gather(*(reader.finish() for reader in readers))
        for reader in readers:
            assert json.loads(reader.payloads[0].removeprefix("data: "))["choices"]
            assert reader.is_whole == (reader.server != victim)

        answers = await asyncio.gather(*(http.post(URL, json=SHORT) for _ in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        assert all(not answer.headers["x-segue-server"].endswith(victim) for answer in answers)


async def test_a_server_that_shuts_down_finishes_its_streams_and_refuses_nobody(site: Site) -> None:
    async with site.client() as http:
        readers = await readers_of_both(http, site)
        leaving = readers[0].server
        site.servers[leaving].process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*(http.post(URL, json=SHORT) for _ in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        await asyncio.gather(*(reader.finish() for reader in readers))
        assert all(reader.is_whole for reader in readers)
        assert await asyncio.to_thread(site.servers[leaving].process.wait, PATIENCE) == 0


async def test_without_any_server_the_error_has_the_envelope(site: Site) -> None:
    for server in site.servers.values():
        server.process.kill()
        server.process.wait()
    async with site.client() as http:
        answer = await http.post(URL, json=SHORT)
    assert answer.status_code == 503
    assert answer.headers["content-type"].startswith("application/json")
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
