"""What decides how llama.cpp is compiled, and under which name the wheel is kept. Nothing is compiled here."""

import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.conftest import ROOT

LOCK = "llama-cpp-python==0.3.36 \\\n    --hash=sha256:" + "8" * 64 + "\n"


def macros(gcc: str = "12.2", arch: str = "x86_64", **more: str) -> dict[str, str]:
    major, minor = gcc.split(".")
    return {"__GNUC__": major, "__GNUC_MINOR__": minor, f"__{arch}__": "1", **more}


CLANG = {"__clang__": "1", "__clang_major__": "17", "__clang_minor__": "0"}


@pytest.mark.parametrize(
    ("gcc", "broken"),
    [
        ("9.4", True),
        ("11.5", True),
        ("12.2", True),
        ("12.3", True),
        ("12.4", False),
        ("12.5", False),
        ("13.0", True),
        ("13.2", True),
        ("13.3", False),
        ("14.0", False),
        ("15.1", False),
    ],
)
def test_which_gcc_drops_amx_stores(install: Any, gcc: str, broken: bool) -> None:
    assert install.Compiler("gcc", "g++", macros(gcc)).drops_amx_stores is broken


def test_clang_and_other_processors_keep_their_stores(install: Any) -> None:
    clang = install.Compiler("clang", "clang++", macros("4.2", **CLANG))
    assert (clang.name, clang.drops_amx_stores) == ("clang17.0", False)
    assert not install.Compiler("gcc", "g++", macros("12.2", "aarch64")).drops_amx_stores


def test_user_flags_stay_and_have_the_last_word(install: Any) -> None:
    env = {"CXXFLAGS": "-g", "CMAKE_ARGS": "-DGGML_NATIVE=OFF", "HOME": "/home/someone"}
    made = install.recipe(LOCK, install.Compiler("gcc-12", "g++-12", macros()), env, install.Backend("cpu"))
    assert made.flags["CXXFLAGS"] == "-g -fno-tree-dse -fno-dse"
    assert made.flags["CMAKE_ARGS"] == "-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF"

    building = made.environment(env, Path("/some where/hook.cmake"))
    assert building["CMAKE_ARGS"].startswith("'-DCMAKE_PROJECT_llama_cpp_INCLUDE=/some where/hook.cmake' -DLLAVA")
    assert (building["CC"], building["CXX"], building["HOME"]) == ("gcc-12", "g++-12", "/home/someone")
    assert "CFLAGS" not in building


def test_a_good_compiler_gets_no_flags(install: Any) -> None:
    assert (
        install.recipe(LOCK, install.Compiler("gcc", "g++", macros("14.2")), {}, install.Backend("cpu")).flags[
            "CXXFLAGS"
        ]
        == ""
    )


def programs(folder: Path, **written: str) -> dict[str, str]:
    """An environment whose path has only these programs, in shell."""
    for name, text in written.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


NVCC = """[ "$1" = --version ] && { echo nvcc; echo "Build cuda_12.6"; exit; }; echo "$@" >> "${0%/*}/asked" """
GOOD = "exit 0"
LACKING = 'echo "stdin:2:10: fatal error: the_header.h: No such file" >&2; exit 1'


def test_a_cuda_build_is_told_architectures_host_compiler_and_nvcc(install: Any, tmp_path: Path) -> None:
    env = programs(tmp_path, nvcc=NVCC) | {"CUDAHOSTCXX": "g++-12", "CMAKE_ARGS": "-DGGML_CUDA_F16=ON"}
    compiler = install.Compiler("gcc", "g++", macros("14.2"))
    made = install.recipe(LOCK, compiler, env, install.Backend("cuda", "80;86-real"))
    building = made.environment(env, Path("/hook.cmake"))
    assert shlex.split(building["CMAKE_ARGS"])[1:] == [
        "-DLLAVA_BUILD=OFF", "-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=80;86-real", "-DGGML_CUDA_F16=ON",
    ]  # fmt: skip
    assert (building["CUDAHOSTCXX"], building["CUDACXX"]) == ("g++-12", str(tmp_path / "nvcc"))
    assert "-ccbin g++-12" in (tmp_path / "asked").read_text()


