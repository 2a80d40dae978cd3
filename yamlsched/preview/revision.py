"""A file as it was at a revision, asked of git itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from yamlsched.errors import EnvironmentFailed


def read(revision: str, file: Path) -> bytes | None:
    """Return the content of ``file`` at ``revision``, in the repository that contains it; None if it is not there.

    ``REV:path`` names another path, from the top of the repository; that one must exist. Raises EnvironmentFailed with
    what to do.
    """
    place = file.resolve()
    folder = place.parent
    if not folder.is_dir():
        raise EnvironmentFailed(f"{file} cannot be read: there is no folder {folder}")
    _check_repository(folder, revision, file)
    commit, colon, path = revision.partition(":")
    # an option is no revision: git would obey it
    if (
        not commit
        or commit.startswith("-")
        or _git(folder, "rev-parse", "-q", "--verify", f"{commit}^{{commit}}") is None
    ):
        raise EnvironmentFailed(
            f'"{revision}" is neither a file nor a revision of the repository of {file}{_remedy(folder, commit)}'
        )
    found = _git(folder, "cat-file", "blob", revision if colon else f"{commit}:./{place.name}")
    if found is None and colon:
        raise EnvironmentFailed(f"{path} is not in {commit}: name a path that exists there, from the repository's top")
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
        f'"{revision}" is not a file, and {file} is in no git repository: name a file to compare with'
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
        raise EnvironmentFailed("git is not installed: name a file to compare with") from error
