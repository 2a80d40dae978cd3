"""The schedules.yaml that imported jobs are appended to."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from uuid import uuid4

from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule.load import Loaded, load


def read(file: Path) -> bytes | None:
    """Return the content of the file; None if it does not exist."""
    return schedule_file.read(file) if file.exists() else None


def only_comments(data: bytes | None) -> str | None:
    """Return the lines of a file that has nothing but comments, if any; None if there is more in
    it.
    """
    try:
        lines = (data or b"").decode().splitlines()
    except UnicodeDecodeError:
        return None
    if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        return None
    return "".join(f"{line}\n" for line in lines)


def load_valid(file: Path, data: bytes) -> Loaded:
    """Return what ``data``, the content of the file, means. Raises Refused if it is not valid."""
    loaded = load(data, str(file), None)
    errors = [
        error for error in loaded.diagnostics if error.severity == "error" and error.code != "YS116"
    ]
    if errors:
        message = f"{file}:{errors[0].line}:{errors[0].column}: {errors[0].message}"
        raise Refused(f"{message}: nothing was imported. Fix it first: yamlsched validate {file}")
    return loaded


def save(file: Path, text: str, data: bytes | None) -> None:
    """Write the file at once: readers see the old text or the new one. A link stays a link.

    ``data`` is what ``read`` returned. Raises Refused if the file was edited since.
    """
    try:
        path = Path(os.path.realpath(file))
        before = path.stat() if path.exists() else None
        if before is not None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with path.with_name(f".{path.name}.{uuid4().hex}").open("xb") as temporary:
            try:
                temporary.write(text.encode())
                temporary.flush()
                if before is not None:
                    with contextlib.suppress(PermissionError):
                        os.fchown(temporary.fileno(), before.st_uid, before.st_gid)
                    os.fchmod(temporary.fileno(), before.st_mode & 0o7777)
                os.fsync(temporary.fileno())
                present = None
                with contextlib.suppress(FileNotFoundError):
                    present = file.read_bytes()
                if data != present:
                    raise Refused(
                        f"{file} was changed in the meantime: nothing was imported. Import again"
                    )
                os.replace(temporary.name, path)
            except BaseException:
                os.unlink(temporary.name)
                raise
    except OSError as error:
        raise EnvironmentFailed(f"{file} cannot be written: {error.strerror}") from error
