"""The commit of an applied file: real repositories, and everything that may be wrong with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from yamlsched.sync import revision
from yamlsched.sync.revision import Revision

FILE = "schedules.yaml"
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
IDENTITY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_COMMITTER_NAME": "ci",
    "GIT_COMMITTER_EMAIL": "ci@example.org",
    "GIT_AUTHOR_EMAIL": "maria@example.org",
    "GIT_AUTHOR_NAME": "Maria Muster",
}

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str, text: bytes = b"", **environment: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**ENVIRONMENT, **IDENTITY, **environment},
        input=text,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode("utf-8", "replace").strip()


def commit(
    folder: Path, subject: str, content: str | None = None, name: str = FILE, **environment: str
) -> str:
    """Commit a file, or nothing; return the commit's id."""
    if content is not None:
        (folder / name).write_text(content)
        git(folder, "add", "-f", name)
    git(folder, "commit", "-q", "--allow-empty", "-m", subject, **environment)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    # on a machine that is busy with other tests
    monkeypatch.setattr(revision, "MAX_GIT_SECONDS", 120.0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def read(file: Path, **environment: str) -> Revision:
    return revision.read(str(file), file.read_bytes(), {**ENVIRONMENT, **environment})


def test_the_commit_that_changed_the_file_last_is_its_revision(repository: Path) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    changed = commit(repository, "Raise the timeout", "version: 1\njobs: {}\n")
    commit(repository, "Another file", "x", name="other.txt", GIT_AUTHOR_NAME="Bob")

    assert read(repository / FILE) == Revision(
        changed, author="Maria Muster", subject="Raise the timeout"
    )


def test_the_revision_of_the_code_is_what_is_checked_out(repository: Path) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    (repository / "jobs").mkdir()
    latest = commit(repository, "Only code", "def run(): ...\n", name="jobs/mail.py")
    (repository / FILE).write_text("version: 1\njobs: {}\n")

    assert revision.code_revision(str(repository / FILE), ENVIRONMENT) == latest[:8]
    assert revision.code_revision(str(repository / "jobs" / FILE), ENVIRONMENT) == latest[:8]


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("v1.4.2", "v1.4.2"),
        ("3f2a1bc8d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6", "3f2a1bc8"),
        ("a\x1b[31m\nb", "a\\x1b[31m b"),
    ],
)
def test_a_revision_of_the_environment_comes_before_that_of_git(
    repository: Path, named: str, shown: str
) -> None:
    commit(repository, "The first schedule", "version: 1\n")

    assert (
        revision.code_revision(str(repository / FILE), {**ENVIRONMENT, "YAMLSCHED_REVISION": named})
        == shown
    )


def test_code_without_a_repository_without_commits_or_without_git_has_no_revision(
    repository: Path, tmp_path: Path
) -> None:
    (repository / FILE).write_text("version: 1\n")
    (tmp_path / "empty").mkdir()

    assert revision.code_revision(str(tmp_path / "elsewhere" / FILE), ENVIRONMENT) is None
    assert revision.code_revision(str(repository / FILE), ENVIRONMENT) is None
    assert revision.code_revision(str(repository / FILE), {"PATH": str(tmp_path / "empty")}) is None


def test_a_file_that_differs_from_its_commit_is_dirty_and_nobody_is_its_author(
    repository: Path,
) -> None:
    last = commit(repository, "The first schedule", "version: 1\n")
    (repository / FILE).write_text("version: 1\njobs: {}\n")

    assert read(repository / FILE) == Revision(last, is_dirty=True)
    git(repository, "add", FILE)  # staged is not committed
    assert read(repository / FILE) == Revision(last, is_dirty=True)
    assert read(repository / FILE).shown == f"{last[:8]}-dirty"
    # what counts is what was read, not what is there now
    found = revision.read(str(repository / FILE), b"version: 1\n", ENVIRONMENT)
    assert (found.commit, found.is_dirty) == (last, False)


def test_a_work_tree_with_other_line_ends_is_clean(repository: Path) -> None:
    commit(repository, "The first schedule", "version: 1\njobs: {}\n")
    (repository / FILE).write_bytes(b"version: 1\r\njobs: {}\r\n")

    assert not read(repository / FILE).is_dirty


def test_a_file_without_a_commit_has_no_revision(repository: Path, tmp_path: Path) -> None:
    # no repository, no commit yet, not added, added but not committed, removed from the repository
    alone = tmp_path / FILE
    alone.write_text("version: 1\n")
    assert read(alone) == Revision()
    (repository / FILE).write_text("version: 1\n")
    assert read(repository / FILE) == Revision()
    commit(repository, "Something else", "x", name="other.txt")
    assert read(repository / FILE) == Revision()
    git(repository, "add", FILE)
    assert read(repository / FILE) == Revision()
    commit(repository, "Add the schedule")
    git(repository, "rm", "-q", "--cached", FILE)
    commit(repository, "It is generated from now on")
    assert read(repository / FILE) == Revision()


