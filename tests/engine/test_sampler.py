"""Sampling against float64, stable sorts and the inverse of the distribution function by brute force."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.crew import Crew
from app.engine.history import History
from app.engine.params import Bias, SamplingParams
from app.engine.sampler import Drawn, Sampler, Want, generator, merged_ids
from app.engine.weights import LANES, Nucleus, largest
from tests.engine.fakes import PROPERTY, log_softmax

SIZES = (1, 5, 513, 3000, LANES - 1, LANES, LANES + 1, 3 * LANES + 7)
LAST = 1 - 2**-53
"""The largest number that a generator draws."""
N_GRID = 256


def normaliser(row: NDArray[np.float32], sampler: Sampler | None = None) -> float:
    return (sampler or Sampler(len(row))).scores(row[None], 0)[0].normaliser


def rows(n_vocab: int, seed: int, scale: float = 3.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, scale, n_vocab).astype(np.float32)


class Drawing:
    """What a sampler draws from one row. Raises what it raises."""

    def __init__(
        self, row: NDArray[np.float32], params: SamplingParams, sampler: Sampler | None = None, **more: Any
    ) -> None:
        self._rows = row[None]
        self._sampler = sampler or Sampler(len(row))
        self._want: Callable[[list[float]], Want] = lambda uniforms: Want(0, params, uniforms, **more)
        self.draw(0.5)

    def draws(self, uniforms: list[float]) -> list[int]:
        return self._sampler.sample(self._rows, [self._want(uniforms)])[0].tokens

    def draw(self, uniform: float) -> int:
        return self.draws([uniform])[0]


def grid(draw: Drawing, n: int = N_GRID) -> dict[int, int]:
    """How often each token is drawn, over n evenly spread uniforms. Whatever the order of the tokens in the
    distribution: as each holds one interval, it is n times its probability, give or take one."""
    return dict(Counter(draw.draws([(i + 0.5) / n for i in range(n)])))


def assert_distribution(draw: Drawing, expected: NDArray[np.float64], n: int = N_GRID) -> None:
    """`expected`: a probability for each token, 0 for those that may not be drawn."""
    counts = grid(draw, n)
    for edge in (0.0, LAST):
        assert expected[draw.draw(edge)] > 0
    for token, p in enumerate(expected):
        count = counts.get(token, 0)
        assert abs(count - p * n) <= 1 + 1e-3, f"token {token} of probability {p} was drawn {count} of {n} times"
        assert p > 0 or not count


def reference(row: NDArray[Any], params: SamplingParams) -> NDArray[np.float64]:
    """Temperature, top_k, top_p, min_p in float64; ties go to the smaller id."""
    logits = row.astype(np.float64)
    if params.temperature < 1e-5:
        return np.where(np.arange(len(row)) == logits.argmax(), 1.0, 0.0)
    with np.errstate(divide="ignore"):
        p = np.exp(log_softmax(logits / params.temperature))
    order = np.argsort(-logits, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    shares = p[order] / p[order].sum()
    if params.top_p < 1:
        n_kept, mass = 0, 0.0
        while n_kept < len(order) and (n_kept == 0 or mass < params.top_p):
            mass += shares[n_kept]
            n_kept += 1
        order = order[:n_kept]
    order = np.array([i for i in order if p[i] >= params.min_p * p[order[0]]])
    kept = np.zeros(len(row))
    kept[order] = p[order]
    result: NDArray[np.float64] = kept / kept.sum()
    return result


def distribution(
    row: NDArray[np.float32],
    history: History | None = None,
    banned: NDArray[np.int64] | None = None,
    **fields: Any,
) -> Drawing:
    return Drawing(row, SamplingParams(**fields), history=history, banned=banned)


# The normaliser


@pytest.mark.parametrize("n_vocab", SIZES)
@pytest.mark.parametrize("scale", [0.0, 0.01, 3.0, 60.0])
def test_the_normaliser_is_log_sum_exp(n_vocab: int, scale: float) -> None:
    row = rows(n_vocab, 1, scale)
    exact = float(row[0]) - log_softmax(row)[0]
    assert normaliser(row) == pytest.approx(exact, abs=2e-6)


@pytest.mark.parametrize("offset", [-1e4, -90.0, 90.0, 1e4])
def test_a_large_offset_overflows_nothing(offset: float) -> None:
    row = rows(600, 2) + np.float32(offset)
    exact = float(row[0]) - log_softmax(row)[0]
    assert normaliser(row) == pytest.approx(exact, rel=1e-7, abs=2e-6)


def test_impossible_tokens_leave_the_normaliser_alone() -> None:
    row = rows(700, 3)
    row[::2] = -np.inf
    assert normaliser(row) == pytest.approx(float(row[1]) - log_softmax(row[1::2])[0], abs=2e-6)


def test_a_second_row_leaves_nothing_of_the_first() -> None:
    sampler = Sampler(513)
    normaliser(rows(513, 4, 20), sampler)
    row = rows(513, 5)
    assert normaliser(row, sampler) == normaliser(row)


# The largest


@pytest.mark.parametrize("n_vocab", SIZES)
@pytest.mark.parametrize("k", [1, 2, 5, 20, 511, 513, 4000])
def test_the_largest_are_those_of_a_stable_sort(n_vocab: int, k: int) -> None:
    rng = np.random.default_rng(n_vocab * 31 + k)
    tied = [rng.integers(0, n_values, n_vocab).astype(np.float32) for n_values in (1, 3, 50)]
    for row in (*tied, rows(n_vocab, k)):
        assert largest(row, k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()


@settings(PROPERTY, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([600, 2047, 2049, 6000]), st.integers(1, 8), st.integers(1, 6))
def test_the_largest_lie_in_the_blocks_of_the_largest_maxima(seed: int, n_vocab: int, k: int, n_values: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 0.01, n_vocab).astype(np.float32)
    peaks = rng.integers(0, n_vocab, 2 * k)
    row[peaks] = rng.integers(1, n_values + 1, 2 * k)
    assert largest(row, k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()


def test_impossible_tokens_come_last_among_the_largest() -> None:
    row = np.full(2000, -np.inf, np.float32)
    row[[1999, 3]] = 1.0
    assert largest(row, 4).tolist() == [3, 1999, 0, 1]


# The draw


@pytest.mark.parametrize("n_vocab", SIZES)
def test_a_token_is_drawn_as_often_as_it_is_likely(n_vocab: int) -> None:
    row = rows(n_vocab, 6)
    assert_distribution(distribution(row), np.exp(log_softmax(row)), 1024)


@pytest.mark.parametrize("n_vocab", SIZES)
def test_all_shares_together_are_the_whole_and_no_two_overlap(n_vocab: int) -> None:
    """As the uniform grows, no token comes back."""
    found = distribution(rows(n_vocab, 6)).draws([i / 2000 for i in range(2000)])
    changes = [token for token, before in zip(found, [-1, *found], strict=False) if token != before]
    assert len(changes) == len(set(changes))


@pytest.mark.parametrize("n_vocab", SIZES)
@pytest.mark.parametrize("uniform", [0.0, 2**-53, 0.5, LAST])
def test_an_impossible_token_is_never_drawn(n_vocab: int, uniform: float) -> None:
    for possible in {0, n_vocab // 2, n_vocab - 1, min(511, n_vocab - 1), min(512, n_vocab - 1)}:
        row = np.full(n_vocab, -np.inf, np.float32)
        row[possible] = -3.0
        assert distribution(row).draw(uniform) == possible
        assert distribution(row, top_p=0.9999).draw(uniform) == possible


@settings(PROPERTY, max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from(SIZES), st.sampled_from([0.0, 2**-53, 1e-9, 1 - 1e-9, LAST]))
def test_of_a_row_with_few_possible_tokens_one_of_them_is_drawn(seed: int, n_vocab: int, uniform: float) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 30, n_vocab).astype(np.float32)
    row[rng.random(n_vocab) < 0.95] = -np.inf
    row[rng.integers(n_vocab)] = 0.0
    for fields in ({}, {"top_k": 3}, {"top_p": 0.999}, {"min_p": 1e-6}, {"temperature": 0.3}):
        assert np.isfinite(row[distribution(row, **fields).draw(uniform)])


def test_a_nucleus_is_drawn_from_by_weight() -> None:
    draw = Nucleus(np.array([7, 2, 9, 4, 1, 0]), np.array([5, 3, 1, 0, 1, 0], np.float32))
    found = [draw.draw((i + 0.5) / 10) for i in range(10)]
    assert found == [7] * 5 + [2] * 3 + [9] + [1]
    assert (draw.draw(0.0), draw.draw(LAST)) == (7, 1)


def test_frequencies_of_many_draws_are_the_distribution() -> None:
    row = np.log(np.array([30, 20, 15, 10, 10, 5, 4, 3, 2, 1], np.float32))
    rng, n = generator(11, 0), 20_000
    counts = np.bincount(distribution(row).draws(rng.random(n).tolist()), minlength=len(row))
    expected = np.exp(log_softmax(row)) * n
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 27.9  # nine degrees of freedom exceed it once in a thousand seeds


# Truncation


@pytest.mark.parametrize("temperature", [0.0, 9e-6, 0.05, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("n_vocab", [5, 513])
def test_temperature_divides_the_logits(temperature: float, n_vocab: int) -> None:
    row = rows(n_vocab, 7)
    expected = reference(row, SamplingParams(temperature))
    assert_distribution(distribution(row, temperature=temperature), expected)


@settings(PROPERTY, max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    n_vocab=st.sampled_from([1, 2, 12, 511, 512, 513, 1300]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 2, 3, 40, 5000]),
    top_p=st.sampled_from([0.0, 0.01, 0.5, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
)
def test_truncation_keeps_what_a_plain_sort_keeps(
    seed: int, n_vocab: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = rows(n_vocab, seed)
    params = SamplingParams(temperature, top_k, top_p, min_p)
    assert_distribution(Drawing(row, params), reference(row, params))


@pytest.mark.parametrize(
    ("fields", "n_kept"),
    [
        ({"top_k": 2}, 2),
        ({"top_p": 0.0}, 1),
        ({"top_p": 0.399}, 1),
        ({"top_p": 0.401}, 2),
        ({"top_p": 0.699}, 2),
        ({"top_p": 0.701}, 3),
        ({"top_k": 2, "top_p": 0.57}, 1),  # 0.4 of 0.7 is 0.571
        ({"top_k": 2, "top_p": 0.58}, 2),
        ({"min_p": 0.49}, 3),
        ({"min_p": 0.51}, 2),
        ({"min_p": 0.76}, 1),
        ({"min_p": 1.0}, 1),
        ({"top_p": 0.701, "min_p": 0.51}, 2),
    ],
)
def test_truncation_in_numbers(fields: dict[str, Any], n_kept: int) -> None:
    row = np.log(np.array([0.1, 0.3, 0.4, 0.2], np.float32))
    order = [2, 1, 3, 0]
    expected = np.zeros(4)
    expected[order[:n_kept]] = np.array([0.4, 0.3, 0.2, 0.1])[:n_kept]
    assert_distribution(distribution(row, **fields), expected / expected.sum())


@pytest.mark.parametrize(
    ("fields", "n_kept"), [({"top_k": 3}, 3), ({"top_p": 0.25}, 3), ({"top_k": 1}, 1), ({"top_p": 0.0}, 1)]
)
def test_of_equal_logits_the_smaller_id_is_kept(fields: dict[str, Any], n_kept: int) -> None:
    assert set(grid(distribution(np.zeros(12, np.float32), **fields))) == set(range(n_kept))


def test_equal_logits_are_all_kept_by_min_p() -> None:
    assert_distribution(distribution(np.zeros(600, np.float32), min_p=1.0), np.full(600, 1 / 600))


@pytest.mark.parametrize("n_vocab", [5, 3000])
def test_a_greedy_tie_goes_to_the_smaller_id(n_vocab: int) -> None:
    row = np.zeros(n_vocab, np.float32)
    row[[4, 2]] = 1.0
    assert grid(distribution(row, temperature=0.0), 4) == {2: 4}
    assert grid(distribution(row, top_k=1), 4) == {2: 4}


# Bias, bans, penalties


def test_a_bias_is_added_to_the_logit() -> None:
    row = rows(600, 8)
    biased = row.copy()
    biased[3] += 2.5
    biased[599] -= 4.0
    expected = np.exp(log_softmax(biased))
    assert_distribution(distribution(row, bias=Bias.of({3: 2.5, 599: -4.0})), expected)


def test_a_bias_of_minus_100_bans_exactly() -> None:
    row = np.array([1000.0, 0.0, 500.0], np.float32)
    for uniform in (0.0, 0.5, LAST):
        assert distribution(row, bias=Bias.of({0: -100, 2: -100.0})).draw(uniform) == 1
        assert distribution(row, bias=Bias.of({0: -100, 2: -100}), temperature=0.0).draw(uniform) == 1


def test_a_bias_just_above_minus_100_is_a_number() -> None:
    row = np.array([1000.0, 0.0], np.float32)
    assert distribution(row, bias=Bias.of({0: -99.5})).draw(0.5) == 0


def test_a_bias_of_100_selects_exclusively() -> None:
    row = np.array([1000.0, 0.0, -700.0], np.float32)
    for uniform in (0.0, 0.5, LAST):
        assert distribution(row, bias=Bias.of({2: 100, 1: 99.5})).draw(uniform) == 2


def test_of_several_tokens_at_100_one_is_drawn_by_their_own_logits() -> None:
    row = np.array([50.0, math.log(3), 0.0, 80.0], np.float32)
    draw = distribution(row, bias=Bias.of({1: 100, 2: 100, 3: -5.0}))
    assert_distribution(draw, np.array([0, 0.75, 0.25, 0]))


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.5}, {"top_p": 0.6}, {"top_k": 3}, {"temperature": 0.0}])
@pytest.mark.parametrize("logit", [5.0, 60.0, 90.0, 500.0])
def test_what_a_banned_token_outweighs_is_drawn_as_if_that_were_impossible(
    fields: dict[str, Any], logit: float
) -> None:
    row = rows(3 * LANES, 4)
    row[[7, 8]] = logit
    without = row.copy()
    without[[7, 8]] = -np.inf
    out = np.array([7, 8])
    for n_top in (None, 0):
        drawing = Drawing(row, SamplingParams(**fields), banned=out, n_top=n_top)
        assert grid(drawing) == grid(distribution(without, **fields))


def test_banned_tokens_are_not_drawn() -> None:
    row = np.array([9.0, 1.0, 1.0], np.float32)
    assert_distribution(distribution(row, banned=merged_ids([0], frozenset({2}))), np.array([0.0, 1.0, 0.0]))


def test_merged_ids_are_those_of_all_groups_or_none() -> None:
    merged = merged_ids(frozenset({5, 1}), (), [1, 3])
    assert merged is not None
    assert merged.tolist() == [1, 3, 5]
    assert merged_ids(frozenset(), ()) is None


PENALTIES = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.3, 2.0]),
        "frequency_penalty": st.sampled_from([0.0, -2.0, 0.4, 2.0]),
        "presence_penalty": st.sampled_from([0.0, -1.5, 0.7, 2.0]),
    }
)


def penalised(
    row: NDArray[Any],
    prompt: list[int],
    generated: list[int],
    repetition_penalty: float,
    frequency_penalty: float,
    presence_penalty: float,
) -> NDArray[np.float64]:
    """The contract's formulas, token by token."""
    result = row.astype(np.float64)
    for token in set(prompt) | set(generated):
        result[token] *= 1 / repetition_penalty if result[token] > 0 else repetition_penalty
    for token in set(generated):
        result[token] -= generated.count(token) * frequency_penalty + presence_penalty
    return result