def backend_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine on which every backend can be built."""
    monkeypatch.setattr(sys, "platform", "darwin")
    return programs(folder, cxx=GOOD, glslc=GOOD, xcrun=GOOD, nvcc=NVCC)


@pytest.mark.parametrize(("name", "flag"), [("vulkan", "-DGGML_VULKAN=ON"), ("metal", "-DGGML_METAL=ON")])
def test_each_backend_is_switched_on(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, flag: str
) -> None:
    env = backend_programs(tmp_path, monkeypatch)
    made = install.recipe(LOCK, install.Compiler("cc", str(tmp_path / "cxx"), macros()), env, install.Backend(name))
    assert flag in made.flags["CMAKE_ARGS"].split()


def test_builds_of_different_backends_are_kept_apart(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of different architectures, host compilers and toolkits too."""
    env = backend_programs(tmp_path, monkeypatch)
    compiler = install.Compiler("cc", str(tmp_path / "cxx"), macros())
    backends = [*map(install.Backend, install.BACKENDS), install.Backend("cuda", "86")]
    keys = {install.recipe(LOCK, compiler, env, backend).key for backend in backends}
    keys.add(install.recipe(LOCK, compiler, env | {"CUDAHOSTCXX": "g++-11"}, backends[-1]).key)
    programs(tmp_path, nvcc=NVCC.replace("12.6", "13.0"))
    keys.add(install.recipe(LOCK, compiler, env, backends[-1]).key)
    assert len(keys) == 7
    assert sum("-cuda-" in key for key in keys) == 4


@pytest.mark.parametrize(
    ("backend", "there", "told"),
    [
        ("cuda", {}, ["nvcc", "nvidia-cuda-toolkit", "CUDACXX"]),
        ("cuda", {"nvcc": LACKING}, ["the_header.h", "CUDAHOSTCXX", "toolkit"]),
        ("vulkan", {"cxx": GOOD}, ["missing: glslc\n", "apt install libvulkan-dev glslc", "SDK"]),
        ("vulkan", {"cxx": LACKING, "glslc": GOOD}, ["Vulkan's headers", "SPIR-V", "spirv-headers"]),
        ("metal", {}, ["macOS", "xcode-select --install"]),
    ],
)
def test_what_a_backend_lacks_is_told_before_anything_is_compiled(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, there: dict[str, str], told: list[str]
) -> None:
    monkeypatch.setattr(install, "CUDA_PLACES", ())
    env = programs(tmp_path, **there)
    with pytest.raises(install.Failure) as raised:
        install.recipe(LOCK, install.Compiler("cc", str(tmp_path / "cxx"), macros()), env, install.Backend(backend))
    for words in told:
        assert words in str(raised.value)


