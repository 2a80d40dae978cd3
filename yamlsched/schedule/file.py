"""Where schedules.yaml is, and its bytes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
        # without O_NONBLOCK, opening a pipe waits for a writer
        with open(
            file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
        ) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise EnvironmentFailed(f"{file} cannot be read: it is not a regular file{remedy}")
            return opened.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EnvironmentFailed(f"{file} cannot be read: {reason}{remedy}") from error


def read_reviewed(file: Path, remedy: str = "") -> bytes:
    """Read a file whose errors are shown to whoever wrote it.

    Raises EnvironmentFailed like ``read``, and for a link to a file outside of its directory or of
    git itself: a pull request can make it a link to any file of the machine that checks it, and
    messages quote what they find.
    """
    folder = file.parent.resolve()
    try:
        target = file.resolve()
    except (OSError, RuntimeError) as error:
        raise EnvironmentFailed(
            f"{file} cannot be read: it is a link that leads nowhere{remedy}"
        ) from error
    is_inside = target.is_relative_to(folder) and ".git" not in target.relative_to(folder).parts
    if file.is_symlink() and not is_inside:
        raise EnvironmentFailed(
            f"{file} is not read: it is a link to a file outside of its directory; name that file"
            " itself"
        )
    return read(file, remedy)
