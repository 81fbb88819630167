"""The folder: a name means a whole file, whatever happens."""

import dataclasses
import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.catalogue.remote import Remote
from app.catalogue.store import VARIABLE, Store, check, folder
from app.errors import SettingsError, SourceError
from tests.servers import ROOT, environment

BODY = b"GGUF" + bytes(range(256)) * 100


def nobody(_: int) -> None:
    """Who watches no progress."""


def names(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.iterdir())


def remote(*blocks: bytes | BaseException, resumes: bool = True, size: int | None = len(BODY)) -> Remote:
    """A file that comes in these blocks, until one of them is what goes wrong. It sends what is asked for."""

    def read(start: int, _: Path) -> Iterator[bytes]:
        for block in blocks:
            if isinstance(block, BaseException):
                raise block
            yield block[start:] if start < len(block) else b""
            start = max(start - len(block), 0)

    return Remote("m.gguf", size, hashlib.sha256(BODY).hexdigest(), "1", resumes, read)


def test_a_file_lands_whole_and_progress_counts_its_bytes(store: Store) -> None:
    seen: list[int] = []
    path = store.put(remote(BODY[:100], BODY[100:]), seen.append)
    assert path.read_bytes() == BODY
    assert seen == [0, 100, len(BODY)]
    assert names(store) == ["m.gguf"]


@pytest.mark.parametrize("error", [SourceError("the network is gone"), KeyboardInterrupt(), SystemExit(143)])
def test_what_broke_off_is_hidden_and_gone_on_with(store: Store, error: BaseException) -> None:
    with pytest.raises(type(error)):
        store.put(remote(BODY[:100], error), nobody)
    assert not (store.root / "m.gguf").exists()
    assert store.models() == []
    seen: list[int] = []
    assert store.put(remote(BODY), seen.append).read_bytes() == BODY
    assert seen == [100, len(BODY)]
    assert names(store) == ["m.gguf"]


def test_a_source_that_cannot_go_on_leaves_nothing(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        store.put(remote(BODY[:100], KeyboardInterrupt(), resumes=False), nobody)
    assert names(store) == []


def test_what_a_killed_download_left_is_cleared(store: Store) -> None:
    """It had no time to: half a file that cannot be gone on with, and what lay in its scratch folder."""
    store.root.mkdir()
    (store.root / ".m.gguf.scratch").mkdir()
    (store.root / ".m.gguf.scratch" / "part.whl").touch()

    def read(_: int, scratch: Path) -> Iterator[bytes]:
        assert not scratch.exists()
        (partial,) = store.partials("m.gguf")
        assert partial.stat().st_size == 0
        yield BODY

    whole = remote(resumes=False)
    (store.root / f".m.gguf.{hashlib.sha256(b'1').hexdigest()[:12]}.part").write_bytes(b"half")
    assert store.put(dataclasses.replace(whole, read=read), nobody).read_bytes() == BODY
    assert names(store) == ["m.gguf"]


@pytest.mark.parametrize("body", [BODY[::-1], BODY[:-1], BODY + b"x"])
def test_what_is_not_the_file_leaves_nothing(store: Store, body: bytes) -> None:
    with pytest.raises(SourceError, match=r"checksum|more comes"):
        store.put(remote(body), nobody)
    assert names(store) == []


def test_a_full_disk_leaves_nothing(store: Store) -> None:
    with pytest.raises(SourceError, match="no room: No space left on device"):
        store.put(remote(BODY[:100], OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), nobody)
    assert names(store) == []


def test_a_disk_that_is_full_at_the_end_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SourceError, match="no room"):
        store.put(remote(BODY), nobody)
    assert names(store) == []


def test_a_disk_too_small_is_told_before_anything_is_fetched(store: Store) -> None:
    def unread(_: int, __: Path) -> Iterator[bytes]:
        raise AssertionError("it was fetched")

    with pytest.raises(SourceError, match=r"no room: 1125899906842624 bytes are to come, and [0-9]+ are free"):
        store.put(Remote("m.gguf", 1 << 50, None, "1", True, unread), nobody)
    assert names(store) == []


COPY = """
import dataclasses, resource, sys
from pathlib import Path
from app.catalogue import local
from app.catalogue.store import Store
from app.errors import SourceError
source, folder, limit, *pipe = sys.argv[1:]
if limit != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
(remote,) = local.find(source)
if pipe:
    remote = dataclasses.replace(remote, read=lambda start, scratch: iter([Path(pipe[0]).read_bytes()]))
try:
    Store(Path(folder)).put(remote, lambda n: print(n, flush=True))
except SourceError as error:
    sys.exit(error.message)
"""


