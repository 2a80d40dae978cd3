"""Where schedules.yaml is, its bytes, and those of the files that it includes."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from yamlsched.errors import EnvironmentFailed

MAX_FILE_BYTES = 4_000_000
NO_QUEUE = "none"
"""What --queue says of a host that serves no queue; no queue has this name."""


def absolute(path: Path) -> Path:
    """Return ``path`` from the root. Its links stay: after a deployment, ``current`` leads to
    another release.

    Only ``..`` is resolved, because it means the parent of the directory that a link leads to.
    """
    result = Path("/")
    for part in (_working_directory() / path).parts[1:]:
        result = Path(os.path.realpath(result)).parent if part == ".." else result / part
    return result


def _working_directory() -> Path:
    """Return the working directory, with the links through which the shell entered it."""
    named = os.environ.get("PWD", "")
    try:
        if os.path.isabs(named) and os.path.samefile(named, "."):
            return Path(named)
    except OSError:
        pass  # the variable is of another directory
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")  # it was deleted: an absolute path is still found


def read(file: Path, remedy: str = "") -> bytes:
    """Return the content of a regular file, at most one byte more than is allowed.

    Raises EnvironmentFailed for everything else, such as a directory, an endless device or a pipe
    without a writer.
    """
    try:
        return _read(file, MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise EnvironmentFailed(f"{file} cannot be read: {_reason(error)}{remedy}") from error


def _read(file: Path, most: int) -> bytes:
    """Return the content of a regular file, at most this many bytes."""
    # without O_NONBLOCK, opening a pipe waits for a writer
    with open(
        file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    ) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return opened.read(most)


def _reason(error: OSError | ValueError) -> str:
    return str(error.strerror if isinstance(error, OSError) else error)


def read_reviewed(file: Path, remedy: str = "") -> bytes:
    """Read a file whose errors are shown to whoever wrote it.

    Raises EnvironmentFailed like ``read``, and for a link to a file outside of its directory or of
    git itself: a pull request can make it a link to any file of the machine that checks it, and
    messages quote what they find.
    """
    try:
        is_inside = _is_inside(file, file.parent.resolve())
    except (OSError, RuntimeError) as error:
        raise EnvironmentFailed(f"{file} cannot be read: it is a broken link{remedy}") from error
    if file.is_symlink() and not is_inside:
        raise EnvironmentFailed(
            f"{file} is not read: it is a link to a file outside of its directory. Name that file"
            " instead"
        )
    return read(file, remedy)


def _is_inside(file: Path, folder: Path) -> bool:
    """Return whether links lead from a file to one that is in ``folder``, and not in git itself."""
    target = file.resolve()
    return target.is_relative_to(folder) and ".git" not in target.relative_to(folder).parts


class IncludedFile(NamedTuple):
    """A file that another one includes: its path relative to that one's folder, and its content or
    why it cannot be read.
    """

    path: str
    data: bytes
    problem: str = ""


class Included(NamedTuple):
    """The patterns of ``include``, and the files that match them, in the order of their bytes."""

    patterns: tuple[str, ...] = ()
    files: tuple[IncludedFile, ...] = ()


NOTHING = Included()


def read_included(file: Path, patterns: Sequence[str], is_reviewed: bool = False) -> Included:
    """Return the files that match the patterns of ``include`` of the main ``file``.

    They are beside the file itself if it is a link. ``is_reviewed``: those to which links lead out
    of its folder are not read, as by ``read_reviewed``. At most one byte more than is allowed is
    read of all.
    """
    folder = file.resolve().parent
    most, files = MAX_FILE_BYTES + 1, []
    for path in matching(patterns, lambda path: os.listdir(folder / path), file.resolve().name):
        data, problem = b"", ""
        try:
            if is_reviewed and not _is_inside(folder / path, folder):
                problem = "it is outside of the directory of the file that includes it"
            else:
                data = _read(folder / path, most)
        except FileNotFoundError as error:
            if not os.path.lexists(folder / path):
                continue  # it was removed meanwhile
            problem = _reason(error)
        except (OSError, ValueError, RuntimeError) as error:
            problem = str(error) if isinstance(error, RuntimeError) else _reason(error)
        files.append(IncludedFile(path, data, problem))
        most -= len(data)
        if most <= 0:
            break  # the file is refused
    return Included(tuple(patterns), tuple(files))


def matching(
    patterns: Iterable[str], names_in: Callable[[str], Iterable[str]], main: str
) -> list[str]:
    """Return the paths that match ``patterns``, in the order of their bytes, without the ``main``
    file.

    ``names_in`` returns what a folder has. No pattern leads out of the first one: its parts are
    compared with these names.
    """
    found = set()
    for pattern in patterns:
        paths = [""]
        for part in pattern.split("/"):
            paths = [
                f"{path}/{name}" if path else name
                for path in paths
                for name in _names(path, names_in)
                if is_match(name, part)
            ]
        found.update(paths)
    return sorted(found - {main}, key=os.fsencode)


def _names(path: str, names_in: Callable[[str], Iterable[str]]) -> Iterable[str]:
    try:
        return names_in(path)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise EnvironmentFailed(f"{path or '.'} cannot be read: {error.strerror}") from error


def is_match(path: str, pattern: str) -> bool:
    """Return whether ``include`` with this pattern includes a path."""
    names, parts = path.split("/"), pattern.split("/")
    return len(names) == len(parts) and all(
        not name.startswith(".") and not name.endswith("~") and fnmatchcase(name, part)
        for name, part in zip(names, parts, strict=True)
    )


def digest(data: bytes, included: Included = NOTHING) -> str:
    """Return the hash of a file with all that it includes, by which a namespace knows it."""
    if not included.patterns:
        return hashlib.sha256(data).hexdigest()
    parts = [data, str(len(included.patterns)).encode(), *map(os.fsencode, included.patterns)]
    for each in included.files:
        parts += [os.fsencode(each.path), each.data, each.problem.encode()]
    total = hashlib.sha256()
    for part in parts:
        total.update(b"%d:" % len(part) + part)
    return total.hexdigest()
