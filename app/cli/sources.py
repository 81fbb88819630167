"""Who completes: a model in this process, or a server elsewhere. Whoever prints or measures knows neither.

Owns which of them a command's options mean: `app.cli.local`, or `app.cli.remote`.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import click

from app.cli import flags
from app.errors import SettingsError
from app.schemas import Completion, CompletionRequest

SERVER: flags.Group = (
    click.option("--url", metavar="URL", help="Ask this server, rather than load a model here."),
    click.option("--api-key", "key", metavar="KEY", help="The key that it wants."),
)


class Source(Protocol):
    """Answers requests. Raises SegueError. model: the name that they ask for."""

    @property
    def model(self) -> str | None: ...

    async def answer(self, request: CompletionRequest) -> Completion:
        """The whole answer."""

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Completion, None]:
        """The answer in chunks, of a request that says `stream`."""


Opening = AbstractAsyncContextManager[Source]


def opening(url: str | None, key: str | None, options: Mapping[str, Any]) -> Opening:
    """What a command's options mean; a model is loaded now. Raises SettingsError and StartError."""
    if url is None:
        if key is not None:
            raise SettingsError("--api-key is what a server wants; name one by --url.")
        from app.cli.local import loaded, local  # as httpx2 takes its time to import, so does llama.cpp

        settings = flags.read(options).each()[0]  # of several, the one that is meant where none is named
        return local(settings, loaded(settings))
    if others := flags.given(options, flags.NAMES - {"model"}):
        named = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise SettingsError(f"{named}: a model elsewhere was loaded by other settings; leave this out, or --url.")
    from app.cli.remote import connected

    return connected(url, key, options["model"])
