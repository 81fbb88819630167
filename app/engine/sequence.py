"""What runs: the candidates of a job, their positions, their text and their end.

Owns a candidate's tokens from the first to the last; refuses to know where its cells lie beyond the slot's number,
and how its tokens are chosen.
"""

from collections import deque
from collections.abc import Hashable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.draft import Drafter
from app.engine.events import Delta, Event, Finished, FinishReason, Score, Token
from app.engine.history import History
from app.engine.params import Job
from app.engine.sampler import generator, merged_ids
from app.engine.text import Transcript, compiled
from app.engine.weights import Ids


class Family:
    """The candidates of one job, and what they share.

    owner: whoever submitted the job. index: the job's number among its owner's. entropy: what the candidates'
    generators derive from. n_cached: prompt tokens that did not have to be read.
    """

    def __init__(self, owner: Hashable, index: int, job: Job, entropy: int) -> None:
        self.owner = owner
        self.index = index
        self.job = job
        self.entropy = entropy
        self.stops = compiled(job.stops)
        self.scores: list[Score] = []
        self.is_read = False
        self.n_cached = 0
        self.reports = job.reports
        self.scores_samples = job.scores_samples
        self._banned = merged_ids(job.banned)
        self._banned_early = merged_ids(job.banned, job.banned_early) if job.min_tokens else self._banned

    def banned(self, n_sampled: int) -> Ids | None:
        """What may not be drawn after so many tokens."""
        return self._banned_early if n_sampled < self.job.min_tokens else self._banned


class _Held(NamedTuple):
    token: Token
    end: int
    prints: bool


class Sequence:
    """One candidate. `n_computed` of its tokens are in the cells of `slot`; without a slot, none are.

    draft: tokens that are guessed to come next, to be read along with the last one that is certain.
    """

    def __init__(self, family: Family, candidate: int) -> None:
        job = family.job
        self.family = family
        self.job = job
        self.candidate = candidate
        self.slot: int | None = None
        self.n_prompt = len(job.prompt)
        self.n_needed = job.n_needed
        self.n_computed = 0
        self.generated: list[int] = []
        self.draft: list[int] = []
        self.drafter: Drafter | None = None
        self.sum_logprob = 0.0
        self.has_run = False
        self.is_finished = False
        self.history = History(job.prompt) if job.sampling.penalises else None
        self._transcript = Transcript(family.stops)
        self._held: deque[_Held] = deque()
        self._text = ""
        self._tokens: list[Token] = []
        self._tell_at = 1
        """Tokens at which the next event is due."""

    @cached_property
    def rng(self) -> np.random.Generator:
        return generator(self.family.entropy, self.candidate)

    @property
    def n_pending(self) -> int:
        """Tokens that the model has yet to read before this sequence can go on."""
        return self.n_needed + len(self.generated) - self.n_computed

    @property
    def next_scored(self) -> int:
        """Index of the first prompt token whose score is wanted and not known; past the prompt where none is."""
        first = self.job.score_from
        return self.n_prompt if first is None else first + len(self.family.scores)

    @property
    def next_row(self) -> int:
        """Position of the first token after which logits are needed."""
        next_scored = self.next_scored
        return next_scored - 1 if next_scored < self.n_prompt else self.n_prompt + len(self.generated) - 1

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        """Tokens at positions start..stop-1, prompt and completion as one text."""
        n_prompt = self.n_prompt
        if stop <= n_prompt:
            return self.job.prompt[start:stop]
        generated = np.array(self.generated[max(start - n_prompt, 0) : stop - n_prompt], np.int32)
        return generated if start >= n_prompt else np.concatenate([self.job.prompt[start:], generated])

    def upcoming(self, n_tokens: int) -> list[int]:
        """The next tokens to be read, the draft after those that are certain."""
        start = self.n_computed
        if start >= self.n_prompt:
            return (self.generated[start - self.n_prompt :] + self.draft)[:n_tokens]
        found: list[int] = self.tokens(start, start + n_tokens).tolist()
        return found

    def append(self, token: int, score: Score | None, piece: bytes) -> list[Event]:
        """Take a sampled token, `piece` being the text bytes that it prints; returns what became certain by it."""
        self.generated.append(token)
        if self.history:
            self.history.add(token)
        if score:
            self.sum_logprob += score.logprob
        job, reports = self.job, self.family.reports
        if token in job.end_tokens:
            end = Token(token, self._transcript.n_chars, score if job.n_top is not None else None) if reports else None
            return [self.finish(FinishReason.STOP, end)]
        n_sampled, transcript = len(self.generated), self._transcript
        self._text += transcript.push(piece, search=n_sampled > job.min_tokens)
        if reports:
            self._report(Token(token, transcript.start, score if job.n_top is not None else None), bool(piece))
        if transcript.stopped:
            self._held.clear()
            return self._told(FinishReason.STOP)
        return self._told(FinishReason.LENGTH if n_sampled >= job.max_tokens else None)

    def _told(self, reason: FinishReason | None) -> list[Event]:
        """What there is to tell, and the end, for whatever reason."""
        events: list[Event] = []
        if len(self.generated) >= self._tell_at and (self._text or self._tokens):
            n_sampled = len(self.generated)
            events.append(Delta(self.family.index, self.candidate, self._text, self._tokens, n_sampled))
            self._text, self._tokens, self._tell_at = "", [], n_sampled + self.job.every
        if reason:
            events.append(self.finish(reason))
        return events

    def _report(self, token: Token, prints: bool) -> None:
        """Keep a token until some of its text has been shown, or until what is before it has, if it prints none."""
        held, n_shown = self._held, self._transcript.n_shown
        if prints:
            self._settle_silent(token.offset)
        held.append(_Held(token, self._transcript.n_begun, prints))
        while held and (held[0].end <= n_shown or held[0].token.offset < n_shown):
            self._tokens.append(held.popleft().token)

    def _settle_silent(self, offset: int) -> None:
        """Tokens that print nothing begin where the next text does: bytes before them may have become a character."""
        for held in reversed(self._held):
            if held.prints:
                break
            held.token.offset = offset

    def finish(self, reason: FinishReason, end: Token | None = None) -> Finished:
        """End here, with the end token that was drawn, if one was."""
        self.is_finished = True
        text = self._text + self._transcript.finish()
        tokens = self._tokens + [held.token for held in self._held] + ([end] if end else [])
        return Finished(self.family.index, self.candidate, text, tokens, reason, len(self.generated), self.sum_logprob)
