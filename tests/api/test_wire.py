"""Connections that no HTTP library would make: half, slow, endless, all at once. None costs another its answer."""

import asyncio
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from app.api import server, wire
from tests.conftest import Served
from tests.servers import events, strict_json

BODY = b'{"prompt": "a", "max_tokens": 1}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    assert parts.hostname
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=60) as connection:
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All that still comes, until the server closes."""
    with connection.makefile("rb") as file:
        return file.read()


def still_works(served: Served) -> None:
    assert served.api.choice(prompt="a", max_tokens=1)
    assert served.api.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"BREW /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabc",
    ],
    ids=["no HTTP", "unknown method", "CONNECT", "control character", "HTTP/9.9", "two lengths"],
)
def test_what_is_no_http_is_refused_in_the_envelope(spm: Served, data: bytes) -> None:
    with connected(spm.api.url) as connection:
        connection.sendall(data)
        head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert b"x-request-id: " in head
    assert set(strict_json(body)["error"]) == {"message", "type", "param", "code"}
    still_works(spm)


def test_a_head_without_an_end_is_cut_off(spm: Served) -> None:
    with connected(spm.api.url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: " + b"x" * wire.MAX_HEAD)
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert str(wire.MAX_HEAD).encode() in answer
    still_works(spm)


def test_the_heads_of_a_connection_are_not_added_up(spm: Served) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (wire.MAX_HEAD // 2)
    with connected(spm.api.url) as connection:
        for last in (b"", b"", b"Connection: close\r\n"):
            connection.sendall(head)
            assert spm.api.http.get("/health").status_code == 200, "half a head has arrived by now"
            connection.sendall(b"\r\n" + last + b"\r\n")
        answers = rest(connection)
    assert re.findall(rb"HTTP/1.1 (\d+) ", answers) == [b"200"] * 3


def test_pipelined_requests_are_answered_in_their_order(spm: Served) -> None:
    requests = [
        (b"POST", b"/v1/completions", BODY),
        (b"POST", b"/v1/completions", b"{"),
        (b"GET", b"/nowhere", b""),
        (b"POST", b"/v1/completions", b'{"prompt": "a", "max_tokens": 3, "stream": true}'),
        (b"DELETE", b"/health", b""),
    ]
    data = b"".join(
        b"%b %b HTTP/1.1\r\nHost: a\r\nX-Request-Id: id-%d\r\nContent-Length: %d\r\n\r\n%b"
        % (method, path, i, len(body), body)
        for i, (method, path, body) in enumerate(requests)
    )
    with connected(spm.api.url) as connection:
        connection.sendall(data + b"GET /health HTTP/1.1\r\nHost: a\r\nX-Request-Id: id-5\r\nConnection: close\r\n\r\n")
        answer = rest(connection)
    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200", b"400", b"404", b"200", b"405", b"200"]
    assert re.findall(rb"x-request-id: id-(\d)", answer) == [b"%d" % i for i in range(6)]


def test_half_requests_and_slow_ones_keep_nobody_waiting(spm: Served) -> None:
    with ExitStack() as stack:
        halves = [stack.enter_context(connected(spm.api.url)) for _ in range(100)]
        for i, connection in enumerate(halves):
            connection.sendall((POST + BODY)[: 1 + i * 2 % (len(POST + BODY) - 1)])
        still_works(spm)
        for i, connection in enumerate(halves[:50]):
            for byte in (POST + BODY)[1 + i * 2 % (len(POST + BODY) - 1) :]:
                connection.sendall(bytes([byte]))
        assert all(rest(connection).startswith(b"HTTP/1.1 200 ") for connection in halves[:50])
    still_works(spm)


MIB = 1 << 20
LARGE = {
    # Ten megabytes, but for two that take the tokenizer seconds.
    "text": b'{"prompt": "' + b"abc " * (10 * MIB // 4) + b'"}',
    "one word": b'{"prompt": "' + b"a" * MIB + b'"}',
    "ids": b'{"prompt": [' + b"5," * (5 * MIB) + b"5]}",
    "prompts": b'{"prompt": [' + b'"",' * (3 * MIB) + b"5]}",
    "empty prompts": b'{"prompt": [' + b'"",' * (3 * MIB) + b'""]}',
    "stops": b'{"prompt": "a", "stop": [' + b'"x",' * (2 * MIB) + b'"x"]}',
    "a stop": b'{"prompt": "a", "stop": "' + b"x" * 10 * MIB + b'"}',
    "biases": b'{"prompt": "a", "logit_bias": {' + b",".join(b'"%d": 1' % i for i in range(MIB)) + b"}}",
    "a number": b'{"prompt": "a", "seed": ' + b"9" * 10 * MIB + b"}",
    "depth": b'{"prompt": ' + b"[" * 10 * MIB,
    "unknown": b'{"prompt": 5, "other": "' + b"x" * 10 * MIB + b'"}',
    "model": b'{"prompt": "a", "model": "' + b"x" * 10 * MIB + b'"}',
    "user": b'{"prompt": [], "user": "' + b"x" * 10 * MIB + b'"}',
    "suffix": b'{"prompt": "a", "suffix": "' + b"x" * MIB + b'"}',
}


async def test_ten_megabytes_of_anything_are_refused_while_others_are_served(bpe: Served) -> None:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=bpe.api.url, timeout=120, limits=limits) as http:
        streaming = asyncio.create_task(
            http.post("/v1/completions", json={"prompt": "a", "max_tokens": 400, "stream": True, "ignore_eos": True})
        )
        large = [asyncio.create_task(http.post("/v1/completions", content=body)) for body in LARGE.values()]
        small = await http.post("/v1/completions", content=BODY)
        for name, refused in zip(LARGE, await asyncio.gather(*large), strict=True):
            assert refused.status_code in {400, 404}, (name, refused.status_code)
            assert len(refused.content) < 2000, name
        assert small.status_code == 200
        assert len(events((await streaming).content)) > 100
    still_works(bpe)


@contextmanager
def few_files(process: int, n_files: int) -> Iterator[None]:
    """Another process's limit of open files, lowered."""
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (n_files, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="another process's limits are Linux's")
def test_connections_beyond_the_room_for_them_are_told_so_and_the_others_go_on(spm: Served) -> None:
    n = 8
    with ExitStack() as held, few_files(spm.server.process.pid, wire.OTHER_FILES + n):
        connections = [held.enter_context(connected(spm.api.url)) for _ in range(n + 1)]
        head, _, body = rest(connections[-1]).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in head
        assert "connections" in strict_json(body)["error"]["message"]
        connections[0].sendall(POST + BODY)
        assert rest(connections[0]).startswith(b"HTTP/1.1 200 ")
    still_works(spm)


FILES = wire.MAX_CONNECTIONS + wire.OTHER_FILES


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 1 << 20, [(FILES, 1 << 20)]),
        (1024, resource.RLIM_INFINITY, [(FILES, resource.RLIM_INFINITY)]),
        (1024, 2000, [(2000, 2000)]),
        (FILES, 1 << 20, []),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, []),
    ],
)
def test_before_it_serves_a_server_asks_for_the_files_that_connections_need(
    soft: int, hard: int, wanted: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    class Server:
        def run(self, sockets: list[Any]) -> None:
            assert asked == wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    nothing: Any = None
    monkeypatch.setattr(server, "server_of", lambda *_: Server())
    server.run(nothing, nothing, nothing)


def test_a_server_may_open_as_many_files_as_it_takes_connections(spm: Served) -> None:
    limits = Path(f"/proc/{spm.server.process.pid}/limits")
    if not limits.exists():
        pytest.skip("no /proc here")
    [soft, hard] = next(line.split()[3:5] for line in limits.read_text().splitlines() if "open files" in line)
    assert int(soft) >= min(wire.MAX_CONNECTIONS, int(hard) - wire.OTHER_FILES)