@contextmanager
def copying(source: Path, store: Store, *pipe: Path, limit: int = 0) -> Iterator["subprocess.Popen[str]"]:
    """A process that puts a file into the folder, and prints how far it is.

    pipe: what it reads in the file's place. limit: the bytes that a file of its may have; 0: as many as it likes.
    """
    with subprocess.Popen(
        [sys.executable, "-c", COPY, source, store.root, str(limit), *pipe],
        cwd=ROOT, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def source(toy_folder: Path) -> Path:
    return toy_folder / "toy-spm.gguf"


def test_a_write_that_the_system_refuses_leaves_nothing(store: Store, source: Path) -> None:
    with copying(source, store, limit=1 << 20) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no room: File too large" in said
    assert names(store) == []


LOCKS = Path("/proc/locks")
tells_of_locks = pytest.mark.skipif(not LOCKS.exists(), reason="this system does not tell who waits for a lock")


@tells_of_locks
def test_processes_at_once_make_one_whole_file(store: Store, source: Path, tmp_path: Path) -> None:
    """The first has the lock until the others wait for it; they find the file, and fetch nothing."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with copying(source, store, pipe) as first:
        assert first.stdout
        assert first.stdout.readline() == "0\n"
        with copying(source, store) as second, copying(source, store) as third:
            for other in (second, third):
                wait_for_lock(other)
            pipe.write_bytes(source.read_bytes())
            ends = [process.communicate(timeout=60) for process in (first, second, third)]
    assert [process.returncode for process in (first, second, third)] == [0, 0, 0], ends
    assert [out for out, _ in ends[1:]] == ["", ""]
    assert (store.root / source.name).read_bytes() == source.read_bytes()
    assert names(store) == [source.name]


@tells_of_locks
def test_who_waits_for_a_process_that_is_killed_gets_the_file(store: Store, source: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody writes to it
    with copying(source, store, pipe) as stuck:
        assert stuck.stdout
        assert stuck.stdout.readline() == "0\n"
        with copying(source, store) as other:
            wait_for_lock(other)
            stuck.kill()
            _, said = other.communicate(timeout=60)
    assert other.returncode == 0, said
    assert (store.root / source.name).read_bytes() == source.read_bytes()
    assert names(store) == [source.name]


def wait_for_lock(process: "subprocess.Popen[str]") -> None:
    """Until a process waits for a lock, as the kernel tells; one that does not wait fails the test."""
    waiting = f" {process.pid} "
    while not any("->" in line and waiting in line for line in LOCKS.read_text().splitlines()):
        assert process.poll() is None, process.communicate()


def test_a_file_is_checked_again(store: Store) -> None:
    path = store.put(remote(BODY), nobody)
    check(path, hashlib.sha256(BODY).hexdigest())
    path.write_bytes(BODY[::-1])
    with pytest.raises(SourceError, match=r"the checksum is .*segue models rm"):
        check(path, hashlib.sha256(BODY).hexdigest())


def test_all_of_a_model_is_removed(store: Store) -> None:
    store.root.mkdir()
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", ".a-00002-of-00002.gguf.0a1b.part", "b.gguf"):
        (store.root / name).write_bytes(b"12345")
    assert store.models() == ["a-00001-of-00002.gguf", "b.gguf"]
    assert store.size("a-00001-of-00002.gguf") == 10
    assert store.remove("a-00001-of-00002.gguf") == 15
    assert names(store) == ["b.gguf"]


def test_a_split_model_is_there_when_all_of_it_is(store: Store) -> None:
    store.root.mkdir()
    (store.root / "a-00001-of-00002.gguf").touch()
    assert not store.holds("a-00001-of-00002.gguf")
    (store.root / "a-00002-of-00002.gguf").touch()
    assert store.holds("a-00001-of-00002.gguf")


def endless(block: bytes) -> Iterator[bytes]:
    """A source that never ends; who takes a second block of it has not looked at the first."""
    yield block
    raise AssertionError("what came was wrong already")


@pytest.mark.parametrize(
    ("block", "size", "words"), [(b"<html>" * 9, None, "web page"), (BODY + b"x", len(BODY), "more")]
)
def test_what_is_wrong_is_not_read_to_its_end(store: Store, block: bytes, size: int | None, words: str) -> None:
    unknown = Remote("m.gguf", size, None, "1", True, lambda start, scratch: endless(block))
    with pytest.raises(SourceError, match=words):
        store.put(unknown, nobody)
    assert names(store) == []


def test_a_working_folder_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SettingsError, match="the working folder is gone"):
        folder()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert folder() == tmp_path
