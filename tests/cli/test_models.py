"""`segue models` as it is called: what it prints, how it ends."""

import json
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import httpx
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from app.cli import main
from tests.catalogue.web_server import REPO, World, serving
from tests.servers import COMMAND, ROOT, environment, one_line, running

BODY = struct.pack("<4sIQQ", b"GGUF", 3, 0, 0) + bytes(2540)
Call = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, toy_folder: Path) -> Path:
    """A toy, and a catalogue that has it and another."""
    (tmp_path / "toy-bpe.gguf").write_bytes((toy_folder / "toy-bpe.gguf").read_bytes())
    (tmp_path / "catalogue.toml").write_text(
        f'[toy]\nsource = "hf:{REPO}"\nfile = "toy-bpe.gguf"\nlicence = "none"\nabout = "a toy"\ncontext = 512\n'
        f'[far]\nsource = "hf:{REPO}"\nfile = "far.gguf"\nsize = 2564\nlicence = "MIT"\nterms = "https://mit.invalid"\n'
    )
    return tmp_path


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("SEGUE_MODELS", str(folder))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return lambda *arguments, **more: CliRunner().invoke(main, ["models", *arguments], **more)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with serving(World()) as world:
        monkeypatch.setenv("HF_ENDPOINT", world.url)
        yield world


def refused(done: Result, status: int, *words: str) -> None:
    assert done.exit_code == status, done.output
    assert done.stdout == ""
    line = one_line(done.stderr)
    assert all(word in line for word in words), line


def test_a_list_has_a_line_for_each_model(call: Call) -> None:
    done = call("list")
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["name", "size", "here", "licence", "about"]
    assert ["toy", "3.5", "MB", "yes", "none", "a", "toy"] in lines
    assert ["far", "2.6", "kB", "no", "MIT"] in lines


def test_a_list_for_scripts_says_where_files_are(call: Call, folder: Path) -> None:
    done = call("list", "--json")
    models = {model["name"]: model for model in json.loads(done.stdout)}
    assert models["toy"]["path"] == str(folder / "toy-bpe.gguf")
    assert models["toy"]["context"] == 512
    assert (models["far"]["here"], models["far"]["path"], models["far"]["size"]) == (False, None, 2564)
    assert all(model.keys() == models["toy"].keys() for model in models.values())


def test_a_list_needs_no_folder(call: Call, tmp_path: Path) -> None:
    done = call("list", "--json", env={"SEGUE_MODELS": str(tmp_path / "nowhere")})
    assert [model["here"] for model in json.loads(done.stdout)] == [False, False]


def test_getting_prints_the_path_alone(call: Call, world: World, folder: Path) -> None:
    world.files = {"m.gguf": BODY}
    done = call("get", "far")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{folder / 'far.gguf'}\n"
    assert one_line(done.stderr) == "getting far, 2.6 kB, MIT (https://mit.invalid)"
    again = call("get", "far")
    assert (again.stdout, again.stderr) == (done.stdout, "")


def test_a_source_is_got_under_the_name_that_is_asked_for(call: Call, world: World, folder: Path) -> None:
    world.files = {"m.gguf": BODY}
    for name in ("mine", "mine.gguf"):
        assert call("get", f"{world.url}/plain/m.gguf", "--as", name).stdout == f"{folder / 'mine.gguf'}\n"
    refused(call("get", f"hf:{REPO}", "--as", "../mine"), 2, "--as", "../mine")
    refused(call("get", "far", "--as", "mine"), 2, "--as")


def test_errors_are_one_line(call: Call, world: World, folder: Path) -> None:
    refused(call("get", "nonsense"), 2, "nonsense", "far")
    refused(call("get", "hf:no/such"), 1, "hf:no/such", "HF_TOKEN")
    refused(call("get", "./nope.gguf"), 1, "nope.gguf")
    refused(call("get", "toy", "--verify"), 1, "no checksum")
    refused(call("show", "far"), 2, "segue models get far")
    refused(call("show", "nonsense"), 2, "nonsense", "segue models list")
    refused(call("show", str(folder / "catalogue.toml")), 1, "catalogue.toml")
    refused(call("rm", "far", "--yes"), 2, "far", str(folder))
    (folder / "catalogue.toml").write_text("[toy]\nsource = 1\n")
    refused(call("list"), 2, "catalogue.toml", "toy.source is 1")


