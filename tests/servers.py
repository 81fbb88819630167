"""segue's server as a process of its own, and what a test says to it.

Owns starting, finding and stopping a server, and the shape of its answers: every `complete`, `stream` and `refused`
checks the envelope. Refuses to know right answers; those are the oracle's.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "app"]
READY_SECONDS = 120.0
STOP_SECONDS = 60.0
_ADDRESS = re.compile(r"""(?:curl |"address": ")(http://\S+?)/v1""")

Json = dict[str, Any]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without anybody's SEGUE_* settings, and with the checkout importable."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SEGUE_")}
    return kept | {"PYTHONPATH": str(ROOT)} | dict(extra or {})


class Server:
    """A running server. Its stderr goes to a file, so that no pipe can fill up."""

    def __init__(self, log: Path, *flags: str, command: str = "serve", extra: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [*COMMAND, command, "--port", "0", *flags],
                cwd=ROOT, env=environment(extra), stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip
        try:
            self.url = self._ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _ready(self) -> str:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended: {self.said}"
            if found := _ADDRESS.search(self.said):
                try:
                    if httpx.get(f"{found[1]}/health").status_code == 200:
                        return found[1]
                except httpx.TransportError:
                    pass  # it prints its address just before it listens
            time.sleep(0.05)
        raise AssertionError(f"not ready after {READY_SECONDS} s: {self.said}")

    @property
    def said(self) -> str:
        """Everything that it has printed."""
        return self.log.read_text("utf-8", "replace")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it, and return its exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still there {STOP_SECONDS} s after signal {number}: {self.said}") from None


@contextmanager
def running(log: Path, *flags: str, command: str = "serve", extra: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server that must live until the end of the block, and then end with success when asked to."""
    server = Server(log, *flags, command=command, extra=extra)
    try:
        yield server
        assert server.process.poll() is None, f"the server died: {server.said}"
    finally:
        code = server.stop() if server.process.poll() is None else None
    assert code == 0, f"exit {code}: {server.said}"
    before, found, after = server.said.partition("Traceback")
    assert not found, before[-1000:] + found + after[:3000]


@dataclass
class Streamed:
    """A stream as it came: chunks in order, without the `[DONE]` that ended it."""

    chunks: list[Json]
    headers: httpx.Headers

    @property
    def parts(self) -> list[Json]:
        """The choices of all chunks, in order."""
        return [chunk["choices"][0] for chunk in self.chunks if chunk["choices"]]

    @property
    def usage(self) -> Json | None:
        """The totals, where the last chunk brought them."""
        usage: Json | None = self.chunks[-1].get("usage") if not self.chunks[-1]["choices"] else None
        return usage

    @property
    def choices(self) -> list[Json]:
        """The choices that the chunks make when they are joined, as the plain answer would have them."""
        whole: dict[int, Json] = {}
        for part in self.parts:
            into = whole.setdefault(part["index"], {"text": "", "index": part["index"], "logprobs": None})
            into["text"] += part["text"]
            into["finish_reason"] = part["finish_reason"]
            if part["logprobs"] is not None:
                arrays = into["logprobs"] = into["logprobs"] or {key: [] for key in part["logprobs"]}
                for key, values in part["logprobs"].items():
                    arrays[key] += values
            if "token_ids" in part:
                into["token_ids"] = into.get("token_ids", []) + part["token_ids"]
            if "prompt_token_ids" in part:
                assert "prompt_token_ids" not in into, "a prompt's ids come once"
                into["prompt_token_ids"] = part["prompt_token_ids"]
        return [whole[index] for index in sorted(whole)]


def payloads_of(body: bytes) -> list[str]:
    """The payloads of a stream, whose bytes must be exactly `data: <payload>\\n\\n` each."""
    pieces = body.split(b"\n\n")
    assert pieces.pop() == b"", "the stream ends with an empty line"
    assert all(piece.startswith(b"data: ") and b"\n" not in piece for piece in pieces)
    return [piece.removeprefix(b"data: ").decode() for piece in pieces]


def events(body: bytes) -> list[str]:
    """The payloads of a stream that ends as OpenAI's do, with one `[DONE]`, last."""
    payloads = payloads_of(body)
    assert payloads.count("[DONE]") == 1
    assert payloads[-1] == "[DONE]"
    return payloads


def strict_json(text: str | bytes) -> Any:
    """JSON without Python's indulgence for NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def one_line(text: str) -> str:
    """What was said, which must be one line."""
    (line,) = text.strip().splitlines()
    return line


def shown(value: object) -> str:
    """A parameter of a test, in its name."""
    return json.dumps(value)[:40]


def names(message: str, value: object) -> bool:
    """Whether a message shows a value, as JSON or as Python writes it."""
    return json.dumps(value, separators=(",", ":")) in message or repr(value) in message


def envelope(response: httpx.Response) -> Json:
    """The error in a response, which must have the one form that errors have."""
    assert response.headers["content-type"].startswith("application/json"), response.text
    assert response.headers["x-request-id"]
    body = strict_json(response.content)
    assert set(body) == {"error"}, body
    error: Json = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert isinstance(error["type"], str)
    assert isinstance(error["param"], str | None)
    assert isinstance(error["code"], str | None)
    return error


@dataclass
class Api:
    """A client of one server: raw HTTP, answers checked for form."""

    url: str
    defaults: Json = field(default_factory=dict)
    key: str | None = None

    def __post_init__(self) -> None:
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        self.http = httpx.Client(base_url=self.url, timeout=120, headers=headers)

    def post(self, **fields: Any) -> httpx.Response:
        """A request as it is; no field of it is checked here."""
        return self.raw(json.dumps(self.defaults | fields).encode())

    def raw(self, body: bytes, **headers: str) -> httpx.Response:
        """These bytes as a request's body."""
        return self.http.post("/v1/completions", content=body, headers={"content-type": "application/json"} | headers)

    def complete(self, **fields: Any) -> Json:
        """The answer to a request that is good."""
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("application/json")
        body: Json = strict_json(response.content)
        keys = {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
        assert set(body) == keys
        assert body["id"].startswith("cmpl-")
        assert body["object"] == "text_completion"
        assert type(body["created"]) is int
        assert re.fullmatch(r"fp_[0-9a-f]+", body["system_fingerprint"])
        for choice in body["choices"]:
            check_choice(choice)
            assert choice["finish_reason"] in {"stop", "length"}
        assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"])))
        check_usage(body["usage"])
        return body

    def choices(self, **fields: Any) -> list[Json]:
        """The choices of a good request."""
        choices: list[Json] = self.complete(**fields)["choices"]
        return choices

    def choice(self, **fields: Any) -> Json:
        """The only choice of a good request."""
        (choice,) = self.choices(**fields)
        return choice

    def stream(self, **fields: Any) -> Streamed:
        """The chunks of a good request, streamed."""
        response = self.post(**fields | {"stream": True})
        assert response.status_code == 200, response.text
        chunks = [strict_json(payload) for payload in events(response.content)[:-1]]
        for chunk in chunks:
            for choice in chunk["choices"]:
                check_choice(choice)
        return Streamed(chunks, response.headers)

    def refused(self, status: int = 400, /, **fields: Any) -> Json:
        """The error of a request that must be refused; a good one must be served after it."""
        response = self.post(**fields)
        assert response.status_code == status, f"{response.status_code}: {response.text[:500]}"
        error = envelope(response)
        assert self.choice(model=self.model, prompt="a", max_tokens=1)["index"] == 0
        return error

    @property
    def model(self) -> str:
        """The model's id, as the server lists it."""
        model: str = self.http.get("/v1/models").json()["data"][0]["id"]
        return model


CHOICE_KEYS = {"text", "index", "logprobs", "finish_reason"}
LOGPROBS_KEYS = {"tokens", "token_logprobs", "top_logprobs", "text_offset"}


def check_choice(choice: Json) -> None:
    """A choice, or a piece of one, has all its keys, and four arrays of one length or none."""
    assert set(choice) - {"token_ids", "prompt_token_ids"} == CHOICE_KEYS, choice
    assert isinstance(choice["text"], str)
    if choice["logprobs"] is not None:
        assert set(choice["logprobs"]) == LOGPROBS_KEYS
        assert len({len(values) for values in choice["logprobs"].values()}) == 1


def check_usage(usage: Json) -> None:
    """Totals add up."""
    assert set(usage) == {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


def segue(*arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT, env=environment(extra), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def without_identity(answers: Sequence[Json]) -> list[Json]:
    """Choices or chunks without what differs from request to request."""
    return [{key: value for key, value in answer.items() if key not in {"id", "created"}} for answer in answers]
