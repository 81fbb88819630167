"""Guesses of what comes next, from the text itself: where its last tokens stood before, the same may follow.

After Saxena, "Prompt Lookup Decoding" (2023). Owns where to look and how far to guess; refuses to know how guesses
are verified. A guess costs time at worst: every token is drawn from its own row, guessed or not.
"""

from collections.abc import Iterable

SIZES = (3, 2)
"""Tokens that must have stood together before, the better evidence first."""
MOST = 16
"""Tokens of one guess."""
PAUSE = 12
"""Tokens for which nothing is guessed after a guess of which nothing was right."""


class Drafter:
    """One sequence's guesses. They grow while they are right, and pause when they are wrong."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        """Where the text goes on after the last occurrence of some tokens, the end of the text aside."""
        self._reach = 2
        self._pause = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add what has become certain."""
        known = self._tokens
        for token in tokens:
            end = len(known)
            for size in SIZES:
                if end >= size:
                    self._after[tuple(known[end - size :])] = end
            known.append(token)

    def guess(self, most: int) -> list[int]:
        """At most `most` tokens that may follow; none where the text gives no hint, or hints were bad of late."""
        n = min(most, self._reach)
        if self._pause:
            self._pause -= 1
            return []
        for size in SIZES:
            start = self._after.get(tuple(self._tokens[-size:]))
            if start is not None and n > 0:
                period = len(self._tokens) - start  # a text that repeats itself is guessed to do so again
                return [self._tokens[start + i % period] for i in range(n)]
        return []

    def judge(self, n_guessed: int, n_right: int) -> None:
        """Learn how many tokens of the last guess were right."""
        if n_right == n_guessed:
            self._reach = min(2 * self._reach, MOST)
        else:
            self._reach = max(n_right, 1)
            self._pause = 0 if n_right else PAUSE
