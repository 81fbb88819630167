"""The soak: what it takes for a right answer, what it makes of figures, and that a toy stands it."""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from scripts.endurance.readings import Reading, parsed
from scripts.endurance.verdict import MB, all_met, at_least, at_most, growth, percentile
from scripts.endurance.visits import Outcome, Visit, judged, said, unchunked
from scripts.endurance.wishes import LEAVERS, Model, Wish, completion, wishes
from tests.conftest import Served

ROOT = Path(__file__).parents[2]
PLAIN = completion({"prompt": ["a", "b"], "n": 1})
STREAM = completion({"prompt": "a", "stream": True})
OK, BUSY = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 429 Too Many Requests\r\n"
FIRST = b'{"choices":[{"index":0,"text":"x","finish_reason":"stop"},{"index":1,"text":"y","finish_reason":"length"}]}'
EVENT = b'data: {"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"y","finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


# Answers


@pytest.mark.parametrize(
    ("wish", "head", "body", "outcome"),
    [
        (PLAIN, OK, FIRST, Outcome.DONE),
        (PLAIN, OK, FIRST.replace(b'"length"', b"null"), Outcome.FAILED),
        (STREAM, OK, EVENT + LAST + DONE, Outcome.DONE),
        (STREAM, OK, EVENT + DONE, Outcome.FAILED),
        (PLAIN, BUSY + b"Retry-After: 1\r\n", b"{}", Outcome.TOLD_OFF),
        (PLAIN, BUSY, b"{}", Outcome.FAILED),
        (PLAIN, b"HTTP/1.1 400 Bad Request\r\n", b'{"error": {}}', Outcome.FAILED),
        (Wish("/", b"", 400), b"HTTP/1.1 400 Bad Request\r\n", b'{"error": {}}', Outcome.REFUSED),
        (Wish("/", b"", 400), b"HTTP/1.1 400 Bad Request\r\n", b'{"detail": ""}', Outcome.FAILED),
        (Wish("/", b"", 400), b"HTTP/1.1 500 Oh\r\n", b'{"error": {}}', Outcome.FAILED),
        (Wish("/tokenize", b""), OK, b'{"tokens": []}', Outcome.DONE),
    ],
)
def test_an_answer_is_whole_right_or_failed(wish: Wish, head: bytes, body: bytes, outcome: Outcome) -> None:
    found, problem = judged(wish, head, body)
    assert found is outcome
    assert bool(problem) is (outcome is Outcome.FAILED)


@pytest.mark.parametrize(("wish", "body"), [(PLAIN, FIRST[:-5]), (STREAM, EVENT + LAST), (STREAM, EVENT[:-9])])
def test_an_answer_that_is_cut_off_is_none(wish: Wish, body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- json's and ours
        judged(wish, OK, body)


def test_chunks_are_joined_and_a_body_without_its_last_is_cut_off() -> None:
    assert unchunked(b"3\r\na\r\n\r\nb\r\n0123456789a\r\n0\r\n\r\n") == b"a\r\n0123456789a"
    with pytest.raises(ValueError, match="invalid literal"):
        unchunked(b"3\r\nabc\r\n")


def test_the_text_of_an_answer_is_the_same_plain_and_streamed() -> None:
    assert said(Visit(PLAIN, Outcome.DONE, FIRST)) == ["x", "y"]
    assert said(Visit(STREAM, Outcome.DONE, EVENT + LAST + DONE)) == ["xy"]


# Requests


def test_the_same_seed_asks_the_same() -> None:
    model = Model(400, fills_gaps=True)
    assert list(islice(wishes(model, 1), 50)) == list(islice(wishes(model, 1), 50))
    assert list(islice(wishes(model, 1), 50)) != list(islice(wishes(model, 2), 50))


def test_a_third_leave_a_tenth_are_wrong_and_gaps_are_asked_of_who_fills_them() -> None:
    drawn = list(islice(wishes(Model(400, fills_gaps=False), 1), 3000))
    assert sum(wish.leaves is not None for wish in drawn) / 3000 == pytest.approx(LEAVERS, abs=0.05)
    assert sum(wish.status != 200 for wish in drawn) / 3000 == pytest.approx(0.1, abs=0.03)
    assert {wish.path for wish in drawn} == {"/v1/completions", "/tokenize"}
    assert not any(b'"suffix"' in wish.body for wish in drawn)
    assert any(b'"suffix"' in wish.body for wish in islice(wishes(Model(400, fills_gaps=True), 1), 300))


def test_every_wish_is_answered_as_it_says(bpe: Served) -> None:
    for wish in islice(wishes(Model(bpe.toy.n_vocab, fills_gaps=True), 3), 60):
        response = bpe.api.http.post(wish.path, content=wish.body)
        head = f"HTTP/1.1 {response.status_code} \r\n".encode()
        outcome, problem = judged(wish, head, response.content)
        assert outcome in {Outcome.DONE, Outcome.REFUSED}, problem


# Figures


def test_what_metrics_say_is_read(spm: Served) -> None:
    reading = parsed(spm.api.http.get("/metrics").text)
    assert reading.memory > 20 * MB
    assert (reading.faults, reading.is_idle) == (0, True)
    assert not any(Reading(*numbers, 0, 0, 1).is_idle for numbers in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))


def test_only_memory_that_rises_in_the_second_half_has_grown() -> None:
    assert growth([0, 500 * MB, *[500 * MB] * 8]) == 0
    assert growth([i * MB for i in range(90)]) == pytest.approx(30)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert percentile([1.0], 0.99) == 1


def test_one_figure_that_is_missed_is_enough() -> None:
    good, bad = at_most("a", 1, 1), at_least("a", 1, 2)
    assert all_met([good, good._replace(met=None)])
    assert not all_met([good, bad])
    assert "MISSED" in str(bad)


# All of it


def test_a_toy_stands_it() -> None:
    command = [sys.executable, "-m", "scripts.endurance", "--requests", "60", "--threads", "1"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: stood it" in done.stdout
    assert not done.stderr