@settings(PROPERTY, max_examples=80)
@given(
    st.lists(st.integers(0, 11), max_size=6), st.lists(st.integers(0, 11), max_size=12), PENALTIES, st.integers(0, 99)
)
def test_penalties_follow_their_formulas(
    prompt: list[int], generated: list[int], penalties: dict[str, Any], seed: int
) -> None:
    row = rows(12, seed, 2.0)
    history = History(np.array(prompt, np.int32))
    for token in generated:
        history.add(token)
    found = row.copy()
    history.penalise(found, SamplingParams(**penalties))
    assert found == pytest.approx(penalised(row, prompt, generated, **penalties), abs=1e-5)


def test_a_history_grows_with_the_completion() -> None:
    n_vocab = 1000
    row, history = rows(n_vocab, 9), History(np.array([3, 3, 5], np.int32))
    generated = [int(i) for i in np.random.default_rng(1).integers(0, n_vocab, 700)]
    for n, token in enumerate(generated, 1):
        history.add(token)
        if n in (1, 64, 65, 66, 67, 128, 200, 700):
            found = row.copy()
            history.penalise(found, SamplingParams(1.0, 0, 1.0, 0.0, 1.2, 0.5, 0.25))
            assert found == pytest.approx(penalised(row, [3, 5], generated[:n], 1.2, 0.5, 0.25), abs=1e-4)


