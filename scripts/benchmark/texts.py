"""What is read: texts of common words, which are a token each in most vocabularies.

The same key gives the same texts in every process; texts of different keys share no beginning beyond chance.
"""

import random
import re
from typing import NamedTuple

SOME = """river lantern harvest copper violin meadow thunder saddle orchard pebble sailor candle winter anchor basket
feather market shadow valley whistle garden ribbon kettle marble forest bridge"""
WORDS = re.findall(r"\w+", SOME)
N_OPTIONS = 4
QUESTION_WORDS, OPTION_WORDS = 30, 4


def text(n_words: int, *key: object) -> str:
    """A text of so many words."""
    rng = random.Random(repr(key))
    return " ".join(rng.choice(WORDS) for _ in range(n_words))


def texts(n: int, n_words: int, *key: object) -> list[str]:
    """So many texts."""
    return [text(n_words, *key, i) for i in range(n)]


class Quiz(NamedTuple):
    """Multiple-choice questions behind a few examples, as evaluations ask them."""

    examples: str
    questions: list[tuple[str, list[str]]]
    """Each question with its options; all begin with a space."""

    def prompts(self) -> list[str]:
        """Every option behind its question and the examples: what is scored."""
        return [self.examples + question + option for question, options in self.questions for option in options]


def quiz(n_questions: int, n_shared: int, *key: object) -> Quiz:
    """Questions that share the first `n_shared` words."""
    questions = [
        (" " + text(QUESTION_WORDS, *key, i), [" " + each for each in texts(N_OPTIONS, OPTION_WORDS, *key, i, "or")])
        for i in range(n_questions)
    ]
    return Quiz(text(n_shared, *key, "examples"), questions)
