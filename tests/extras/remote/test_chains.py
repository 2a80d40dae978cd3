"""Jobs that follow others, on executors: a chain goes from one to the next, with what each job has returned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from extras.remote.test_remote_executor import APART, EXEC, engine, on_engine, project, run_to_end

from support.project import Project

pytestmark = pytest.mark.story

__all__ = ["project"]

ENDS = ["/bin/sh", "-c", 'echo "$YAMLSCHED_UPSTREAM" > upstream']


@pytest.mark.parametrize("script", [EXEC, APART])
@pytest.mark.parametrize("last", [on_engine(), {}], ids=["to the engine", "to the host"])
def test_a_chain_over_executors_ends_with_the_data_of_each_job(
    project: Project, script: str, last: dict[str, Any]
) -> None:
    engine(project, script)
    project.sync(
        returns_json=on_engine(cron="0 2 * * *"),
        nap={"isolation": "process", "after": ["returns_json"]},
        publishes=last | {"command": ENDS, "after": ["nap", "returns_json"]},
    )
    made = project.start(
        *(
            "backfill",
            "returns_json",
            "--from",
            "2026-01-14T02:00Z",
            "--before-first",
            "--downstream",
            "--yes",
        )
    )
    assert made.wait() == 0, made.text

    worker = run_to_end(project)

    runs = project.db.execute(
        "select job_type, status, attempts from yamlsched.job_runs order by id"
    ).fetchall()
    assert [tuple(run) for run in runs] == [
        (name, "succeeded", 1) for name in ("returns_json", "nap", "publishes")
    ], worker.text
    upstream = json.loads((project.folder / "upstream").read_text())
    assert set(upstream) == {"nap", "returns_json"}
    assert {one["status"] for one in upstream.values()} == {"succeeded"}
    assert upstream["returns_json"]["result"]["rows"] == 3
