"""What a server of a toy model must answer: from the contract, the model's table and float64 arithmetic.

Everything is done the slow way over whole sequences: text by decoding all bytes, stops by trying every end, offsets
by counting characters, greedy sequences by adjusting whole rows. Only the tokenizer is llama.cpp's own. Nothing of
`app` is used here.
"""

import ctypes
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from numpy.typing import NDArray

from tests.toys import Toy

LLAMA: Any = llama_cpp
TOLERANCE = 1e-5
"""Between the server's log probabilities and float64's."""
MARGIN = 1e-5
"""Logits that a greedy step compares must be so far apart, or float32 might decide otherwise."""

Probs = NDArray[np.float64]


class Tokenizer:
    """llama.cpp's tokenizer for one file, without its weights."""

    def __init__(self, path: Path) -> None:
        params = LLAMA.llama_model_default_params()
        params.vocab_only = True
        self._model = LLAMA.llama_model_load_from_file(str(path).encode(), params)
        assert self._model
        self._vocab = LLAMA.llama_model_get_vocab(self._model)

    def __call__(self, text: str) -> list[int]:
        """The ids of a text, special tokens parsed, BOS not added."""
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 8))()
        n = LLAMA.llama_tokenize(self._vocab, data, len(data), out, len(out), False, True)
        assert n >= 0
        return list(out[:n])

    def close(self) -> None:
        LLAMA.llama_model_free(self._model)


