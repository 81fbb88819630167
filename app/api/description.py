"""The API's own description: an OpenAPI document at /schema/openapi.json, and a page of it at /docs.

Made from the very types that decode requests and encode answers: Litestar would describe only bodies that it decodes
itself.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
from litestar import MediaType, Response, get
from msgspec import Struct

from app import __version__
from app.api.page import page
from app.schemas import (
    Completion,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    ErrorResponse,
    FimCompletion,
    FimRequest,
    Health,
    Infilled,
    InfillRequest,
    Model,
    ModelList,
    Props,
    Tokenized,
    TokenizeRequest,
    TokenizerInfo,
)

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
    400: "A field has a wrong type or value, or prompt and completion exceed the context.",
    401: "A key is wanted, and none of the server's was sent.",
    404: "No such model.",
    413: "The body is too large.",
    429: "The waiting line is full.",
    500: "A fault of the server.",
    503: "The server is stopping, its engine is gone, the model cannot be loaded, or it took longer than is allowed.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route. problems: the statuses that it may answer beside 200. streams: whether it can send events.

    answer: None for text. names_model: whether it takes ?model=.
    """

    method: str
    path: str
    name: str
    summary: str
    answer: type[Struct] | None
    problems: tuple[int, ...] = ()
    body: type[Struct] | None = None
    streams: bool = False
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    names_model: bool = False


_TEXT = {"schema": {"type": "string"}}

NAMES = (401, 404, 429, 503)
"""Of whatever names a model, which may have to be loaded."""
GENERATES = (400, 413, 500, *NAMES)
READS = (400, 413, *NAMES)

OPERATIONS = (
    Operation(
        "post", "/v1/completions", "createCompletion", "Continue a text",
        Completion, GENERATES, CompletionRequest, streams=True, examples=EXAMPLES,
    ),
    Operation("get", "/v1/models", "listModels", "The names that are served", ModelList, (401,)),
    Operation("get", "/v1/models/{model_id}", "getModel", "One of them; its id may hold slashes", Model, (401, 404)),
    Operation(
        "post", "/tokenize", "tokenize", "The tokens of a text (also under /v1)", Tokenized, READS, TokenizeRequest,
        examples={"text": {"prompt": "The sea"}},
    ),
    Operation(
        "post", "/detokenize", "detokenize", "The text of tokens (also under /v1)",
        Detokenized, READS, DetokenizeRequest, examples={"tokens": {"tokens": [2, 1]}},
    ),
    Operation(
        "get", "/tokenizer_info", "tokenizerInfo", "The special tokens by name (also under /v1)", TokenizerInfo, NAMES,
        names_model=True,
    ),
    Operation(
        "post", "/v1/fim/completions", "fimCompletion", "Fill a gap, in Mistral's words",
        FimCompletion, GENERATES, FimRequest, streams=True,
        examples={"gap": {"prompt": "def add(a, b):\n    return ", "suffix": "\n", "max_tokens": 16}},
    ),
    Operation(
        "post", "/infill", "infill", "Fill a gap, in llama.cpp's words",
        Infilled, GENERATES, InfillRequest, streams=True,
        examples={"gap": {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 16}},
    ),
    Operation(
        "get", "/props", "props", "What llama.cpp's clients ask a server of itself", Props, NAMES, names_model=True
    ),
    Operation("get", "/metrics", "metrics", "Counts and times, as Prometheus reads them", None, (401,)),
    Operation("get", "/health", "health", "Whether a token could be generated now", Health, (503,)),
)  # fmt: skip


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    bodies = [operation.body for operation in OPERATIONS if operation.body]
    answers = [operation.answer for operation in OPERATIONS if operation.answer]
    ordered: list[type[Struct]] = [*bodies, *answers, ErrorResponse]
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    components["CompletionRequest"]["required"] = ["prompt"]
    references = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "segue", "version": __version__, "description": "Continues text."},
        "paths": paths,
        "components": {"schemas": components},
    }


def _described(operation: Operation, references: dict[type[Struct], Any]) -> dict[str, Any]:
    content = {} if operation.answer is None else {"application/json": {"schema": references[operation.answer]}}
    if operation.streams:
        content["text/event-stream"] = _TEXT
    answers = {"200": {"description": "The answer.", "content": content or {"text/plain": _TEXT}}}
    answers |= {str(status): _answer(_PROBLEMS[status], references[ErrorResponse]) for status in operation.problems}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{(\w+)\}", operation.path)
        ]
        + ([{"name": "model", "in": "query", "schema": {"type": "string"}}] if operation.names_model else []),
        "responses": answers,
    }
    if operation.body:
        examples = {name: {"value": value} for name, value in operation.examples.items()}
        content = {"application/json": {"schema": references[operation.body], "examples": examples}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


@get("/schema/openapi.json", media_type=MediaType.JSON)
async def schema() -> dict[str, Any]:
    """The document."""
    return openapi()


@get("/docs", media_type=MediaType.HTML)
async def docs() -> Response[str]:
    """The page."""
    return Response(page(openapi()), media_type=MediaType.HTML)