def test_a_missing_folder_has_no_revision(tmp_path: Path) -> None:
    assert revision.read(str(tmp_path / "gone" / FILE), b"", ENVIRONMENT) == Revision()
    assert revision.read("bad\0path", b"", ENVIRONMENT).commit is None


def test_variables_name_the_revision_where_there_is_no_repository(repository: Path) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    file = repository / FILE

    named = read(file, YAMLSCHED_REVISION=" v1.4.2 ", YAMLSCHED_AUTHOR="deploy bot")
    assert named == Revision("v1.4.2", author="deploy bot")
    assert read(file, YAMLSCHED_REVISION="v1.4.2") == Revision("v1.4.2")
    assert read(file, YAMLSCHED_REVISION="", YAMLSCHED_AUTHOR="") == read(file)
    assert read(file, YAMLSCHED_AUTHOR="Bob").author == "Bob"
    assert read(file, YAMLSCHED_AUTHOR="Bob").subject == "The first schedule"
    long = read(file, YAMLSCHED_REVISION="x" * 10_000, YAMLSCHED_AUTHOR="\x1b[31mBob\n\x00")
    assert (len(long.commit or ""), long.author) == (200, "\\x1b[31mBob \\x00")


def test_a_detached_head_a_worktree_a_submodule_and_a_symlink_are_read(
    repository: Path, tmp_path: Path
) -> None:
    first = commit(repository, "The first schedule", "version: 1\n")
    commit(repository, "The second", "version: 1\njobs: {}\n")

    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"), first)
    assert read(tmp_path / "tree" / FILE).commit == first

    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(
        outer, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(repository), "jobs"
    )
    assert read(outer / "jobs" / FILE).subject == "The second"

    (tmp_path / "current").symlink_to(repository)
    assert read(tmp_path / "current" / FILE).subject == "The second"


def test_a_name_that_git_would_read_as_a_pattern_or_an_option_is_a_name(repository: Path) -> None:
    for nth, name in enumerate(("a*.yaml", ":top.yaml", "-x.yaml", "ä \n.yaml")):
        commit(repository, f"File {nth}", f"version: {nth}\n", name=f"./{name}")
        commit(repository, "Another", f"version: {nth}\n", name="ab.yaml")

    found = [
        read(repository / name).subject for name in ("a*.yaml", ":top.yaml", "-x.yaml", "ä \n.yaml")
    ]
    assert found == [f"File {nth}" for nth in range(4)]


def test_a_shallow_clone_knows_the_commit_and_not_who_changed_the_file(
    repository: Path, tmp_path: Path
) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    last = commit(repository, "Another file", "x", name="other.txt", GIT_AUTHOR_NAME="Bob")
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "shallow")

    assert read(tmp_path / "shallow" / FILE) == Revision(last)

    # a commit after the end of the clone is known
    commit(tmp_path / "shallow", "Raise the timeout", "version: 1\njobs: {}\n")
    assert read(tmp_path / "shallow" / FILE).subject == "Raise the timeout"


def test_hostile_names_and_subjects_are_one_bounded_printable_line(repository: Path) -> None:
    (repository / FILE).write_text("version: 1\n")
    git(repository, "add", FILE)
    tree = git(repository, "write-tree")
    name = b"Bob \x1b[2J\xff\xfe ::error::" + b"x" * 10_000
    body = (
        b"tree %b\nauthor %b <b@example.org> 1700000000 +0000\ncommitter c <c@d> 1700000000 +0000\n\n"
        % (
            tree.encode(),
            name,
        )
    )
    body += b"fix \x1b]0;title\x07 \xe2\x80\xae " + b"y" * 10_000 + b"\nsecond line\n\nbody"
    made = git(repository, "hash-object", "-t", "commit", "-w", "--stdin", "--literally", text=body)
    git(repository, "update-ref", "HEAD", made)

    found = read(repository / FILE)

    assert found.commit == made
    for text in (found.author, found.subject):
        assert text is not None
        assert text.isprintable()
        assert len(text) <= revision.MAX_CHARS
    assert found.author is not None
    assert found.author.startswith("Bob \\x1b[2J")
    assert found.subject is not None
    assert found.subject.startswith("fix \\x1b]0;title\\x07 \\u202e ")


def test_a_commit_in_another_encoding_is_read(repository: Path) -> None:
    (repository / FILE).write_text("version: 1\n")
    git(repository, "add", FILE)
    message = "Zeitüberschreitung erhöht".encode("latin-1")
    git(repository, "-c", "i18n.commitEncoding=ISO-8859-1", "commit", "-q", "-F", "-", text=message)

    assert read(repository / FILE).subject == "Zeitüberschreitung erhöht"


