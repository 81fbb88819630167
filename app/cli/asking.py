"""The fields of a request as flags, and what was given made a request: by the API's own rules."""

import math
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from app.api.bodies import completion_request
from app.cli.flags import Group, given
from app.errors import InvalidRequest
from app.schemas import CompletionRequest

FIELDS: Group = (
    click.option("--suffix", metavar="TEXT", help="Fill the gap between the text and this."),
    click.option("--max-tokens", metavar="N", type=int, help="Most tokens to generate; 0 only reads [16]."),
    click.option("-n", "n", metavar="N", type=int, help="Choices [1]."),
    click.option("--best-of", metavar="N", type=int, help="Candidates, of which the best are the choices [n]."),
    click.option("--stream", is_flag=True, default=None, help="Print as it comes."),
    click.option("--echo", is_flag=True, default=None, help="The text before its completion."),
    click.option(
        "--logprobs", metavar="N", type=int,
        help="A table of the tokens: their probabilities, and those of the N likeliest at each place.",
    ),
    click.option("--temperature", metavar="X", type=float, help="0 is greedy [1]."),
    click.option("--top-p", metavar="X", type=float, help="Only the likeliest tokens with this mass [1]."),
    click.option("--top-k", metavar="N", type=int, help="Only the N likeliest tokens [0: all]."),
    click.option("--min-p", metavar="X", type=float, help="Only tokens X times as likely as the likeliest [0]."),
    click.option("--seed", metavar="N", type=int, help="The same seed, the same draws [random]."),
    click.option("--stop", metavar="TEXT", multiple=True, help="End before this text (repeatable)."),
    click.option("--frequency-penalty", metavar="X", type=float, help="For each time that a token was drawn [0]."),
    click.option("--presence-penalty", metavar="X", type=float, help="Once a token was drawn [0]."),
    click.option("--repetition-penalty", metavar="X", type=float, help="For all tokens so far, the text's too [1]."),
    click.option(
        "--logit-bias", metavar="ID=X", multiple=True,
        help="Add X to a token's logit: -100 bans, 100 leaves nothing else (repeatable).",
    ),
    click.option("--min-tokens", metavar="N", type=int, help="Do not end before so many tokens [0]."),
    click.option("--ignore-eos", is_flag=True, default=None, help="Never draw an end of the text."),
)  # fmt: skip


def request(prompt: str, values: Mapping[str, Any]) -> CompletionRequest:
    """What a command was given, as a request. Raises InvalidRequest, as the API would."""
    fields = given(values, set(CompletionRequest.__struct_fields__) - {"model", "prompt"})
    if "logit_bias" in fields:
        fields["logit_bias"] = dict(map(_bias, fields["logit_bias"]))
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):  # JSON has none of these: they would be left out
            raise InvalidRequest(f"{name}: {value} is no number.", name)
    try:
        body = msgspec.json.encode({"prompt": prompt} | fields)
    except UnicodeEncodeError:
        raise InvalidRequest("the text is not UTF-8.") from None
    return completion_request(body, strict=False)


def _bias(word: str) -> tuple[str, float]:
    token, _, bias = word.partition("=")
    try:
        value = float(bias)
    except ValueError:
        value = math.nan
    if not (token and math.isfinite(value)):
        raise InvalidRequest(f"logit_bias: {word!r} is not ID=NUMBER.", "logit_bias")
    return token, value