@dataclass(frozen=True)
class Entry:
    """One entry of the four arrays."""

    token: str
    offset: int
    logprob: float | None
    top: dict[str, float] | None


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it. n_added: tokens that the server puts before it."""

    ids: list[int]
    n_added: int
    text: str
    entries: list[tuple[int, str, int]]
    """(id, token as written, offset) of each token that was sent."""


@dataclass(frozen=True)
class Completed:
    """A completion. `ids`: all tokens that were sampled; `kept`: how many of them have entries."""

    text: str
    ids: list[int]
    kept: int
    finish_reason: str
    offsets: list[int] = field(default_factory=list)


def characters(data: bytes) -> tuple[list[tuple[int, int, str]], int]:
    """(first byte, end, character) of each character of `data`, and where an incomplete one at the end begins.

    Every maximal run of bytes that is no UTF-8 is one U+FFFD, as the Unicode standard advises.
    """
    out: list[tuple[int, int, str]] = []
    at = 0
    while at < len(data):
        for size in (1, 2, 3, 4):
            try:
                char = data[at : at + size].decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data" and at + size < len(data):
                    continue  # a longer piece may be whole
                if error.reason == "unexpected end of data":
                    return out, at
                out.append((at, at + error.end, "\ufffd"))
            else:
                out.append((at, at + size, char))
            break
        at = out[-1][1]
    return out, len(data)


def decoded(data: bytes) -> str:
    """The text of bytes, without an incomplete character at the end."""
    return "".join(char for _, _, char in characters(data)[0])


def written(data: bytes) -> str:
    """A token's text, or its bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def first_match(text: str, stops: Iterable[str]) -> tuple[int, int] | None:
    """Where the stop that is complete first begins and ends; of several complete at one character, the longest."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return end - max(lengths), end
    return None


class Oracle:
    """Right answers for one toy."""

    def __init__(self, toy: Toy, tokenize: Tokenizer) -> None:
        self.toy = toy
        self.tokenize = tokenize
        kinds = (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN)
        self.special = {token for token, kind in enumerate(toy.kinds) if kind in kinds}

    # Tokens and prompts

    def name(self, token: int) -> bytes:
        """What a token prints; a special token's name."""
        return self.toy.names[token].encode() if token in self.special else self.toy.pieces[token]

    def read(self, prompt: str | Sequence[int]) -> Prompt:
        """How the model reads a prompt."""
        if not isinstance(prompt, str):
            return self._prompt(list(prompt), 0, None)
        ids, toy = self.tokenize(prompt), self.toy
        if toy.bos is not None and ids[:1] != [toy.bos]:
            return self._prompt([toy.bos, *ids], 1, prompt)
        if not ids:
            return self._prompt([toy.eos], 1, prompt)
        return self._prompt(ids, 0, prompt)

    def _prompt(self, ids: list[int], n_added: int, text: str | None) -> Prompt:
        names: list[bytes] = []
        printed: list[bytes] = []
        after_special = True
        for token in ids[n_added:]:
            name = self.name(token)
            if after_special and token not in self.special and self.toy.add_space_prefix:
                name = name.removeprefix(b" ")
            names.append(name)
            printed.append(b"" if text is None and token in self.special else name)
            after_special = token in self.special
        data = b"".join(printed)
        assert text is None or data == text.encode(), "the tokens of a text make the text"
        entries = [
            (token, written(name), offset)
            for token, name, offset in zip(ids[n_added:], names, self._offsets(printed), strict=True)
        ]
        return Prompt(ids, n_added, decoded(data) if text is None else text, entries)

    @staticmethod
    def _offsets(pieces: Sequence[bytes]) -> list[int]:
        """The character in which each piece begins."""
        ends = [end for _, end, _ in characters(b"".join(pieces))[0]]
        starts = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
        return [sum(end <= start for end in ends) for start in starts]

    # Completions

    def complete(
        self, ids: Sequence[int], max_tokens: int, stops: Sequence[str] = (), ends: Iterable[int] = ()
    ) -> Completed:
        """What becomes of draws `ids`, of which there are enough: where the completion ends, and its text."""
        all_ends = self.toy.eog | set(ends)
        ids = list(ids[:max_tokens])
        end = next((i for i, token in enumerate(ids) if token in all_ends), None)
        pieces = [self.toy.pieces[token] for token in ids[:end]]
        chars, _ = characters(b"".join(pieces))
        text = "".join(char for _, _, char in chars)
        offsets = self._offsets(pieces)
        if match := first_match(text, stops):
            cut, complete = match
            cut_byte = chars[cut][0]
            starts = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
            n = next(n for n in range(len(ids) + 1) if len(decoded(b"".join(pieces[:n]))) >= complete)
            kept = sum(
                start < cut_byte or (start == cut_byte and not piece)
                for start, piece in zip(starts[:n], pieces[:n], strict=True)
            )
            return Completed(text[:cut], ids[:n], kept, "stop", offsets[:kept])
        if end is not None:
            return Completed(text, ids[: end + 1], end + 1, "stop", [*offsets, len(text)])
        assert len(ids) == max_tokens, "too few draws to know"
        return Completed(text, ids, max_tokens, "length", offsets)

    # Scores

    @cache  # noqa: B019  # an oracle lives as long as the session
    def row(self, before: int) -> tuple[Probs, list[int]]:
        """Log probabilities after `before`, and all tokens, the likeliest first; of equals the smaller id."""
        row = self.toy.log_probs(before)
        return row, sorted(range(self.toy.n_vocab), key=lambda token: (-self.toy.table[before][token], token))

    def logprob(self, before: int, token: int) -> float:
        return float(self.row(before)[0][token])

    def top(self, before: int, token: int, text: str, n: int) -> dict[str, float]:
        """The n likeliest tokens after `before`, and `token`, written as `text`, itself."""
        row, likeliest = self.row(before)
        out: dict[str, float] = {}
        for other in [*likeliest[:n], token]:
            out.setdefault(text if other == token else written(self.name(other)), float(row[other]))
        return out

    def entries(self, prompt: Prompt, completed: Completed, n_top: int, echo: bool) -> list[Entry]:
        """The entries of a choice."""
        out: list[Entry] = []
        if echo:
            befores = prompt.ids[prompt.n_added :]
            for i, (token, text, offset) in enumerate(prompt.entries):
                if i == 0:
                    out.append(Entry(text, offset, None, None))
                    continue
                before = befores[i - 1]
                out.append(Entry(text, offset, self.logprob(before, token), self.top(before, token, text, n_top)))
        before = prompt.ids[-1]
        for token, offset in zip(completed.ids[: completed.kept], completed.offsets, strict=True):
            text = written(self.name(token))
            top = self.top(before, token, text, n_top)
            out.append(Entry(text, len(prompt.text) + offset, self.logprob(before, token), top))
            before = token
        return out

    def mean_logprob(self, prompt: Prompt, ids: Sequence[int]) -> float:
        """Mean over every sampled token."""
        befores = [prompt.ids[-1], *ids]
        return sum(self.logprob(b, t) for b, t in zip(befores, ids, strict=False)) / len(ids)

    # Sampling

    def greedy(
        self,
        prompt: Prompt,
        n: int,
        *,
        bias: Mapping[int, float] | None = None,
        repetition: float = 1.0,
        frequency: float = 0.0,
        presence: float = 0.0,
        banned: Iterable[int] = (),
        min_tokens: int = 0,
        ends: Iterable[int] = (),
    ) -> list[int]:
        """The greedy tokens after a prompt, as far as an end or n."""
        all_ends = self.toy.eog | set(ends)
        out: list[int] = []
        while len(out) < n and not (out and out[-1] in all_ends):
            row = self.toy.table[(out or prompt.ids)[-1]].astype(np.float64)
            row = biased(row, bias or {})
            row[list(banned)] = -np.inf
            if len(out) < min_tokens:
                row[list(all_ends)] = -np.inf
            for token in {*prompt.ids, *out}:
                row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
            for token, count in Counter(out).items():
                row[token] -= count * frequency + presence
            first, second = np.sort(row)[-1:-3:-1]
            assert first - second > MARGIN, "too close to call"
            out.append(int(row.argmax()))
        return out

    def distribution(
        self,
        before: int,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        bias: Mapping[int, float] | None = None,
        banned: Iterable[int] = (),
    ) -> Probs:
        """What is drawn after token `before`, and how often."""
        row = biased(self.toy.table[before].astype(np.float64), bias or {})
        row[list(banned)] = -np.inf
        probs = softmax(row / temperature)
        order = np.argsort(-probs, kind="stable")
        if top_k:
            probs[order[top_k:]] = 0
            probs /= probs.sum()
        if top_p < 1:
            n_kept = int(np.searchsorted(probs[order].cumsum(), top_p)) + 1
            probs[order[n_kept:]] = 0
            probs /= probs.sum()
        if min_p:
            probs[probs < min_p * probs.max()] = 0
            probs /= probs.sum()
        return probs


