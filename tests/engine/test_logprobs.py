"""Scores of a row against log-softmax in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.logprobs import FLOOR, RowScores
from app.engine.sampler import Sampler
from tests.engine.fakes import PROPERTY, log_softmax


def scores_of(row: NDArray[np.float32], n_top: int) -> RowScores:
    return Sampler(len(row)).scores(row[None], n_top)[0]


@settings(PROPERTY, max_examples=80)
@given(st.integers(0, 2**32), st.sampled_from([1, 7, 512, 513, 3000]), st.integers(0, 20))
def test_scores_are_the_log_softmax_of_the_row(seed: int, n_vocab: int, n_top: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 4, n_vocab).astype(np.float32)
    exact = log_softmax(row)
    scores = scores_of(row, n_top)
    order = np.argsort(-row, kind="stable")[:n_top].tolist()
    for token in {0, n_vocab - 1, int(rng.integers(n_vocab))}:
        score = scores.of(token)
        assert score.logprob == pytest.approx(exact[token], abs=5e-6)
        assert [i for i, _ in score.top] == order
        assert [logprob for _, logprob in score.top] == pytest.approx(exact[order].tolist(), abs=5e-6)


def test_a_token_among_the_likeliest_has_the_very_number_that_it_has_there() -> None:
    row = np.random.default_rng(3).normal(0, 4, 700).astype(np.float32)
    scores = scores_of(row, 20)
    for token, logprob in scores.top:
        assert scores.of(token).logprob == logprob
        assert type(logprob) is float
        assert type(token) is int


def test_no_likeliest_tokens_are_listed_where_none_are_asked_for() -> None:
    assert scores_of(np.zeros(3, np.float32), 0).of(1).top == []


@pytest.mark.parametrize("logit", [-np.inf, -1e30, -10_500.0])
def test_an_impossible_token_has_the_floor(logit: float) -> None:
    row = np.array([0.0, logit, 1.0], np.float32)
    scores = scores_of(row, 3)
    assert scores.of(1).logprob == FLOOR == -9999.0
    assert scores.top[-1] == (1, FLOOR)


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_a_broken_row_is_a_fault(bad: list[float]) -> None:
    with pytest.raises(FloatingPointError):
        scores_of(np.array(bad, np.float32), 1)
