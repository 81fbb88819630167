"""A web server that files come from, and the hub: it speaks the routes that huggingface-hub asks, and can fail.

Owns what goes over the wire. Files of a repository are answered as the hub answers them: a redirect that carries
commit, size and checksum, to another host, which serves ranges.
"""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "5f" * 20
REPO = "somebody/Model-GGUF"
TOKEN = "hf_right"


@dataclass
class Asked:
    """A request, as it came."""

    method: str
    path: str
    range: str | None
    authorization: str | None
    host: str


@dataclass
class World:
    """What the server has, and how it behaves. `asked` is what came."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Of the repository, and under /plain/ too."""
    checksums: dict[str, str] = field(default_factory=dict)
    """What the hub claims a file's checksum to be, where that is a lie."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next connections break."""
    failures: list[int] = field(default_factory=list)
    """What the next requests for bytes are answered with; 0: with the bytes."""
    stalls_after: int | None = None
    """After how many bytes a connection says nothing more, until the server ends."""
    stalled: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    is_gated: bool = False
    is_private: bool = False
    knows_ranges: bool = True
    etags: list[str] = field(default_factory=lambda: ['"one"'])
    """Of the next answers; the last stays."""
    page: bytes | None = None
    """What is said instead of anything that was asked for, by who is in between."""
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def sent(self) -> list[str | None]:
        """The ranges of the requests for bytes, in their order."""
        return [each.range for each in self.asked if each.method == "GET" and each.path.startswith(("/cdn", "/plain"))]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: World

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def log_message(self, *_: Any) -> None:
        pass

    def _respond(self) -> None:
        self.world.asked.append(
            Asked(self.command, self.path, self.headers["range"], self.headers["authorization"], self.headers["host"])
        )
        if self.world.page is not None:
            self._send(HTTPStatus.OK, {"content-type": "application/json"}, self.world.page)
        elif self.path.startswith("/api/models/"):
            self._repository(self.path.partition("?")[0].removeprefix("/api/models/"))
        elif "/resolve/" in self.path:
            self._resolve()
        else:
            self._bytes(self.path.split("/", 2)[2])

    def _may(self) -> bool:
        return self.headers["authorization"] == f"Bearer {TOKEN}"

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}")

    def _repository(self, path: str) -> None:
        repo, _, revision = path.partition("/revision/")
        if repo != REPO or (self.world.is_private and not self._may()):
            self._refuse(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        elif revision not in ("", "main", COMMIT):
            self._refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        else:
            body = {"id": REPO, "sha": COMMIT, "siblings": [self._sibling(name) for name in self.world.files]}
            self._send(HTTPStatus.OK, {"content-type": "application/json"}, json.dumps(body).encode())

    def _sha256(self, name: str) -> str:
        return self.world.checksums.get(name) or hashlib.sha256(self.world.files[name]).hexdigest()

    def _sibling(self, name: str) -> dict[str, Any]:
        size = len(self.world.files[name])
        lfs = {"sha256": self._sha256(name), "size": size, "pointerSize": 130}
        return {"rfilename": name, "size": size, "blobId": "0" * 40, "lfs": lfs}

    def _resolve(self) -> None:
        name = self.path.partition(f"/resolve/{COMMIT}/")[2]
        if self.world.is_gated and not self._may():
            self._refuse(HTTPStatus.FORBIDDEN, "GatedRepo")
        elif name not in self.world.files:
            self._refuse(HTTPStatus.NOT_FOUND, "EntryNotFound")
        else:
            sha256, size = self._sha256(name), len(self.world.files[name])
            location = self.world.url.replace("127.0.0.1", "localhost") + f"/cdn/{name}"
            told = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(size)}
            self._send(HTTPStatus.FOUND, {**told, "Location": location}, b"")

    def _bytes(self, name: str) -> None:
        if name not in self.world.files:
            self._send(HTTPStatus.NOT_FOUND, {}, b"")
        elif self.world.failures and (status := self.world.failures.pop(0)):
            self._send(status, {}, b"")
        else:
            self._part(self.world.files[name])

    def _part(self, whole: bytes) -> None:
        etags = self.world.etags
        asked, told = self.headers["range"], {"ETag": etags.pop(0) if len(etags) > 1 else etags[0]}
        if not asked or not self.world.knows_ranges:
            self._send(HTTPStatus.OK, told, whole)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        told["Content-Range"] = f"bytes {start}-{len(whole) - 1}/{len(whole)}"
        self._send(HTTPStatus.PARTIAL_CONTENT, told, whole[start:])

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT) and "ETag" in headers and self.world.cuts:
            body = body[: self.world.cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(body[: self.world.stalls_after])
        if self.world.stalls_after is not None:
            self.world.stalled.set()
            self.world.ended.wait()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who has seen enough closes the connection: that is no error here."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(world: World) -> Iterator[World]:
    """The world on a port of this machine, until the block ends."""
    server = Server(("127.0.0.1", 0), type("OfThisWorld", (Handler,), {"world": world}))
    world.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield world
    finally:
        world.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
