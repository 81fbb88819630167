"""Completions: a request is checked and becomes jobs; their events become an answer, whole or in chunks.

`prepare` refuses everything that can be refused; `start` queues; `answer` and `stream` tell what came of it. Owns the
order of these; refuses to know how answers travel.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from app.completion import checks, prompts
from app.completion.checks import Rules
from app.completion.choices import ChoiceWriter, joined
from app.completion.infill import Infill
from app.completion.jobs import NO_TOKENS, jobs, max_tokens
from app.completion.prompts import Prompt
from app.completion.ranking import best
from app.completion.record import Outcome, Record
from app.completion.search import SUFFIX_TOKENS, Search
from app.engine.backend import Vocabulary
from app.engine.engine import Engine, Run
from app.engine.events import Delta, Event, Finished, PromptRead
from app.engine.params import Job
from app.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, SegueError, TimedOut
from app.schemas import Choice, Completion, CompletionRequest, StreamOptions, Usage


@dataclass(frozen=True, slots=True)
class Served:
    """The model behind a service, by all its names; the first is its id. n_context: tokens of one sequence."""

    names: tuple[str, ...]
    fingerprint: str
    n_context: int

    @property
    def id(self) -> str:
        return self.names[0]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A request that has been checked: its prompts and jobs, and how the answer is to be told.

    sought: the suffix that a search is to lead to; empty where nothing is searched. record: what becomes of it.
    """

    request: CompletionRequest
    prompts: list[Prompt]
    jobs: list[Job]
    envelope: Completion
    sought: list[int]
    record: Record

    @property
    def n(self) -> int:
        """Choices a prompt."""
        return self.request.n or 1

    @property
    def n_candidates(self) -> int:
        """Candidates a prompt, of which the best n are its choices; a search brings only those."""
        return self.n if self.sought else self.jobs[0].n_candidates

    def writer(self, job: int) -> ChoiceWriter:
        """A writer for one candidate of a job."""
        request = self.request
        return ChoiceWriter(
            self.prompts[job],
            echo=bool(request.echo),
            logprobs=request.logprobs is not None,
            token_ids=bool(request.return_token_ids),
        )

    def chunk(self, choices: list[Choice], usage: Usage | UnsetType | None) -> Completion:
        """An answer, or a piece of one, under this request's id."""
        head = self.envelope
        return Completion(
            head.id,
            head.object,
            head.created,
            head.model,
            head.system_fingerprint,
            choices=choices,
            usage=usage,
        )


class Progress:
    """What has become of each candidate of a request so far."""

    def __init__(self, prepared: Prepared) -> None:
        n_jobs, n_candidates = len(prepared.jobs), prepared.n_candidates
        self._writers = [[prepared.writer(j) for _ in range(n_candidates)] for j in range(n_jobs)]
        self._record = prepared.record

    def pieces(self, event: Event) -> Iterator[tuple[int, int, Choice]]:
        """(job, candidate, piece) of each piece of a choice that an event makes."""
        self._record.count(event)
        if isinstance(event, PromptRead):
            for candidate, writer in enumerate(self._writers[event.job]):
                if piece := writer.begin(event):
                    yield event.job, candidate, piece
        elif isinstance(event, Delta | Finished):
            yield event.job, event.candidate, self._writers[event.job][event.candidate].go_on(event)


