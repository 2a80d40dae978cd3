"""The schedules.yaml that imported jobs are appended to."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule import include
from yamlsched.schedule.include import Contents
from yamlsched.schedule.load import Loaded, load
from yamlsched.schedule.node import DEFAULTS, Spot


def read(file: Path) -> bytes | None:
    """Return the content of the file; None if it does not exist."""
    return schedule_file.read(file) if file.exists() else None


class Target(NamedTuple):
    """A file of a schedule, which may be one that schedules.yaml includes."""

    file: Path
    data: bytes
    main: Path
    contents: Contents  # of the main file

    @classmethod
    def find(cls, file: Path, data: bytes) -> Target:
        """Return the file as a part of its schedule."""
        root, main = load(data, "", None).root, None
        if root and "version" not in root.value:
            main = include.including(file, "schedules.yaml")
        return cls(file, data, main or file, include.read(main or file))

    def load(self, data: bytes) -> Loaded:
        """Return the schedule with another content of the file, and the file's own defaults."""
        main, included = self.contents
        if self.main == self.file:
            return load(data, str(self.file), None, included)
        folder, files = self.main.resolve().parent, list(included.files)
        place = next(
            number
            for number, each in enumerate(files)
            if (folder / each.path).resolve() == self.file.resolve()
        )
        files[place] = files[place]._replace(data=data)
        loaded = load(main, str(self.main), None, included._replace(files=tuple(files)))
        root, name = loaded.root, include.beside(str(self.main), files[place].path)
        own = root and root.get(f"{DEFAULTS} of {name}")
        if root is None or own is None:
            return loaded
        return replace(loaded, root=Spot(root.node.merged({**root.value, DEFAULTS: own.node})))


def load_valid(target: Target) -> Loaded:
    """Return the schedule of the file. Raises Refused if it is not valid."""
    loaded, file = target.load(target.data), target.file
    errors = [
        error for error in loaded.diagnostics if error.severity == "error" and error.code != "YS116"
    ]
    if errors:
        message = f"{errors[0].file}:{errors[0].line}:{errors[0].column}: {errors[0].message}"
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
