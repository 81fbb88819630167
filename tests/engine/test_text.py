"""Transcript and Stops against a decoder and a search by brute force."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.engine.text import Stops, Transcript
from tests.engine.fakes import PROPERTY

_CODE_POINTS = [point for point in range(0x80, 0x110000, 64) if not 0xD800 <= point < 0xE000]
PREFIXES = frozenset(chr(point).encode()[:n] for point in _CODE_POINTS for n in (1, 2, 3)) - frozenset(
    chr(point).encode() for point in _CODE_POINTS
)
"""Every beginning of a character that is not yet one: the last byte's six bits are all that 64 apart leaves out."""

BYTES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"a", b"b", b"\n", "é".encode(), "€".encode(), "日".encode(), "😀".encode(), "\ufffd".encode()]
        ),
        st.sampled_from([b"\xc3", b"\xe2", b"\x82", b"\xe2\x82", b"\xf0\x9f", b"\xf0\x9f\x98", b"\x80", b"\xff"]),
        st.sampled_from([b"\xc0", b"\xe0", b"\xe0\x80", b"\xf0\x80", b"\xf4\x90", b"\xf5", b"\xed", b"\x9f", b"\xef"]),
        st.binary(min_size=1, max_size=2),
    ),
    max_size=8,
).map(b"".join)


def segments(data: bytes) -> list[bytes]:
    """The bytes of each character; an invalid sequence is cut behind its longest valid part (Unicode, table 3-7)."""
    found, at = [], 0
    while at < len(data):
        size = next((n for n in (1, 2, 3, 4) if _is_character(data[at : at + n])), 0)
        size = size or max((n for n in (1, 2, 3) if data[at : at + n] in PREFIXES and at + n <= len(data)), default=1)
        found.append(data[at : at + size])
        at += size
    return found


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def decoded(data: bytes) -> tuple[str, list[int]]:
    """The text of a finished transcript, and for each byte the index of its character in it."""
    parts = segments(data)
    index_of = [i for i, part in enumerate(parts) for _ in part]
    if parts and parts[-1] in PREFIXES:
        parts.pop()
    return b"".join(parts).decode(errors="replace"), index_of


def cut(data: bytes, marks: list[int]) -> list[bytes]:
    """Pieces of `data`, cut at the marks; equal marks make empty pieces."""
    edges = [0, *sorted(mark % (len(data) + 1) for mark in marks), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


MARKS = st.lists(st.integers(0, 63), max_size=12)


def has_surrogate(data: bytes) -> bool:
    """Whether an encoded surrogate begins in the data: CPython's decoder waits for all of it; see the tests below."""
    return any(first == 0xED and second >= 0xA0 for first, second in pairwise(data))


@settings(PROPERTY, max_examples=100)
@given(BYTES)
def test_the_oracle_cuts_bytes_as_the_decoder_does(data: bytes) -> None:
    parts = segments(data)
    assert b"".join(parts) == data
    assert [part.decode(errors="replace") for part in parts] == list(data.decode(errors="replace"))


@settings(PROPERTY, max_examples=100)
@given(BYTES, MARKS)
def test_text_does_not_depend_on_how_bytes_fall_into_tokens(data: bytes, marks: list[int]) -> None:
    assume(not has_surrogate(data))
    transcript = Transcript()
    shown = "".join([transcript.push(piece) for piece in cut(data, marks)])
    n_chars = transcript.n_chars
    text = shown + transcript.finish()
    assert text == decoded(data)[0]
    assert n_chars == transcript.n_shown == len(text)


@settings(PROPERTY, max_examples=100)
@given(BYTES, MARKS)
def test_a_token_starts_at_the_character_that_holds_its_first_byte(data: bytes, marks: list[int]) -> None:
    assume(not has_surrogate(data))
    index_of, transcript, at = decoded(data)[1], Transcript(), 0
    for piece in cut(data, marks):
        transcript.push(piece)
        if piece:
            assert transcript.start == index_of[at]
        at += len(piece)


@settings(PROPERTY, max_examples=50)
@given(BYTES, MARKS)
def test_an_empty_token_starts_between_its_neighbours(data: bytes, marks: list[int]) -> None:
    transcript, starts = Transcript(), []
    for piece in cut(data, marks):
        transcript.push(piece)
        starts.append(transcript.start)
    assert starts == sorted(starts)


@settings(PROPERTY, max_examples=50)
@given(BYTES, MARKS)
def test_what_has_begun_counts_the_incomplete_character(data: bytes, marks: list[int]) -> None:
    assume(not has_surrogate(data))
    transcript, seen = Transcript(), b""
    for piece in cut(data, marks):
        transcript.push(piece)
        seen += piece
        assert transcript.n_begun == len(segments(seen))


@settings(PROPERTY, max_examples=50)
@given(BYTES, MARKS)
def test_a_character_is_shown_with_its_last_byte(data: bytes, marks: list[int]) -> None:
    assume(not has_surrogate(data))
    transcript, seen, shown = Transcript(), b"", ""
    for piece in cut(data, marks):
        shown += transcript.push(piece)
        seen += piece
        assert shown == decoded(seen)[0]


@pytest.mark.parametrize("surrogate", [b"\xed\xa0\x80", b"\xed\xbf\xbf"])
def test_an_encoded_surrogate_is_three_invalid_bytes_in_any_cut(surrogate: bytes) -> None:
    transcript = Transcript()
    starts = []
    for byte in b"a" + surrogate + b"b":
        transcript.push(bytes([byte]))
        starts.append(transcript.start)
    assert starts == [0, 1, 2, 3, 4]


def test_half_a_surrogate_at_the_end_is_invalid_not_incomplete() -> None:
    transcript = Transcript()
    shown = "".join([transcript.push(piece) for piece in (b"a", b"\xed", b"\xa0")])
    assert shown + transcript.finish() == b"a\xed\xa0".decode(errors="replace") == "a\ufffd\ufffd"


STRINGS = st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=5)
TEXTS = st.text("abéc", max_size=16)