def test_bias_comes_before_penalties_and_penalties_before_temperature() -> None:
    row = np.array([-1.0, 0.5, 0.2, 0.0], np.float32)
    history = History(np.array([0], np.int32))
    history.add(1)
    history.add(1)
    fields: dict[str, Any] = {"repetition_penalty": 2.0, "frequency_penalty": 0.3, "presence_penalty": 0.1}
    draw = distribution(row, history, None, temperature=0.5, bias=Bias.of({0: 3.0, 2: -1.0}), **fields)
    # token 0: (-1 + 3) / 2 = 1; token 1: 0.5 / 2 - 2 * 0.3 - 0.1 = -0.45; token 2: 0.2 - 1 = -0.8
    expected = np.exp(log_softmax(np.array([1.0, -0.45, -0.8, 0.0]) / 0.5))
    assert_distribution(draw, expected, 1024)


def test_truncation_sees_penalised_logits() -> None:
    row = np.array([2.0, 1.9, 0.0], np.float32)
    history = History(np.array([2], np.int32))
    history.add(0)
    assert grid(distribution(row, history, None, top_k=1, presence_penalty=1.0), 4) == {1: 4}
    assert grid(distribution(row, history, None, top_p=0.5, presence_penalty=1.0), 4) == {1: 4}


def test_penalties_and_bans_lift_no_ban() -> None:
    row = np.array([4.0, 1.0], np.float32)
    history = History(np.array([0], np.int32))
    history.add(0)
    draw = distribution(row, history, None, bias=Bias.of({0: -100}), frequency_penalty=-2.0, repetition_penalty=0.5)
    assert grid(draw, 8) == {1: 8}


