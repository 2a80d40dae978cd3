"""Where handlers are looked up: in the directories of ``--path``, in ``paths`` of the file, and
next to the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from os.path import isdir  # unlike Path.is_dir, this does not raise if a directory cannot be read
from pathlib import Path

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.load import Loaded
from yamlsched.text import quoted


def search_path(
    file: Path, paths: Iterable[str], folders: Iterable[str | Path] = ()
) -> tuple[Path, ...]:
    """Return the directories that come first on ``sys.path``.

    ``paths`` are those of the file, relative to it; ``folders`` are those of ``--path``.
    """
    folder = file.resolve().parent
    return (
        *(Path(path).resolve() for path in folders),
        *((folder / path).resolve() for path in paths),
        folder,
    )


def import_path(
    file: Path, paths: Iterable[str], folders: Iterable[str | Path] = ()
) -> tuple[Path, ...]:
    """Return all directories from which handlers are imported: those of ``search_path``, then
    ``sys.path``.
    """
    return (*search_path(file, paths, folders), *(Path(entry) for entry in sys.path if entry))


def check(loaded: Loaded, file: Path, findings: Findings) -> None:
    """Report an error for each directory of ``paths`` that does not exist."""
    folder = file.resolve().parent
    for spot in loaded.path_spots:
        if not isdir(folder / spot.value):
            message = f"{spot}: the directory {quoted(spot.value)} does not exist"
            findings.error(spot, "YS118", message, "Create it, or correct the path.")
