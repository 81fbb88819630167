"""The folder where models land. A file has its name there when all of it is on the disk, and right; never before.

Owns names, locks and what is left of a download that broke off: a hidden file, which the next try goes on with. Refuses
to know where bytes come from.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from app.catalogue import filenames
from app.catalogue.remote import Remote
from app.catalogue.sources import path_of
from app.engine import header, split
from app.errors import SettingsError, SourceError

VARIABLE = "SEGUE_MODELS"
_BLOCK = 1 << 20
_PARTIAL = ".{file}.{version}.part"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Progress = Callable[[int], None]
"""Told how many bytes of a file are there."""


def folder() -> Path:
    """$SEGUE_MODELS, or models/ in the working folder. Raises SettingsError where home or working folder are none."""
    path = path_of(os.environ.get(VARIABLE) or "models")
    try:
        return path.absolute()
    except FileNotFoundError:
        raise SettingsError(f"the working folder is gone: go to another, or set {VARIABLE} to a whole path.") from None


class Store:
    """One folder of models; it need not exist before something lands in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def models(self) -> list[str]:
        """The names of the files that can be served: of a split model the first."""
        found = [path.name for path in self.root.glob("*.gguf") if path.is_file()]
        return sorted(name for name in found if not filenames.is_later_part(name) and not name.startswith("."))

    def holds(self, file: str) -> bool:
        """Whether all files of a model are there."""
        return all((self.root / name).is_file() for name in split.parts_of(file))

    def size(self, file: str) -> int:
        """Bytes of all files of a model that are there."""
        paths = [self.root / name for name in split.parts_of(file)]
        return sum(path.stat().st_size for path in paths if path.is_file())

    def remove(self, file: str) -> int:
        """All of a model, what broke off included; how many bytes that frees. Raises SourceError."""
        freed = 0
        for name in split.parts_of(file):
            for path in (self.root / name, *self.partials(name)):
                freed += path.stat().st_size if path.is_file() else 0
                with _disk(path):
                    path.unlink(missing_ok=True)
        return freed

    def partials(self, file: str) -> list[Path]:
        """What downloads of a file that broke off have left."""
        shape = re.compile(re.escape(f".{file}.") + r"[0-9a-f]+\.part")
        return [path for path in self.root.glob(".*.part") if shape.fullmatch(path.name)]

    def put(self, remote: Remote, progress: Progress) -> Path:
        """The file under its name, unless it is there already; of two that want it at once, one waits.

        Raises SourceError: the checksum is another, the disk is full, or the source fails. What a source that resumes
        had sent by then is kept for the next try, unless it is wrong, or has filled the disk.
        """
        if not filenames.is_name(remote.file):
            raise SourceError(f"{remote.file} is no name for a model here: name it otherwise, --as NAME.")
        path = self.root / remote.file
        with _disk(path):
            self.root.mkdir(parents=True, exist_ok=True)
            if self._is_there(path, remote):
                return path
            partial = self.root / _PARTIAL.format(file=remote.file, version=_short(remote.version))
            with _alone_in(partial) as file:
                if self._is_there(path, remote):  # who was waited for has got it
                    partial.unlink()
                    return path
                with _kept(partial, file, remote):
                    self._fill(file, remote, progress)
                partial.rename(path)
                _sync(self.root)
        return path

    @staticmethod
    def _is_there(path: Path, remote: Remote) -> bool:
        """Raises SourceError where another file has the name. Sizes tell; reading gigabytes is left to `check`."""
        if not path.is_file():
            return False
        size = path.stat().st_size
        if remote.size is not None and size != remote.size:
            raise SourceError(
                f"{path} is there, and is another file: it has {size} bytes, this one {remote.size}. Remove it by "
                f"`segue models rm {path.name}`, or name this one otherwise: --as NAME.gguf."
            )
        return True

    def _fill(self, file: IO[bytes], remote: Remote, progress: Progress) -> None:
        """Read what is missing, and check all of it."""
        if not remote.resumes:
            file.truncate(0)
        digest = hashlib.sha256()
        n_read = _read_into(digest, file)
        self._check_room(remote, n_read)
        progress(n_read)
        with _scratch(self.root / f".{remote.file}.scratch") as scratch:
            for block in remote.read(n_read, scratch):
                _check_block(block, n_read, remote)
                file.write(block)
                digest.update(block)
                n_read += len(block)
                progress(n_read)
        file.flush()
        _check_read(file, remote, n_read, digest.hexdigest())
        os.fsync(file.fileno())

    def _check_room(self, remote: Remote, n_read: int) -> None:
        free = shutil.disk_usage(self.root).free
        if remote.size is not None and remote.size - n_read > free:
            raise OSError(errno.ENOSPC, f"{remote.size - n_read} bytes are to come, and {free} are free")


