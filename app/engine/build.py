"""How llama.cpp was built: what of the processor it uses, and by which compiler.

Owns how its libraries tell of themselves, and which of a processor's features are worth having. Refuses to know whose
processor it is.
"""

import re
from pathlib import Path

_GCC = re.compile(rb"GCC: \([^)]*\) (\d[\d.]*)")
_CLANG = re.compile(rb"clang version (\d[\d.]*)")

FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
"""What Linux calls a feature of a processor that makes models faster, and what llama.cpp does."""


def used(system_info: str) -> dict[str, frozenset[str]]:
    """What each backend was built to use. system_info: llama.cpp's `CPU : AVX = 1 | AVX2 = 1 | ...`"""
    found: dict[str, set[str]] = {}
    backend = ""
    for word in filter(None, map(str.strip, system_info.split("|"))):
        head, colon, rest = word.partition(" : ")
        backend, feature = (head, rest) if colon else (backend, head)
        name, _, value = feature.partition(" = ")
        found.setdefault(backend, set()).update({name} if value != "0" else ())
    return {name: frozenset(features) for name, features in found.items()}


def compiler(folder: Path) -> str | None:
    """What compiled the libraries in a folder, as far as they tell."""
    for library in sorted(folder.glob("*ggml-cpu*")) or sorted(folder.glob("*ggml*")):
        data = library.read_bytes()
        for name, said in (("clang", _CLANG), ("gcc", _GCC)):  # clang links beginnings and ends that gcc compiled
            if found := said.search(data):
                return f"{name} {found[1].decode()}"
    return None
