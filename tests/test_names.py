"""What a model file is called."""

from pathlib import Path

import pytest

from app.names import names_of

NAMES = {
    "gemma-3-270m-q4_k_m.gguf": ("gemma-3-270m", "gemma-3-270m-q4_k_m"),
    "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf": ("Qwen2.5-Coder-1.5B-Instruct", "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M"),
    "llama.Q8_0.gguf": ("llama", "llama.Q8_0"),
    "a_IQ3_XXS.gguf": ("a", "a_IQ3_XXS"),
    "model-BF16.gguf": ("model", "model-BF16"),
    "model-f32.gguf": ("model", "model-f32"),
    "gpt-oss-20b-mxfp4.gguf": ("gpt-oss-20b", "gpt-oss-20b-mxfp4"),
    "big-Q4_K_M-00001-of-00003.gguf": ("big", "big-Q4_K_M"),
    "toy-spm.gguf": ("toy-spm",),
    "no-suffix": ("no-suffix",),
    "Q4_K_M.gguf": ("Q4_K_M",),
    "dots.in.name.gguf": ("dots.in.name",),
}


@pytest.mark.parametrize("file", NAMES)
def test_the_id_is_the_file_without_its_quantisation_and_the_file_is_a_name_too(file: str) -> None:
    assert names_of(Path("/some/where") / file) == NAMES[file]


def test_aliases_come_last_in_order_and_once() -> None:
    names = names_of(Path("a-q4_0.gguf"), ("x/y", "a", "x/y", "a-q4_0", "z"))
    assert names == ("a", "a-q4_0", "x/y", "z")
