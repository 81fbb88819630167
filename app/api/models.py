"""GET /v1/models and /v1/models/{id}."""

from litestar import get

from app.completion.serving import House
from app.schemas import Model, ModelList


@get("/v1/models")
async def list_models(house: House) -> ModelList:
    """Every name under which a model is served, ids and aliases, and how it stands with it."""
    return ModelList("list", [model for seat in house.seats for model in seat.listed()])


@get("/v1/models/{model_id:path}")
async def get_model(model_id: str, house: House) -> Model:
    """One of them; its id may hold slashes."""
    name = str(model_id).lstrip("/")
    house.find(name or "/")
    return next(model for seat in house.seats for model in seat.listed() if model.id == name)
