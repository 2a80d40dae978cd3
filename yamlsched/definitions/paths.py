"""Where handlers are looked for: in the directories of ``--path``, in ``paths`` of the file, and beside the file."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import isdir  # does not raise where a directory cannot be looked into
from pathlib import Path
from typing import TYPE_CHECKING

from yamlsched.definitions.diagnostic import Diagnostic
from yamlsched.definitions.findings import Findings
from yamlsched.definitions.wording import quoted

if TYPE_CHECKING:
    from yamlsched.definitions.load import Loaded


def search_path(file: Path, paths: Iterable[str], given: Iterable[str | Path] = ()) -> tuple[Path, ...]:
    """Return the directories that come first on ``sys.path``.

    ``paths`` are those of the file, relative to it; ``given`` are those of ``--path``.
    """
    folder = file.resolve().parent
    return (*(Path(path).resolve() for path in given), *((folder / path).resolve() for path in paths), folder)


def check(loaded: Loaded, file: Path) -> list[Diagnostic]:
    """Return an error for each directory of ``paths`` that does not exist."""
    found = Findings(loaded.source)
    folder = file.resolve().parent
    for spot in loaded.path_spots:
        if not isdir(folder / spot.value):
            message = f"{spot}: there is no directory {quoted(spot.value)} next to this file"
            found.error(spot, "YS118", message, "Create it, or correct the path.")
    return found.diagnostics()
