"""What editors send, in the words of other servers, as requests of ours; and our answers in their words.

Owns the translation of Mistral's fill-in-the-middle form and of llama.cpp's; a completion is made as any other.
"""

from collections.abc import AsyncIterator
from time import perf_counter

from app.completion.service import Prepared, Served
from app.schemas import (
    Completion,
    CompletionRequest,
    FimChoice,
    FimCompletion,
    FimRequest,
    Infilled,
    InfillRequest,
    Message,
    StreamOptions,
    Timings,
)

INFILL_TOKENS = 128
"""Where /infill names no n_predict: an editor waits for it."""


def from_fim(request: FimRequest) -> CompletionRequest:
    """Mistral's form as a request for completions."""
    return CompletionRequest(
        model=request.model,
        prompt=request.prompt,
        suffix=request.suffix,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.random_seed,
        stop=request.stop,
        stream=request.stream,
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
    )


def to_fim(answer: Completion) -> FimCompletion:
    """A whole answer in Mistral's form."""
    choices = [FimChoice(choice.index, choice.finish_reason, message=Message(choice.text)) for choice in answer.choices]
    assert answer.usage
    return FimCompletion(answer.id, "chat.completion", answer.created, answer.model, choices, answer.usage)


async def to_fim_chunks(steps: AsyncIterator[list[Completion]]) -> AsyncIterator[list[FimCompletion]]:
    """A stream in Mistral's form: the last chunk has the reason and the usage. Readers want a choice in each."""
    last: FimCompletion | None = None
    async for chunks in steps:
        told = []
        for chunk in chunks:
            if chunk.usage:
                assert last
                last.usage = chunk.usage
                told.append(last)
                continue
            choices = [FimChoice(c.index, c.finish_reason, delta=Message(c.text)) for c in chunk.choices]
            made = FimCompletion(chunk.id, "chat.completion.chunk", chunk.created, chunk.model, choices)
            if choices[0].finish_reason:
                last = made
            else:
                told.append(made)
        if told:
            yield told


def from_infill(request: InfillRequest, served: Served) -> CompletionRequest:
    """llama.cpp's form as a request for a stream of completions. What is too long loses its beginning, as there."""
    n_context = served.n_context
    n_predict = INFILL_TOKENS if request.n_predict is None else request.n_predict
    n_predict = min(n_predict, n_context // 2) if n_predict >= 0 else n_context // 2
    return CompletionRequest(
        model=served.id,
        prompt=(request.input_prefix or "") + (request.prompt or ""),
        suffix=request.input_suffix,
        max_tokens=n_predict,
        truncate_prompt_tokens=n_context - n_predict,
        temperature=0.8 if request.temperature is None else request.temperature,
        top_k=40 if request.top_k is None else request.top_k,
        top_p=0.95 if request.top_p is None else request.top_p,
        min_p=0.05 if request.min_p is None else request.min_p,
        seed=request.seed,
        stop=request.stop,
        stream=True,
        stream_options=StreamOptions(include_usage=True),
    )


class Stopwatch:
    """Times of one request: its prompt until the first chunk, its completion from there."""

    def __init__(self) -> None:
        self.start = perf_counter()
        self.first: float | None = None

    def timings(self, n_prompt: int, n_predicted: int) -> Timings:
        """Milliseconds and speeds up to now."""
        now = perf_counter()
        first = self.first or now
        prompt_ms, predicted_ms = 1e3 * (first - self.start), 1e3 * (now - first)
        return Timings(
            prompt_n=n_prompt,
            prompt_ms=prompt_ms,
            prompt_per_second=1e3 * n_prompt / prompt_ms if prompt_ms else 0.0,
            predicted_n=n_predicted,
            predicted_ms=predicted_ms,
            predicted_per_second=1e3 * n_predicted / predicted_ms if predicted_ms else 0.0,
        )


async def to_infill_chunks(prepared: Prepared, steps: AsyncIterator[list[Completion]]) -> AsyncIterator[list[Infilled]]:
    """A stream in llama.cpp's form: text as it comes, and one last chunk with the reason and the timings."""
    watch, reason = Stopwatch(), None
    async for chunks in steps:
        watch.first = watch.first or perf_counter()
        told = []
        for chunk in chunks:
            for choice in chunk.choices:
                reason = choice.finish_reason or reason
                if choice.text:
                    told.append(Infilled(choice.text, stop=False))
            if chunk.usage:
                usage = chunk.usage
                told.append(
                    Infilled(
                        "",
                        stop=True,
                        model=chunk.model,
                        stop_type="limit" if reason == "length" else "eos",
                        tokens_predicted=usage.completion_tokens,
                        tokens_evaluated=usage.prompt_tokens,
                        tokens_cached=usage.prompt_tokens_details.cached_tokens,
                        truncated=any(prompt.n_dropped for prompt in prepared.prompts),
                        timings=watch.timings(usage.prompt_tokens, usage.completion_tokens),
                    )
                )
        if told:
            yield told


async def joined_infill(steps: AsyncIterator[list[Infilled]]) -> Infilled:
    """The whole answer that such a stream makes."""
    chunks = [chunk async for step in steps for chunk in step]
    whole = chunks[-1]
    whole.content = "".join(chunk.content for chunk in chunks)
    return whole
