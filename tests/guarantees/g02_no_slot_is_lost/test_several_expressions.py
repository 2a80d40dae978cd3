"""Jobs with several expressions, a first and a last date: from the file to runs and status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.database import temporary_database
from support.project import Project, a_project
from yamlsched.cli import cli


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project


def verb(project: Project, *words: str) -> Any:
    result = CliRunner().invoke(
        cli, [*words, "--dsn", project.dsn, "--namespace", "default", "--format", "json"]
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def due_since(project: Project, job: str, since: timedelta) -> None:
    """Have the slots of ``job`` count since some time ago."""
    project.db.execute(
        "update yamlsched.job_definitions set effective_from = clock_timestamp() - %s, last_slot_at = null, "
        "next_slot_at = clock_timestamp() - %s where job_type = %s",
        [since, since, job],
    )


def test_an_instant_that_two_expressions_name_is_one_run_and_keys_have_the_minute(
    project: Project,
) -> None:
    jobs = {"nothing": {"crons": ["0 * * * *", "0,30 * * * *"], "catchup": "all"}}
    project.sync(**jobs)
    now = project.db.execute("select clock_timestamp()").fetchone()[0]
    due_since(project, "nothing", timedelta(hours=3))

    project.sync(**jobs)

    rows = project.db.execute(
        "select idempotency_key, scheduled_for from yamlsched.job_runs order by 2"
    ).fetchall()
    first = (now - timedelta(hours=3)).astimezone(UTC)
    slots = [row.scheduled_for for row in rows]
    assert slots == sorted({slot for slot in slots if slot.minute in (0, 30) and first < slot})
    assert len(slots) == 6
    assert [row.idempotency_key for row in rows] == [
        f"nothing:{slot.astimezone(UTC):%Y-%m-%dT%H:%MZ}" for slot in slots
    ]


def test_a_job_has_no_slots_after_its_last_date_is_ended_and_can_be_enqueued(
    project: Project,
) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    jobs = {"nothing": {"cron": "* * * * *", "ends_on": yesterday.isoformat(), "timezone": "UTC"}}
    project.sync(**jobs)
    due_since(project, "nothing", timedelta(days=1, hours=2))

    project.sync(**jobs)
    [run] = project.enqueue("nothing")
    project.work()

    # the newest slot is the last minute of that date, and what is before it is superseded
    rows = project.db.execute(
        "select scheduled_for, status from yamlsched.job_runs order by 1 nulls last"
    ).fetchall()
    last = datetime.combine(yesterday, datetime.max.time(), UTC).replace(second=0, microsecond=0)
    assert [(row.scheduled_for, row.status) for row in rows] == [
        (last, "succeeded"),
        (None, "succeeded"),
    ]
    assert project.summary(run)[0] == "succeeded"
    [job] = verb(project, "status")["jobs"]
    assert (job["state"], job["next_slot_at"]) == ("ended", None)
    assert CliRunner().invoke(cli, ["status", "--check", "--dsn", project.dsn]).exit_code == 0


def test_the_first_slot_of_a_job_that_starts_later_is_on_its_first_date(project: Project) -> None:
    first = datetime.now(UTC).date() + timedelta(days=40)
    project.sync(
        nothing={"crons": ["0 9 * * *"], "starts_on": first.isoformat(), "timezone": "UTC"}
    )

    [job] = verb(project, "status")["jobs"]
    assert job["state"] == "new"
    assert job["next_slot_at"].startswith(f"{first}T09:00")


def test_moving_the_last_date_does_not_run_the_slots_in_between(project: Project) -> None:
    days_ago = [datetime.now(UTC).date() - timedelta(days=days) for days in (3, -3)]
    jobs = [
        {"nothing": {"cron": "* * * * *", "ends_on": day.isoformat(), "timezone": "UTC"}}
        for day in days_ago
    ]
    project.sync(**jobs[0])
    due_since(project, "nothing", timedelta(days=2))

    project.sync(**jobs[1])

    assert project.statuses() == {}
    assert project.db.execute("select count(*) from yamlsched.skipped_slots").fetchone()[0] == 0
    edit = project.db.execute(
        "select e.before, e.after from yamlsched.edited_jobs e order by edit_id desc"
    ).fetchone()
    assert (edit.before, edit.after) == tuple({"ends_on": date.isoformat(day)} for day in days_ago)


def test_why_names_an_off_week_and_the_next_date_of_a_time_and_of_a_day(project: Project) -> None:
    project.sync(
        nothing={"cron": "0 9 * * mon", "every": "2w", "starts_on": "2026-12-07", "timezone": "UTC"}
    )

    slot = verb(project, "why", "nothing", "--at", "2026-12-14T09:00")
    day = verb(project, "why", "nothing", "--at", "2026-12-14")

    assert slot["lines"][0] == (
        'not a slot of "0 9 * * mon every 2w from 2026-12-07" in UTC: off week, the next is'
        " 2026-12-21"
    )
    assert (day["slots"], day["off_week"]) == ([], "off week, the next is 2026-12-21")
