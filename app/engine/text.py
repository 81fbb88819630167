"""Bytes to text to stop strings, for one sequence at a time.

Owns what may be shown already: a tail that is part of a character, or may begin a stop string, is held back.
Refuses to know tokens' ids, and why a sequence ends otherwise.
"""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable
from functools import lru_cache

_decoder = getincrementaldecoder("utf-8")


class Stops:
    """The stop strings of a job as one automaton, shared by its candidates. Immutable.

    A state is the longest tail of the text that begins some stop string. After Aho and Corasick, "Efficient string
    matching" (CACM 18, 1975).
    """

    __slots__ = ("_fail", "_goto", "depth", "matched")

    def __init__(self, strings: Iterable[str]) -> None:
        self._goto: list[dict[str, int]] = [{}]
        self._fail = [0]
        self.depth = [0]
        """Length of the tail that a state stands for."""
        self.matched = [0]
        """Length of the longest stop string that ends in a state; 0: none does."""
        for string in strings:
            self._add(string)
        self._link()

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self._goto[state]:
                self._goto[state][char] = len(self._goto)
                self._goto.append({})
                self._fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.matched.append(0)
            state = self._goto[state][char]
        self.matched[state] = len(string)

    def _link(self) -> None:
        queue = deque(self._goto[0].values())
        while queue:
            state = queue.popleft()
            self.matched[state] = self.matched[state] or self.matched[self._fail[state]]
            for char, child in self._goto[state].items():
                self._fail[child] = self.step(self._fail[state], char)
                queue.append(child)

    def __bool__(self) -> bool:
        return len(self._goto) > 1

    def step(self, state: int, char: str) -> int:
        """The state after `char`."""
        while state and char not in self._goto[state]:
            state = self._fail[state]
        return self._goto[state].get(char, 0)


NO_STOPS = Stops(())


@lru_cache(maxsize=16)
def compiled(strings: tuple[str, ...]) -> Stops:
    """The automaton of these stop strings, made once for all prompts of a request."""
    return Stops(strings)


class Transcript:
    """The text of one sequence, from the bytes of its tokens.

    `push` takes a token's bytes and returns the text that has become certain; `finish` returns the rest. Bytes are
    decoded together: an invalid one becomes U+FFFD, an incomplete character at the end is dropped.
    """

    __slots__ = ("_bytes", "_held", "_is_partial", "_state", "_stops", "n_chars", "n_shown", "start", "stopped")

    def __init__(self, stops: Stops = NO_STOPS) -> None:
        self._bytes = _decoder("replace")
        self._held = ""
        self._is_partial = False
        self._state = 0
        self._stops = stops
        self.n_chars = 0
        """Whole characters so far."""
        self.n_shown = 0
        """Characters returned so far."""
        self.start = 0
        """Code point at which the last pushed token begins."""
        self.stopped = False
        """A stop string has matched; the text ends before it."""

    @property
    def _pending(self) -> bytes:
        return self._bytes.getstate()[0]

    @property
    def n_begun(self) -> int:
        """Characters so far, one that is still incomplete included."""
        return self.n_chars + self._is_partial

    def push(self, piece: bytes, search: bool = True) -> str:
        """Add a token's bytes; with `search` off its text is neither matched nor held back."""
        text = self._decode(piece)
        self.n_chars += len(text)
        if search and self._stops:
            text = self._match(text)
        self.n_shown += len(text)
        return text

    def _decode(self, piece: bytes) -> str:
        """The characters that a token's bytes complete."""
        pending = b""
        if self._is_partial:
            pending = self._pending
        else:
            try:  # nearly every token is whole characters
                text = piece.decode()
            except UnicodeDecodeError:
                pass
            else:
                self.start = self.n_chars
                return text
        # What is pending becomes a character of its own where the first byte does not continue it.
        self.start = self.n_chars + (len((pending + piece[:1]).decode(errors="replace")) > 1)
        text = self._bytes.decode(piece)
        if self._pending[:1] == b"\xed" and self._pending[1:2] > b"\x9f":
            text += self._bytes.decode(b"", final=True)  # a surrogate, which the decoder would wait for: never valid
        self._is_partial = bool(self._pending)
        return text

    def finish(self) -> str:
        """The text that was held back in vain."""
        rest, self._held = self._held, ""
        self._bytes.reset()
        self._is_partial = False
        self.n_shown += len(rest)
        return rest

    def _match(self, text: str) -> str:
        stops, state = self._stops, self._state
        for i, char in enumerate(text, 1):
            state = stops.step(state, char)
            if stops.matched[state]:
                seen = self._held + text[:i]
                self._held, self.stopped = "", True
                return seen[: len(seen) - stops.matched[state]]
        self._state = state
        seen = self._held + text
        certain = len(seen) - stops.depth[state]
        self._held = seen[certain:]
        return seen[:certain]
