"""Where pruning writes what it deletes: files in a folder, or stdout. The format is described in docs/archive.md.

What is written is on the disk before its rows are deleted. A crash in between leaves lines of rows that still exist,
and that are archived once more: never a loss.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from yamlsched.errors import EnvironmentFailed

STDOUT = 1
KEPT = "what is not archived is not pruned"


class ArchiveFailed(EnvironmentFailed):
    """What is to be pruned cannot be archived, and is therefore kept."""


@dataclass(frozen=True)
class FolderArchive:
    """Files in ``folder``: one for each batch, in a folder for each day. All names are new."""

    folder: Path
    namespace: str

    def __call__(self, kind: str, at: datetime, lines: Iterable[str]) -> None:
        """Write a file with ``lines``, so that it is complete or does not exist. Raises ArchiveFailed."""
        name = f"{re.sub('[^a-z0-9_]', '_', self.namespace)}-{at.astimezone(UTC):%H%M%SZ}-{kind}-{secrets.token_hex(8)}"
        day = self.folder / f"{at.astimezone(UTC):%Y-%m-%d}"
        with _explained(str(self.folder)):
            for folder in (self.folder, day):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
                    _sync_folder(folder.parent)
            _refuse_shared(self.folder)
            _refuse_shared(day, follows=False)
            with _new_file(day / f".{name}.tmp") as (temporary, file):
                with gzip.GzipFile(name, "wb", fileobj=file, mtime=0) as compressed:
                    for line in lines:
                        compressed.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                os.rename(temporary, day / f"{name}.jsonl.gz")
            _sync_folder(day)


class StdoutArchive:
    """Lines on stdout. What its reader does with them is unknown."""

    def __call__(self, kind: str, at: datetime, lines: Iterable[str]) -> None:
        """Write ``lines``, and if stdout is a file, have them on the disk. Raises ArchiveFailed."""
        with _explained("stdout"):
            for line in lines:
                unwritten = memoryview(line.encode() + b"\n")
                while unwritten:
                    unwritten = unwritten[os.write(STDOUT, unwritten) :]
            with contextlib.suppress(OSError):  # a pipe
                os.fsync(STDOUT)


def own_archive(data: bytes, file: Path, namespace: str) -> FolderArchive | None:
    """Return the archive that the schedule of this host names: ``data`` is the content of ``file``.

    Only the host's own file says where something is written: a row in the database never does.
    """
    from yamlsched.definitions.load import load  # here, because a tick without an archive prunes without it

    folder = load(data, str(file), None).retention.archive
    return None if folder is None else FolderArchive(file.resolve().parent / folder, namespace)


def probe(folder: Path) -> None:
    """Write a byte to ``folder``, or to the folder in which it would be made. Raises ArchiveFailed."""
    with _explained(str(folder)):
        if folder.exists():
            _refuse_shared(folder)
        with tempfile.TemporaryFile(dir=folder if folder.exists() else folder.parent) as file:
            file.write(b"\0")
            file.flush()
            os.fsync(file.fileno())


def _refuse_shared(folder: Path, follows: bool = True) -> None:
    """Raise ArchiveFailed if another user could remove or replace what is in ``folder``: the only copy of it."""
    found = os.stat(folder, follow_symlinks=follows)
    problem = ""
    if not stat.S_ISDIR(found.st_mode):
        problem = "it is not a folder"
    elif found.st_uid not in (os.geteuid(), 0):
        problem = f"it belongs to another user (uid {found.st_uid}), who could remove what is in it"
    elif found.st_mode & stat.S_IWOTH:
        problem = "every user may write to it: chmod o-w"
    if problem:
        raise ArchiveFailed(f"the archive cannot be written ({folder}: {problem}): {KEPT}")


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = error.filename or what
        raise ArchiveFailed(f"the archive cannot be written ({place}: {error.strerror}): {KEPT}") from error


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield a new file that only its owner can read. It is removed unless it was renamed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield path, file
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    """Have the names in ``folder`` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