def test_a_hostile_repository_runs_no_program(repository: Path, tmp_path: Path) -> None:
    # given a repository whose configuration names a program wherever git may start one
    commit(repository, "The first schedule", "version: 1\n")
    marker, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{marker}'\n")
    program.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in (
        "post-index-change",
        "reference-transaction",
        "post-checkout",
        "fsmonitor-watchman",
    ):
        shutil.copy(program, hooks / hook)
    keys = (
        "core.fsmonitor core.pager pager.rev-list pager.log core.editor core.sshCommand core.askPass gpg.program "
        "gpg.ssh.program diff.external diff.x.textconv filter.x.clean filter.x.smudge filter.x.process "
        "credential.helper core.alternateRefsCommand uploadpack.packObjectsHook"
    )
    for key in keys.split():
        git(repository, "config", key, str(program))
    git(repository, "config", "alias.rev-list", f"!{program}")
    git(repository, "config", "core.hooksPath", str(hooks))
    git(repository, "config", "log.showSignature", "true")
    (repository / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")

    # when its revision is read, of a clean and of a changed file
    assert read(repository / FILE).subject == "The first schedule"
    (repository / FILE).write_text("version: 1\njobs: {}\n")
    assert read(repository / FILE).is_dirty

    # then none of them was run
    assert not marker.exists()


def test_variables_of_git_lead_to_no_other_repository(repository: Path, tmp_path: Path) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    commit(other, "Of another repository", "version: 1\n")

    variables = {
        "GIT_DIR": str(other / ".git"),
        "GIT_WORK_TREE": str(other),
        "GIT_TRACE": str(tmp_path / "trace"),
    }
    assert read(repository / FILE, **variables).subject == "The first schedule"
    assert not (tmp_path / "trace").exists()


def test_a_partial_clone_fetches_nothing(repository: Path, tmp_path: Path) -> None:
    # given a clone without trees, whose origin would be reached by a program
    commit(repository, "The first schedule", "version: 1\n")
    commit(repository, "Another", "x", name="other.txt")
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=tree:0", repository.as_uri(), "partial")
    marker, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{marker}'\n")
    program.chmod(0o755)
    partial = tmp_path / "partial"
    git(partial, "config", "core.sshCommand", str(program))
    git(partial, "remote", "set-url", "origin", "ssh://example.invalid/repository")

    # when the history needs a tree that is not there
    found = read(partial / FILE)

    # then that is a problem and no connection
    assert (found.commit, found.problem[:10]) == (None, "git failed")
    assert not marker.exists()


def test_a_repository_of_another_user_is_a_problem_with_a_remedy(
    repository: Path, tmp_path: Path
) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    # as git itself tests it; a real second user needs root
    environment = {**ENVIRONMENT, "HOME": str(tmp_path), "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec "{shutil.which("git")}" "$@"\n'
    )
    fake.chmod(0o755)
    environment["PATH"] = f"{fake.parent}:{environment['PATH']}"

    found = revision.read(str(repository / FILE), b"version: 1\n", environment)

    assert (found.commit, found.author) == (None, None)
    assert found.problem.startswith(
        f"git does not read {repository}, which belongs to another user"
    )
    assert found.problem.endswith(f"git config --global --add safe.directory {repository}")

    # and the remedy works
    (tmp_path / ".gitconfig").write_text(f"[safe]\n\tdirectory = {repository}\n")
    assert (
        revision.read(str(repository / FILE), b"version: 1\n", environment).subject
        == "The first schedule"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the repository to another user")
def test_root_reads_no_repository_of_another_user(repository: Path) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 65534, 65534)

    assert "belongs to another user" in read(repository / FILE).problem


def test_without_git_the_revision_is_not_known(repository: Path, tmp_path: Path) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    (tmp_path / "empty").mkdir()

    found = revision.read(
        str(repository / FILE), b"version: 1\n", {"PATH": str(tmp_path / "empty")}
    )

    assert found.commit is None
    assert found.problem.startswith("the file is in a git work tree, and git is not installed")


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 600",
        "sleep 600 & wait",
        "trap '' TERM INT HUP; while :; do sleep 600; done",
    ],
    ids=[
        "hangs",
        "has a child that hangs",
        "ignores signals",
    ],
)
def test_a_git_that_does_not_end_is_killed(
    repository: Path, tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository, "The first schedule", "version: 1\n")
    monkeypatch.setattr(revision, "MAX_GIT_SECONDS", 0.3)
    fake, pids = tmp_path / "bin" / "git", tmp_path / "pid"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho $$ > '{pids}'\n{script}\n")
    fake.chmod(0o755)

    environment = {**ENVIRONMENT, "PATH": f"{fake.parent}:{ENVIRONMENT['PATH']}"}
    found = revision.read(str(repository / FILE), b"version: 1\n", environment)

    assert found.commit is None
    assert found.problem.startswith("git did not answer")
    # its process group is gone, if it had started at all
    deadline = time.monotonic() + 30
    while pids.exists() and pids.read_text().strip() and _has_members(int(pids.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _has_members(group: int) -> bool:
    """Return whether a process group has members that are not zombies."""
    done = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return any(int(pgid) == group and not state.startswith("Z") for pgid, state in rows)
