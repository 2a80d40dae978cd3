"""What processes of one schedule share on a host: a folder for their lock files, and how many runs
they execute at once.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule import file as schedule_file

CRON_UNSENT = "cron-unsent"
"""The file, beside the locks, of errors that a later ``tick --cron`` prints."""


def permit_folder(file: Path) -> Path:
    """Return the folder of lock files of the schedule ``file``, made if missing: the same for all
    its processes.

    It is below the temporary directory, or below the home directory if another user has taken its
    name there. Raises EnvironmentFailed when neither can be used.
    """
    place = (  # links stay: all releases share the limit
        f"{socket.gethostname()}:{schedule_file.absolute(file)}"
    )
    name = f"permits-{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}"
    faults = []
    for root in _roots():
        try:
            for path in (root, root / name):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                if path.is_symlink() or path.stat().st_uid != os.getuid():
                    raise PermissionError(None, "belongs to another user", str(path))
            return root / name
        except OSError as error:
            faults.append(f"{error.filename}: {error.strerror}")
    raise EnvironmentFailed(
        f"no folder for lock files ({'; '.join(faults)}): set TMPDIR to a folder that this user may"
        " write to"
    )


def _roots() -> Iterator[Path]:
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:
        temporary = os.environ.get("TMPDIR", "/tmp")  # for the message: it cannot be written to
    yield Path(temporary) / f"yamlsched-{os.getuid()}"
    home = Path(os.path.expanduser("~"))
    if home.is_absolute():  # a user without a name has none
        yield home / ".cache" / "yamlsched"


def default_concurrency() -> int:
    """Return the default concurrency limit: the number of cores, at least 4."""
    return max(4, os.cpu_count() or 1)
