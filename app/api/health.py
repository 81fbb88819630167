"""GET /health."""

from litestar import get

from app.api.auth import OPEN
from app.engine.engine import Engine
from app.errors import Unavailable
from app.schemas import Health


@get("/health", opt={OPEN: True})
async def health(engine: Engine) -> Health:
    """Whether a token could be generated now: 200, else 503."""
    if not engine.is_healthy:
        raise Unavailable("The engine is not running.")
    return Health("ok")