def test_the_smallest_repetition_penalty_lifts_no_ban_and_breaks_no_row() -> None:
    history = History(np.array([0, 1], np.int32))
    for bias in ({0: -100.0}, {2: 100.0}):
        draw = Drawing(
            np.array([4.0, -1.0, 1.0], np.float32), SamplingParams(repetition_penalty=1e-50, bias=Bias.of(bias)),
            history=history,
        )  # fmt: skip
        assert 0 not in grid(draw, 8)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.5}, {"top_p": 0.5}, {"temperature": 0.0}, {"top_k": 3}])
def test_the_row_is_left_as_it_is(fields: dict[str, Any]) -> None:
    row = rows(600, 10)
    before, history = row.copy(), History(np.array([1], np.int32))
    history.add(2)
    sampler = Sampler(600)
    normaliser(row, sampler)
    bias = Bias.of({4: 3.0, 5: 100.0, 6: 100})
    params = SamplingParams(**fields, bias=bias, presence_penalty=1.0)
    Drawing(row, params, sampler, history=history, banned=np.array([7]), n_top=0)
    Drawing(row, SamplingParams(**fields), sampler, n_top=0)
    assert (row == before).all()


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.5}, {"top_p": 0.7}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_a_row_that_is_scored_is_drawn_from_as_any_other(fields: dict[str, Any]) -> None:
    sampler = Sampler(600)
    for seed in (11, 12):
        row, params = rows(600, seed), SamplingParams(**fields)
        assert grid(Drawing(row, params, sampler, n_top=0)) == grid(distribution(row, **fields))