def test_whoever_names_no_backend_keeps_the_one_that_was_built(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setattr(install, "STAMP", tmp_path / "stamp")
    assert install.installed_backend() == install.Backend()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    for lines, backend in (("a\nb", install.Backend()), ("a\nb\ncuda 80;86", install.Backend("cuda", "80;86"))):
        (tmp_path / "stamp").write_text(lines)
        assert install.installed_backend() == backend
        assert install.Backend.of(backend.word) == backend


def test_the_command_line_refuses_architectures_of_no_cuda() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "install", "--cuda-architectures", "86"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--backend cuda" in done.stderr


def changed_compiler(**more: str) -> Callable[[Any], Any]:
    return lambda made: replace(made, compiler=replace(made.compiler, macros={**made.compiler.macros, **more}))


def changed_flag(name: str) -> Callable[[Any], Any]:
    return lambda made: replace(made, flags={**made.flags, name: "-something"})


CHANGES = {
    "compiler": changed_compiler(__GNUC_MINOR__="3"),
    "C compiler": lambda made: replace(made, compiler=replace(made.compiler, cc="clang")),
    "its patch level": changed_compiler(__VERSION__='"12.2.1"'),
    "processor": changed_compiler(__AMX_INT8__="1"),
    "version": lambda made: replace(made, lock=LOCK.replace("0.3.36", "0.3.37")),
    "source": lambda made: replace(made, lock=LOCK.replace("8" * 64, "9" * 64)),
    **{name: changed_flag(name) for name in ("CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_ARGS")},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_ingredient_changes_the_key(install: Any, change: Callable[[Any], Any]) -> None:
    made = install.recipe(LOCK, install.Compiler("gcc", "g++", macros()), {}, install.Backend("cpu"))
    assert made.key.startswith("0.3.36-gcc12.2-")
    assert (
        made.key
        == install.recipe(
            LOCK, install.Compiler("gcc", "g++", macros()), {"HOME": "/elsewhere"}, install.Backend("cpu")
        ).key
    )
    assert change(made).key != made.key


def test_the_platform_and_its_c_library_change_the_key(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = install.recipe(LOCK, install.Compiler("gcc", "g++", macros()), {}, install.Backend("cpu"))
    keys = {made.key}
    monkeypatch.setattr(install.platform, "libc_ver", lambda: ("glibc", "1.0"))
    keys.add(made.key)
    monkeypatch.setattr(install.platform, "machine", lambda: "sparc")
    keys.add(made.key)
    assert len(keys) == 3


def test_the_build_takes_only_the_locked_source_and_no_cached_wheel(install: Any) -> None:
    command = install.build_command(Path("/venv/bin/python"), Path("/out"))
    assert command[:5] == ["/venv/bin/python", "-m", "pip", "wheel", "-v"]
    assert {"--no-cache-dir", "--no-build-isolation", "--require-hashes", "--no-deps"} < set(command)
    assert command[-4:] == ["-r", str(install.LOCKS / "llama.lock"), "-w", "/out"]


def test_no_compiler_says_how_to_get_one(install: Any, tmp_path: Path) -> None:
    with pytest.raises(install.Failure, match="apt install g"):
        install.find_compiler({"PATH": str(tmp_path)})
    with pytest.raises(install.Failure, match="apt install g"):
        install.find_compiler({"PATH": os.defpath, "CC": "cc", "CXX": str(tmp_path / "none")})


def test_no_venv_module_says_how_to_get_it(install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(install.Failure, match="python3-venv"):
        install.make_venv(tmp_path / "venv")


@pytest.mark.parametrize(
    ("env", "store"),
    [
        ({"SEGUE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a/wheels")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/segue/wheels")),
        ({}, Path.home() / ".cache/segue/wheels"),
    ],
)
def test_where_wheels_are_kept(install: Any, env: dict[str, str], store: Path) -> None:
    assert install.wheel_store(env) == store


def stand_in(install: Any, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """A build that takes no time: `program` runs in place of pip, in no virtual environment."""
    monkeypatch.setattr(install, "make_venv", lambda folder: Path(sys.executable))
    monkeypatch.setattr(install, "pip", lambda *arguments: None)
    monkeypatch.setattr(install, "build_command", lambda python, into: [str(python), "-c", program, str(into)])


WHEEL = """
import pathlib, sys
pathlib.Path(sys.argv[1]).mkdir()
(pathlib.Path(sys.argv[1]) / "llama.whl").touch()
print("  [1/2] g++"); print("  [2/2] g++")
"""


def test_a_wheel_is_built_once(install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = install.recipe(LOCK, install.Compiler("gcc", "g++", macros()), {}, install.Backend("cpu"))
    (tmp_path / ".build-killed").mkdir()
    stand_in(install, monkeypatch, WHEEL)
    monkeypatch.setattr(install, "check_loads", lambda wheel, folder: None)
    wheel = install.wheel_for(made, tmp_path)
    assert wheel == tmp_path / made.key / "llama.whl"

    stand_in(install, monkeypatch, "raise SystemExit('built again')")
    assert install.wheel_for(made, tmp_path) == wheel
    assert sorted(path.name for path in tmp_path.iterdir()) == [made.key, f"{made.key}.log"]


def test_a_failed_build_leaves_its_log_and_no_wheel(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = install.recipe(LOCK, install.Compiler("gcc", "g++", macros()), {}, install.Backend("cpu"))
    stand_in(install, monkeypatch, "print('sampler.cpp:3: error: no such luck'); raise SystemExit(1)")
    with pytest.raises(install.Failure, match=r"no such luck\n.*\.log"):
        install.wheel_for(made, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{made.key}.log"]


def test_a_library_that_does_not_load_stays_out(install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = install.recipe(LOCK, install.Compiler("gcc", "g++", macros()), {}, install.Backend("cpu"))
    program = WHEEL.replace(
        '(pathlib.Path(sys.argv[1]) / "llama.whl").touch()',
        "import zipfile; zipfile.ZipFile(sys.argv[1] + '/llama.whl', 'w').writestr('libllama.so', 'no library')",
    )
    stand_in(install, monkeypatch, program)
    with pytest.raises(install.Failure, match="does not load"):
        install.wheel_for(made, tmp_path)
    assert not (tmp_path / made.key).exists()


def test_a_library_that_only_lacks_the_driver_is_kept(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image for a CUDA machine is built where there is none."""
    said = "OSError: libcuda.so.1: cannot open shared object file: No such file or directory"
    monkeypatch.setattr(install, "LOAD", f"raise SystemExit({said!r})")
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("libllama.so", "")
    install.check_loads(wheel, tmp_path / "loaded")
    assert "driver" in capsys.readouterr().err


def test_an_older_python_is_told_so(install: Any) -> None:
    path = str(install.ROOT / "scripts" / "install")
    program = f"import sys, runpy; sys.version_info = (3, 9, 2, 'final', 0); runpy.run_path({path!r})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("segue needs Python 3.11 or newer")