class _Wrong(SourceError):
    """What came is not what it should be: of no use to go on with."""


def _check_block(block: bytes, n_read: int, remote: Remote) -> None:
    """Raises _Wrong as soon as it can be told: of a server that never ends, nothing else would."""
    if remote.size is not None and n_read + len(block) > remote.size:
        raise _Wrong(f"{remote.file}: more comes than the {remote.size} bytes that it should have.")
    told = not n_read and remote.sha256 is None and len(block) >= header.N_HEAD
    if told and (wrong := header.fault(remote.size or sys.maxsize, block[: header.N_HEAD])):
        raise _Wrong(f"{remote.file}: what came {wrong}.")


def _check_read(file: IO[bytes], remote: Remote, n_read: int, sha256: str) -> None:
    """Raises _Wrong. Without a checksum, the first bytes tell a model from a web page that stands in its place."""
    if remote.sha256 not in (None, sha256):
        raise _Wrong(f"{remote.file}: the checksum is {sha256}, and it should be {remote.sha256}.")
    if remote.size not in (None, n_read):
        raise _Wrong(f"{remote.file}: it came with {n_read} bytes, and should have {remote.size}.")
    file.seek(0)
    if remote.sha256 is None and (wrong := header.fault(n_read, file.read(header.N_HEAD))):
        raise _Wrong(f"{remote.file}: what came {wrong}.")


def check(path: Path, sha256: str | None) -> None:
    """Read a file again. Raises SourceError where its checksum is another, or none is known."""
    if sha256 is None:
        raise SourceError(f"{path.name}: no checksum of it is known.")
    digest = hashlib.sha256()
    with _disk(path), path.open("rb") as file:
        _read_into(digest, file)
    if digest.hexdigest() != sha256:
        raise SourceError(
            f"{path}: the checksum is {digest.hexdigest()}, and it should be {sha256}. Remove it by "
            f"`segue models rm {path.name}`, and get it again."
        )


def _read_into(digest: "hashlib._Hash", file: IO[bytes]) -> int:
    """How many bytes a file has; the digest has seen them."""
    n_read = 0
    for block in iter(lambda: file.read(_BLOCK), b""):
        digest.update(block)
        n_read += len(block)
    return n_read


def _short(version: str) -> str:
    return hashlib.sha256(version.encode()).hexdigest()[:12]


@contextlib.contextmanager
def _alone_in(path: Path) -> Iterator[IO[bytes]]:
    """The file, for as long as no other process has it.

    Who waited may hold what has been renamed or removed since: then it is opened anew.
    """
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield file
                return


@contextlib.contextmanager
def _kept(partial: Path, file: IO[bytes], remote: Remote) -> Iterator[None]:
    """Whatever breaks off, a partial file stays only where the next try can go on with it."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            file.flush()
        is_full = isinstance(error, OSError) and error.errno in _FULL
        if is_full or isinstance(error, _Wrong) or not remote.resumes or not partial.stat().st_size:
            partial.unlink()
        raise


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A folder for what a source needs on the way; one that a killed process left goes first."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What the system refuses, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise SourceError(f"{path}: there is no room: {error.strerror}. Nothing of it is kept.") from None
        raise SourceError(f"{path}: {error.strerror or error}.") from None


def _sync(folder: Path) -> None:
    """Put the new name itself on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
