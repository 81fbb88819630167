"""What no client in its senses sends: strategies for bodies, from well-formed ones to bytes.

Owns what is sent; refuses to know what has to be answered. What a body asks for is kept cheap.
"""

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

CHEAP = 24
"""Tokens that one choice may ask for, where it does not ask for more than any context."""
LENGTHS = frozenset({"max_tokens", "min_tokens", "n_predict"})

_NUMBERS: list[Any] = [
    0, -1, 1, 2, 1.0, 1.5, -0.0, 5e-324, 1e-300, 1e308, -1e308, 127, 128, 129, 405, 406, 2**31 - 1, 2**31, -(2**31) - 1,
    2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, -(10**400),
    float("nan"), float("inf"), -float("inf"),
]  # fmt: skip
_TEXTS = [
    "", " ", "\x00", "a\x00b", "\ufeff", "\u2028", "\ud800", "\udfffa", "a" * 5000, "é" * 300, "\U0001f600", "</s>",
    "<s>", "<|mark|>", "<|im_end|>", "<|endoftext|>", "<|fim_prefix|>", "1", "-1", "1e5", "true", "null", "[]", "{}",
    "٣", "\r\n\r\n", "data: [DONE]\n\n", "../../etc/passwd", "\x1b[2J",
]  # fmt: skip


def _nested(depth: int, pair: str) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value] if pair == "[]" else {"prompt": value}
    return value


_SCALARS = st.one_of(
    st.none(), st.booleans(), st.sampled_from(_NUMBERS), st.sampled_from(_TEXTS), st.integers(), st.floats(),
    st.text(max_size=8),
)  # fmt: skip
_LISTS = st.one_of(
    st.lists(_SCALARS, max_size=4),
    st.sampled_from([["a"] * 1000, [0] * 1000, ["x" * 5000], [[]], [[0], []], [["a"]], [0, "a"], [[0], "a"]]),
    st.builds(_nested, st.integers(1, 400), st.sampled_from(["[]", "{}"])),
)
ODD: SearchStrategy[Any] = st.one_of(
    _SCALARS,
    _LISTS,
    st.dictionaries(st.one_of(st.sampled_from(_TEXTS), st.integers(-5, 500).map(str)), _SCALARS, max_size=4),
)
"""A value of any type, by preference at some border."""


def cheap(body: Any) -> Any:
    """The same body, asking for less work where it asks for much."""
    if not isinstance(body, dict):
        return body
    for field in LENGTHS & set(body):
        if type(body[field]) is int and (CHEAP < body[field] < 1 << 20 or (field == "n_predict" and body[field] < 0)):
            body[field] %= CHEAP
    return body


def named(bodies: SearchStrategy[Any], model: str) -> SearchStrategy[Any]:
    """Bodies that mostly name the model that is served."""
    return st.builds(lambda body, keep: body if keep else body | {"model": model}, bodies, st.integers(0, 9).map(bool))


def spoilt(bodies: SearchStrategy[Any], fields: list[str]) -> SearchStrategy[Any]:
    """Bodies in which some fields, unknown ones too, have odd values."""
    odd = st.dictionaries(st.sampled_from([*fields, "unknown", ""]), ODD, min_size=1, max_size=3)
    return st.builds(lambda body, wrong: body | wrong, bodies, odd)


def encoded(bodies: SearchStrategy[Any]) -> SearchStrategy[bytes]:
    """Bodies as JSON; NaN, Infinity and lone surrogates are written as Python writes them."""
    return bodies.map(lambda body: json.dumps(cheap(body)).encode())


_INSERTED = [
    b"", b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\xbd", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b"NaN", b"1e999",
    b"-0", b"[" * 2000, b'{"a":' * 2000, b'"', b"}", b",", b"\r\n", b"9" * 400,
]  # fmt: skip


@st.composite
def cut(draw: st.DrawFn, bodies: SearchStrategy[bytes]) -> bytes:
    """Bodies of which a piece is replaced by bytes that do not belong there."""
    body = draw(bodies)
    start = draw(st.integers(0, len(body)))
    end = draw(st.integers(start, min(len(body), start + 20)))
    return body[:start] + draw(st.one_of(st.sampled_from(_INSERTED), st.binary(max_size=6))) + body[end:]
