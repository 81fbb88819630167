"""`segue bench`."""

import asyncio
from typing import Any

import click
import msgspec
from rich.table import Table

from app.cli import flags, sources
from app.cli.console import console, output, tidy
from app.cli.ends import one_line_errors
from app.cli.sources import Opening
from app.cli.speed import SHORT_WORDS, Asked, Speed, measure

COUNT = click.IntRange(1, 1 << 20)
WIDTH = click.IntRange(1, 4096)  # as many connections as a server of segue's takes
SIZES: flags.Group = (
    click.option("--rounds", metavar="N", type=COUNT, default=3, help="Rounds, of which medians are told [3]."),
    click.option("--words", metavar="N", type=COUNT, default=512, help="Words of the prompt that is read [512]."),
    click.option("--tokens", metavar="N", type=click.IntRange(2, 1 << 20), default=64, help="Tokens of a stream [64]."),
    click.option(
        "--streams", metavar="N", type=WIDTH, multiple=True, default=(1, 8, 16),
        help="Streams at once (repeatable) [1, 8, 16].",
    ),
    click.option("--json", "as_object", is_flag=True, help="One JSON object."),
)  # fmt: skip


@click.command()
@flags.options(SIZES, sources.SERVER, flags.MODEL, flags.CONFIG)
def bench(
    rounds: int, words: int, tokens: int, streams: tuple[int, ...],
    as_object: bool, url: str | None, key: str | None, **given: Any,
) -> None:  # fmt: skip
    """Measure how fast this machine reads and decodes with a model and settings, or how fast a server does (--url).

    Tokens a second of reading a prompt and of streams at once, and the time to the first token.
    """
    with one_line_errors():
        asked = Asked(words, tokens, streams, rounds)
        name, speed = asyncio.run(run(sources.opening(url, key, given), asked))
    if as_object:
        click.echo(msgspec.json.encode({"model": name} | msgspec.to_builtins(speed, str_keys=True)))
    else:
        tidy(output(), table(name or url or "", speed))


async def run(opening: Opening, asked: Asked) -> tuple[str | None, Speed]:
    """The name of the model, and its speed."""
    async with opening as source:
        with console.status("measuring"):
            return source.model, await measure(source, asked)


def table(name: str, speed: Speed) -> Table:
    """What was found, a line each."""
    found = Table(title=name, title_justify="left", box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    found.add_column()
    found.add_column(justify="right")
    found.add_row(f"reading {speed.n_read} tokens", shown(speed.reading), "tokens/s")
    found.add_row(f"first token, after {SHORT_WORDS} words", shown(1000 * speed.first_token), "ms")
    for width, rate in speed.decoding.items():
        found.add_row(f"decoding, {width} stream{'s' * (width > 1)}", shown(rate), "tokens/s")
    return found


def shown(number: float) -> str:
    """Three digits that count, and no fraction from a hundred on."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
