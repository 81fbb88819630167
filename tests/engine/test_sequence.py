"""A candidate's events against a reading of all its tokens at once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.events import Delta, Event, Finished, FinishReason, Score, Token
from app.engine.sequence import Family, Sequence
from tests.engine.fakes import END, MARK, OTHER_END, PIECES, PROPERTY, job
from tests.engine.test_text import decoded, stopped_at

SCORE = Score(-0.5, [(3, -0.25)])


@dataclass
class Expected:
    """What a completion is: its text, its tokens as (id, offset), and its end."""

    text: str
    tokens: list[tuple[int, int]]
    reason: FinishReason
    n_sampled: int


def expected(tokens: list[int], stops: list[str], max_tokens: int, min_tokens: int = 0) -> Expected:
    """By brute force: the text is decoded anew after each token, and searched from its start."""
    n_open = 0
    for n in range(1, max_tokens + 1):
        if tokens[n - 1] in (END, OTHER_END):
            data = b"".join(PIECES[t] for t in tokens[: n - 1])
            text = decoded(data)[0]
            return Expected(text, [*spans(tokens[: n - 1]), (tokens[n - 1], len(text))], FinishReason.STOP, n)
        text = decoded(b"".join(PIECES[t] for t in tokens[:n]))[0]
        if n <= min_tokens:
            n_open = len(text)
        elif (at := stopped_at(text[n_open:], stops)) is not None:
            cut = n_open + at
            entries = [
                (token, offset)
                for i, (token, offset) in enumerate(spans(tokens[:n]))
                if offset < cut or ends_by(tokens[: i + 1], cut)
            ]
            return Expected(text[:cut], entries, FinishReason.STOP, n)
        if n == max_tokens:
            return Expected(text, spans(tokens[:n]), FinishReason.LENGTH, n)
    raise AssertionError("too few tokens")


def spans(tokens: list[int]) -> list[tuple[int, int]]:
    """Each token with the index of the character that holds its first byte (which of an empty one the next would
    have, unless a character is incomplete before it: then that one's)."""
    index_of = decoded(b"".join(PIECES[t] for t in tokens))[1]
    result: list[tuple[int, int]] = []
    at = 0
    for token in tokens:
        whole = len(decoded(b"".join(PIECES[t] for t in tokens[: len(result)]))[0])
        result.append((token, index_of[at] if PIECES[token] else whole))
        at += len(PIECES[token])
    return result


def ends_by(tokens: list[int], cut: int) -> bool:
    """Whether the text of these tokens, what is incomplete included, ends at the cut or before."""
    data = b"".join(PIECES[t] for t in tokens)
    return (decoded(data)[1][-1] + 1 if data else 0) <= cut


def run(sequence: Sequence, tokens: list[int], score: Score | None = SCORE) -> list[list[Event]]:
    """The events of each token, up to the end."""
    steps: list[list[Event]] = []
    for token in tokens:
        if sequence.is_finished:
            break
        steps.append(sequence.append(token, score, PIECES[token]))
    return steps


def sequence_of(**fields: Any) -> Sequence:
    return Sequence(Family("owner", 3, job([1, 2], **fields), 7), 0)


TOKENS = st.lists(st.one_of(st.integers(0, 4), st.integers(0, len(PIECES) - 1)), min_size=12, max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=3) | st.text("abcé €\ufffd", min_size=1, max_size=4), max_size=3)


