"""The bytes that schedules.yaml is compared with: another file, or the same file at a
git revision.
"""

from __future__ import annotations

import os
import re
import time
from datetime import datetime, timedelta
from pathlib import Path

from yamlsched import git
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.preview.diff import base_side, compare, file_side
from yamlsched.extras.preview.model import Preview
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule import include
from yamlsched.schedule.file import MAX_FILE_BYTES, NOTHING, Included, IncludedFile
from yamlsched.schedule.include import Contents
from yamlsched.schedule.load import Loaded, load, load_file
from yamlsched.timetable import times
from yamlsched.timetable.times import TimeInput
from yamlsched.timetable.zones import zone

MAX_GIT_SECONDS = 30.0
"""For all of git: a person waits for it."""


def read_base(base: str, file: Path) -> tuple[str, Contents | None]:
    """Return the name and the content of ``base``: a revision of ``file``, or, if it is a path,
    another file.

    A path starts with ``/``, ``./`` or ``../``: a file with the name of a branch, added by the edit
    itself, must not replace the branch. The content is None if the revision does not have the file.
    Raises EnvironmentFailed.
    """
    if base.startswith(("/", "./", "../")):
        return base, include.read(Path(base), is_reviewed=True)
    return base if ":" in base else f"{base}:{file.name}", read_revision(base, file)


def read_revision(revision: str, file: Path) -> Contents | None:
    """Return the content of ``file``, and of what it includes, at ``revision``, in the repository
    that contains it; None if it is not there.

    ``REV:path`` names another path, from the top of the repository, which must exist. Raises
    EnvironmentFailed with a remedy.
    """
    place = file.resolve()
    if not place.parent.is_dir():
        raise EnvironmentFailed(f"{file} cannot be read: there is no folder {place.parent}")
    repository = _Repository(place.parent)
    is_file = Path(revision).is_file()
    for_the_file = f": for the file, write ./{revision}"
    commit, colon, path = revision.partition(":")
    repository.check(
        revision,
        file,
        for_the_file if is_file else ": pass a file to compare with, such as ./old.yaml",
    )
    if not repository.has_commit(commit):
        remedy = for_the_file if is_file else repository.remedy(commit)
        raise EnvironmentFailed(
            f'"{revision}" is not a revision of the repository of {file}{remedy}'
        )
    if is_file:
        raise EnvironmentFailed(
            f'"{revision}" is a revision and a file{for_the_file}; for the revision, pass the id of'
            " its commit"
        )
    name = revision if colon else f"{commit}:./{place.name}"
    blob = repository.answer("rev-parse", "-q", "--verify", name)
    if blob is not None:
        return repository.contents(name, blob.decode("ascii").strip(), place)
    if colon:
        raise EnvironmentFailed(
            f"{path} is not a file in {commit}: pass the path of a file that exists there, from the"
            " repository's top"
        )
    return None


