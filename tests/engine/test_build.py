"""How llama.cpp tells of its build."""

from pathlib import Path

import pytest

from app.engine import build


def test_each_backend_has_its_features() -> None:
    told = "CUDA : ARCHS = 800,860 | USE_GRAPHS = 1 | CPU : AVX = 1 | AVX512 = 0 | AMX_INT8 = 1 | "
    assert build.used(told) == {
        "CUDA": frozenset({"ARCHS", "USE_GRAPHS"}),
        "CPU": frozenset({"AVX", "AMX_INT8"}),
    }
    assert build.used("") == {}


@pytest.mark.parametrize(
    ("said", "compiler"),
    [
        (b"GCC: (Debian 12.2.0-14+deb12u1) 12.2.0\0", "gcc 12.2.0"),
        (b"GCC: (GNU) 14.1.1 20240522 (Red Hat)\0", "gcc 14.1.1"),
        (b"GCC: (Debian 12) 12.2.0\0Debian clang version 14.0.6\0", "clang 14.0.6"),
        (b"nothing", None),
    ],
)
def test_the_compiler_is_in_the_library(tmp_path: Path, said: bytes, compiler: str | None) -> None:
    (tmp_path / "libggml-base.so").write_bytes(b"GCC: (other) 1.0\0")
    (tmp_path / "libggml-cpu.so").write_bytes(b"\x7fELF\0\xff" + said)
    assert build.compiler(tmp_path) == compiler
    assert build.compiler(tmp_path / "nowhere") is None
