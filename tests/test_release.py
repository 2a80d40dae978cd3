"""What the workflows may do, and what a release needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from yamlsched import __version__

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_uses_actions_by_digest_and_keeps_no_credentials(workflow: Path) -> None:
    text = workflow.read_text()
    uses = re.findall(r"uses: (.*)", text)

    assert [action for action in uses if not PINNED.fullmatch(action)] == []
    for job in yaml.safe_load(text)["jobs"].values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_only_the_job_that_publishes_gets_a_token_and_it_builds_nothing() -> None:
    loaded: dict[str, dict[str, Any]] = {path.name: yaml.safe_load(path.read_text()) for path in WORKFLOWS}
    granted = {
        (name, job): {**(workflow.get("permissions") or {}), **body.get("permissions", {})}
        for name, workflow in loaded.items()
        for job, body in workflow["jobs"].items()
    }

    assert granted.pop(("release.yml", "publish")) == {"contents": "read", "id-token": "write"}
    assert {frozenset(given.items()) for given in granted.values()} == {frozenset({("contents", "read")})}
    publish = loaded["release.yml"]["jobs"]["publish"]
    assert ".ci/build" not in str(publish)
    assert publish["environment"] == "release"


def test_the_changelog_starts_with_this_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert first is not None
    assert first[1] == __version__