def stopped_at(text: str, stops: list[str]) -> int | None:
    """Where the match that is complete first begins; of those complete at one character the one that begins first."""
    for end in range(1, len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return min(begins)
    return None


def held_back(text: str, stops: list[str]) -> int:
    """Length of the longest tail that begins a stop."""
    return max(n for n in range(len(text) + 1) if any(stop.startswith(text[len(text) - n :]) for stop in stops))


@settings(PROPERTY, max_examples=100)
@given(TEXTS, STRINGS, MARKS)
def test_a_stop_that_completes_first_wins_however_the_text_falls_into_tokens(
    text: str, stops: list[str], marks: list[int]
) -> None:
    transcript, shown = Transcript(Stops(stops)), ""
    for piece in cut(text.encode(), marks):
        shown += transcript.push(piece)
        assert transcript.n_shown == len(shown)
        if transcript.stopped:
            break
    at = stopped_at(text, stops)
    assert transcript.stopped == (at is not None)
    assert shown + transcript.finish() == text[:at]
    assert transcript.n_shown == len(text[:at])


@settings(PROPERTY, max_examples=100)
@given(TEXTS, STRINGS, MARKS)
def test_exactly_the_longest_tail_that_begins_a_stop_is_held_back(
    text: str, stops: list[str], marks: list[int]
) -> None:
    transcript, seen, shown = Transcript(Stops(stops)), b"", ""
    final = text[: stopped_at(text, stops)]
    for piece in cut(text.encode(), marks):
        shown += transcript.push(piece)
        assert final.startswith(shown)
        if transcript.stopped:
            break
        seen += piece
        whole = decoded(seen)[0]
        assert shown == whole[: len(whole) - held_back(whole, stops)]


@settings(PROPERTY, max_examples=50)
@given(TEXTS, STRINGS, MARKS, st.integers(0, 6))
def test_text_is_neither_matched_nor_held_back_while_the_search_is_off(
    text: str, stops: list[str], marks: list[int], n_unsearched: int
) -> None:
    transcript, seen, shown, open_text = Transcript(Stops(stops)), b"", "", ""
    for i, piece in enumerate(cut(text.encode(), marks)):
        shown += transcript.push(piece, search=i >= n_unsearched)
        seen += piece
        if i < n_unsearched:
            open_text = decoded(seen)[0]
            assert shown == open_text
            assert not transcript.stopped
        if transcript.stopped:
            break
    rest = text[len(open_text) :]
    assert shown + transcript.finish() == open_text + rest[: stopped_at(rest, stops)]


@settings(PROPERTY, max_examples=60)
@given(BYTES, STRINGS, MARKS)
def test_invalid_bytes_and_stops_get_along(data: bytes, stops: list[str], marks: list[int]) -> None:
    assume(not has_surrogate(data))
    transcript, shown = Transcript(Stops([*stops, "\ufffdb"])), ""
    for piece in cut(data, marks):
        shown += transcript.push(piece)
        if transcript.stopped:
            break
    text = decoded(data)[0]
    assert shown + transcript.finish() == text[: stopped_at(text, [*stops, "\ufffdb"])]


def test_the_longer_of_two_stops_that_complete_together_cuts() -> None:
    transcript = Transcript(Stops(["b", "ab", "xab"]))
    assert transcript.push(b"-xa") == "-"
    assert transcript.push(b"b") == ""
    assert transcript.stopped
    assert transcript.finish() == ""


def test_a_longer_stop_that_is_not_complete_yet_does_not_delay_a_shorter_one() -> None:
    transcript = Transcript(Stops(["abcd", "b"]))
    assert transcript.push(b"xab") == "xa"
    assert transcript.stopped


def test_no_stops_are_falsy_and_hold_nothing_back() -> None:
    assert not Stops(())
    assert Stops(("a",))
