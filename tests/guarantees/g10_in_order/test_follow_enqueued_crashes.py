"""Workers that are killed around the end of the last run that a slot waits for; and a hundred thousand such runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.project import Project, a_project

FOLLOWS = {
    "fan_out": {"cron": "0 0 1 1 *", "handler": "support.handlers.nothing"},
    "summary": {
        "after": ["fan_out"],
        "after_enqueued": "ended",
        "handler": "support.handlers.nothing",
    },
}
SLOT = """
with run as (
    insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, scheduled_for, unreleased,
                                    status, finished_at)
    select 'default', id, job_type, '2026-01-01', 5, '2026-01-01', job_type = 'summary',
           case job_type when 'summary' then 'queued' else 'succeeded' end,
           case job_type when 'fan_out' then now() end
    from yamlsched.job_definitions where job_type in ('fan_out', 'summary') returning id, definition_id, job_type
), waits as (
    insert into yamlsched.awaits (run_id, definition_id, slot)
    select w.id, u.definition_id, '2026-01-01' from run w, run u where w.job_type = 'summary' and u.job_type = 'fan_out'
)
update yamlsched.job_runs r set parent_id = u.id from run u where u.job_type = 'fan_out' and r.status = 'queued'
"""
OVER = """
update yamlsched.job_runs set locked_until = now() - interval '1 second' where locked_until is not null
"""
SUMMARY = """
select r.status, r.attempts, a.enqueued from yamlsched.job_runs r join yamlsched.awaits a on a.run_id = r.id
"""


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def summary(project: Project) -> tuple[Any, ...]:
    [row] = project.db.execute(SUMMARY).fetchall()
    return tuple(row)


@pytest.mark.parametrize(
    "what, ends",
    [
        ("kills_its_worker", {"dead": 1, "succeeded": 2}),
        ("is_killed_before_commit", {"succeeded": 3}),
        ("is_killed_after_commit", {"succeeded": 3}),
    ],
)
def test_whenever_a_worker_is_killed_the_slot_is_released_once_all_have_ended(
    project: Project, monkeypatch: pytest.MonkeyPatch, what: str, ends: dict[str, int]
) -> None:
    # given three runs that a slot waits for, of which the last one kills its worker
    monkeypatch.setenv("OWN_DSN", project.dsn)
    project.db.execute("create table if not exists written (run_id bigint, attempt integer)")
    job = {"handler": "support.own_transactions.handle"} if what != "kills_its_worker" else {}
    name = "handle" if job else what
    project.sync(**FOLLOWS, nothing={}, **{name: {"max_attempts": 2 if job else 1, **job}})
    project.enqueue("nothing", count=2)
    project.enqueue(name, {"what": what} if job else None)
    project.db.execute(SLOT)

    # when that worker and one after it have looked
    project.work(code=-9)
    assert summary(project) == ("queued", 0, None)
    project.db.execute(OVER)
    project.work(code=0 if job else 1)

    # then it ran once
    assert summary(project) == ("succeeded", 1, ends)


@pytest.mark.story
def test_a_slot_that_waits_for_twenty_thousand_runs_is_released_by_the_last(
    project: Project,
) -> None:
    project.sync(**FOLLOWS, nothing={})
    for _ in range(10):
        project.enqueue("nothing", count=2_000)
    project.db.execute(SLOT)

    assert project.start("work").wait(900) == 0

    assert summary(project) == ("succeeded", 1, {"succeeded": 20_000})
    waited = "select s.started_at >= max(r.finished_at) as waited from yamlsched.job_runs r, yamlsched.job_runs s "
    [row] = project.db.execute(
        f"{waited} where r.parent_id is not null and s.job_type = 'summary' group by s.started_at"
    ).fetchall()
    assert row.waited


def test_the_example_of_the_page_does_what_it_says(project: Project) -> None:
    # given the jobs and the handlers of the page, and a slot that is due
    text = (Path(__file__).parents[3] / "docs" / "follow.md").read_text("utf-8")
    text = text[text.index("## Fan-outs") : text.index("## When several slots wait")]
    jobs, handlers = re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)
    (project.folder / "reports.py").write_text(f"import yamlsched\n\n\n{handlers}")
    project.sync(**yaml.safe_load(jobs)["jobs"])
    project.db.execute(
        "update yamlsched.job_definitions set effective_from = m.at - interval '1 day', last_slot_at = null, "
        "next_slot_at = m.at from (select date_trunc('week', now()) - interval '7 days' + interval '6 hours' as at) m "
        "where schedule is not null"
    )

    tick = project.start("tick")
    assert tick.wait() == 1

    counts = re.search(r"# (\{.*\})", handlers)
    assert counts
    assert "] " + counts[1].replace('"', "'") in tick.text
