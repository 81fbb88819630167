"""One format in another, number for number; the right numbers are those that gguf's own reader finds."""

import io
import os
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.llama import ggml, recoding
from app.engine.llama.recoding import recoded
from app.engine.recode import Part, Recoded, q8_0
from tests import toys
from tests.conftest import REAL_MODEL, models_folder

Q5_0, Q8_0 = gguf.GGMLQuantizationType.Q5_0, gguf.GGMLQuantizationType.Q8_0
Bytes = NDArray[np.uint8]


def blocks(n: int, seed: int = 1) -> Bytes:
    """Blocks of Q5_0: any integers, scales that are numbers."""
    random = np.random.default_rng(seed)
    made = random.integers(0, 256, (n, 22), np.uint8)
    made[:, :2] = random.normal(0, 1, n).astype(np.float16).view(np.uint8).reshape(n, 2)
    return made


def test_every_number_is_the_same_to_the_last_bit() -> None:
    given_ = blocks(5000)
    found = dequantize(q8_0(given_), Q8_0)
    assert found.shape == (5000, 32)
    assert (found == dequantize(given_, Q5_0)).all()


def test_every_integer_at_every_place() -> None:
    """A scale of 1 in half precision is 0x3C00; the integers are 0 to 31, less 16."""
    made = np.zeros((32, 22), np.uint8)
    made[:, 1] = 0x3C
    for k in range(32):
        made[k, 2:6] = 0xFF if k & 16 else 0
        made[k, 6:] = (k & 15) * 0x11
    assert (dequantize(q8_0(made), Q8_0) == np.arange(-16.0, 16.0)[:, None]).all()


N_HEAD, N_BLOCKS, N_TAIL = 100, 7, 50
GAP = 28
"""Of these sizes: what fills up to a multiple of 32."""


@pytest.fixture(scope="module")
def file() -> Recoded:
    """A file of a beginning, blocks, and bytes that are not touched."""
    source = b"x" * 10 + blocks(N_BLOCKS).tobytes() + b"y" * 6 + bytes(range(N_TAIL))
    end = N_HEAD + GAP + N_BLOCKS * 34
    parts = [
        Part(N_HEAD + GAP, N_BLOCKS * 34, 10, is_recoded=True),
        Part(end + 2, N_TAIL, 10 + N_BLOCKS * 22 + 6, is_recoded=False),
    ]
    return Recoded(io.BytesIO(source), b"h" * N_HEAD, parts)


WHOLE = b"h" * N_HEAD + bytes(GAP) + q8_0(blocks(N_BLOCKS)).tobytes() + bytes(2) + bytes(range(N_TAIL))


@given(at=st.integers(0, len(WHOLE) + 3), n=st.integers(0, len(WHOLE)))
def test_it_reads_alike_from_any_place_on(file: Recoded, at: int, n: int) -> None:
    into = np.full(n, 0xEE, np.uint8)
    n_read = file.read(at, into)
    assert file.n_bytes == len(WHOLE)
    assert into[:n_read].tobytes() == WHOLE[at : at + n]
    assert (into[n_read:] == 0xEE).all()


def test_what_is_cut_off_meanwhile_ends_early() -> None:
    file = Recoded(io.BytesIO(bytes(22)), b"", [Part(0, 68, 0, is_recoded=True)])
    assert file.read(34, np.zeros(34, np.uint8)) == 0


class Numbers(NamedTuple):
    """A tensor of a file: its format and its bytes."""

    kind: gguf.GGMLQuantizationType
    data: Bytes

    @property
    def values(self) -> NDArray[np.float32]:
        return dequantize(self.data, self.kind)


def numbers(path: Path) -> dict[str, Numbers]:
    data = np.memmap(path, np.uint8, "r")
    with ggml.table(path) as table:
        return {
            t.name: Numbers(gguf.GGMLQuantizationType(t.type), data[t.start : t.start + t.n_bytes])
            for t in table.tensors()
        }


def before_and_after(path: Path, folder: Path) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """The tensors of a file, and of the recoded one."""
    with recoded(path) as source:
        assert source
        copy = np.zeros(source.n_bytes, np.uint8)
        assert source.read(0, copy) == source.n_bytes
    copy.tofile(folder / "recoded.gguf")
    return numbers(path), numbers(folder / "recoded.gguf")