class _Repository:
    """Asks git about the repository of a folder, until it has taken too long."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._deadline = folder, time.monotonic() + MAX_GIT_SECONDS

    def check(self, revision: str, file: Path, remedy: str) -> None:
        """Raise EnvironmentFailed, with ``remedy``, if the folder is in no repository that git
        reads.
        """
        answer = self._run("rev-parse", "--is-inside-work-tree")
        if answer.code == 0:
            return
        if answer.is_of_another_user:
            raise EnvironmentFailed(
                f"git does not read {self._folder}, which belongs to another user: "
                f"git config --global --add safe.directory {self._folder}"
            )
        raise EnvironmentFailed(
            f'"{revision}" is not a revision: {file} is not in a git repository{remedy}'
        )

    def has_commit(self, commit: str) -> bool:
        if not commit or commit.startswith("-"):  # git would obey an option
            return False
        return self.answer("rev-parse", "-q", "--verify", f"{commit}^{{commit}}") is not None

    def contents(self, name: str, blob: str, file: Path) -> Contents:
        """Return the content of the file that ``name`` names, by its id, and of what it includes.

        What is the same beside ``file`` is read there: git is asked for one file at a time.
        """
        data = self.content(name, blob)
        patterns = include.patterns(data)
        if not patterns:
            return Contents(data, NOTHING)
        folder = name[: max(name.rfind("/"), name.find(":")) + 1]
        tree = self.answer("rev-parse", "-q", "--verify", folder) or b""
        listed = self.answer(*include.LIST_TREE, tree.decode("ascii").strip()) or b""
        now = (each.data for each in schedule_file.read_included(file, patterns, True).files)
        known = {git.blob_id(each, blob): each for each in now}
        files, size = [], len(data)
        for path, other in include.blobs(listed, patterns, file.name).items():
            one = (
                known[other] if other in known else self.content(include.beside(name, path), other)
            )
            files.append(IncludedFile(path, one))
            size += len(one)
            if size > MAX_FILE_BYTES:
                break  # the file is refused
        return Contents(data, Included(patterns, tuple(files)))

    def content(self, name: str, blob: str) -> bytes:
        """Return the content of the file that ``name`` names, by its id."""
        size = self.answer("cat-file", "-s", blob)
        if size is None:
            raise EnvironmentFailed(
                f"{name} is not in this clone, which is partial: run git show {name} once"
            )
        if int(size) > MAX_FILE_BYTES:
            raise EnvironmentFailed(
                f"{name} cannot be read: it has {int(size):,} bytes, over the limit of"
                f" {MAX_FILE_BYTES:,}"
            )
        content = self.answer("cat-file", "blob", blob)
        if content is None:
            raise EnvironmentFailed(
                f"{name} is not a file: pass the path of a file, from the repository's top"
            )
        return content

    def remedy(self, commit: str) -> str:
        """Return what to do about a revision that is not known, as the end of a sentence."""
        if self.answer("rev-parse", "-q", "--verify", "HEAD") is None:
            return ": it has no commits yet"
        if self.answer("rev-parse", "--is-shallow-repository") == b"true\n":
            return (
                ": this clone has no history; run git fetch --unshallow, or in CI check out with"
                " fetch-depth: 0"
            )
        if re.fullmatch(r"[A-Za-z0-9_./-]+", commit):
            return (
                ": if it is a branch of the remote, run git fetch origin"
                f" {commit.removeprefix('origin/')} first"
            )
        return ""

    def answer(self, *arguments: str) -> bytes | None:
        """Return what git prints; None if it fails."""
        answer = self._run(*arguments)
        return answer.output if answer.code == 0 else None

    def _run(self, *arguments: str) -> git.GitOutput:
        try:
            answer = git.run(self._folder, os.environ, self._deadline, *arguments)
        except FileNotFoundError as error:
            raise EnvironmentFailed("git is not installed: pass a file to compare with") from error
        if answer is None:
            raise EnvironmentFailed(
                f"git did not answer within {MAX_GIT_SECONDS:g} seconds: pass a file to compare"
                " with"
            )
        return answer


MISSING_FILE = "; name the schedule with --file or YAMLSCHED_FILE"


def read(file: Path, environment: str | None) -> Loaded:
    """Return the edited file, which may have errors."""
    return load_file(file, environment, MISSING_FILE, is_reviewed=True)


def instant(at: TimeInput | None, edited: Loaded, now: datetime) -> datetime:
    """Return the instant of the edit: ``at`` in the file's time zone, or now."""
    return (
        now if at is None else times.resolve(at, lambda: zone(edited.timezone), now, is_future=True)
    )


def preview(
    base: str,
    file: Path,
    edited: Loaded,
    environment: str | None,
    at: datetime,
    duration: timedelta,
) -> Preview:
    """Return what the valid file ``edited`` changes compared with ``base``, in the time after the
    edit.
    """
    name, contents = read_base(base, file)
    after = file_side(str(file), edited, environment)
    before = base_side(
        name,
        None if contents is None else load(contents.data, name, environment, contents.included),
        environment,
        after,
    )
    return compare(before, after, at, at + duration, environment)
