"""Insertion by search, for models that know no fill-in-the-middle tokens: any base model can do it.

Candidates are sampled from the prefix, cut after every token, and the cuts are ranked by

    score(cut) = log p(cut | prefix) + log p(suffix | prefix + cut)

which is the probability of the whole text, and so, prefix and suffix being given, of this cut among all. It is the
noisy channel's product, by which Yee et al. rank translations ("Simple and Effective Noisy Channel Modeling for Neural
Machine Translation", EMNLP 2019), with one model for both factors. Dividing by lengths, in several ways, was measured
to choose worse (docs/measurements.md).

Owns the candidates, their cuts and the choice; the engine samples and scores, and its prefix cache sees to it that a
cut costs no more than its suffix.
"""

from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from app.engine.backend import Vocabulary
from app.engine.engine import Engine
from app.engine.events import Delta, Event, Finished, FinishReason, PromptRead, Token
from app.engine.params import Job
from app.errors import SegueError

LEAST_CANDIDATES = 8
SUFFIX_TOKENS = 32
"""How much of a suffix is scored: what follows later hardly depends on the gap."""
N_SCORED = 24
"""Cuts of one gap that are scored in full: those after which the suffix's first token is likeliest."""
N_TOP = 20


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The beginning of a candidate. logprob: log p(cut | prefix); hint: log p of the suffix's first token after it."""

    tokens: list[Token]
    text: str
    logprob: float
    hint: float


class Search:
    """One request's gaps being filled. Looks like a `Run`: its steps bring the choices, best first, as they end."""

    def __init__(
        self, engine: Engine, vocabulary: Vocabulary, jobs: Ordered[Job], suffix: list[int], n_choices: int
    ) -> None:
        """Queues the sampling of candidates. Raises what `Engine.submit` raises."""
        self._submit = engine.submit
        self._vocabulary = vocabulary
        self._jobs = jobs
        self._suffix = suffix[:SUFFIX_TOKENS]
        self._n_choices = n_choices
        self._expired: SegueError | None = None
        self._run = self._submit([self._sampling(job) for job in jobs])

    @staticmethod
    def _sampling(job: Job) -> Job:
        n_candidates = 1 if job.sampling.greedy else max(job.n_candidates, LEAST_CANDIDATES)
        return replace(job, n_candidates=n_candidates, n_top=max(job.n_top or 0, N_TOP))

    def cancel(self) -> None:
        """Let the engine forget what runs of it."""
        self._run.cancel()

    def expire(self, error: SegueError) -> None:
        """End with an error, as soon as somebody looks."""
        self._expired = error
        self._run.expire(error)

    async def steps(self) -> AsyncIterator[list[Event]]:
        """All events of the request, in one step, when the choice is made. Raises what `Run.steps` raises."""
        try:
            reads, samples, n_sampled = await self._sample()
            yield [event for j in range(len(self._jobs)) for event in await self._told(j, reads, samples, n_sampled)]
        finally:
            self.cancel()

    async def _sample(self) -> tuple[list[PromptRead], dict[tuple[int, int], list[Token]], dict[int, int]]:
        """What came of the first run: its prompts, the tokens of each candidate, and how many a gap cost."""
        reads: list[PromptRead] = []
        samples: dict[tuple[int, int], list[Token]] = {}
        n_sampled = dict.fromkeys(range(len(self._jobs)), 0)
        async for step in self._run.steps():
            for event in step:
                if isinstance(event, PromptRead):
                    reads.append(event)
                elif isinstance(event, Delta | Finished):
                    samples.setdefault((event.job, event.candidate), []).extend(event.tokens)
                    if isinstance(event, Finished):
                        n_sampled[event.job] += event.n_sampled
        return reads, samples, n_sampled

    async def _told(
        self,
        j: int,
        reads: list[PromptRead],
        samples: dict[tuple[int, int], list[Token]],
        n_sampled: dict[int, int],
    ) -> list[Event]:
        """The events of one gap."""
        candidates = [tokens for (job, _), tokens in samples.items() if job == j]
        best = await self._ranked(self._jobs[j], candidates)
        events: list[Event] = [read for read in reads if read.job == j]
        for k in range(self._n_choices):
            cut = best[k % len(best)]
            tokens = self._reported(self._jobs[j], cut)
            total = n_sampled[j] if k == 0 else 0
            events.append(Delta(j, k, cut.text, tokens, total))
            events.append(Finished(j, k, "", [], FinishReason.STOP, total, 0.0))
        return events

    @staticmethod
    def _reported(job: Job, cut: Cut) -> list[Token]:
        if not job.reports:
            return []
        n_top = job.n_top or 0
        return [replace(t, score=t.score and t.score._replace(top=t.score.top[:n_top])) for t in cut.tokens]

    async def _ranked(self, job: Job, candidates: list[list[Token]]) -> list[Cut]:
        cuts = self._promising(job, candidates)
        if not cuts:
            return [Cut([], "", 0.0, 0.0)]
        if self._expired:
            raise self._expired
        self._run = self._submit([self._scoring(job, cut) for cut in cuts], queues=False)
        scores = [0.0] * len(cuts)
        async for step in self._run.steps():
            for event in step:
                if isinstance(event, PromptRead):
                    scores[event.job] = cuts[event.job].logprob + sum(score.logprob for score in event.scores)
        return [cuts[i] for i in sorted(range(len(cuts)), key=lambda i: -scores[i])]

    def _scoring(self, job: Job, cut: Cut) -> Job:
        """Reads the suffix after a cut, and scores it."""
        before = np.concatenate([job.prompt, np.array([token.id for token in cut.tokens], np.int32)])
        prompt = np.concatenate([before, np.array(self._suffix, np.int32)])
        return Job(prompt=prompt, max_tokens=0, n_top=0, score_from=len(before))

    def _promising(self, job: Job, candidates: list[list[Token]]) -> list[Cut]:
        """The cuts that are worth scoring, one of each text."""
        cuts = {cut.text: cut for tokens in candidates for cut in self._cuts(job, tokens)}
        return sorted(cuts.values(), key=lambda cut: -(cut.logprob + cut.hint))[:N_SCORED]

    def _cuts(self, job: Job, tokens: list[Token]) -> Iterator[Cut]:
        """A candidate cut after each token, where that ends no character in the middle."""
        ended = bool(tokens) and tokens[-1].id in job.end_tokens
        kept = tokens[:-1] if ended else tokens
        data = b""
        sums = list(accumulate(token.score.logprob for token in kept if token.score))
        for k, token in enumerate(kept, 1):
            data += self._vocabulary.piece(token.id)
            try:
                text = data.decode()
            except UnicodeDecodeError:
                continue
            following = tokens[k] if k < len(tokens) else None
            if text:
                yield Cut(kept[:k], text, sums[k - 1], self._hint(following))

    def _hint(self, following: Token | None) -> float:
        """log p of the suffix's first token, from the row that the following token was drawn from.

        Where it is not among the likeliest there, it is less likely than they are; where there is no row, as likely.
        """
        if following is None or following.score is None:
            return 0.0
        found = [logprob for token, logprob in following.score.top if token == self._suffix[0]]
        return found[0] if found else following.score.top[-1][1]
