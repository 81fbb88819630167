"""What a sequence takes over from a resident or a running one, and who has to go for it."""

from collections.abc import Sequence as Ordered

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.cache import PrefixCache, Source, common_prefix, share
from app.engine.events import Score
from app.engine.sequence import Family, Sequence
from app.engine.slots import Slots
from tests.engine.fakes import PROPERTY, job
from tests.engine.test_scheduler import Cells

TOKENS = st.lists(st.integers(0, 2), max_size=8)


def array(tokens: Ordered[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def score(position: int, n_top: int = 0) -> Score:
    """One that betrays its position and its number of top entries."""
    return Score(-float(position), [(k, -float(position) - k) for k in range(n_top)])


def source(tokens: Ordered[int], *, first: int = 0, n_known: int = 0, n_top: int = 0, slot: int = 0) -> Source:
    """A source whose tokens first..n_known-1 were scored."""
    scores = [score(position, n_top) for position in range(first, n_known)]
    return Source(slot, array(tokens), [], len(tokens), scores, first, first + len(scores), n_top)


def wanting(prompt: Ordered[int], score_from: int | None = None, n_top: int = 0, max_tokens: int = 4) -> Sequence:
    fields = {} if score_from is None else {"score_from": score_from, "n_top": n_top}
    return Sequence(Family("owner", 0, job(prompt, max_tokens, **fields), 7), 0)


def taken(source: Source, sequence: Sequence, can_cut: bool = True) -> tuple[int, list[Score]] | None:
    found = share(source, sequence, can_cut)
    assert found is None or found.source is source
    return (found.n_tokens, found.scores) if found else None


# How far texts are alike


@given(TOKENS, TOKENS, TOKENS)
@settings(PROPERTY)
def test_a_common_prefix_is_as_long_as_it_can_be(same: list[int], a: list[int], b: list[int]) -> None:
    one, other = [*same, *a], [*same, *b]
    n = common_prefix(array(one), array(other))
    assert one[:n] == other[:n]
    assert n == min(len(one), len(other)) or one[n] != other[n]


# What is shared


@pytest.mark.parametrize(
    ("tokens", "n_shared"),
    [
        ([1, 2, 3, 4], 3),  # the last token is read: its row is wanted
        ([1, 2, 3, 4, 9, 9], 3),
        ([1, 2, 3], 3),
        ([1, 2, 3, 9], 3),
        ([1, 2, 9, 4], 2),
        ([1], 1),
    ],
)
def test_a_beginning_is_shared_up_to_the_last_token_but_one(tokens: list[int], n_shared: int) -> None:
    assert taken(source(tokens), wanting([1, 2, 3, 4])) == (n_shared, [])


@pytest.mark.parametrize("tokens", [[], [9], [9, 2, 3, 4]])
def test_nothing_is_shared_where_nothing_is_alike(tokens: list[int]) -> None:
    assert taken(source(tokens), wanting([1, 2, 3, 4])) is None


def test_a_prompt_of_one_token_shares_nothing() -> None:
    assert taken(source([1]), wanting([1])) is None


def test_what_was_generated_is_shared_as_well() -> None:
    sequence = wanting([1, 2])
    sequence.generated = [3, 4, 5]
    assert taken(source([1, 2, 3, 4, 5]), sequence) == (4, [])
    assert taken(source([1, 2, 3, 9]), sequence) == (3, [])


def test_a_part_is_taken_only_where_sources_can_be_cut() -> None:
    sequence = wanting([1, 2, 3, 4])
    assert taken(source([1, 2, 3]), sequence, can_cut=False) == (3, [])
    assert taken(source([1, 2, 9]), sequence, can_cut=False) is None
    assert taken(source([1, 2, 3, 4]), sequence, can_cut=False) is None


# Scores


PROMPT = [1, 2, 3, 4, 5, 6]


def scores(first: int, stop: int, n_top: int = 0) -> list[Score]:
    return [score(position, n_top) for position in range(first, stop)]


def test_scores_travel_with_the_tokens_and_that_of_the_first_token_to_be_read_too() -> None:
    """The row of the last shared token, which scores the token behind it, is not computed again."""
    found = taken(source(PROMPT, first=1, n_known=6), wanting(PROMPT, 1))
    assert found == (5, scores(1, 6))


def test_a_token_is_shared_only_if_the_one_behind_it_is_alike() -> None:
    """Else the score of the one behind it is lacking: the row has to be computed."""
    found = taken(source([1, 2, 3, 4, 9, 9], first=1, n_known=6), wanting(PROMPT, 1))
    assert found == (3, scores(1, 4))


def test_a_token_is_shared_only_if_the_score_behind_it_is_known() -> None:
    found = taken(source(PROMPT, first=1, n_known=4), wanting(PROMPT, 1))
    assert found == (3, scores(1, 4))


def test_without_scores_the_tokens_before_the_first_scored_row_are_shared() -> None:
    assert taken(source(PROMPT), wanting(PROMPT, 4)) == (3, [])
    assert taken(source(PROMPT), wanting(PROMPT, 1)) is None


@pytest.mark.parametrize("n_top", [0, 1, 3])
def test_fewer_top_entries_are_cut_from_more(n_top: int) -> None:
    found = taken(source(PROMPT, first=1, n_known=6, n_top=3), wanting(PROMPT, 1, n_top))
    assert found == (5, scores(1, 6, n_top))


def test_scores_with_too_few_top_entries_are_of_no_use() -> None:
    few = source(PROMPT, first=1, n_known=6, n_top=2)
    assert taken(few, wanting(PROMPT, 1, 3)) is None
    assert taken(few, wanting(PROMPT, 3, 3)) == (2, [])


def test_scores_that_begin_later_than_wanted_are_of_no_use() -> None:
    late = source(PROMPT, first=3, n_known=6)
    assert taken(late, wanting(PROMPT, 2)) == (1, [])
    assert taken(late, wanting(PROMPT, 3)) == (5, scores(3, 6))


def test_scores_that_begin_earlier_than_wanted_are_cut() -> None:
    assert taken(source(PROMPT, first=1, n_known=6), wanting(PROMPT, 4)) == (5, scores(4, 6))


def test_a_preempted_sequence_takes_the_scores_that_it_lacks() -> None:
    sequence = wanting(PROMPT, 1)
    sequence.family.scores += scores(1, 3)
    assert taken(source(PROMPT, first=1, n_known=6), sequence) == (5, scores(3, 6))


def test_one_whose_scores_are_complete_needs_none() -> None:
    sequence = wanting(PROMPT, 1, 3)
    sequence.family.scores += scores(1, 6, 3)
    assert taken(source(PROMPT), sequence) == (5, [])


def test_scoring_alone_reads_one_token_again() -> None:
    """The last token is not read at all, so that the one before it is."""
    assert taken(source(PROMPT[:5], first=1, n_known=6), wanting(PROMPT, 1, max_tokens=0)) == (4, scores(1, 5))


@st.composite
def scored_sources(draw: st.DrawFn) -> Source:
    tokens = draw(st.lists(st.integers(0, 1), min_size=1, max_size=7))
    first = draw(st.integers(1, len(tokens)))
    n_known = draw(st.integers(first, len(tokens)))
    return source(tokens, first=first, n_known=n_known, n_top=draw(st.integers(0, 2)))


@given(scored_sources(), st.lists(st.integers(0, 1), min_size=2, max_size=7), st.data(), st.booleans())
@settings(PROPERTY, max_examples=300)
def test_a_share_is_the_most_that_leaves_every_row_to_be_had(
    source: Source, prompt: list[int], data: st.DataObject, can_cut: bool
) -> None:
    first = data.draw(st.integers(1, len(prompt)))
    n_top = data.draw(st.integers(0, 2))
    sequence = wanting(prompt, first, n_top)
    known = {source.first + i for i in range(len(source.scores))} if n_top <= source.n_top else set()

    def will_do(n: int) -> bool:
        """Whether every score of a token up to the first one to be read is known, for the token that it is."""
        alike = source.tokens.tolist()[:n] == prompt[:n]
        needed = range(first, min(n + 1, len(prompt)))
        is_same = [i < len(source.tokens) and source.tokens[i] == prompt[i] for i in needed]
        return alike and all(is_same) and known.issuperset(needed)

    most = max(n for n in range(min(len(source.tokens), len(prompt) - 1) + 1) if n == 0 or will_do(n))
    found = share(source, sequence, can_cut)
    if most == 0 or (not can_cut and most != len(source.tokens)):
        assert found is None
    else:
        assert found is not None
        assert found.n_tokens == most
        assert found.scores == scores(first, max(most + 1, first), n_top)


# Sources


def running(prompt: list[int], n_computed: int, score_from: int | None = None, n_scored: int = 0) -> Sequence:
    sequence = wanting(prompt, score_from)
    sequence.slot, sequence.n_computed = 3, n_computed
    sequence.family.scores += scores(score_from or 0, (score_from or 0) + n_scored)
    return sequence


def test_a_source_is_what_a_sequence_has_read() -> None:
    sequence = running([1, 2, 3], 3)
    sequence.generated, sequence.n_computed = [7, 8], 4
    found = Source.of(sequence)
    assert (found.slot, found.tokens.tolist(), found.n_known) == (3, [1, 2, 3, 7], 0)


def test_a_source_knows_the_scores_of_its_sequence() -> None:
    found = Source.of(running(PROMPT, 4, 2, 3))
    assert (found.first, found.n_known, found.scores) == (2, 5, scores(2, 5))


def test_a_promise_is_what_a_sequence_will_have_read() -> None:
    found = Source.promised(running(PROMPT, 4, 2, 3))
    assert (found.tokens.tolist(), found.first, found.n_known) == (PROMPT, 2, 6)
    assert Source.promised(running(PROMPT, 4)).n_known == 0


# Residents


N_SLOTS = 6


class Place:
    """A cache over slots that nobody else uses."""

    def __init__(self, can_cut: bool = True) -> None:
        self.slots = Slots(Cells(), N_SLOTS, 1000)
        self.cache = PrefixCache(self.slots, can_cut=can_cut)

    def keep(self, tokens: list[int], **scored: int) -> Source:
        slot = self.slots.take()
        self.slots.grow(slot, len(tokens))
        resident = source(tokens, slot=slot, **scored)
        self.cache.keep(resident)
        return resident

    def leaves(self) -> list[list[int]]:
        """The residents in the order in which they are evicted; each frees its slot and its cells."""
        tokens = []
        while len(self.cache):
            n_used, n_idle, oldest = self.slots.n_used, self.slots.n_idle, self.cache._residents[0]
            assert self.cache.evict()
            tokens.append(oldest.tokens.tolist())
            assert (n_used - self.slots.n_used, self.slots.n_idle) == (len(oldest.tokens), n_idle + 1)
        assert not self.cache.evict()
        assert (self.slots.n_used, self.slots.n_idle) == (0, N_SLOTS)
        return tokens


def test_the_least_recently_used_goes_first() -> None:
    place = Place()
    first = place.keep([1, 1])
    place.keep([2, 2])
    place.keep([3, 3])
    place.cache.touch(first)
    assert place.leaves() == [[2, 2], [3, 3], [1, 1]]


def test_touching_what_is_no_resident_changes_nothing() -> None:
    place = Place()
    place.keep([1, 1])
    place.keep([2, 2])
    place.cache.touch(source([1, 1]))
    assert place.leaves() == [[1, 1], [2, 2]]


def test_one_may_be_spared() -> None:
    place = Place()
    first, second = place.keep([1, 1]), place.keep([2, 2])
    assert place.cache.evict(besides=first)
    assert place.cache._residents == [first]
    assert not place.cache.evict(besides=first)
    assert place.cache.evict(besides=second)
    assert place.leaves() == []


def test_the_longest_beginning_is_found_among_residents_and_those_that_run() -> None:
    place = Place()
    place.keep([1, 2, 9])
    wanted = wanting([1, 2, 3, 4, 5])
    found = place.cache.best(wanted, [running([1, 2, 3, 9], 4), running([8], 1)])
    assert found is not None
    assert (found.source.slot, found.n_tokens) == (3, 3)
    longest = place.keep([1, 2, 3, 4, 9])
    found = place.cache.best(wanted, [running([1, 2, 3, 9], 4)])
    assert found is not None
    assert (found.source, found.n_tokens) == (longest, 4)
    assert place.cache.best(wanting([7, 7]), []) is None


def test_of_a_running_sequence_only_what_it_has_read_is_there() -> None:
    found = Place().cache.best(wanting([1, 2, 3, 4, 5]), [running([1, 2, 3, 4], 2)])
    assert found is not None
    assert found.n_tokens == 2


def test_the_longest_share_wins_over_the_longest_likeness() -> None:
    """Scores that are lacking make a longer text the lesser source."""
    place = Place()
    place.keep(PROMPT)
    scored = place.keep(PROMPT[:4], first=1, n_known=4)
    found = place.cache.best(wanting(PROMPT, 1), [])
    assert found is not None
    assert (found.source, found.n_tokens) == (scored, 3)


@pytest.mark.parametrize(
    ("shorter", "longer", "goes"),
    [
        ({}, {}, True),
        ({}, {"first": 1, "n_known": 4}, True),
        ({"first": 1, "n_known": 3}, {}, False),
        ({"first": 1, "n_known": 3}, {"first": 1, "n_known": 3}, True),
        ({"first": 1, "n_known": 3}, {"first": 1, "n_known": 2}, False),
        ({"first": 1, "n_known": 3}, {"first": 2, "n_known": 4}, False),
        ({"first": 2, "n_known": 3}, {"first": 1, "n_known": 4}, True),
        ({"first": 1, "n_known": 3, "n_top": 2}, {"first": 1, "n_known": 4, "n_top": 1}, False),
        ({"first": 1, "n_known": 3, "n_top": 2}, {"first": 1, "n_known": 4, "n_top": 5}, True),
    ],
)
def test_a_resident_that_a_new_one_replaces_in_every_way_goes(
    shorter: dict[str, int], longer: dict[str, int], goes: bool
) -> None:
    place = Place()
    place.keep([1, 2, 3], **shorter)
    place.keep([1, 2, 3, 4], **longer)
    assert place.leaves() == [[1, 2, 3]] * (not goes) + [[1, 2, 3, 4]]


def test_a_resident_that_a_new_one_only_resembles_stays() -> None:
    place = Place()
    place.keep([1, 2, 3])
    place.keep([1, 2, 4, 5])
    place.keep([1, 2])
    assert len(place.leaves()) == 3


def test_where_nothing_can_be_cut_only_the_same_replaces_a_resident() -> None:
    place = Place(can_cut=False)
    place.keep([1, 2])
    place.keep([1, 2, 3])
    place.keep([1, 2])
    assert place.leaves() == [[1, 2, 3], [1, 2]]
