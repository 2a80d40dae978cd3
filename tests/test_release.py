"""What the workflows may do, and what a release needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from yamlsched import __version__

ROOT = Path(__file__).parent.parent
TEMPLATE = ROOT / "yamlsched" / "templates" / "ci.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCK = ROOT / "requirements" / "dev.txt"
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


@pytest.mark.parametrize("workflow", [*WORKFLOWS, TEMPLATE], ids=lambda path: path.name)
def test_a_workflow_uses_actions_by_digest_and_keeps_no_credentials(workflow: Path) -> None:
    text = workflow.read_text()
    uses = re.findall(r"uses: (.*)", text)

    assert [action for action in uses if not PINNED.fullmatch(action)] == []
    checkouts = text.count("uses: actions/checkout@")
    assert checkouts > 0
    assert text.count("persist-credentials: false}") == checkouts


def test_only_the_job_that_publishes_gets_a_token_and_it_builds_nothing() -> None:
    loaded: dict[str, dict[str, Any]] = {
        path.name: yaml.safe_load(path.read_text()) for path in WORKFLOWS
    }
    granted = {
        (name, job): {**(workflow.get("permissions") or {}), **body.get("permissions", {})}
        for name, workflow in loaded.items()
        for job, body in workflow["jobs"].items()
    }

    assert granted.pop(("release.yml", "publish")) == {
        "contents": "read",
        "id-token": "write",
        "attestations": "write",
    }
    assert granted.pop(("release.yml", "image")) == {"contents": "read", "packages": "write"}
    assert {frozenset(given.items()) for given in granted.values()} == {
        frozenset({("contents", "read")})
    }
    publish = loaded["release.yml"]["jobs"]["publish"]
    assert ".ci/build" not in str(publish)
    assert publish["environment"] == "release"
    assert "attest-build-provenance" in str(publish)
    assert "cyclonedx-py" in str(loaded["release.yml"]["jobs"]["build"])


def test_the_image_of_a_release_has_the_base_of_the_one_that_projects_build() -> None:
    bases = {
        re.findall(r"(?m)^FROM (.*@sha256:[0-9a-f]{64})$", (ROOT / path).read_text())[0]
        for path in (".ci/Containerfile", "deploy/Containerfile")
    }

    assert len(bases) == 1


@pytest.mark.story
def test_the_action_executes_nothing_of_the_checkout(tmp_path: Path) -> None:
    # given a pull request with files that are named like what the action imports
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    [step] = action["runs"]["steps"]
    for module in ("venv", "ensurepip", "pip", "shlex", "site", "sitecustomize", "yamlsched"):
        (tmp_path / f"{module}.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'a').write({module!r})"
        )

    # when the steps are executed there, but for the installation, which needs an index
    lines = [
        line
        for line in step["run"].splitlines()
        if "install" not in line and "validate" not in line
    ]
    ran = subprocess.run(
        ["bash", "-e", "-c", "\n".join([*lines, '"$pip" --version'])],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path / "temp")},
        capture_output=True,
        text=True,
        check=False,
    )

    # then none of them is
    assert (ran.returncode, ran.stdout[:4]) == (0, "pip "), ran
    assert not (tmp_path / "executed").exists()
    assert "--require-hashes" in step["run"]


def test_the_changelog_starts_with_this_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert first is not None
    assert first[1] == __version__


def locked(file: Path = LOCK) -> list[tuple[Requirement, str]]:
    """Return what the lock file pins, each with the lines below it: its hashes, and what needs it."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", file.read_text("utf-8"))
    return [
        (Requirement(one.partition(" \\\n")[0]), one.partition(" \\\n")[2])
        for one in entries
        if one
    ]


def test_the_action_installs_what_yamlsched_requires_by_the_hashes_of_the_lock_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = {
        canonicalize_name(Requirement(one).name) for one in [*project["dependencies"], "hatchling"]
    }
    tested = {canonicalize_name(one.name): str(one.specifier) for one, _ in locked()}

    pinned = {
        canonicalize_name(one.name): (one, below)
        for one, below in locked(ROOT / "requirements" / "action.txt")
    }

    assert required <= pinned.keys(), "run: make lock"
    assert all("--hash=sha256:" in below for _, below in pinned.values())
    assert {
        name
        for name, (one, _) in pinned.items()
        if str(one.specifier) != tested.get(name, one.specifier)
    } == set()


def test_the_lock_file_has_every_requirement_of_pyproject_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = [Requirement(one) for one in project["dependencies"]]
    required += [
        Requirement(one) for extra in project["optional-dependencies"].values() for one in extra
    ]

    pinned = locked()
    direct = {
        canonicalize_name(one.name)
        for one, below in pinned
        if "yamlsched (pyproject.toml)" in below
    }

    assert direct == {canonicalize_name(one.name) for one in required}, "run: make lock"
    for one in required:
        versions = [
            next(iter(pin.specifier)).version
            for pin, _ in pinned
            if canonicalize_name(pin.name) == canonicalize_name(one.name)
        ]
        assert list(one.specifier.filter(versions, prereleases=True)) == versions, (
            f"{one}: run: make lock"
        )


def test_the_lock_file_pins_by_hash_and_names_no_index() -> None:
    for pin, below in locked():
        assert [one.operator for one in pin.specifier] == ["=="], pin
        assert pin.url is None, pin
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", below), pin
    assert not re.search(r"://|^-|^ +--(?!hash)", LOCK.read_text("utf-8"), re.MULTILINE)


@pytest.mark.slow
def test_a_release_is_rehearsed() -> None:
    rehearsed = subprocess.run(
        ["bash", ".ci/rehearse"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert rehearsed.returncode == 0, rehearsed.stdout
    assert "README's two commands work in the sdist" in rehearsed.stdout
