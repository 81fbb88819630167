"""The engine's limit: what llama.cpp does where nothing is asked of it but logits, and nothing is done with them.

Runs in a process of its own, so that it and a server do not share a library's threads: `run` starts it, and each
function in TASKS is a way of working the engine, whose answer is in seconds. Knows segue's backend, and no server.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from app.asgi import sizes_of
from app.engine.backend import Chunk
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.offload import Offload
from app.settings import Settings
from scripts.benchmark import texts

ROOT = Path(__file__).resolve().parents[2]
Tokens = list[int]
Seconds = dict[str, float]


class Failure(Exception):
    """The bare loop ended without an answer; the message is what it said."""


@lru_cache(maxsize=256)
def run(
    model: str, threads: int | None, task: str, round_: int, case: str = "", as_filed: bool = False, **numbers: int
) -> Seconds:
    """Do a task in a process of its own, once a round and case: a minute later a shared machine is another. Raises
    Failure.

    as_filed: with all weights in the file's formats, as others load them.
    """
    given = {"model": model, "threads": threads, "as_filed": as_filed}
    request = json.dumps({"loop": given, "task": task, "numbers": numbers})
    command = [sys.executable, "-m", "scripts.benchmark.bare", request]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    if done.returncode:
        raise Failure(done.stderr[-2000:])
    found: Seconds = json.loads(done.stdout)
    return found


class Loop:
    """A model, and contexts over it as segue would make them."""

    def __init__(self, model: str, threads: int | None, as_filed: bool) -> None:
        self._model = LlamaModel(Path(model), Offload(mmap=True if as_filed else None))
        self._sizes = sizes_of(Settings(parallel=32, threads=threads)).settled(self._model.facts.n_context_trained)

    def backend(self, n_rows: int | None = None) -> LlamaBackend:
        """An empty context, warm. n_rows: most logits rows of one decode, where it is not to be segue's number."""
        backend = LlamaBackend(self._model, replace(self._sizes, n_rows=n_rows or self._sizes.n_rows))
        limits = backend.limits
        backend.decode([Chunk(0, 0, [0] * limits.n_batch, min(limits.n_rows, limits.n_batch))])
        backend.drop(0)
        return backend

    def tokens(self, text: str) -> Tokens:
        """A text's tokens, behind BOS where the model wants it."""
        vocabulary = self._model.vocabulary
        start = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos is not None else []
        return start + vocabulary.tokenize(text)

    def more(self, text: str) -> Tokens:
        """The tokens of a text that goes on."""
        return self._model.vocabulary.tokenize(text, add_space=False)


def read(backend: LlamaBackend, prompts: list[Tokens]) -> None:
    """Read prompts into the first slots, in full batches, with the logits of each one's last token."""
    room, chunks = backend.limits.n_batch, list[Chunk]()
    for slot, prompt in enumerate(prompts):
        at = 0
        while at < len(prompt):
            piece = prompt[at : at + room]
            chunks.append(Chunk(slot, at, piece, int(at + len(piece) == len(prompt))))
            at, room = at + len(piece), room - len(piece)
            if not room:
                backend.decode(chunks)
                room, chunks = backend.limits.n_batch, []
    if chunks:
        backend.decode(chunks)


def read_rows(backend: LlamaBackend, slot: int, tokens: Tokens, start: int = 0) -> None:
    """Read a text's tokens with the logits of each, in pieces of as many as one decode may have."""
    n_rows = min(backend.limits.n_rows, backend.limits.n_batch)
    for at in range(0, len(tokens), n_rows):
        piece = tokens[at : at + n_rows]
        backend.decode([Chunk(slot, start + at, piece, len(piece))])


@contextmanager
def timed(seconds: Seconds, name: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - begin


def one_each(prompts: list[Tokens], step: int) -> list[Chunk]:
    """The next token of every sequence; which token it is makes no difference to the time."""
    return [Chunk(s, len(p) + step, [p[step % len(p)]], 1) for s, p in enumerate(prompts)]


def decode(loop: Loop, width: int, n_words: int, n_tokens: int) -> Seconds:
    """Read `width` prompts, then decode that many sequences; then once more, with one more prompt read beside them."""
    seconds: Seconds = {}
    backend = loop.backend()
    prompts = [loop.tokens(text) for text in texts.texts(width, n_words, "bare")]
    late = loop.tokens(texts.text(n_words, "bare", "late"))
    with timed(seconds, "read"):
        read(backend, prompts)
    with timed(seconds, "decode"):
        for step in range(n_tokens - 1):
            backend.decode(one_each(prompts, step))
    with timed(seconds, "step with a prompt"):
        backend.decode([*one_each(prompts, n_tokens - 1), Chunk(width, 0, late, 1)])
    return seconds


def prompt(loop: Loop, n_words: int) -> Seconds:
    """Read one long prompt."""
    seconds: Seconds = {}
    backend, tokens = loop.backend(), loop.tokens(texts.text(n_words, "bare"))
    with timed(seconds, "read"):
        read(backend, [tokens])
    return seconds


def score(loop: Loop, n_texts: int, n_words: int, n_rows: int) -> Seconds:
    """Read texts with the logits of every token. n_rows: of one decode; 0 for segue's own number."""
    seconds: Seconds = {}
    backend = loop.backend(n_rows or None)
    each = [loop.tokens(text) for text in texts.texts(n_texts, n_words, "bare")]
    with timed(seconds, "read"):
        for tokens in each:
            backend.drop(0)
            read_rows(backend, 0, tokens)
    return seconds


def quiz(loop: Loop, n_questions: int, n_shared: int) -> Seconds:
    """Score options, question by question: what they share is read once, the options of a question in one decode."""
    seconds: Seconds = {}
    backend, asked = loop.backend(), texts.quiz(n_questions, n_shared, "bare")
    examples, n_options = loop.tokens(asked.examples), texts.N_OPTIONS
    rest = [(loop.more(question), [loop.more(each) for each in options]) for question, options in asked.questions]
    with timed(seconds, "read"):
        read_rows(backend, 0, examples)
        for question, options in rest:
            end = len(examples) + len(question)
            backend.fork(0, 1, len(examples))
            read_rows(backend, 1, question, len(examples))
            for slot in range(2, 2 + n_options):
                backend.fork(1, slot, end)
            backend.decode([Chunk(slot, end, option, len(option)) for slot, option in enumerate(options, 2)])
            for slot in range(1, 2 + n_options):
                backend.drop(slot)
    return seconds


TASKS: dict[str, Callable[..., Seconds]] = {"decode": decode, "prompt": prompt, "score": score, "quiz": quiz}


def main() -> None:
    request = json.loads(sys.argv[1])
    print(json.dumps(TASKS[request["task"]](Loop(**request["loop"]), **request["numbers"])))


if __name__ == "__main__":
    main()
