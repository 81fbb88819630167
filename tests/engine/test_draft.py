"""Guesses from the text before, in plain lists."""

from app.engine.draft import MOST, PAUSE, Drafter


def test_what_followed_the_last_tokens_before_is_guessed_to_follow_them_again() -> None:
    assert Drafter([1, 2, 3, 4, 5, 9, 1, 2, 3]).guess(2) == [4, 5]


def test_the_latest_occurrence_counts() -> None:
    assert Drafter([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).guess(1) == [5]


def test_three_tokens_alike_are_better_evidence_than_two() -> None:
    assert Drafter([1, 2, 3, 4, 7, 2, 3, 5, 1, 2, 3]).guess(1) == [4]
    assert Drafter([8, 2, 3, 4, 1, 2, 3]).guess(1) == [4]


def test_without_an_earlier_occurrence_nothing_is_guessed() -> None:
    assert Drafter([1, 2, 3, 4]).guess(4) == []
    assert Drafter([]).guess(4) == []
    assert Drafter([7, 7]).guess(4) == []


def test_a_text_that_repeats_itself_is_guessed_to_go_on_so() -> None:
    drafter = Drafter([1, 2, 1, 2, 1, 2])
    drafter.judge(2, 2)
    assert drafter.guess(4) == [1, 2, 1, 2]


def test_what_becomes_certain_is_looked_up_later() -> None:
    drafter = Drafter([1, 2])
    drafter.extend([3, 4, 1, 2])
    assert drafter.guess(2) == [3, 4]


def test_guesses_grow_while_they_are_right_up_to_a_bound() -> None:
    drafter, lengths = Drafter([5] * 9), []
    for _ in range(6):
        lengths.append(len(drafter.guess(100)))
        drafter.judge(lengths[-1], lengths[-1])
    assert lengths == [2, 4, 8, MOST, MOST, MOST]


def test_a_guess_that_was_right_in_part_is_followed_by_one_as_long_as_that_part() -> None:
    drafter = Drafter([5] * 9)
    drafter.judge(8, 3)
    assert drafter.guess(100) == [5] * 3


def test_after_a_guess_that_was_all_wrong_there_is_a_pause_and_then_one_token() -> None:
    drafter = Drafter([5] * 9)
    drafter.judge(2, 0)
    assert [drafter.guess(100) for _ in range(PAUSE)] == [[]] * PAUSE
    assert drafter.guess(100) == [5]


def test_no_more_is_guessed_than_is_asked_for() -> None:
    assert Drafter([5] * 9).guess(1) == [5]
    assert Drafter([5] * 9).guess(0) == []
    assert Drafter([5] * 9).guess(-1) == []
