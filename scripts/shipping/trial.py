"""A packed segue on trial: started, asked, compared with the checkout, and ended while it is at work.

Owns what every package must do. Refuses to know how one is made or started.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.shipping.host import ROOT, Failure, say

PROMPTS = ("The capital of France is", "def fibonacci(n):", "Once upon a time, in a village by the sea,")
N_TOKENS = 32
READY_SECONDS = 300
"""What a start may take: a model is read twice, on two busy cores."""
END_SECONDS = 20
"""What an end may take, beside the request that runs."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Segue:
    """A running server. find_pid: which process is segue, where it is not the command itself."""

    command: Sequence[str]
    port: int
    find_pid: Callable[[int], int] = lambda pid: pid
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, env=os.environ | self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        self.lines.extend(self.process.stdout)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    @property
    def pid(self) -> int:
        return self.find_pid(self.process.pid)

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.began

    def request(self, path: str, body: Any = None) -> bytes:
        """The body of a successful answer."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        with urllib.request.urlopen(asked, timeout=READY_SECONDS) as response:
            answer: bytes = response.read()
            return answer

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Until it is ready. Raises Failure where it ends before, or takes too long."""
        while not is_ready():
            if self.process.poll() is not None:
                self._reader.join()
                raise Failure(f"it ended with {self.process.returncode} before it was ready:\n{self.said}")
            if self.seconds > READY_SECONDS:
                raise Failure(f"it was not ready after {READY_SECONDS} s:\n{self.said}")
            time.sleep(0.1)

    def answers(self) -> bool:
        """Whether /health says that a token could be generated now."""
        try:
            self.request("/health")
        except OSError:
            return False
        return True

    def complete(self, prompt: str, n_tokens: int = N_TOKENS) -> dict[str, Any]:
        """The choice of a greedy completion."""
        model = json.loads(self.request("/v1/models"))["data"][0]["id"]
        body = {"model": model, "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
        choice: dict[str, Any] = json.loads(self.request("/v1/completions", body))["choices"][0]
        return choice

    def texts(self) -> list[str]:
        """What it makes of the prompts, one after the other."""
        return [self.complete(prompt)["text"] for prompt in PROMPTS]

    def n_running(self) -> float:
        """Sequences that run."""
        lines = self.request("/metrics").decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("segue_sequences_running "))

    def kill(self) -> None:
        """Where it did not end by itself."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running(segue: Segue) -> Iterator[Segue]:
    try:
        yield segue
    finally:
        segue.kill()


def checkouts_texts(model: Path, kernels: Path | None = None) -> list[str]:
    """What this checkout makes of the prompts. kernels: the folder of llama.cpp's libraries, in place of its own."""
    port = free_port()
    command = [sys.executable, "-m", "app", "serve", "--model", str(model), "--port", str(port)]
    told = {"PYTHONPATH": str(ROOT)} | ({"LLAMA_CPP_LIB_PATH": str(kernels)} if kernels else {})
    with running(Segue(command, port, environment=told)) as segue:
        segue.wait(segue.answers)
        return segue.texts()


def compare(texts: Sequence[str], model: Path, kernels: Path) -> None:
    """Raises Failure where a package writes anything but what the checkout writes with the same kernels.

    Kernels built for this processor alone round otherwise, and a text may part where two tokens are near equal.
    """
    for prompt, text, want in zip(PROMPTS, texts, checkouts_texts(model, kernels), strict=True):
        if text != want:
            raise Failure(f"after {prompt!r} it wrote {text!r}; the checkout writes {want!r}")
    say(f"the same greedy text as the checkout with its kernels, {len(texts)} prompts of {N_TOKENS} tokens")
    n_alike = sum(text == own for text, own in zip(texts, checkouts_texts(model), strict=True))
    say(f"with kernels for this processor alone the checkout writes the same after {n_alike} of them")


def ends_in_order(segue: Segue, n_tokens: int = 200) -> None:
    """SIGTERM while a request runs: the request is answered whole, and the server ends with success."""
    choices: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: choices.append(segue.complete("Once", n_tokens)), daemon=True)
    asking.start()
    segue.wait(lambda: segue.n_running() == 1)
    told = time.monotonic()
    os.kill(segue.pid, signal.SIGTERM)
    asking.join(READY_SECONDS)
    if not choices or choices[0]["finish_reason"] != "length":
        raise Failure(f"SIGTERM cost the request that ran its answer: {choices}\n{segue.said}")
    answered = time.monotonic()
    try:
        code = segue.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        raise Failure(f"{END_SECONDS} s after its last answer it had not ended:\n{segue.said}") from None
    if code:
        raise Failure(f"it ended with {code}:\n{segue.said}")
    ended = time.monotonic()
    answer, end = answered - told, ended - answered
    say(f"SIGTERM: the request that ran was answered whole in {answer:.1f} s, the end came {end:.1f} s later, exit 0")