# Wide vocabularies, whose weights are forgotten lane by lane


WIDE = 3 * LANES + 7


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.5}, {"temperature": 2.0}], ids=str)
@pytest.mark.parametrize("offset", [0.0, -300.0, 300.0])
def test_a_banned_token_is_never_drawn_from_the_lane_that_it_shares(fields: dict[str, Any], offset: float) -> None:
    row = np.full(WIDE, -50.0, np.float32)
    row[[9, 9 + LANES]] = 12.0, 3.0
    row[[8, 8 + 2 * LANES]] = 3.0, 12.0
    draw = distribution(row + np.float32(offset), None, np.array([9, 8 + 2 * LANES]), **fields)
    assert set(grid(draw)) == {9 + LANES, 8}


@pytest.mark.parametrize("offset", [0.0, -300.0, 300.0])
def test_scores_know_nothing_of_bans(offset: float) -> None:
    row = rows(WIDE, 3) + np.float32(offset)
    likeliest = np.argsort(-row)[:2]
    [drawn] = Sampler(WIDE).sample(row[None], [Want(0, SamplingParams(), [0.5], None, likeliest, 3)])
    exact = log_softmax(row)
    assert drawn.scores
    assert drawn.tokens[0] not in likeliest
    assert [token for token, _ in drawn.scores.top] == np.argsort(-row)[:3].tolist()
    for token, logprob in drawn.scores.top:
        assert logprob == pytest.approx(exact[token], abs=5e-5)


