"""What is asked: requests of all kinds, good ones and bad ones, drawn by a seed.

Owns the mix, and what a right answer to each looks like. Refuses to know how requests travel.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scripts.benchmark.texts import text

Body = dict[str, Any]
LEAVERS, BAD = 1 / 3, 1 / 10
"""Shares of the requests: those whose client hangs up, and those that must be refused."""
HASTE = 1.0
"""Seconds within which whoever hangs up does so."""
LONGEST = 48
"""Tokens of a completion."""
SHARED_WORDS = 50


class Model(NamedTuple):
    """What has to be known of a model to ask it: its size, and whether it fills gaps."""

    n_vocab: int
    fills_gaps: bool


class Wish(NamedTuple):
    """A request. status: of the right answer. n_choices: in it; 0 where it holds none.

    leaves: seconds after which its client hangs up.
    """

    path: str
    body: bytes
    status: int = 200
    n_choices: int = 0
    streams: bool = False
    leaves: float | None = None


def wishes(model: Model, *key: object) -> Iterator[Wish]:
    """Requests without end; the same key gives the same ones."""
    rng = random.Random(repr(key))
    kinds = [kind for kind in KINDS if kind is not _gap or model.fills_gaps]
    while True:
        wish = _bad(rng) if rng.random() < BAD else rng.choice(kinds)(rng, model)
        yield wish._replace(leaves=rng.random() * HASTE) if rng.random() < LEAVERS else wish


def completion(body: Body) -> Wish:
    """A good request for completions."""
    prompt = body["prompt"]
    n_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    return Wish(
        "/v1/completions", json.dumps(body).encode(),
        n_choices=n_prompts * body.get("n", 1), streams=body.get("stream", False),
    )  # fmt: skip


def _some(rng: random.Random, words: int) -> str:
    return text(rng.randint(1, words), rng.random())


def _sampled(rng: random.Random) -> Body:
    """Fields that any completion may have."""
    body: Body = {"prompt": _some(rng, 30), "max_tokens": rng.randint(1, LONGEST), "seed": rng.getrandbits(40)}
    if rng.random() < 0.5:
        body |= {"temperature": rng.choice([0, 0.7, 1.5]), "top_p": rng.choice([1, 0.9])}
    if rng.random() < 0.2:
        body |= {"stop": [_some(rng, 1), "\n"], "frequency_penalty": 0.5, "logit_bias": {"5": -100}}
    return body


def _plain(rng: random.Random, _: Model) -> Wish:
    return completion(_sampled(rng))


def _streamed(rng: random.Random, _: Model) -> Wish:
    usage = {"include_usage": rng.random() < 0.5}
    return completion(_sampled(rng) | {"stream": True, "stream_options": usage, "n": rng.randint(1, 3)})


def _ranked(rng: random.Random, _: Model) -> Wish:
    n = rng.randint(1, 3)
    return completion(_sampled(rng) | {"n": n, "best_of": n + rng.randint(0, 4)})


def _scored(rng: random.Random, _: Model) -> Wish:
    few_shot = text(SHARED_WORDS, "scored", rng.randint(0, 3))
    prompts = [f"{few_shot} {_some(rng, 6)}" for _ in range(rng.randint(1, 4))]
    return completion({"prompt": prompts, "echo": True, "logprobs": rng.randint(0, 5), "max_tokens": rng.randint(0, 1)})


def _tokens(rng: random.Random, model: Model) -> Wish:
    prompts = [[rng.randrange(model.n_vocab) for _ in range(rng.randint(1, 60))] for _ in range(rng.randint(1, 3))]
    return completion(_sampled(rng) | {"prompt": prompts, "return_token_ids": True, "stream": rng.random() < 0.5})


def _shared(rng: random.Random, _: Model) -> Wish:
    shared = text(SHARED_WORDS, "shared", rng.randint(0, 3))
    return completion(_sampled(rng) | {"prompt": f"{shared} {_some(rng, 10)}", "stream": rng.random() < 0.5})


def _gap(rng: random.Random, _: Model) -> Wish:
    return completion(_sampled(rng) | {"suffix": _some(rng, 10), "stream": rng.random() < 0.5})


def _tokenized(rng: random.Random, _: Model) -> Wish:
    return Wish("/tokenize", json.dumps({"prompt": _some(rng, 200)}).encode())


KINDS: list[Callable[[random.Random, Model], Wish]] = [
    _plain, _streamed, _ranked, _scored, _tokens, _shared, _gap, _tokenized,
]  # fmt: skip

WRONG: list[tuple[int, Body | bytes]] = [
    (400, b""),
    (400, b'{"prompt": "a"'),
    (400, b"[" * 50_000),
    (400, b'{"prompt": "\xff"}'),
    (400, {"prompt": []}),
    (400, {"prompt": "a", "n": 0}),
    (400, {"prompt": "a", "temperature": -1}),
    (400, {"prompt": "a", "max_tokens": 10**30}),
    (400, {"prompt": "a", "stop": ["x"] * 1000}),
    (400, {"prompt": [10**9], "stream": True}),
    (400, {"prompt": "a " * 100_000}),
    (404, {"prompt": "a", "model": "another"}),
]


def _bad(rng: random.Random) -> Wish:
    status, body = rng.choice(WRONG)
    return Wish("/v1/completions", body if isinstance(body, bytes) else json.dumps(body).encode(), status)
