"""From the words of a request to the engine's jobs: sampling, ends, bans, scores.

Owns the translation; the rules of single fields are in `checks`, the text of prompts in `prompts`.
"""

from collections.abc import Sequence as Ordered

from app.completion import checks
from app.completion.checks import Rules
from app.completion.prompts import Prompt
from app.engine.backend import Vocabulary
from app.engine.params import BAN, FORCE, Bias, Job, SamplingParams
from app.errors import InvalidRequest
from app.schemas import CompletionRequest

DEFAULT_MAX_TOKENS = 16
NO_TOKENS: frozenset[int] = frozenset()
GATHERED = 32
"""Tokens that an event tells of where the answer is not a stream."""


def max_tokens(request: CompletionRequest) -> int:
    """The most tokens that a choice may have."""
    return DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens


def jobs(
    request: CompletionRequest,
    prompts: Ordered[Prompt],
    vocabulary: Vocabulary,
    rules: Rules,
    frame: frozenset[int] = NO_TOKENS,
) -> list[Job]:
    """One job a prompt. `frame`: tokens that end a completion beside the model's own. Raises InvalidRequest."""
    n_vocab, ends = vocabulary.n_tokens, vocabulary.end_tokens | frame
    stops = checks.stop_strings(request, rules)
    chosen = _chosen_ends(request, stops, vocabulary)
    banned = ends - chosen if request.ignore_eos else NO_TOKENS
    banned_early = ends | chosen if request.min_tokens else NO_TOKENS
    biases = checks.logit_bias(request, n_vocab)
    _check_drawable(biases, banned | banned_early, n_vocab)
    if (request.min_tokens or 0) > max_tokens(request):
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}; it cannot exceed max_tokens, which is {max_tokens(request)}.",
            "min_tokens",
        )
    n_candidates = request.best_of or request.n or 1
    scores_prompt = bool(request.echo) and request.logprobs is not None
    sampling = _sampling(request, biases)
    return [
        Job(
            prompt=prompt.tokens,
            max_tokens=max_tokens(request),
            n_candidates=n_candidates,
            sampling=sampling,
            seed=None if request.seed == -1 else request.seed,
            stops=tuple(stops),
            end_tokens=ends | chosen,
            banned=banned,
            banned_early=banned_early,
            min_tokens=request.min_tokens or 0,
            n_top=request.logprobs,
            score_from=prompt.score_from if scores_prompt else None,
            ranked=n_candidates > (request.n or 1),
            token_ids=bool(request.return_token_ids),
            every=1 if request.stream else GATHERED,
            reuses=request.cache_prompt is not False,
        )
        for prompt in prompts
    ]


def _chosen_ends(request: CompletionRequest, stops: list[str], vocabulary: Vocabulary) -> frozenset[int]:
    """The tokens that end this completion by the request's own word: listed, or named by a stop string."""
    chosen = {checks.token_id(token, vocabulary.n_tokens, "stop_token_ids") for token in request.stop_token_ids or []}
    for stop in stops:
        tokens = vocabulary.tokenize(stop)
        if len(tokens) == 1 and vocabulary.is_special(tokens[0]):
            chosen.add(tokens[0])
    return frozenset(chosen)


def _check_drawable(biases: dict[int, float], banned: frozenset[int], n_vocab: int) -> None:
    """A bias may not leave nothing to draw."""
    forced = {token for token, value in biases.items() if value >= FORCE}
    barred = banned | {token for token, value in biases.items() if value <= BAN}
    if forced <= barred if forced else len(barred) >= n_vocab:
        raise InvalidRequest("logit_bias leaves no token that may be drawn.", "logit_bias")


def _sampling(request: CompletionRequest, biases: dict[int, float]) -> SamplingParams:
    default = SamplingParams()
    return SamplingParams(
        temperature=_or(request.temperature, default.temperature),
        top_k=max(request.top_k or 0, 0),
        top_p=_or(request.top_p, default.top_p),
        min_p=_or(request.min_p, default.min_p),
        repetition_penalty=_or(request.repetition_penalty, default.repetition_penalty),
        frequency_penalty=_or(request.frequency_penalty, default.frequency_penalty),
        presence_penalty=_or(request.presence_penalty, default.presence_penalty),
        bias=Bias.of(biases),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
