"""The API's description of itself: whole, and true."""

import html
import re
from typing import Any

import pytest

from app.schemas import CompletionRequest
from tests.conftest import Served
from tests.schema import Schemas
from tests.servers import events

FIELDS = list(CompletionRequest.__struct_fields__)
CONTRACT = [
    "model",
    "prompt",
    "best_of",
    "echo",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_p",
    "user",
    "top_k",
    "min_p",
    "ignore_eos",
    "min_tokens",
    "stop_token_ids",
    "truncate_prompt_tokens",
    "return_token_ids",
    "cache_prompt",
]


@pytest.fixture(scope="module")
def document(spm: Served) -> Any:
    response = spm.api.http.get("/schema/openapi.json")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("application/json")
    return response.json()


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_the_request_has_the_contracts_fields_and_no_others() -> None:
    assert sorted(FIELDS) == sorted(CONTRACT)


def test_it_is_openapi_with_every_route(document: Any) -> None:
    assert re.fullmatch(r"3\.1\.\d", document["openapi"])
    assert document["info"]["title"] == "segue"
    routes = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert routes >= {
        ("post", "/v1/completions"),
        ("get", "/v1/models"),
        ("get", "/v1/models/{model_id}"),
        ("get", "/health"),
        ("get", "/metrics"),
    }
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] and operation["responses"] for operation in operations)


def test_every_reference_leads_somewhere(document: Any) -> None:
    found = references(document)
    assert found
    for reference in found:
        node = document
        for key in reference.removeprefix("#/").split("/"):
            node = node[key]
        assert node


def test_every_field_is_described(document: Any) -> None:
    schema = document["components"]["schemas"]["CompletionRequest"]
    assert list(schema["properties"]) == FIELDS
    assert schema["required"] == ["prompt"]
    undescribed = [name for name, field in schema["properties"].items() if not field.get("description")]
    assert undescribed in ([], ["stream_options"])


def test_its_ranges_are_the_ones_that_are_checked(document: Any, spm: Served) -> None:
    """Each bound in the document is accepted, and the number beyond it refused."""
    properties = document["components"]["schemas"]["CompletionRequest"]["properties"]
    n_bounds = 0
    for name, field in properties.items():
        for option in field.get("anyOf", [field]):
            step = 1 if option.get("type") == "integer" else 0.01
            for bound, direction in (("minimum", -1), ("maximum", 1)):
                if bound in option and name not in {"best_of", "min_tokens", "truncate_prompt_tokens"}:
                    limit = option[bound]
                    n_bounds += 1
                    assert spm.api.post(prompt="a", **{name: limit}).status_code == 200, (name, limit)
                    beyond = spm.api.refused(prompt="a", **{name: limit + direction * step})
                    assert beyond["param"] == name
    assert n_bounds > 15


def test_its_examples_are_answered(document: Any, spm: Served) -> None:
    content = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert len(content["examples"]) >= 3
    for example in content["examples"].values():
        request = dict(example["value"])
        request.pop("model", None)  # it names the model that the README serves
        if request.get("stream"):
            assert events(spm.api.post(**request).content)
        else:
            assert spm.api.complete(**request)["choices"]


def test_answers_are_as_described(document: Any, spm: Served) -> None:
    """Every property of every answer is described, and every required one is there."""
    schemas = Schemas(document)

    def described(path: str, method: str, status: str) -> Any:
        return document["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]

    answer = spm.api.complete(prompt="Hello", echo=True, logprobs=2, n=2, return_token_ids=True)
    assert schemas.fits(answer, described("/v1/completions", "post", "200"))
    assert not schemas.fits(answer | {"choices": [{}]}, described("/v1/completions", "post", "200"))
    assert schemas.fits(spm.api.post(prompt=[]).json(), described("/v1/completions", "post", "400"))
    assert schemas.fits(spm.api.post(prompt="a", model="x").json(), described("/v1/completions", "post", "404"))
    assert schemas.fits(spm.api.http.get("/v1/models").json(), described("/v1/models", "get", "200"))
    assert schemas.fits(spm.api.http.get("/v1/models/toy-spm").json(), described("/v1/models/{model_id}", "get", "200"))
    assert schemas.fits(spm.api.http.get("/health").json(), described("/health", "get", "200"))


def test_the_page_names_every_field_and_needs_no_network(spm: Served) -> None:
    response = spm.api.http.get("/docs")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    page = response.text
    for name in FIELDS:
        assert f"<code>{name}</code>" in page
    assert "/v1/completions" in page
    assert "&quot;" in page or html.unescape(page) == page
    loaded = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s>)]+)""", page)
    assert all(not address.startswith(("http:", "https:", "//")) for address in loaded)
    assert "<script" not in page
