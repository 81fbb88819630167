"""GET /v1/models and /v1/models/{id}."""

from litestar import get

from app.errors import ModelNotFound
from app.schemas import Model, ModelList


@get("/v1/models")
async def list_models(models: ModelList) -> ModelList:
    """Every name under which a model is served: ids and aliases."""
    return models


@get("/v1/models/{model_id:path}")
async def get_model(model_id: str, models: ModelList) -> Model:
    """One of them; its id may hold slashes."""
    name = str(model_id).lstrip("/")
    for model in models.data:
        if model.id == name:
            return model
    served = ", ".join(model.id for model in models.data)
    raise ModelNotFound(f"The model {name[:200]!r} is not served here. Served: {served}.", "model")
