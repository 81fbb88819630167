"""The models' list and objects, and the health."""

from urllib.parse import quote

import pytest

from tests.conftest import Served
from tests.servers import envelope


def test_the_list_has_the_id_first_and_every_alias(spm: Served, bpe: Served) -> None:
    body = spm.api.http.get("/v1/models").json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["toy-spm", "other/name"]
    assert [model["id"] for model in bpe.api.http.get("/v1/models").json()["data"]] == ["toy-bpe"]


def test_a_model_says_what_it_is(served: Served) -> None:
    (model, *_) = served.api.http.get("/v1/models").json()["data"]
    toy = served.toy
    assert model["object"] == "model"
    assert type(model["created"]) is int
    assert isinstance(model["owned_by"], str)
    assert model["root"] == toy.name
    assert model["max_model_len"] == (8192 if toy.fim is None else 512)
    meta = model["meta"]
    assert meta["architecture"] == "llama"
    assert meta["n_vocab"] == toy.n_vocab
    assert meta["n_ctx_train"] == 8192
    assert meta["n_params"] > 2 * toy.n_vocab * 1024
    assert meta["size"] >= 4 * meta["n_params"]
    assert "F32" in meta["quantization"]
    assert meta["supports_suffix"] is (toy.fim is not None)


def test_a_model_says_where_it_is(spm: Served) -> None:
    """A block and the output: all of it in main memory where no GPU is, and in the metrics too."""
    offload = spm.api.http.get("/v1/models").json()["data"][0]["meta"]["offload"]
    assert (offload["gpu_layers_asked"], offload["layers"]) == ("auto", 2)
    assert (offload["cache_type_k"], offload["cache_type_v"]) == ("f16", "f16")
    assert offload["gpu_layers"] + offload["devices"][-1]["layers"] == 2
    metrics = spm.api.http.get("/metrics").text
    told = f'gpu_layers="{offload["gpu_layers"]}",gpu_layers_asked="auto",layers="2"'
    assert f'flash_attention="{str(offload["flash_attention"]).lower()}",{told}' in metrics
    for device in offload["devices"]:
        assert f'segue_device_layers{{description="{device["description"]}",device="{device["name"]}"}}' in metrics
        for kind in ("weights", "cache", "compute"):
            line = f'segue_device_bytes{{device="{device["name"]}",kind="{kind}"}} '
            assert float(metrics.partition(line)[2].split()[0]) == device[f"{kind}_bytes"]
    cpu = offload["devices"][-1]
    assert cpu["name"] == "CPU"
    assert cpu["weights_bytes"] >= 2 * spm.toy.n_vocab * 1024 * 4
    assert cpu["cache_bytes"]


def test_each_name_has_an_object_of_its_own(spm: Served) -> None:
    listed = {model["id"]: model for model in spm.api.http.get("/v1/models").json()["data"]}
    for path, name in (
        ("toy-spm", "toy-spm"),
        ("other/name", "other/name"),
        (quote("other/name", safe=""), "other/name"),
    ):
        response = spm.api.http.get(f"/v1/models/{path}")
        assert response.status_code == 200
        assert response.json() == listed[name]
        assert response.json()["root"] == "toy-spm"


@pytest.mark.parametrize("name", ["nope", "other", "other/name/x", "a/b/c", "toy-spm/x", "%20", "é"])
def test_an_unknown_model_is_404(spm: Served, name: str) -> None:
    response = spm.api.http.get(f"/v1/models/{name}")
    assert response.status_code == 404
    error = envelope(response)
    assert error["code"] == "model_not_found"
    assert error["type"] == "invalid_request_error"
    assert "toy-spm" in error["message"]


def test_health_is_ok(served: Served) -> None:
    response = served.api.http.get("/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok"}


def test_the_fingerprint_is_the_same_for_a_model_and_its_settings(spm: Served, strict: Served, bpe: Served) -> None:
    prints = [served.api.complete(prompt="a", max_tokens=0)["system_fingerprint"] for served in (spm, spm, strict, bpe)]
    assert prints[0] == prints[1]
    assert prints[3] != prints[0]
    assert strict.api.stream(prompt="a", max_tokens=1).chunks[0]["system_fingerprint"] == prints[2]
