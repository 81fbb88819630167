"""What a file says of itself: as llama.cpp reads it, and by hand where llama.cpp has no such file at hand."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from app.catalogue.description import describe
from app.catalogue.memory import memory
from app.catalogue.reader import Gguf
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.offload import CacheType, Offload
from app.engine.sizes import Sizes
from app.errors import ModelError
from tests.conftest import Served, models_folder
from tests.servers import Api

ARCHITECTURE = "llama"
SIZES = {"block_count": 4, "embedding_length": 64, "context_length": 1000, "attention.head_count": 8}
"""Of heads of 8 numbers."""
HUNDREDTH = (1 << 20) / 100
"""Bytes that llama.cpp's log rounds to."""


def written(
    path: Path,
    facts: dict[str, Any],
    tokens: list[str] | None = None,
    arch: str = ARCHITECTURE,
    kind: gguf.LlamaFileType | None = None,
) -> Path:
    """A file of metadata, and one tensor of a hundred numbers."""
    out = gguf.GGUFWriter(path, arch)
    if kind is not None:
        out.add_file_type(kind)
    for key, value in facts.items():
        if isinstance(value, list):
            out.add_array(f"{arch}.{key}", value)
        elif isinstance(value, int):
            out.add_uint32(f"{arch}.{key}", value)
        else:
            out.add_string(f"{arch}.{key}", value)
    out.add_token_list(tokens or ["a"])
    out.add_tensor("output_norm.weight", np.zeros(100, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def agree(path: Path, api: Api) -> None:
    """A description says what a server of that file says, which has it from llama.cpp."""
    meta = api.http.get("/v1/models").json()["data"][0]["meta"]
    told = describe(path)
    assert told.architecture == meta["architecture"]
    assert told.parameters == meta["n_params"]
    assert told.memory.weights == meta["size"]
    assert told.vocabulary == meta["n_vocab"]
    assert told.context == meta["n_ctx_train"]
    assert told.can_insert == meta["supports_suffix"]


def cache_of(api: Api) -> int:
    """Bytes of the cache that a server has."""
    devices = api.http.get("/v1/models").json()["data"][0]["meta"]["offload"]["devices"]
    return sum(int(device["cache_bytes"]) for device in devices)


def test_a_description_says_what_llama_cpp_says(served: Served, toy_folder: Path) -> None:
    agree(toy_folder / f"{served.toy.name}.gguf", served.api)


def test_a_quantisation_is_named_as_files_are(toy_folder: Path, tmp_path: Path) -> None:
    assert describe(toy_folder / "toy-spm.gguf").quantisation == "F32"
    assert describe(written(tmp_path / "a.gguf", SIZES, kind=gguf.LlamaFileType.MOSTLY_Q4_K_M)).quantisation == "Q4_K_M"
    assert describe(written(tmp_path / "b.gguf", SIZES)).quantisation == "unknown"


def test_the_cache_is_as_large_as_the_servers(spm: Served, bpe: Served, toy_folder: Path) -> None:
    assert describe(toy_folder / "toy-spm.gguf").memory.cache == cache_of(spm.api)
    assert describe(toy_folder / "toy-bpe.gguf", 512).memory.cache == cache_of(bpe.api)


@pytest.mark.parametrize(("type_k", "type_v"), [("f16", "f16"), ("f32", "q8_0"), ("q4_0", "iq4_nl")])
def test_the_cache_is_as_large_as_llama_cpp_makes_it_of_these_types(
    toy_folder: Path, type_k: CacheType, type_v: CacheType
) -> None:
    path = toy_folder / "toy-spm.gguf"
    sizes = Sizes(n_context=512, n_cells=4096, n_slots=8, n_batch=64, n_rows=8, n_threads=1)
    model = LlamaModel(path, Offload(gpu_layers=0, cache_type_k=type_k, cache_type_v=type_v))
    backend = LlamaBackend(model, sizes)
    (cpu,) = backend.placement.shares
    backend.close()
    reckoned = memory(Gguf(path), sizes, type_k, type_v)
    assert reckoned.cache == pytest.approx(cpu.n_cache, abs=HUNDREDTH / 2)
    assert reckoned.context == 512


@pytest.mark.real
def test_a_real_model_with_a_sliding_window_is_described_as_it_is_served(real_model: Path, gemma: Api) -> None:
    agree(real_model, gemma)
    assert describe(real_model, 2048).memory.cache == cache_of(gemma)


@pytest.mark.real
def test_a_real_model_that_inserts_is_described_as_it_is_served(qwen: Api) -> None:
    path = models_folder() / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    agree(path, qwen)
    assert describe(path, 2048).memory.cache == cache_of(qwen)


def test_special_tokens_are_named(served: Served, toy_folder: Path) -> None:
    toy = served.toy
    told = {token.role: (token.id, token.text) for token in describe(toy_folder / f"{toy.name}.gguf").special_tokens}
    assert told["eos"] == (toy.eos, toy.names[toy.eos])
    if toy.fim:
        assert told["fim_prefix"] == (toy.fim.pre, toy.names[toy.fim.pre])
        assert told["fim_suffix"] == (toy.fim.suf, toy.names[toy.fim.suf])
        assert told["fim_middle"] == (toy.fim.mid, toy.names[toy.fim.mid])


def test_tokens_for_insertion_are_known_by_their_text(tmp_path: Path) -> None:
    told = describe(written(tmp_path / "a.gguf", SIZES, ["a", "<fim_suffix>", "<fim_prefix>"]))
    assert [(token.role, token.id) for token in told.special_tokens] == [("fim_prefix", 2), ("fim_suffix", 1)]
    assert told.can_insert
    assert not describe(written(tmp_path / "b.gguf", SIZES, ["<fim_prefix>"])).can_insert


def test_the_cache_counts_heads_layers_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    # 4 layers, 8 heads of 8 keys and 8 values, 2 bytes each.
    assert describe(written(path, SIZES), 4096).memory.cache == 8192 * 4 * 8 * (8 + 8) * 2
    grouped = SIZES | {"attention.head_count_kv": 2, "attention.key_length": 16, "attention.value_length": 4}
    assert describe(written(path, grouped), 4096).memory.cache == 8192 * 4 * 2 * (16 + 4) * 2
    by_layer = SIZES | {"attention.head_count_kv": [1, 0, 0, 2]}
    assert describe(written(path, by_layer), 4096).memory.cache == 8192 * (1 + 2) * (8 + 8) * 2


def test_latent_attention_keeps_keys_alone(tmp_path: Path) -> None:
    latent = {"attention.head_count_kv": 1, "attention.key_length": 36, "attention.value_length": 32}
    facts = SIZES | latent | {"attention.key_length_mla": 12, "attention.value_length_mla": 8}
    assert describe(written(tmp_path / "a.gguf", facts), 4096).memory.cache == 8192 * 4 * 36 * 2


def test_layers_that_share_a_cache_or_only_guess_ahead_have_none(tmp_path: Path) -> None:
    facts = SIZES | {"attention.shared_kv_layers": 1, "nextn_predict_layers": 1}
    assert describe(written(tmp_path / "a.gguf", facts), 4096).memory.cache == 8192 * 2 * 8 * (8 + 8) * 2


@pytest.mark.parametrize(
    ("facts", "arch", "words"),
    [
        (SIZES | {"ssm.state_size": 16}, ARCHITECTURE, "recurrent"),
        ({"block_count": 4, "context_length": 1000}, "rwkv7", "recurrent"),
        (SIZES | {"attention.indexer.head_count": 4}, ARCHITECTURE, "index"),
        (SIZES | {"attention.key_length": 8, "attention.key_length_swa": 4}, ARCHITECTURE, "sliding window"),
        ({"context_length": 1000}, ARCHITECTURE, "attention"),
        (SIZES | {"attention.head_count": "many"}, ARCHITECTURE, "attention"),
        (SIZES | {"block_count": 1 << 31}, ARCHITECTURE, "2147483648 layers"),
        (SIZES | {"block_count": "many"}, ARCHITECTURE, "0 layers"),
    ],
)
def test_what_the_file_does_not_tell_is_said_to_be_unknown(
    tmp_path: Path, facts: dict[str, Any], arch: str, words: str
) -> None:
    memory = describe(written(tmp_path / "a.gguf", facts, arch=arch)).memory
    assert memory.cache is None
    assert memory.note
    assert words in memory.note
    assert memory.weights == 400


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        written(tmp_path / f"a-0000{n}-of-00003.gguf", SIZES)
    told = describe(tmp_path / "a-00001-of-00003.gguf")
    assert (told.files, told.parameters, told.memory.weights) == (3, 300, 1200)
    (tmp_path / "a-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelError, match=r"a-00002-of-00003\.gguf: there is no such model file"):
        describe(tmp_path / "a-00001-of-00003.gguf")


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, toy_folder: Path) -> None:
    whole = (toy_folder / "toy-bpe.gguf").read_bytes()
    for content in (whole[:3000], whole[:-100_000], whole[:24] + bytes(len(whole) - 24)):
        path = tmp_path / "a.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"a\.gguf: this file .*download it again") as caught:
            describe(path)
        assert "\n" not in caught.value.message


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", SIZES)
    path.write_bytes(path.read_bytes().replace(b"general.architecture", b"general.architectura"))
    with pytest.raises(ModelError, match="names no architecture"):
        describe(path)


def test_what_is_of_another_kind_than_it_should_be_is_not_told(tmp_path: Path) -> None:
    out = gguf.GGUFWriter(tmp_path / "a.gguf", ARCHITECTURE)
    for key in ("general.name", "general.license", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.model"):
        out.add_uint32(key, 7)
    for key in ("general.file_type", f"{ARCHITECTURE}.context_length", "tokenizer.ggml.bos_token_id"):
        out.add_string(key, "x")
    out.add_int32("tokenizer.ggml.eos_token_id", -1)
    out.add_array("tokenizer.ggml.tokens", [5, 6])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    told = describe(tmp_path / "a.gguf")
    assert (told.name, told.licence, told.adds_bos, told.tokenizer) == (None, None, None, "unknown")
    assert (told.quantisation, told.context, told.special_tokens) == ("unknown", 0, [])
