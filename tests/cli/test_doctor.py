"""`segue doctor`: what it finds of a toy model and of what is made up, and that every trouble has its remedy."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli import checks, llama_checks
from app.cli.findings import Finding
from app.engine import fit, machine, probe
from app.engine.ggml import Device
from app.engine.offload import Offload
from app.engine.sizes import Sizes
from app.settings import Settings
from tests.cli.commands import printed, run

GB = 10**9


def told(code: int, *flags: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The findings by their names. What is not well has a remedy, and the exit code says whether anything fails."""
    done = run("doctor", "--port", "0", *flags, "--json", env=env)
    assert (done.exit_code, done.stderr) == (code, "")
    answer = json.loads(done.stdout)
    assert answer["ok"] is (code == 0)
    assert answer["ok"] is all(check["verdict"] != "fail" for check in answer["checks"])
    for check in answer["checks"]:
        assert (check["remedy"] is None) is (check["verdict"] == "ok"), check
    return {check["name"]: check for check in answer["checks"]}


def toy(folder: Path) -> str:
    return str(folder / "toy-bpe.gguf")


def test_a_good_model_passes(toy_folder: Path) -> None:
    found = told(0, "--model", toy(toy_folder), "--threads", "1")
    for name in ("python", "packages", "port", "llama.cpp", "threads", "model", "decode", "memory"):
        assert found[name]["verdict"] == "ok"
    assert toy(toy_folder) in found["model"]["found"]
    assert "CPU" in found["llama.cpp"]["found"]


def test_it_reads_in_eighty_columns_a_remedy_a_line(toy_folder: Path, tmp_path: Path) -> None:
    said = printed("doctor", "--port", "0")
    lines = [line.rstrip() for line in said.splitlines()]
    assert max(map(len, lines)) <= 80
    at = next(i for i, line in enumerate(lines) if line.startswith("warn  model "))
    assert lines[at + 1].split(maxsplit=1)[0] == "->"
    assert "--model" in lines[at + 1]


def test_without_a_model_it_says_so_and_all_else() -> None:
    found = told(0)
    assert found["model"]["verdict"] == "warn"
    assert "--model" in found["model"]["remedy"]
    assert "decode" not in found
    assert found["threads"]["verdict"] == "ok"


