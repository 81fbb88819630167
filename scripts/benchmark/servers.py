"""Those who answer: segue, started here, and peers that run already, each with its dialect.

Owns starting and stopping, and what has to be said differently to whom. Refuses to know what is measured.
"""

import collections
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "app", "serve"]
READY_SECONDS = 120
TICKS = os.sysconf("SC_CLK_TCK")

SAMPLING = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0}
"""Said to everyone: servers differ in what they do where nothing is said."""


class Unusable(Exception):
    """A server that cannot be measured; the message says which and why."""


@dataclass(frozen=True)
class Dialect:
    """What a server wants to be told, and what is not asked of it. Every field is a request's.

    uncached: reads the prompt whole, whatever was read before. lacks: cases. most: requests at once worth asking.
    """

    always: Mapping[str, Any] = field(default_factory=dict)
    uncached: Mapping[str, Any] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    most: int = 1 << 16


SCORING = frozenset({"best_of", "score", "questions"})

DIALECTS = {
    "segue": Dialect({"ignore_eos": True}),
    # It refuses best_of and echo.
    "llama-server": Dialect({"ignore_eos": True}, uncached={"cache_prompt": False}, lacks=SCORING),
    # Answers one request at a time, and sorts the whole vocabulary for each token's logprobs.
    "llama_cpp": Dialect({"repeat_penalty": 1}, lacks=SCORING | {"logprobs", "waiting"}, most=8),
}
"""By the beginning of the name. A server of another name is asked in OpenAI's words alone."""


@dataclass(frozen=True)
class Server:
    """An address, and how to talk to it. process: None for a peer."""

    name: str
    host: str
    port: int
    process: "subprocess.Popen[str] | None" = None

    @property
    def dialect(self) -> Dialect:
        return next((dialect for name, dialect in DIALECTS.items() if self.name.startswith(name)), Dialect())

    def body(self, prompt: str, max_tokens: int, cached: bool = False, **fields: Any) -> dict[str, Any]:
        """A request in this server's words."""
        dialect = self.dialect
        body = {"prompt": prompt, "max_tokens": max_tokens, **SAMPLING, **dialect.always, **fields}
        return body if cached else body | dict(dialect.uncached)

    def cpu_seconds(self) -> float:
        """The processor time that a server of this machine, started here, has taken so far."""
        assert self.process
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def peer(text: str) -> Server:
    """NAME=URL. Raises ValueError."""
    name, _, url = text.partition("=")
    parts = urllib.parse.urlsplit(url)
    if not name or parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{text!r} is not NAME=http://HOST:PORT")
    return Server(name, parts.hostname, parts.port or 80)


def wait(server: Server) -> Server:
    """Return it when it answers. Raises Unusable where it does not in two minutes."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://{server.host}:{server.port}/v1/models", timeout=10):
                return server
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline or (server.process and server.process.poll() is not None):
                raise Unusable(f"{server.name} at {server.host}:{server.port} does not answer: {error}") from None
            time.sleep(0.05)


@cache
def cache_flags(wanted: bool) -> tuple[str, ...]:
    """What turns segue's prefix cache on or off, as `segue serve --help` has it."""
    shown = subprocess.run([*COMMAND, "--help"], env=_environment(), capture_output=True, text=True, check=True).stdout
    is_default = "--no-prefix-cache" in shown
    return () if wanted == is_default else ("--prefix-cache",) if wanted else ("--no-prefix-cache",)


@contextmanager
def segue(model: str, threads: int | None, *flags: str) -> Iterator[Server]:
    """A server of this checkout on a free port, while the block lasts. Raises Unusable where it does not start."""
    command = [*COMMAND, "--model", model, "--port", "0", "--parallel", "32", *flags]
    command += ["--threads", str(threads)] if threads else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=_environment(), cwd=ROOT) as process:
        try:
            yield wait(Server("segue", "127.0.0.1", _port(process), process))
        finally:
            process.send_signal(signal.SIGTERM)


def _port(process: "subprocess.Popen[str]") -> int:
    """The port in the server's banner. What it says later is read, so that it can say it, and dropped."""
    assert process.stderr
    said = collections.deque[str](maxlen=20)
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"curl http://127\.0\.0\.1:(\d+)/", line):
            threading.Thread(target=collections.deque, args=(process.stderr, 0), daemon=True).start()
            return int(found[1])
    raise Unusable("segue did not start:\n" + "".join(said))


def _environment() -> dict[str, str]:
    """Nobody's SEGUE_* settings, and this checkout's segue."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SEGUE_")}
    return kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
