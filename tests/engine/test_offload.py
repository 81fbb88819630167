"""How many layers fit: tables of sizes and free memory, and the two real models' own."""

from pathlib import Path

import gguf
import pytest

from app.engine.llama import ggml
from app.engine.offload import layer_sizes, layers_that_fit
from tests.conftest import INFILL_MODEL, REAL_MODEL, models_folder


@pytest.mark.parametrize(
    ("room", "n"),
    [(160, 4), (159, 3), (130, 3), (129, 2), (110, 2), (109, 1), (100, 1), (99, 0), (0, 0), (-50, 0)],
)
def test_the_last_layers_go_first_and_the_output_is_one_of_them(room: int, n: int) -> None:
    assert layers_that_fit([30, 20, 10, 100], [room], [1]) == n


@pytest.mark.parametrize(
    ("room", "shares", "n"),
    [
        ((20, 20), (1, 1), 4),
        ((20, 19), (1, 1), 3),  # of three, two go to the first
        ((19, 20), (1, 1), 2),
        ((10, 30), (1, 3), 4),
        ((30, 10), (1, 3), 2),  # of three, two go to the second
        ((9, 10), (1, 1), 0),  # one layer alone goes to the first
        ((0, 40), (0, 1), 4),
        ((40, 0), (1, 0), 4),
        ((10, 10, 20), (1, 1, 2), 4),
    ],
)
def test_each_device_has_to_hold_its_share(room: tuple[int, ...], shares: tuple[float, ...], n: int) -> None:
    assert layers_that_fit([10, 10, 10, 10], room, shares) == n


def test_a_layer_is_its_tensors_and_its_part_of_the_cache() -> None:
    tensors = [
        ("token_embd.weight", 500), ("blk.0.attn_q.weight", 10), ("blk.1.ffn_up.weight", 20), ("blk.1.attn_q.bias", 1),
        ("output_norm.weight", 3), ("output.weight", 400), ("rope_freqs.weight", 9),
    ]  # fmt: skip
    assert layer_sizes(tensors, 2, 200) == [110, 121, 403]


def test_without_an_output_matrix_the_embeddings_are_copied_for_it() -> None:
    assert layer_sizes([("token_embd.weight", 500), ("blk.0.x", 10), ("output_norm.weight", 3)], 1, 0) == [10, 503]


@pytest.mark.real
@pytest.mark.parametrize(("name", "n_blocks"), [(REAL_MODEL, 18), (INFILL_MODEL, 28)])
def test_real_models_sizes_are_those_that_another_reader_finds(name: str, n_blocks: int) -> None:
    path = models_folder() / name
    if not path.is_file():
        pytest.skip(f"{name} is not there")
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    assert dict(ggml.tensors(path)) == sizes
    layers = layer_sizes(ggml.tensors(path), n_blocks, 0)
    assert len(layers) == n_blocks + 1
    # The embeddings stay in main memory for the input, but where they are the output matrix too.
    assert sum(layers) == sum(sizes.values()) - (sizes["token_embd.weight"] if "output.weight" in sizes else 0)
    assert layers_that_fit(layers, [sum(layers)], [1]) == n_blocks + 1
    assert layers_that_fit(layers, [sum(layers) - 1], [1]) == n_blocks
    assert layers_that_fit(layers, [layers[-1] - 1], [1]) == 0


def test_every_part_of_a_split_model_counts(toy_folder: Path, tmp_path: Path) -> None:
    whole = toy_folder / "toy-spm.gguf"
    for i in (1, 2):
        (tmp_path / f"toy-0000{i}-of-00002.gguf").symlink_to(whole)
    assert list(ggml.tensors(tmp_path / "toy-00001-of-00002.gguf")) == list(ggml.tensors(whole)) * 2
