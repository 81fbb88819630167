"""A model in this process, as a Source: the service that the server has, without the server."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from app.asgi import Loaded, create_engine, create_service, load
from app.cli.console import loading, quiet
from app.cli.sources import Source
from app.completion.service import CompletionService
from app.schemas import Completion, CompletionRequest
from app.settings import Settings


def loaded(settings: Settings) -> Loaded:
    """The model that the settings name, with a bar while it loads. Raises StartError."""
    quiet()
    with loading() as report:
        return load(settings, report)


class Local:
    """A service in this process."""

    def __init__(self, service: CompletionService) -> None:
        self._service = service
        self.model = service.served.id

    async def answer(self, request: CompletionRequest) -> Completion:
        prepared = self._service.prepare(request)
        return await self._service.answer(prepared, self._service.start(prepared))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Completion, None]:
        prepared = self._service.prepare(request)
        steps = self._service.stream(prepared, self._service.start(prepared))
        async for chunks in steps:
            for chunk in chunks:
                yield chunk


@asynccontextmanager
async def local(settings: Settings, model: Loaded) -> AsyncIterator[Source]:
    """A loaded model, which runs until the end of the block."""
    engine = create_engine(settings, model)
    engine.start()
    try:
        yield Local(create_service(settings, model, engine))
    finally:
        await engine.close()