class CompletionService:
    """Completions by one model. Methods are called on the event loop; `prepare` may be called in any thread."""

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        served: Served,
        rules: Rules,
        infill: Infill,
        timeout: float | None = None,
    ) -> None:
        """timeout: seconds that a request may take, from when it is queued."""
        self._engine = engine
        self._vocabulary = vocabulary
        self._infill = infill
        self._rules = rules
        self._timeout = timeout
        self.served = served

    def prepare(self, request: CompletionRequest, record: Record | None = None) -> Prepared:
        """Check a request as a whole. Raises RequestError; what it returns can be run, and fills the record."""
        record = record or Record()
        record.model, record.user = request.model, request.user
        checks.check_model(request, self._rules)
        if request.model and request.model not in self.served.names:
            names = ", ".join(self.served.names)
            raise ModelNotFound(f"The model {request.model[:200]!r} is not served here. Served: {names}.", "model")
        checks.check_fields(request, self._rules)
        asked = self._prompts(request)
        sought = self._infill.suffix(request.suffix) if request.suffix and self._infill.searches else []
        for prompt in asked:
            self._check_length(len(prompt.tokens), max_tokens(request) + len(sought[:SUFFIX_TOKENS]))
        envelope = Completion(
            id=f"cmpl-{secrets.token_hex(16)}",
            object="text_completion",
            created=int(time.time()),
            model=request.model or self.served.id,
            system_fingerprint=self.served.fingerprint,
            choices=[],
        )
        frame = self._infill.end_tokens if request.suffix else NO_TOKENS
        wanted = jobs(request, asked, self._vocabulary, self._rules, frame)
        record.id, record.model = envelope.id, envelope.model
        record.lengths = [len(prompt.tokens) + len(sought) for prompt in asked]
        if record.texts is not None:
            record.prompts = [prompt.text for prompt in asked]
        return Prepared(request, asked, wanted, envelope, sought, record)

    def _prompts(self, request: CompletionRequest) -> list[Prompt]:
        return [self._prompt(request, form) for form in checks.prompt_forms(request, self._vocabulary.n_tokens)]

    def _prompt(self, request: CompletionRequest, form: str | list[int]) -> Prompt:
        last, suffix = request.truncate_prompt_tokens, request.suffix
        if not isinstance(form, str):
            if suffix:
                raise InvalidRequest("suffix needs a prompt that is text; this one is token ids.", "suffix")
            # Before they are made text, which takes seconds for millions.
            self._check_length(len(form) if last is None else min(len(form), last), max_tokens(request))
            return prompts.from_tokens(self._vocabulary, form, last)
        if last is None:
            self._check_size(form, suffix or "")
        if suffix and not self._infill.searches:
            return self._infill.prompt(form, suffix, last)
        return prompts.from_text(self._vocabulary, form, last)

    def _check_size(self, prompt: str, suffix: str) -> None:
        """Refuse a text that no tokens of the context could hold, before it is cut into them, which takes seconds."""
        n_chars, n_context = len(prompt) + len(suffix), self.served.n_context
        if n_chars > n_context and n_chars > n_context * self._vocabulary.longest:
            raise ContextLengthExceeded(
                f"This model's context is {n_context} tokens (--ctx-size), of at most {self._vocabulary.longest} bytes "
                f"each, but the text to be read has {n_chars} characters.",
                "suffix" if len(suffix) > len(prompt) else "prompt",
            )

    def _check_length(self, n_prompt: int, n_completion: int) -> None:
        n_context = self.served.n_context
        if n_prompt + n_completion > n_context:
            raise ContextLengthExceeded(
                f"This model's context is {n_context} tokens (--ctx-size), but the request is for "
                f"{n_prompt + n_completion}: {n_prompt} in the prompt, {n_completion} in the completion (max_tokens).",
                "prompt" if n_prompt > n_context else "max_tokens",
            )

    def start(self, prepared: Prepared) -> Run | Search:
        """Queue a request's jobs. Raises Overloaded or Unavailable."""
        run: Run | Search
        if prepared.sought:
            run = Search(self._engine, self._vocabulary, prepared.jobs, prepared.sought, prepared.n)
        else:
            run = self._engine.submit(prepared.jobs)
        prepared.record.queue(at_once=bool(prepared.sought))
        return run

    async def answer(self, prepared: Prepared, run: Run | Search) -> Completion:
        """The whole answer. Raises what `Run.steps` raises; cancelled, it cancels the run."""
        pieces: dict[tuple[int, int], list[Choice]] = {}
        ends: dict[tuple[int, int], Finished] = {}
        with self._followed(prepared, run) as progress:
            async for step in run.steps():
                for event in step:
                    if isinstance(event, Finished):
                        ends[event.job, event.candidate] = event
                    for job, candidate, piece in progress.pieces(event):
                        pieces.setdefault((job, candidate), []).append(piece)
        choices: list[Choice] = []
        for j in range(len(prepared.jobs)):
            for k in best([ends[j, c] for c in range(prepared.n_candidates)], prepared.n):
                choices.append(joined(pieces[j, k], index=len(choices)))
        return prepared.chunk(choices, prepared.record.usage)

    async def stream(self, prepared: Prepared, run: Run | Search) -> AsyncIterator[list[Completion]]:
        """The answer in chunks, a list for each step that brought any."""
        options = prepared.request.stream_options or StreamOptions()
        with self._followed(prepared, run) as progress:
            async for step in run.steps():
                chunks = []
                for event in step:
                    for job, candidate, piece in progress.pieces(event):
                        piece.index = job * prepared.n + candidate
                        chunks.append(prepared.chunk([piece], _usage_so_far(options, prepared.record)))
                if chunks:
                    yield chunks
            if options.include_usage:
                yield [prepared.chunk([], prepared.record.usage)]

    @contextmanager
    def _followed(self, prepared: Prepared, run: Run | Search) -> Iterator[Progress]:
        """The progress of a request, until it ends or has taken too long; then its record says how it ended."""
        record, timer = prepared.record, self._timer(run)
        try:
            yield Progress(prepared)
            record.outcome = Outcome.DONE
        except SegueError as error:
            record.outcome = Outcome.EXPIRED if isinstance(error, TimedOut) else Outcome.FAILED
            raise
        except Exception:
            record.outcome = Outcome.BROKEN
            raise
        finally:
            if timer:
                timer.cancel()

    def _timer(self, run: Run | Search) -> asyncio.TimerHandle | None:
        if self._timeout is None:
            return None
        error = TimedOut(f"The request took longer than {self._timeout:g} seconds (--request-timeout).")
        return asyncio.get_running_loop().call_later(self._timeout, run.expire, error)


def _usage_so_far(options: StreamOptions, record: Record) -> Usage | UnsetType | None:
    """What a chunk says of usage: nothing, null, or the totals so far, as the request asked."""
    if not options.include_usage:
        return UNSET
    return record.usage if options.continuous_usage_stats else None