@settings(PROPERTY, max_examples=120)
@given(TOKENS, STOPS, st.integers(1, 12), st.sampled_from([0, 0, 1, 3, 12]))
def test_the_events_add_up_to_the_completion(
    tokens: list[int], stops: list[str], max_tokens: int, min_tokens: int
) -> None:
    min_tokens = min(min_tokens, max_tokens)
    for i in range(min_tokens):
        tokens[i] = 0 if tokens[i] in (END, OTHER_END) else tokens[i]
    sequence = sequence_of(max_tokens=max_tokens, stops=tuple(stops), min_tokens=min_tokens, n_top=1)
    events = [event for step in run(sequence, tokens) for event in step]
    answer = expected(tokens, stops, max_tokens, min_tokens)
    last = events[-1]
    assert isinstance(last, Finished)
    assert [type(event) for event in events[:-1]] == [Delta] * (len(events) - 1)
    said = [event for event in events if isinstance(event, Delta | Finished)]
    assert "".join(event.text for event in said) == answer.text
    assert [(token.id, token.offset) for event in said for token in event.tokens] == answer.tokens
    assert (last.reason, last.n_sampled) == (answer.reason, answer.n_sampled)
    assert {(event.job, event.candidate) for event in said} == {(3, 0)}
    assert last.sum_logprob == pytest.approx(-0.5 * answer.n_sampled)


@settings(PROPERTY, max_examples=60)
@given(TOKENS, STOPS)
def test_no_event_says_nothing_and_none_is_late(tokens: list[int], stops: list[str]) -> None:
    sequence = sequence_of(max_tokens=12, stops=tuple(stops), token_ids=True)
    answer = expected(tokens, stops, 12)
    shown, n_entries = "", 0
    for n, step in enumerate(run(sequence, tokens), 1):
        for event in step:
            assert isinstance(event, Delta | Finished)
            assert event.n_sampled == n
            assert event.text or event.tokens or isinstance(event, Finished)
            shown += event.text
            n_entries += len(event.tokens)
        for _, offset in answer.tokens[n_entries:n]:
            assert offset >= len(shown), "a token whose text was shown came late"
        for token, offset in answer.tokens[:n_entries]:
            assert offset < len(shown) or not PIECES[token] or sequence.is_finished, "a token came before its text"


@settings(PROPERTY, max_examples=40)
@given(TOKENS, STOPS)
def test_tokens_are_reported_only_where_they_are_wanted(tokens: list[int], stops: list[str]) -> None:
    silent = [e for step in run(sequence_of(max_tokens=9, stops=tuple(stops)), tokens, None) for e in step]
    wanted = [e for step in run(sequence_of(max_tokens=9, stops=tuple(stops), n_top=0), tokens) for e in step]
    assert not any(event.tokens for event in silent if isinstance(event, Delta | Finished))
    texts = ["".join(e.text for e in events if isinstance(e, Delta | Finished)) for events in (silent, wanted)]
    assert texts[0] == texts[1]
    assert all(event.text for event in silent if isinstance(event, Delta))


def test_token_ids_alone_come_without_scores() -> None:
    sequence = sequence_of(max_tokens=1, token_ids=True, ranked=True)
    delta, end = sequence.append(0, SCORE, b"a")
    assert isinstance(delta, Delta)
    assert delta.tokens == [Token(0, 0, None)]
    assert isinstance(end, Finished)
    assert end.sum_logprob == -0.5


def test_scores_come_with_the_tokens_where_they_are_asked_for() -> None:
    (delta,) = sequence_of(max_tokens=2, n_top=1).append(0, SCORE, b"a")
    assert isinstance(delta, Delta)
    assert delta.tokens == [Token(0, 0, SCORE)]


def test_an_end_token_flushes_what_was_held_back_and_comes_last() -> None:
    sequence = sequence_of(max_tokens=9, stops=("abc",), n_top=0)
    assert sequence.append(2, SCORE, b"ab") == []
    (end,) = sequence.append(END, SCORE, b"")
    assert end == Finished(3, 0, "ab", [Token(2, 0, SCORE), Token(END, 2, SCORE)], FinishReason.STOP, 2, -1.0)


def test_an_end_token_on_the_last_allowed_place_is_a_stop() -> None:
    (end,) = sequence_of(max_tokens=1).append(END, None, b"")
    assert isinstance(end, Finished)
    assert end.reason == FinishReason.STOP


def test_a_stop_string_on_the_last_allowed_token_is_a_stop() -> None:
    *_, end = sequence_of(max_tokens=1, stops=("b",)).append(2, None, b"ab")
    assert isinstance(end, Finished)
    assert end.reason == FinishReason.STOP


