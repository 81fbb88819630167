"""The rules of a request that one field's type cannot state: forms of `prompt`, ids, and what settings allow.

Every check raises InvalidRequest with the field, the value and the range; where a setting would allow it, the setting.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from app.errors import InvalidRequest
from app.schemas import CompletionRequest

MAX_STOP_CHARS = 4096
"""Stop strings are matched by an automaton with a state a character: a bound on what one request may build."""

MAX_CANDIDATES = 1 << 14
"""Of one request, over all its prompts: each has a place in memory long before it runs."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings allow. strict: refuse whatever OpenAI would refuse."""

    max_logprobs: int = 20
    max_stop: int = 64
    strict: bool = False


def check_fields(request: CompletionRequest, rules: Rules) -> None:
    """The rules between fields, and what the settings allow."""
    best_of, n = request.best_of, request.n or 1
    if best_of is not None and best_of < n:
        raise InvalidRequest(f"best_of is {best_of}; it must be at least n, which is {n}.", "best_of")
    if request.stream and best_of is not None and best_of > n:
        raise InvalidRequest(
            f"best_of is {best_of} and n is {n}: candidates cannot be ranked before they end, so that a stream needs "
            "best_of = n.",
            "best_of",
        )
    if request.logprobs is not None and request.logprobs > rules.max_logprobs:
        raise InvalidRequest(
            f"logprobs is {str(request.logprobs)[:40]}; it must be in 0..{rules.max_logprobs} "
            "(--max-logprobs sets the ceiling).",
            "logprobs",
        )
    if request.suffix and request.echo and request.logprobs is not None:
        raise InvalidRequest(
            "logprobs cannot be given with suffix and echo: the prompt was not read in the order of the text.",
            "logprobs",
        )
    if rules.strict and request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true.", "stream_options")


def check_model(request: CompletionRequest, rules: Rules) -> None:
    """A model must be named in strict mode."""
    if rules.strict and not request.model:
        raise InvalidRequest("model is missing; name one (the server runs with --strict).", "model")


def stop_strings(request: CompletionRequest, rules: Rules) -> list[str]:
    """The stop strings of a request."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > rules.max_stop:
        raise InvalidRequest(
            f"stop has {len(stops)} strings; at most {rules.max_stop} are allowed (--max-stop sets the ceiling).",
            "stop",
        )
    for stop in stops:
        if not stop:
            raise InvalidRequest('stop holds an empty string (""), which would match everywhere.', "stop")
    if (n_chars := sum(map(len, stops))) > MAX_STOP_CHARS:
        raise InvalidRequest(f"stop has {n_chars} characters in all; at most {MAX_STOP_CHARS} are allowed.", "stop")
    return stops


def token_id(value: int, n_vocab: int, param: str) -> int:
    """`value`, if it is in the vocabulary."""
    if not 0 <= value < n_vocab:
        raise InvalidRequest(
            f"{param} holds the token id {str(value)[:40]}; ids of this model are 0..{n_vocab - 1}.", param
        )
    return value


def logit_bias(request: CompletionRequest, n_vocab: int) -> dict[int, float]:
    """The biases by token id."""
    biases = {}
    for key, value in (request.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit()) or len(key) > 18:
            raise InvalidRequest(f"logit_bias has the key {key[:40]!r}; keys are token ids.", "logit_bias")
        if not -100 <= value <= 100:
            raise InvalidRequest(f"logit_bias[{key}] is {value}; it must be in -100..100.", "logit_bias")
        biases[token_id(int(key), n_vocab, "logit_bias")] = value
    return biases


def prompt_forms(request: CompletionRequest, n_vocab: int) -> list[str | list[int]]:
    """The prompts of a request: each a string or a list of token ids."""
    prompt = request.prompt
    if prompt is UNSET:
        raise InvalidRequest("prompt is missing.", "prompt")
    if prompt is None or isinstance(prompt, str):
        return [prompt or ""]
    if not prompt:
        raise InvalidRequest("prompt is an empty list; give at least one prompt, or one token id.", "prompt")
    if all(isinstance(item, int) for item in prompt):
        return [_ids(prompt, n_vocab)]
    n_candidates = len(prompt) * (request.best_of or request.n or 1)
    if n_candidates > MAX_CANDIDATES:
        raise InvalidRequest(
            f"prompt has {len(prompt)} prompts, and {n_candidates} candidates in all; at most {MAX_CANDIDATES} are "
            "allowed.",
            "prompt",
        )
    forms: list[str | list[int]] = []
    for item in prompt:
        if type(item) is not type(prompt[0]) or isinstance(item, int):
            raise InvalidRequest("prompt mixes strings, token ids or lists of token ids; use one form.", "prompt")
        if isinstance(item, list) and not item:
            raise InvalidRequest(f"prompt[{len(forms)}] is an empty list of token ids.", "prompt")
        forms.append(item if isinstance(item, str) else _ids(item, n_vocab))
    return forms


def _ids(values: Iterable[object], n_vocab: int) -> list[int]:
    return [token_id(value, n_vocab, "prompt") for value in values if isinstance(value, int)]