@settings(PROPERTY, max_examples=60)
@given(seed=st.integers(0, 2**32), n_values=st.integers(1, 6), n_top=st.integers(1, 20), n_rows=st.integers(1, 3))
def test_of_equally_likely_tokens_the_first_are_listed(seed: int, n_values: int, n_top: int, n_rows: int) -> None:
    """Few values, so that lanes hold the same; the last tokens, whose lanes are deeper than others, among them."""
    random = np.random.default_rng(seed)
    given_rows = random.integers(-n_values, 1, (n_rows, WIDE)).astype(np.float32)
    given_rows[:, -1] = random.integers(0, 2)
    for row, scores in zip(given_rows, Sampler(WIDE).scores(given_rows, n_top), strict=True):
        assert [token for token, _ in scores.top] == np.argsort(-row, kind="stable")[:n_top].tolist()


def test_of_two_logits_next_to_each_other_the_larger_is_listed() -> None:
    """Though in float32 the weight of the smaller may be the larger one."""
    below = np.random.default_rng(4).uniform(-9, 9, 1 << 21).astype(np.float32)
    above = np.nextafter(below, np.float32(99))
    inverted = np.flatnonzero(np.exp(above) < np.exp(below))
    row = np.full(WIDE, -50.0, np.float32)
    sampler = Sampler(WIDE)
    for i in [*inverted, 0]:
        row[[10, 20]] = below[i], above[i]
        assert [token for token, _ in sampler.scores(row[None], 1)[0].top] == [20]


def test_a_banned_token_may_be_so_likely_that_its_weight_overflows() -> None:
    row = np.zeros(WIDE, np.float32)
    row[0] = 200.0
    draw = distribution(row, None, np.array([0]))
    assert draw.draw(0.0) == LANES


def test_the_last_token_is_likely_in_its_own_lane_alone() -> None:
    row = np.linspace(-20, -19, WIDE, dtype=np.float32)
    row[[WIDE - 1, LANES - 1, 500]] = 2.0, 1.0, 0.0
    assert set(grid(distribution(row))) == {WIDE - 1, LANES - 1, 500}
    assert [token for token, _ in Sampler(WIDE).scores(row[None], 3)[0].top] == [WIDE - 1, LANES - 1, 500]


def test_a_number_at_the_very_end_of_a_lane_still_finds_a_token_of_it() -> None:
    """Where sums in float32 and in float64 part ways by a bit."""
    row = rows(WIDE, 8)
    lanes = np.zeros((4, LANES))
    lanes.ravel()[:WIDE] = np.exp(row.astype(np.float64))
    edges = lanes.sum(axis=0).cumsum() / lanes.sum()
    for nudge in (1 - 1e-7, 1 - 1e-9, 1.0, 1 + 1e-9):
        tokens = distribution(row).draws((edges[:-1] * nudge).tolist())
        assert max(tokens) < WIDE
        off = (np.array(tokens) - np.arange(LANES - 1)) % LANES
        assert set(off.tolist()) <= {0, 1, LANES - 1}, "that lane, or one beside it"


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"bias": Bias.of({2: 4.0})}], ids=str)
def test_more_rows_than_are_at_hand_at_once_come_to_what_each_comes_to_alone(fields: dict[str, Any]) -> None:
    n_vocab = 1 << 17
    given_rows = np.stack([rows(n_vocab, seed) for seed in range(5)])
    params = SamplingParams(**fields)
    together = Sampler(n_vocab).sample(given_rows, [Want(i, params, [0.1, 0.9]) for i in range(5)])
    alone = [Sampler(n_vocab).sample(row[None], [Want(0, params, [0.1, 0.9])])[0] for row in given_rows]
    assert [drawn.tokens for drawn in together] == [drawn.tokens for drawn in alone]


# Crowds


WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_p": 0.9},
    {"temperature": 1.3, "top_k": 7},
    {"min_p": 0.05},
    {"bias": Bias.of({2: 4.0, 3: -100.0})},
    {"temperature": 0.0, "bias": Bias.of({1: 100.0})},
]


@settings(PROPERTY, max_examples=60)
@given(
    n_vocab=st.sampled_from([5, 300, LANES + 3, 1 << 17]),
    asked=st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from(WAYS), st.lists(st.floats(0, LAST), min_size=1, max_size=3),
            st.booleans(), st.booleans(),
        ),
        min_size=1, max_size=9,
    ),
)  # fmt: skip
def test_in_a_crowd_each_row_comes_to_what_it_comes_to_alone(
    n_vocab: int, asked: list[tuple[int, dict[str, Any], list[float], bool, bool]]
) -> None:
    given_rows = np.stack([rows(n_vocab, seed, 8.0) for seed in range(6)])
    given_rows[1] += 200.0
    given_rows[2] -= 500.0

    def want(row: int, fields: dict[str, Any], uniforms: list[float], scored: bool, banned: bool) -> Want:
        out = np.array([0, 4]) if banned else None
        return Want(row, SamplingParams(**fields), uniforms, None, out, 2 if scored else None)

    wants = [want(*one) for one in asked]
    alone = [told(*Sampler(n_vocab).sample(given_rows[one[0]][None], [want(0, *one[1:])])) for one in asked]
    for several in (Sampler(n_vocab), Crew(n_vocab, 1), Crew(n_vocab, 3)):
        assert [told(drawn) for drawn in several.sample(given_rows, wants)] == alone


def told(drawn: Drawn) -> tuple[list[int], float | None, list[tuple[int, float]]]:
    """Tokens, normaliser and likeliest tokens."""
    scores = drawn.scores
    return drawn.tokens, scores.normaliser if scores else None, scores.top if scores else []


def test_what_is_wanted_of_a_row_comes_back_in_its_place() -> None:
    """Row i leaves nothing but token i."""
    n = 700
    given_rows = np.full((n, n), -np.inf, np.float32)
    np.fill_diagonal(given_rows, 0.0)
    order = np.random.default_rng(5).permutation(n).tolist()
    wants = [
        Want(i, SamplingParams(**WAYS[i % 3]), [0.3] * (i % 2 + 1), n_top=3 if i % 5 == 0 else None) for i in order
    ]
    drawn = Sampler(n).sample(given_rows, wants)
    assert [d.tokens for d in drawn] == [[i] * (i % 2 + 1) for i in order]


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.5}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 2}])
@pytest.mark.parametrize("bad", [[np.nan, 1.0, 2.0], [1.0, 2.0, np.nan], [-np.inf] * 3, [np.inf, 1.0, 2.0]])
def test_a_row_with_a_nan_or_without_a_finite_logit_is_a_fault(fields: dict[str, Any], bad: list[float]) -> None:
    row = np.array(bad, np.float32)
    with pytest.raises(FloatingPointError):
        distribution(row, **fields)
    with pytest.raises(FloatingPointError):
        normaliser(row)


def test_a_row_with_nothing_left_to_draw_is_a_fault() -> None:
    row = np.zeros(2, np.float32)
    for temperature in (0.0, 1.0):
        with pytest.raises(FloatingPointError):
            distribution(row, None, np.array([0, 1]), temperature=temperature)


# Generators


def test_the_same_seed_and_choice_draw_the_same() -> None:
    assert generator(5, 3).random(8).tolist() == generator(5, 3).random(8).tolist()


def test_choices_and_seeds_draw_differently() -> None:
    seeds = [0, 1, 2, 2**63, 2**64 - 1, 2**128 - 1]
    draws = {tuple(generator(seed, choice).random(4)) for seed in seeds for choice in range(4)}
    assert len(draws) == len(seeds) * 4


def test_a_seed_and_its_negative_draw_differently() -> None:
    draws = {tuple(generator(seed & (2**64 - 1), 0).random(4)) for seed in (1, -1, 7, -7, -(2**63), 2**63 - 1)}
    assert len(draws) == 6


def test_a_choice_does_not_depend_on_how_many_there_are() -> None:
    """The first of many has the same numbers as the only one, and they look uniform."""
    draws = generator(0, 0).random(2000)
    assert abs(float(draws.mean()) - 0.5) < 0.03
    assert np.unique(draws).size == 2000