def test_each_of_several_models_is_looked_at_and_all_together(toy_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "segue.toml"
    tables = [f"[[models]]\nmodel = '{toy_folder / name}.gguf'\n" for name in ("toy-spm", "toy-bpe")]
    config.write_text("threads = 1\n" + "".join(tables))
    done = run("doctor", "--port", "0", "--config", str(config), "--json")
    checks = json.loads(done.stdout)["checks"]
    assert (done.exit_code, [check["verdict"] for check in checks if check["name"] == "decode"]) == (0, ["ok"] * 2)
    assert "toy-spm, toy-bpe" in next(check["found"] for check in checks if check["name"] == "models")
    config.write_text("threads = 1\nmemory-budget = 1\n" + "".join(tables))
    refused = told(1, "--config", str(config))["models"]
    assert "memory_budget" in refused["found"]
    assert "first-use" in refused["remedy"]


def test_a_broken_file_is_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>")
    found = told(1, "--model", str(path))
    assert found["model"]["verdict"] == "fail"
    assert "web page" in found["model"]["found"]
    assert "download" in found["model"]["remedy"]
    assert "decode" not in found
    assert told(1, "--model", str(tmp_path / "nope.gguf"))["model"]["verdict"] == "fail"


def test_a_file_that_only_llama_cpp_refuses_fails_to_decode(tmp_path: Path, toy_folder: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(Path(toy(toy_folder)).read_bytes()[:-100_000])
    found = told(1, "--model", str(path))
    assert found["model"]["verdict"] == "ok"
    assert found["decode"]["verdict"] == "fail"
    assert "download it again" in found["decode"]["remedy"]


def test_a_model_that_kills_its_process_kills_only_a_child(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr(probe, "_child", lambda: [sys.executable, "-c", dying])
    found = told(1, "--model", toy(toy_folder))
    assert "SIGSEGV" in found["decode"]["found"]
    assert "--no-repack" in found["decode"]["remedy"]
    assert "memory" not in found


def test_a_context_larger_than_its_cache_is_told(toy_folder: Path) -> None:
    found = told(1, "--model", toy(toy_folder), "--ctx-size", "4096", "--cache-size", "1024")
    assert "1024" in found["decode"]["found"]
    assert "4096" in found["decode"]["remedy"]


def test_a_gpu_that_is_asked_for_in_vain_is_told(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.llama_checks.ggml.devices", lambda: [Device("CPU", "a processor", False, 0)])
    assert told(0, "--gpu-layers", "5")["offload"]["verdict"] == "warn"
    assert "offload" not in told(0)


def test_a_taken_port_is_told(taken_port: int) -> None:
    found = told(1, "--port", str(taken_port))
    assert found["port"]["found"] == f"cannot listen on 127.0.0.1:{taken_port}: Address already in use"
    assert "--port" in found["port"]["remedy"]


@pytest.mark.parametrize("host", ["\udcff", "a" * 70])
def test_a_host_that_nobody_is_called_is_told(host: str) -> None:
    assert "no host is called so" in told(1, "--host", host)["port"]["found"]


def test_a_long_path_is_told_whole_and_no_line_ends_in_spaces(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 150)
    shown = run("doctor", "--port", "0", "--model", str(path)).stdout
    assert str(path) in "".join(line.strip() for line in shown.splitlines())
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_a_wrong_setting_is_told_with_all_that_does_not_depend_on_it() -> None:
    found = told(1, env={"SEGUE_THREADS": "many"})
    assert "'many'" in found["settings"]["found"]
    assert "processor" in found
    assert "model" not in found


def test_variables_that_nothing_reads_are_told() -> None:
    ours = {"SEGUE_CTX_SIZE": "1", "SEGUE_CONFIG": "x", "SEGUE_CACHE": "x", "PATH": "x"}
    assert list(checks.variables(ours)) == []
    near, far = checks.variables(ours | {"SEGUE_CTXSIZE": "1", "SEGUE_XYZZY": ""})
    assert near.verdict == far.verdict == "warn"
    assert "SEGUE_CTXSIZE" in near.found
    assert near.remedy == "is SEGUE_CTX_SIZE meant?"
    assert "SEGUE_XYZZY" in far.found


def test_llama_cpp_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("app.cli.llama_checks")
    monkeypatch.setitem(sys.modules, "app.cli.llama_checks", None)
    found = told(1)
    assert found["llama.cpp"]["verdict"] == "fail"
    assert "scripts/install" in found["llama.cpp"]["remedy"]
    assert found["python"]["verdict"] == "ok"


def test_another_llama_cpp_than_the_one_that_segue_goes_with_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.checks.metadata.requires", lambda _: ["llama-cpp-python==9.9.9", "numpy>=2"])
    packages = {check.name: check for check in checks.python()}["packages"]
    assert packages.verdict == "fail"
    assert "9.9.9" in str(packages.remedy)


@pytest.mark.parametrize(
    ("n_threads", "n_processors", "quota", "useful"),
    [(2, 2, None, None), (2, 2, 2.0, None), (2, 4, 2.5, None), (4, 2, None, 2), (8, 8, 1.5, 1), (2, 8, 0.5, 1)],
)
def test_threads_that_processors_or_a_container_cannot_run(
    n_threads: int, n_processors: int, quota: float | None, useful: int | None
) -> None:
    found = checks.threads(n_threads, n_processors, quota)
    assert found.remedy == (f"--threads {useful}" if useful else None)


def test_what_a_processor_has_and_the_build_does_not_use() -> None:
    has = machine.Processor("Some CPU", frozenset({"avx2", "amx_int8", "sse"}))
    assert checks.processor(has, frozenset({"AVX2", "AMX_INT8", "LLAMAFILE"})).verdict == "ok"
    found = checks.processor(has, frozenset({"AVX2"}))
    assert found.verdict == "warn"
    assert "AMX_INT8" in found.found
    assert "scripts/install" in str(found.remedy)


CPU = Device("CPU", "a processor", False, 0)
GPU = Device("CUDA0", "a GPU", True, 8 * GB)


@pytest.mark.parametrize(
    ("devices", "backends", "nvidia", "verdict", "word"),
    [
        ([GPU, CPU], ["CUDA", "CPU"], ["a GPU"], "ok", "8.0 GB"),
        ([CPU], ["CPU"], [], "ok", "none"),
        ([CPU], ["CPU"], ["NVIDIA A100"], "warn", "--backend cuda"),
        ([CPU], ["CUDA", "CPU"], ["NVIDIA A100"], "warn", "driver"),
    ],
)
def test_gpus(devices: list[Device], backends: list[str], nvidia: list[str], verdict: str, word: str) -> None:
    found = llama_checks.gpus(devices, backends, nvidia)
    assert found.verdict == verdict
    assert word in f"{found.found} {found.remedy}"


@pytest.mark.parametrize(
    ("on_gpus", "free", "most", "gpu_free", "verdict"),
    [
        (0, 6, 8, 0, "ok"),
        (0, 5, 8, 0, "warn"),
        (0, 5, 5, 0, "fail"),
        (4, 2, 8, 4, "ok"),
        (4, 2, 8, 3, "warn"),
        (4, 2, 8, 0, "ok"),  # a GPU that does not tell
        (4, 1, 8, 4, "warn"),
    ],
)
def test_memory_against_what_the_model_takes(on_gpus: int, free: int, most: int, gpu_free: int, verdict: str) -> None:
    needs = fit.Needs(n_weights=3 * GB, n_cache=2 * GB, n_compute=GB, n_on_gpus=on_gpus * GB)
    found = llama_checks.memory(needs, machine.Memory(free * GB, most * GB), gpu_free * GB)
    assert found.verdict == verdict
    assert "3.0 GB weights, 2.0 GB cache, 1.0 GB to compute in" in found.found


def test_a_system_that_tells_no_memory_is_no_trouble() -> None:
    needs = fit.Needs(3, 2, 1, 0)
    assert llama_checks.memory(needs, None, 0).verdict == "ok"


def test_what_a_toy_takes_is_what_its_file_and_cache_are(toy_folder: Path) -> None:
    path = Path(toy(toy_folder))
    needs = fit.needs(path, Offload(gpu_layers=0), Sizes(256, 512, 1, 16, 1, 1))
    assert needs.n_on_gpus == 0
    assert 0.9 * path.stat().st_size < needs.n_weights < path.stat().st_size
    # One block, one head of keys and one of values, of 32 numbers of 16 bits each.
    assert needs.n_cache == pytest.approx(512 * 2 * 32 * 2, rel=0.2)


def test_findings_are_data() -> None:
    assert checks.port(Settings(port=0)) == Finding("port", "ok", "any free one of 127.0.0.1")