@pytest.mark.parametrize(("min_tokens", "n_sampled", "text"), [(0, 1, ""), (1, 3, "ab"), (2, 3, "ab"), (3, 5, "abab")])
def test_stops_are_searched_for_behind_min_tokens(min_tokens: int, n_sampled: int, text: str) -> None:
    sequence = sequence_of(max_tokens=9, stops=("a",), min_tokens=min_tokens)
    said = [e for step in run(sequence, [0, 1, 0, 1, 0, 1]) for e in step if isinstance(e, Delta | Finished)]
    assert ("".join(event.text for event in said), said[-1].n_sampled) == (text, n_sampled)


def test_tokens_wholly_behind_a_stop_have_no_entry_and_one_astride_has() -> None:
    sequence = sequence_of(max_tokens=9, stops=("b c",), n_top=0)
    steps = run(sequence, [2, 5, 4, 0])  # "ab", " ", "c"; the last is not reached
    end = Finished(3, 0, "", [], FinishReason.STOP, 3, -1.5)
    assert steps == [[Delta(3, 0, "a", [Token(2, 0, SCORE)], 1)], [], [end]]


def test_a_mark_before_the_cut_is_kept_and_one_within_the_stop_is_not() -> None:
    sequence = sequence_of(max_tokens=9, stops=("bc",), n_top=0)
    events = [e for step in run(sequence, [0, MARK, 1, MARK, 4]) for e in step]
    tokens = [t for e in events if isinstance(e, Delta | Finished) for t in e.tokens]
    assert [(t.id, t.offset) for t in tokens] == [(0, 0), (MARK, 1)]


def test_an_incomplete_character_at_the_end_keeps_its_tokens_and_loses_its_text() -> None:
    sequence = sequence_of(max_tokens=3, n_top=0)
    events = [e for step in run(sequence, [0, 10, 11]) for e in step]
    (end,) = events[1:]
    assert isinstance(end, Finished)
    assert (end.text, [(t.id, t.offset) for t in end.tokens]) == ("", [(10, 1), (11, 1)])


# Positions


def test_all_of_a_prompt_is_needed_only_where_something_is_drawn_after_it() -> None:
    assert job([1, 2, 3], 1).n_needed == 3
    assert job([1, 2, 3], 0).n_needed == 0
    assert job([1, 2, 3], 0, score_from=1).n_needed == 2
    assert job([1], 0, score_from=1).n_needed == 0


@settings(PROPERTY, max_examples=40)
@given(st.integers(1, 6), st.integers(0, 6), st.data())
def test_tokens_are_a_slice_of_prompt_and_completion(n_prompt: int, n_generated: int, data: st.DataObject) -> None:
    text = [(7 * i) % 10 for i in range(n_prompt + n_generated)]
    sequence = Sequence(Family("owner", 0, job(text[:n_prompt], 20), 7), 0)
    for token in text[n_prompt:]:
        sequence.append(token, None, b"x")
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    found = sequence.tokens(start, stop)
    assert found.tolist() == text[start:stop]
    assert found.dtype == np.int32
    assert sequence.n_pending == len(text)


def test_the_first_row_wanted_is_that_before_the_first_score_missing() -> None:
    family = Family("owner", 0, job([1, 2, 3, 4], 2, score_from=2, n_top=0), 7)
    sequence = Sequence(family, 0)
    assert sequence.next_row == 1
    family.scores += [SCORE]
    assert sequence.next_row == 2
    family.scores += [SCORE]
    assert sequence.next_row == 3
    sequence.append(0, SCORE, b"a")
    assert sequence.next_row == 4


def test_candidates_of_one_seed_draw_from_generators_of_their_own() -> None:
    family = Family("owner", 0, job([1], 2), 7)
    first, again, second = (Sequence(family, k).rng.random() for k in (0, 0, 1))
    assert first == again != second