def biased(row: Probs, bias: Mapping[int, float]) -> Probs:
    """A row with biases: -100 bans, 100 leaves nothing else."""
    out = row.copy()
    for token, value in bias.items():
        out[token] = -np.inf if value <= -100 else out[token] + value
    forced = [token for token, value in bias.items() if value >= 100]
    if forced:
        only = np.full_like(out, -np.inf)
        only[forced] = out[forced]
        return only
    return out


def softmax(row: Probs) -> Probs:
    weights = np.exp(row - row.max())
    out: Probs = weights / weights.sum()
    return out


def check_frequencies(drawn: Sequence[int], probs: Probs) -> None:
    """Pearson's chi-square over tokens expected at least five times, the others as one cell.

    Its mean is the degrees of freedom and its deviation the root of twice that; beyond five deviations is wrong.
    """
    counts = np.bincount(drawn, minlength=len(probs))
    assert not counts[probs == 0].any(), "a token was drawn that cannot be"
    if np.count_nonzero(probs) == 1:
        return
    expected = probs * len(drawn)
    often = expected >= 5
    cells = [*zip(counts[often], expected[often], strict=True)]
    rest = expected[~often].sum()
    if rest >= 5:
        cells.append((counts[~often].sum(), rest))
    freedom = len(cells) - 1
    assert freedom > 0
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    assert statistic < freedom + 5 * math.sqrt(2 * freedom), f"chi-square {statistic:.1f} of {freedom}"


def check_logprobs(got: Mapping[str, Any] | None, wanted: Sequence[Entry]) -> None:
    """The four arrays have these entries; numbers within TOLERANCE, all else exactly."""
    assert got is not None
    assert got["tokens"] == [entry.token for entry in wanted]
    assert got["text_offset"] == [entry.offset for entry in wanted]
    for entry, logprob, top in zip(wanted, got["token_logprobs"], got["top_logprobs"], strict=True):
        if entry.logprob is None or entry.top is None:
            assert logprob is None
            assert top is None
            continue
        assert logprob == close(entry.logprob)
        assert list(top) == list(entry.top), "likeliest first, the token itself last where it is not among them"
        assert list(top.values()) == [close(value) for value in entry.top.values()]
        # Exactly: but of two tokens with one text the likelier one's number stands.
        if abs(entry.top[entry.token] - entry.logprob) < TOLERANCE:
            assert top[entry.token] == logprob


class close:  # noqa: N801  # reads like pytest.approx, and keeps dictionaries comparable
    """A number that equals others within TOLERANCE, and is finite."""

    def __init__(self, value: float) -> None:
        self.value = value

    __hash__ = None  # type: ignore[assignment]  # equal within a tolerance: no hash would do

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float | int) and math.isfinite(other) and abs(other - self.value) <= TOLERANCE

    def __repr__(self) -> str:
        return f"close({self.value})"
