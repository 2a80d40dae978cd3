"""The bytes that schedules.yaml is compared with: another file, or the same file at a git revision."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from yamlsched.definitions import schedule_file
from yamlsched.definitions.schedule_file import MAX_FILE_BYTES
from yamlsched.errors import EnvironmentFailed


def read_base(base: str, file: Path) -> tuple[str, bytes | None]:
    """Return the name and the content of ``base``: a file if there is one of that name, else a revision of ``file``.

    The content is None if the revision does not have the file. Raises EnvironmentFailed with a remedy.
    """
    if Path(base).is_file():
        return base, schedule_file.read(Path(base))
    return base if ":" in base else f"{base}:{file.name}", read_revision(base, file)


def read_revision(revision: str, file: Path) -> bytes | None:
    """Return the content of ``file`` at ``revision``, in the repository that contains it; None if it is not there.

    ``REV:path`` names another path, from the top of the repository, which must exist. Raises EnvironmentFailed with a
    remedy.
    """
    place = file.resolve()
    folder = place.parent
    if not folder.is_dir():
        raise EnvironmentFailed(f"{file} cannot be read: there is no folder {folder}")
    _check_repository(folder, revision, file)
    commit, colon, path = revision.partition(":")
    # git would obey an option
    is_revision = commit and not commit.startswith("-")
    if not is_revision or _git(folder, "rev-parse", "-q", "--verify", f"{commit}^{{commit}}") is None:
        raise EnvironmentFailed(
            f'"{revision}" is neither a file nor a revision of the repository of {file}{_remedy(folder, commit)}'
        )
    blob = revision if colon else f"{commit}:./{place.name}"
    size = _git(folder, "cat-file", "-s", blob)
    if size is not None and int(size) > MAX_FILE_BYTES:
        raise EnvironmentFailed(
            f"{blob} cannot be read: it has {int(size):,} bytes, over the limit of {MAX_FILE_BYTES:,}"
        )
    found = _git(folder, "cat-file", "blob", blob)
    if found is None and colon:
        raise EnvironmentFailed(
            f"{path} is not a file in {commit}: pass the path of a file that exists there, from the repository's top"
        )
    return found


def _check_repository(folder: Path, revision: str, file: Path) -> None:
    done = _run(folder, "rev-parse", "--is-inside-work-tree")
    if done.returncode == 0:
        return
    if b"dubious ownership" in done.stderr:
        raise EnvironmentFailed(
            f"git does not read {folder}, which belongs to another user: "
            f"git config --global --add safe.directory {folder}"
        )
    raise EnvironmentFailed(
        f'"{revision}" is not a file, and {file} is not in a git repository: pass a file to compare with'
    )


def _remedy(folder: Path, commit: str) -> str:
    if _git(folder, "rev-parse", "-q", "--verify", "HEAD") is None:
        return ": it has no commits yet"
    if _git(folder, "rev-parse", "--is-shallow-repository") == b"true\n":
        return ": this clone has no history; run git fetch --unshallow, or in CI check out with fetch-depth: 0"
    if re.fullmatch(r"[A-Za-z0-9_./-]+", commit):
        return f": if it is a branch of the remote, run git fetch origin {commit.removeprefix('origin/')} first"
    return ""


def _git(folder: Path, *arguments: str) -> bytes | None:
    done = _run(folder, *arguments)
    return done.stdout if done.returncode == 0 else None


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, env=environment, check=False)
    except FileNotFoundError as error:
        raise EnvironmentFailed("git is not installed: pass a file to compare with") from error
