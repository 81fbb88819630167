"""`segue complete`."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import click
import msgspec

from app.cli import asking, flags, probabilities, sources
from app.cli.console import console, output
from app.cli.ends import one_line_errors
from app.cli.printing import Texts, as_json, heading
from app.cli.sources import Opening
from app.errors import InvalidRequest
from app.schemas import Completion, CompletionRequest

PRINTED: flags.Group = (
    click.option(
        "--probabilities", "coloured", is_flag=True,
        help="Colour each token by its probability, and say which others were likely.",
    ),
    click.option("--json", "as_object", is_flag=True, help="The API's object; with --stream its chunks, one a line."),
)  # fmt: skip


@click.command()
@click.argument("text", required=False)
@flags.options(asking.FIELDS, PRINTED, sources.SERVER, flags.MODEL, flags.ASKED, flags.CONFIG)
def complete(text: str | None, coloured: bool, as_object: bool, url: str | None, key: str | None, **given: Any) -> None:
    """Continue TEXT, or without it standard input, less the line end at its end.

    By a model in this process, whose options can also be set as SEGUE_NAME in the environment or in a --config file,
    or by a server that is running (--url).
    """
    if coloured and given["logprobs"] is None:
        given["logprobs"] = probabilities.N_LIKELIEST
    if given["stream"] and given["logprobs"] is not None and not as_object:
        raise click.UsageError("a table is made of a whole answer: leave out --stream, or choose --json.")
    with one_line_errors():
        request = asking.request(read() if text in (None, "-") else text, given)
        asyncio.run(run(sources.opening(url, key, given), request, printer(request, coloured, as_object)))


def read() -> str:
    """The text on standard input. An editor ends a file with a line end, which is not meant. Raises InvalidRequest."""
    if sys.stdin is None:
        raise InvalidRequest("there is no text: standard input is closed, and none was named.")
    if sys.stdin.isatty():
        console.print("The text, then Ctrl-D:", style="dim")
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidRequest("standard input is not UTF-8 text.") from None
    except OSError as error:
        raise InvalidRequest(f"standard input cannot be read: {error.strerror or error}.") from None


def printer(request: CompletionRequest, coloured: bool, as_object: bool) -> Callable[[Completion], None]:
    """What prints an answer, or each chunk of one."""
    if as_object:
        return as_json
    if request.logprobs is None:
        return Texts(request.n or 1).take
    return lambda answer: show_tokens(answer, coloured=coloured)


def show_tokens(answer: Completion, *, coloured: bool) -> None:
    """Each choice, and how probable its tokens were."""
    screen = output()
    for choice in answer.choices:
        if len(answer.choices) > 1:
            screen.print(heading(choice.index, len(answer.choices)))
        probabilities.show(choice, screen, coloured=coloured)
        screen.print()
    if coloured and screen.is_terminal and not screen.no_color:
        screen.print(probabilities.legend())


async def run(opening: Opening, request: CompletionRequest, take: Callable[[Completion], None]) -> None:
    """Ask a source, and hand on what it answers."""
    async with opening as source:
        asked = msgspec.structs.replace(request, model=source.model)
        if not asked.stream:
            take(await source.answer(asked))
            return
        async with aclosing(source.stream(asked)) as chunks:
            async for chunk in chunks:
                take(chunk)
