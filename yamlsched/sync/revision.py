"""The revision of a file that is applied: the commit that changed it last, its author and its
subject.

YAMLSCHED_REVISION and YAMLSCHED_AUTHOR decide, for images and hosts without a repository. Otherwise
git is asked: reading .git by hand would have to know packs, worktrees, alternates and object
formats. Nothing here fails a sync: what cannot be read is not known.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from yamlsched import git
from yamlsched.runs.lifecycle import one_line
from yamlsched.schedule import include
from yamlsched.schedule.file import NOTHING, Included

MAX_CHARS = 200
"""Of a commit, an author and a subject, that are stored."""
MAX_GIT_SECONDS = 5.0
"""For all of git: .git may be on a network file system that does not answer."""
COMMIT_ID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Revision:
    """What is known of the commit that changed a file last. A dirty file differs from ``commit``:
    it has no author.

    ``problem`` says why a repository could not be read, and what to do.
    """

    commit: str | None = None
    is_dirty: bool = False
    author: str | None = None
    subject: str | None = None
    problem: str = ""

    @property
    def shown(self) -> str | None:
        """The commit, abbreviated if it is the id of one, and marked if the file
        differs from it.
        """
        return short(self.commit, self.is_dirty)


def short(commit: str | None, is_dirty: bool) -> str | None:
    """Return a commit as it is shown.

    >>> short("3f2a1bc8d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6", True), short("v1.4.2", False)
    ('3f2a1bc8-dirty', 'v1.4.2')
    """
    if commit is None:
        return None
    short_id = commit[:8] if COMMIT_ID.fullmatch(commit) else commit
    return f"{short_id}-dirty" if is_dirty else short_id


class _Unknown(Exception):
    """The revision is not known."""


def read(
    path: str, data: bytes, environment: Mapping[str, str], included: Included = NOTHING
) -> Revision:
    """Return the revision of ``data``, which is the content of the file at ``path``, and of what it
    includes. Never fails.
    """
    named, author = (
        _clean(environment.get(f"YAMLSCHED_{name}", "")) for name in ("REVISION", "AUTHOR")
    )
    if named:
        return Revision(named, author=author)
    try:
        place = Path(os.path.realpath(path))
        facts = Revision()
        if _is_below_git(place):
            facts = _read_git(place, data, environment, included)
    except (_Unknown, OSError, ValueError) as error:  # also a path that the system does not accept
        facts = Revision(problem=one_line(str(error)))
    return replace(facts, author=author or facts.author)


def code_revision(path: str, environment: Mapping[str, str]) -> str | None:
    """Return the revision of the code beside the file at ``path``, as it is shown; None if it is
    not known.

    That is YAMLSCHED_REVISION, or what is checked out in the work tree of the file.
    """
    if named := _clean(environment.get("YAMLSCHED_REVISION", "")):
        return short(named, False)
    try:
        place = Path(os.path.realpath(path))
        if not _is_below_git(place):
            return None
        head = _git(
            place, time.monotonic() + MAX_GIT_SECONDS, environment, "rev-parse", "--verify", "HEAD"
        )
    except (_Unknown, OSError, ValueError):
        return None  # a sync of the file reports why
    return short(head.decode("ascii", "replace").strip() or None, False)


def _is_below_git(place: Path) -> bool:
    """Return whether the file may be in a work tree, without starting git."""
    return place.parent.is_dir() and any(
        os.path.lexists(folder / ".git") for folder in place.parents
    )


def _read_git(
    place: Path, data: bytes, environment: Mapping[str, str], included: Included
) -> Revision:
    """Return what git knows of the file and of those that it includes. Raises _Unknown."""
    deadline = time.monotonic() + MAX_GIT_SECONDS

    def ask(*arguments: str) -> bytes:
        return _git(place, deadline, environment, *arguments)

    fields = "--format=%H%x00%P%x00%an%x00%s"
    names = [f":(literal){place.name}", *(f":(glob){name}" for name in included.patterns)]
    _, _, line = ask("rev-list", "-1", "--encoding=UTF-8", fields, "HEAD", "--", *names).partition(
        b"\n"
    )
    if not line:
        return Revision()  # no commit has it
    commit, parents, author, subject = (
        part.decode("utf-8", "replace") for part in line.split(b"\0", 3)
    )
    entry = ask("ls-tree", commit, "--", names[0]).split(maxsplit=3)
    if not entry:
        return Revision()  # the last commit removed it
    committed = {place.name: entry[2].decode("ascii", "replace")}
    if included.patterns:
        tree = ask("rev-parse", "--verify", f"{commit}:./").decode("ascii", "replace").strip()
        listed = ask(*include.LIST_TREE, tree)
        committed |= include.blobs(listed, included.patterns, place.name)
    contents = {place.name: data, **{each.path: each.data for each in included.files}}
    if committed.keys() != contents.keys() or not all(
        _is_same(contents[path], blob) for path, blob in committed.items()
    ):
        return Revision(commit, is_dirty=True)
    if not parents and ask("rev-parse", "--is-shallow-repository") == b"true\n":
        return Revision(commit)  # the clone ends here: an earlier commit may have changed the file
    return Revision(commit, author=_clean(author), subject=_clean(subject))


def _is_same(data: bytes, blob: str) -> bool:
    """Return whether a content is that of a blob, apart from the ends of lines."""
    return blob in (git.blob_id(data, blob), git.blob_id(data.replace(b"\r\n", b"\n"), blob))


def _clean(text: str) -> str | None:
    return one_line(text, MAX_CHARS) or None


def _git(place: Path, deadline: float, environment: Mapping[str, str], *arguments: str) -> bytes:
    """Return what git prints. Raises _Unknown if it fails, is not installed, or does not end before
    the deadline.
    """
    try:
        answer = git.run(place.parent, environment, deadline, *arguments)
    except FileNotFoundError:
        raise _Unknown(
            "the file is in a git work tree, and git is not installed: install git, or set"
            " YAMLSCHED_REVISION and YAMLSCHED_AUTHOR"
        ) from None
    if answer is None:
        raise _Unknown(
            f"git did not answer within {MAX_GIT_SECONDS:g} seconds: set YAMLSCHED_REVISION"
        )
    if answer.code == 0:
        return answer.output
    if b"bad revision 'HEAD'" in answer.errors:
        return b""  # there are no commits yet
    if answer.is_of_another_user:
        top = next(folder for folder in place.parents if os.path.lexists(folder / ".git"))
        raise _Unknown(
            f"git does not read {top}, which belongs to another user: run as the user of the"
            f" tick: git config --global --add safe.directory {top}"
        )
    said = one_line(answer.errors.decode("utf-8", "replace"), MAX_CHARS)
    raise _Unknown(f"git failed: {said or answer.code}")