def test_removing_asks_and_says_so(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(call("rm", "toy"), 2, "--yes")
    assert (folder / "toy-bpe.gguf").exists()
    done = call("rm", "toy", "--yes")
    assert done.exit_code == 0
    assert one_line(done.stderr) == f"removed {folder / 'toy-bpe.gguf'} (3.5 MB)"
    assert not (folder / "toy-bpe.gguf").exists()


def test_what_broke_off_is_removed_by_the_name_it_was_to_have(call: Call, folder: Path) -> None:
    (folder / ".half-Q8_0.gguf.0123456789ab.part").write_bytes(b"12345")
    assert "half-Q8_0.gguf (5 bytes)" in one_line(call("rm", "half-Q8_0", "--yes").stderr)
    assert sorted(path.name for path in folder.iterdir()) == ["catalogue.toml", "toy-bpe.gguf"]


def test_nothing_outside_the_folder_is_removed(call: Call, folder: Path) -> None:
    other = folder.parent / "other.gguf"
    other.write_bytes(b"12345")
    for name in ("../other", "../other.gguf", str(other)):
        refused(call("rm", name, "--yes"), 2, "other", "there is no such model")
    assert other.exists()


def test_a_model_that_is_named_twice_is_removed_once(call: Call) -> None:
    assert one_line(call("rm", "toy", "toy-bpe", "--yes").stderr).endswith("(3.5 MB)")


def test_what_a_file_says_moves_no_cursor(call: Call, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "red.gguf", "llama")
    writer.add_name("\x1b[31mred")
    writer.add_token_list(["a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert r"\x1b[31mred" in call("show", str(tmp_path / "red.gguf")).stdout


def test_a_model_is_described(call: Call, folder: Path) -> None:
    shown = call("show", "toy")
    assert shown.exit_code == 0, shown.stderr
    facts = dict(line.split("  ", 1) for line in shown.stdout.splitlines() if not line.startswith(" "))
    assert facts["architecture"].strip() == "llama"
    assert facts["insertion"].strip() == "yes, by its own tokens"
    assert facts["cache"].strip() == "1.0 MB: 8192 cells, at --ctx-size 512"
    described = json.loads(call("show", str(folder / "toy-bpe.gguf"), "--json", "--ctx-size", "8192").stdout)
    assert described["memory"] == {
        "context": 8192, "cells": 16384, "weights": 3510272, "cache": 16384 * 1 * (32 + 32) * 2, "note": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["models", "get"], {"far", "gemma-3-270m", "qwen2.5-coder-1.5b"}),
        (["models", "rm"], {"toy"}),
        (["models", "show"], {"toy"}),
        (["models"], {"list", "get", "rm", "show"}),
        (["serve", "--model"], {"toy"}),
    ],
)
def test_the_shell_completes_names(call: Call, folder: Path, arguments: list[str], names: set[str]) -> None:
    complete = ShellComplete(main, {}, "segue", "_SEGUE_COMPLETE")
    assert {item.value for item in complete.get_completions(arguments, "")} == names
    assert {item.value for item in complete.get_completions(arguments, "x")} <= {"x"}
    (folder / "catalogue.toml").write_text("broken")
    complete.get_completions(arguments, "")


def test_a_signal_ends_a_download_in_order(world: World, folder: Path) -> None:
    world.files, world.stalls_after = {"m.gguf": BODY}, 1000
    extra = {"SEGUE_MODELS": str(folder)}
    command = [*COMMAND, "models", "get", f"hf:{REPO}"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert world.stalled.wait(60)
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert out == ""
    assert "Traceback" not in said
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["catalogue.toml", "toy-bpe.gguf"]


def test_a_model_is_served_by_its_name_as_the_catalogue_has_it(folder: Path, tmp_path: Path) -> None:
    extra = {"SEGUE_MODELS": str(folder)}
    with running(tmp_path / "log", "--model", "toy", "--threads", "1", extra=extra) as server:
        (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert model["id"] == "toy-bpe"
    assert model["max_model_len"] == 512


def test_what_needs_no_model_imports_no_llama_cpp(folder: Path) -> None:
    program = "import sys; from app.cli import main; main(['models', 'list'], standalone_mode=False)\n"
    program += "heavy = {'llama_cpp', 'gguf', 'huggingface_hub', 'httpx2', 'litestar', 'numpy'}\n"
    program += "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [COMMAND[0], "-c", program],
        cwd=ROOT, env=environment({"SEGUE_MODELS": str(folder)}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr.split() == []
