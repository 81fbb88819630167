"""The API's own description: an OpenAPI document at /schema/openapi.json, and a page of it at /docs.

Made from the very types that decode requests and encode answers. Litestar would describe only bodies that it decodes
itself, and its pages load scripts from elsewhere: this page is whole without a network.
"""

import html
from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import MediaType, Response, get

from app import __version__
from app.schemas import Completion, CompletionRequest, ErrorResponse, Health, Model, ModelList

EXAMPLES: dict[str, dict[str, Any]] = {
    "continue": {
        "model": "gemma-3-270m",
        "prompt": "The capital of France is",
        "max_tokens": 5,
        "temperature": 0,
    },
    "score": {"prompt": "The sea is blue.", "echo": True, "logprobs": 1, "max_tokens": 0},
    "rank": {"prompt": ["Once upon a time", "The sea"], "n": 2, "best_of": 4, "seed": 7, "max_tokens": 32},
    "stream": {
        "prompt": "One, two,",
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["ten"],
    },
}

_PROBLEMS = {
    "400": "A field has a wrong type or value, or prompt and completion exceed the context.",
    "404": "No such model.",
    "413": "The body is too large.",
    "429": "The waiting line is full.",
    "500": "A fault of the server.",
    "503": "The server is stopping, or its engine is gone.",
}


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    types = [CompletionRequest, Completion, ModelList, Model, Health, ErrorResponse]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    request, completion, models, model, health, problem = schemas

    def answer(description: str, schema: dict[str, Any], media_type: str = "application/json") -> dict[str, Any]:
        return {"description": description, "content": {media_type: {"schema": schema}}}

    def problems(*statuses: str) -> dict[str, Any]:
        return {status: answer(_PROBLEMS[status], problem) for status in statuses}

    created = answer("The completion; with `stream`, its chunks as server-sent events.", completion)
    created["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    components["CompletionRequest"]["required"] = ["prompt"]
    model_id = {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "segue", "version": __version__, "description": "Continues text."},
        "paths": {
            "/v1/completions": {
                "post": {
                    "operationId": "createCompletion",
                    "summary": "Continue a text",
                    "requestBody": {
                        "required": True,
                        "content": {
                            "application/json": {
                                "schema": request,
                                "examples": {name: {"value": value} for name, value in EXAMPLES.items()},
                            }
                        },
                    },
                    "responses": {"200": created} | problems("400", "404", "413", "429", "500", "503"),
                }
            },
            "/v1/models": {
                "get": {
                    "operationId": "listModels",
                    "summary": "The names that are served",
                    "responses": {"200": answer("All of them.", models)},
                }
            },
            "/v1/models/{model_id}": {
                "get": {
                    "operationId": "getModel",
                    "summary": "One of them; its id may hold slashes",
                    "parameters": [model_id],
                    "responses": {"200": answer("The model.", model)} | problems("404"),
                }
            },
            "/health": {
                "get": {
                    "operationId": "health",
                    "summary": "Whether a token could be generated now",
                    "responses": {"200": answer("It could.", health)} | problems("503"),
                }
            },
        },
        "components": {"schemas": components},
    }


@get("/schema/openapi.json", media_type=MediaType.JSON)
async def schema() -> dict[str, Any]:
    """The document."""
    return openapi()


@get("/docs", media_type=MediaType.HTML)
async def docs() -> Response[str]:
    """The page."""
    return Response(page(openapi()), media_type=MediaType.HTML)


_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;border-top:
1px solid #ddd}pre,code{font-family:ui-monospace,monospace;font-size:.9em}pre{background:#f5f5f2;padding:.8rem;
overflow-x:auto}h2{margin-top:2.5rem}small{color:#666}"""


def page(document: dict[str, Any]) -> str:
    """An OpenAPI document as one HTML page."""
    parts = "\n".join(_operations(document))
    title = html.escape(f"{document['info']['title']} {document['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        f'<p>The same for programs: <a href="/schema/openapi.json">/schema/openapi.json</a></p>{parts}</html>'
    )


def _operations(document: dict[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
            yield f"<p>{html.escape(operation['summary'])}.</p>"
            if body := operation.get("requestBody"):
                content = body["content"]["application/json"]
                yield _fields(schemas[content["schema"]["$ref"].rpartition("/")[2]])
                for name, example in content["examples"].items():
                    shown = msgspec.json.format(msgspec.json.encode(example["value"])).decode()
                    yield f"<h3>{html.escape(name)}</h3><pre>{html.escape(shown)}</pre>"
            rows = "".join(
                f"<tr><td><code>{status}</code><td>{html.escape(response['description'])}"
                for status, response in operation["responses"].items()
            )
            yield f"<table><tr><th>status<th>when{rows}</table>"
    for name, described in schemas.items():
        if name != "CompletionRequest":
            yield f'<h2 id="{name}"><code>{name}</code></h2><p>{html.escape(described["description"])}</p>'
            yield _fields(described)


def _fields(described: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{name}</code><td><small>{html.escape(_kind(field))}</small>"
        f"<td>{html.escape(field.get('description', ''))}"
        for name, field in described["properties"].items()
    )
    return f"<table><tr><th>field<th>type<th>{rows}</table>"


def _kind(field: dict[str, Any]) -> str:
    if options := field.get("anyOf"):
        return " or ".join(kind for option in options if (kind := _kind(option)) != "null")
    if reference := field.get("$ref"):
        return str(reference.rpartition("/")[2])
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(field['items'])}"
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    return (
        kind
        if low is None and high is None
        else f"{kind}, {'' if low is None else low}..{'' if high is None else high}"
    )
