"""GET /health."""

from litestar import get

from app.api.auth import OPEN
from app.completion.serving import House
from app.errors import Unavailable
from app.schemas import Health


@get("/health", opt={OPEN: True})
async def health(house: House) -> Health:
    """Whether a token could be generated now: 200, else 503. A model that is not loaded is no fault, a dead one is."""
    if seat := house.unsound:
        raise Unavailable(f"The engine of {seat.id} is not running.")
    return Health("ok")