@pytest.mark.real
def test_a_real_model_has_the_same_numbers(tmp_path: Path) -> None:
    path = models_folder() / REAL_MODEL
    if not path.is_file():
        pytest.skip(f"{path.name} is not there")
    before, after = before_and_after(path, tmp_path)
    assert before.keys() == after.keys()
    n_recoded = 0
    for name, tensor in before.items():
        if tensor.kind == Q5_0:
            n_recoded += 1
            assert after[name].kind == Q8_0
            assert (after[name].values == tensor.values).all()
        else:
            assert (after[name].data == tensor.data).all()
    assert n_recoded == 4 * 18 + 9, "queries, keys, two of the feed-forward's, and the values of every second block"


def test_embeddings_that_are_only_looked_up_and_odd_rows_stay(tmp_path: Path) -> None:
    path = toys.bpe().write(tmp_path, matrices=Q5_0)
    before, after = before_and_after(path, tmp_path)
    assert toys.bpe().n_vocab % 32
    stays = {name for name, tensor in after.items() if tensor.kind == Q5_0}
    assert stays == {"token_embd.weight", "output.weight"}
    assert {name for name, tensor in before.items() if tensor.kind == Q5_0} > stays


def test_another_reader_reads_what_is_made(tmp_path: Path) -> None:
    path = toys.bpe().write(tmp_path, matrices=Q5_0)
    _, after = before_and_after(path, tmp_path)
    read = gguf.GGUFReader(tmp_path / "recoded.gguf")
    assert {t.name: (t.tensor_type, t.data.tobytes()) for t in read.tensors} == {
        name: (tensor.kind, tensor.data.tobytes()) for name, tensor in after.items()
    }
    pairs = {name: field.parts[-1].tobytes() for name, field in gguf.GGUFReader(path).fields.items()}
    assert {name: field.parts[-1].tobytes() for name, field in read.fields.items()} == pairs


def test_a_tensor_may_have_any_name(tmp_path: Path) -> None:
    """Though it is no UTF-8: ggml aborts the process where it is asked for a name that it does not know."""
    path, name = toys.bpe().write(tmp_path, matrices=Q5_0), b"blk.0.attn_q.weight"
    path.write_bytes(path.read_bytes().replace(name, name[:-1] + b"\xff"))
    _, after = before_and_after(path, tmp_path)
    assert after[os.fsdecode(name[:-1] + b"\xff")].kind == Q8_0


def test_nothing_is_made_of_a_model_that_gains_nothing_is_in_parts_or_cut_off(toy_folder: Path, tmp_path: Path) -> None:
    whole = toys.bpe().write(tmp_path, matrices=Q5_0)
    part, short = tmp_path / "toy-00001-of-00001.gguf", tmp_path / "short.gguf"
    (tmp_path / "toy-00001-of-00002.gguf").write_bytes(whole.read_bytes())
    short.write_bytes(whole.read_bytes()[:-1000])
    part.write_bytes(whole.read_bytes())
    found = {}
    for path in (toy_folder / "toy-bpe.gguf", tmp_path / "toy-00001-of-00002.gguf", short, part):
        with recoded(path) as source:
            found[path.name] = source is not None
    assert found == {
        "toy-bpe.gguf": False, "toy-00001-of-00002.gguf": False, "short.gguf": False, "toy-00001-of-00001.gguf": True,
    }  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\4" + bytes(60)], ids=["empty", "cut off", "too new"])
def test_what_is_wrong_with_a_file_is_left_to_llama_cpp(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(content)
    for each in (path, tmp_path / "none.gguf"):
        with recoded(each) as source:
            assert source is None


def test_two_tensors_that_ggml_takes_for_one_are_left_to_llama_cpp(tmp_path: Path) -> None:
    """It compares names whole, and keeps them up to their first NUL."""
    path = toys.bpe().write(tmp_path, matrices=Q5_0)
    for name in (b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"):
        path.write_bytes(path.read_bytes().replace(name, b"blk.0\0" + name[6:]))
    with recoded(path) as source:
        assert source is None


def test_a_tensor_that_llama_cpp_would_map_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toys.bpe().write(tmp_path, matrices=Q5_0)
    monkeypatch.setattr(recoding, "_MOST_BYTES", 1000)
    with recoded(path) as source:
        assert source is None


def test_the_processor_tells_its_layouts() -> None:
    """Every build has the one that repacks; AMX is there where /proc/cpuinfo and the kernel let it."""
    assert "CPU_REPACK" in ggml.layouts()
