"""What runs: the candidates of a job, their positions, their text and their end.

Owns a candidate's tokens from the first to the last; refuses to know where its cells lie beyond the slot's number,
and how its tokens are chosen.
"""

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.events import Delta, Event, Finished, FinishReason, Score, Token
from app.engine.params import Job
from app.engine.sampler import History, generator
from app.engine.text import Transcript, compiled


class Family:
    """The candidates of one job, and what they share.

    owner: whoever submitted the job. index: the job's number among its owner's. entropy: what the candidates'
    generators derive from. n_cached: prompt tokens that did not have to be read.
    """

    __slots__ = ("entropy", "index", "is_read", "job", "n_cached", "owner", "scores", "stops")

    def __init__(self, owner: Hashable, index: int, job: Job, entropy: int) -> None:
        self.owner = owner
        self.index = index
        self.job = job
        self.entropy = entropy
        self.stops = compiled(job.stops)
        self.scores: list[Score] = []
        self.is_read = False
        self.n_cached = 0


class _Held(NamedTuple):
    token: Token
    end: int
    prints: bool


class Sequence:
    """One candidate. `n_computed` of its tokens are in the cells of `slot`; without a slot, none are."""

    def __init__(self, family: Family, candidate: int) -> None:
        job = family.job
        self.family = family
        self.candidate = candidate
        self.slot: int | None = None
        self.n_computed = 0
        self.generated: list[int] = []
        self.sum_logprob = 0.0
        self.has_run = False
        self.is_finished = False
        self.rng = generator(family.entropy, candidate)
        self.history = History(job.prompt) if job.sampling.penalises else None
        self._transcript = Transcript(family.stops)
        self._held: deque[_Held] = deque()

    @property
    def job(self) -> Job:
        return self.family.job

    @property
    def n_pending(self) -> int:
        """Tokens that the model has yet to read before this sequence can go on."""
        return self.job.n_needed + len(self.generated) - self.n_computed

    @property
    def next_scored(self) -> int:
        """Index of the first prompt token whose score is wanted and not known; past the prompt where none is."""
        job = self.job
        return len(job.prompt) if job.score_from is None else job.score_from + len(self.family.scores)

    @property
    def next_row(self) -> int:
        """Position of the first token after which logits are needed."""
        n_prompt = len(self.job.prompt)
        return self.next_scored - 1 if self.next_scored < n_prompt else n_prompt + len(self.generated) - 1

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        """Tokens at positions start..stop-1, prompt and completion as one text."""
        n_prompt = len(self.job.prompt)
        if stop <= n_prompt:
            return self.job.prompt[start:stop]
        generated = np.array(self.generated[max(start - n_prompt, 0) : stop - n_prompt], np.int32)
        return generated if start >= n_prompt else np.concatenate([self.job.prompt[start:], generated])

    def append(self, token: int, score: Score | None, piece: bytes) -> list[Event]:
        """Take a sampled token, `piece` being the text bytes that it prints; returns what became certain by it."""
        self.generated.append(token)
        if self.history:
            self.history.add(token)
        if score:
            self.sum_logprob += score.logprob
        reported = Token(token, 0, score if self.job.n_top is not None else None)
        if token in self.job.end_tokens:
            return [self.finish(FinishReason.STOP, reported)]
        return self._say(reported, piece)

    def _say(self, token: Token, piece: bytes) -> list[Event]:
        transcript = self._transcript
        text = transcript.push(piece, search=len(self.generated) > self.job.min_tokens)
        token.offset = transcript.start
        if piece:
            self._settle_silent(token.offset)
        self._held.append(_Held(token, transcript.n_begun, bool(piece)))
        tokens = self._release()
        events: list[Event] = []
        if text or tokens:
            events.append(self._delta(text, tokens))
        if transcript.stopped:
            self._held.clear()
            events.append(self.finish(FinishReason.STOP))
        elif len(self.generated) >= self.job.max_tokens:
            events.append(self.finish(FinishReason.LENGTH))
        return events

    def _settle_silent(self, offset: int) -> None:
        """Tokens that print nothing begin where the next text does: bytes before them may have become a character."""
        for held in reversed(self._held):
            if held.prints:
                break
            held.token.offset = offset

    def _release(self) -> list[Token]:
        """The tokens of which some text has been shown, or that print none before what is still held back."""
        released, n_shown = [], self._transcript.n_shown
        while self._held and (self._held[0].end <= n_shown or self._held[0].token.offset < n_shown):
            released.append(self._held.popleft().token)
        return released if self.job.reports else []

    def _delta(self, text: str, tokens: list[Token]) -> Delta:
        return Delta(self.family.index, self.candidate, text, tokens, len(self.generated))

    def finish(self, reason: FinishReason, end: Token | None = None) -> Finished:
        """End here, with the end token that was drawn, if one was."""
        self.is_finished = True
        text = self._transcript.finish()
        tokens = [held.token for held in self._held] if self.job.reports else []
        if end and self.job.reports:
            end.offset = self._transcript.n_chars
            tokens.append(end)
        return Finished(self.family.index, self.candidate, text, tokens, reason, len(self.generated), self.sum_logprob)
