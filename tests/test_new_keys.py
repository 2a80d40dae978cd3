"""A file with keys that the release of another host does not know: several hosts, some of the release before."""

from __future__ import annotations

import re
import tarfile
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import psycopg
import pytest

from support.documents import in_text
from support.releases import BEFORE
from support.rows import a_file_row
from support.schedules import HOUR, MINUTE, a_bad_file, a_file, at, definition, runs
from yamlsched import db as database
from yamlsched.ask import attention, health
from yamlsched.cli import status
from yamlsched.extras.preview import model, plan
from yamlsched.extras.web.pages import files as deployments
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import load
from yamlsched.sync import flow
from yamlsched.sync.apply import claimable_jobs, inspect_file
from yamlsched.sync.files import ScheduleFile, SyncResult, Verdict, is_current, needs_sync, poll
from yamlsched.sync.in_force import NEW_KEYS, needs

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
JOB = {"cron": "0 * * * *", "description": "old"}
KNOWN_1, KNOWN_2 = a_file("web-1", x=JOB), a_file("web-2", x=JOB)
NEW_JOBS: dict[str, Any] = {"x": {**JOB, "description": "new"}, "y": {"after": ["x"]}}
NEW_1, NEW_2 = a_file("web-1", **NEW_JOBS), a_file("web-2", **NEW_JOBS)
HOLIDAYS = "calendars: {holidays: {dates: [2026-12-25], until: 2099-12-31}}\nlimits: {warehouse: 2}"


def tick(db: Db, file: ScheduleFile, now: datetime, **options: Any) -> SyncResult:
    """Tick once: poll, and sync only if the poll says so."""
    snapshot = poll(db, file, now)
    if not needs_sync(snapshot, file):
        return SyncResult(snapshot.namespace, Verdict.CURRENT)
    return flow.sync(db, file, now, snapshot=snapshot, **options)


@cache
def statements_before() -> dict[str, bytes]:
    """Return the statements on files of the release before, as its hosts execute them."""
    with tarfile.open(BEFORE) as archive:
        source = archive.extractfile("sql/files.sql")
        assert source is not None
        parts = re.split(r"^-- name: (\w+)$", source.read().decode(), flags=re.MULTILINE)[1:]
    return {name: body.encode() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def tick_before(db: Db, file: ScheduleFile, now: datetime, statement: str = "poll") -> None:
    """Record a tick of a host that has the release before, as that release does."""
    given = {**file.presented(), "now": now, "namespace": "default", "mistakes": 1, "errors": ["unknown key"]}
    db.execute(statements_before()[statement], given)


def description(db: Db) -> str:
    return str(definition(db).description)


def test_a_file_with_a_new_key_waits_until_every_host_is_upgraded(db: Db) -> None:
    # given two hosts, of which one has the release before
    tick(db, KNOWN_1, NOON)
    tick_before(db, KNOWN_2, NOON + MINUTE)

    # when the file that uses `after` reaches the other
    first = tick(db, NEW_1, NOON + 2 * MINUTE)

    # then the file before stays in force, and the host is named; the next tick need not read the file
    assert (first.verdict, first.has_findings, description(db)) == (Verdict.AWAITS_HOSTS, False, "old")
    assert "it uses after, which the release on web-2:/app/schedules.yaml does not know" in first.messages[0]
    tick_before(db, KNOWN_2, NOON + 2 * MINUTE)
    second = tick(db, NEW_1, NOON + 3 * MINUTE)
    assert (second.verdict, second.messages, second.jobs) == (Verdict.AWAITS_HOSTS, first.messages, None)

    # and once that host is upgraded, whichever file it has, the next tick applies it
    assert tick(db, KNOWN_2, NOON + 4 * MINUTE).verdict is Verdict.CURRENT
    assert tick(db, NEW_1, NOON + 4 * MINUTE).verdict is Verdict.APPLY
    assert (description(db), definition(db, "y").after) == ("new", ["x"])


def test_an_upgraded_host_applies_the_file_by_itself(db: Db) -> None:
    tick(db, KNOWN_1, NOON)
    tick_before(db, KNOWN_2, NOON)
    assert tick(db, NEW_1, NOON + MINUTE).verdict is Verdict.AWAITS_HOSTS

    assert tick(db, NEW_2, NOON + 2 * MINUTE).verdict is Verdict.APPLY


def test_a_file_without_new_keys_waits_for_nobody(db: Db) -> None:
    tick(db, KNOWN_1, NOON)
    tick_before(db, KNOWN_2, NOON)

    assert tick(db, a_file("web-1", x={**JOB, "description": "new"}), NOON + MINUTE).verdict is Verdict.APPLY


def test_a_host_of_the_release_before_that_refuses_the_file_is_waited_for(db: Db) -> None:
    # given a host whose release finds errors in the new file: it continues to present the one before
    tick(db, KNOWN_1, NOON)
    tick_before(db, KNOWN_2, NOON)
    tick_before(db, NEW_2, NOON + 9 * MINUTE, "keep_presenting")

    assert tick(db, NEW_1, NOON + 15 * MINUTE).verdict is Verdict.AWAITS_HOSTS


def test_an_upgraded_host_with_an_invalid_file_is_not_waited_for(db: Db) -> None:
    tick(db, KNOWN_1, NOON)
    tick_before(db, KNOWN_2, NOON)

    assert tick(db, a_bad_file("web-2"), NOON + MINUTE).has_findings

    assert tick(db, NEW_1, NOON + 2 * MINUTE).verdict is Verdict.APPLY


def test_a_single_host_waits_for_nobody(db: Db) -> None:
    tick_before(db, KNOWN_1, NOON)

    assert tick(db, NEW_1, NOON + MINUTE).verdict is Verdict.APPLY


def test_the_first_file_of_a_namespace_waits_too(db: Db) -> None:
    tick_before(db, KNOWN_2, NOON)  # which another session is about to apply

    result = tick(db, NEW_1, NOON + MINUTE)

    assert result.verdict is Verdict.AWAITS_HOSTS
    assert "; no file is in force" in result.messages[0]


@pytest.mark.parametrize(("minutes", "verdict"), [(9, Verdict.AWAITS_HOSTS), (10, Verdict.APPLY)])
def test_a_host_that_has_not_ticked_for_ten_minutes_is_not_waited_for(db: Db, minutes: int, verdict: Verdict) -> None:
    tick(db, KNOWN_1, NOON)
    tick_before(db, KNOWN_2, NOON)

    assert tick(db, NEW_1, NOON + minutes * MINUTE).verdict is verdict


def test_a_host_that_ticks_each_half_hour_is_waited_for(db: Db) -> None:
    tick(db, KNOWN_1, NOON)
    for half_hours in range(3):
        tick_before(db, KNOWN_2, NOON + half_hours * HOUR / 2)

    assert tick(db, NEW_1, NOON + 89 * MINUTE).verdict is Verdict.AWAITS_HOSTS


def test_a_host_that_is_downgraded_does_not_know_the_keys_any_more(db: Db) -> None:
    # given a host whose latest tick is that of the release before, on the row of a newer one
    tick(db, KNOWN_1, NOON)
    tick(db, KNOWN_2, NOON)
    tick_before(db, KNOWN_2, NOON + MINUTE)

    assert tick(db, NEW_1, NOON + 2 * MINUTE).verdict is Verdict.AWAITS_HOSTS


def test_a_host_in_another_namespace_is_not_waited_for(db: Db) -> None:
    tick(db, KNOWN_1, NOON)
    a_file_row(db, namespace="other", host="web-2", last_presented_at=NOON, applied_at=None)

    assert tick(db, NEW_1, NOON + MINUTE).verdict is Verdict.APPLY


def test_a_tick_reports_a_file_that_has_waited_for_ten_minutes(db: Db) -> None:
    tick(db, KNOWN_1, NOON)

    has_findings = {}
    for minute in range(1, 20):
        tick_before(db, KNOWN_2, NOON + minute * MINUTE)
        has_findings[minute] = tick(db, NEW_1, NOON + minute * MINUTE).has_findings

    assert [minute for minute, found in has_findings.items() if not found] == list(range(1, 11))


def test_while_a_file_waits_the_slots_and_runs_are_those_of_the_file_in_force(db: Db) -> None:
    # given jobs whose handler the new file changes, keeps, and adds
    before: dict[str, Any] = {"x": JOB, "same": JOB}
    tick(db, a_file("web-1", **before), NOON)
    x = {"crons": ["0 * * * *"], "handler": "handlers.cache.refresh"}
    new = a_file("web-1", x=x, same=JOB, added=JOB)

    tick_before(db, a_file("web-2", **before), NOON + HOUR)
    result = tick(db, new, NOON + HOUR)

    assert result.verdict is Verdict.AWAITS_HOSTS
    assert len(runs(db)) == 1
    assert list(claimable_jobs(db, new, result)) == ["same"]
    assert inspect_file(db, new, poll(db, new, NOON + HOUR), NOON + HOUR).verdict is Verdict.AWAITS_HOSTS


def test_sync_on_the_command_line_waits_too_unless_it_is_told_not_to(db: Db) -> None:
    tick(db, KNOWN_1, NOON)
    tick_before(db, KNOWN_2, NOON)

    waited = flow.sync(db, NEW_1, NOON + MINUTE, at_once=True)
    assert (waited.verdict, waited.has_findings, description(db)) == (Verdict.AWAITS_HOSTS, True, "old")

    applied = flow.sync(db, NEW_1, NOON + MINUTE, at_once=True, waits=False)
    assert (applied.verdict, applied.has_findings, description(db)) == (Verdict.APPLY, False, "new")
    assert "is applied, although it uses after, which the release on web-2" in applied.messages[0]


def test_status_plan_and_the_page_name_the_hosts(db: Db) -> None:
    # given a file that has waited for 11 minutes
    [now] = database.query.fetch_column(db, b"select clock_timestamp()")
    tick(db, KNOWN_1, now - HOUR)
    for minute in range(12):
        tick_before(db, KNOWN_2, now - (11 - minute) * MINUTE)
        tick(db, NEW_1, now - (11 - minute) * MINUTE)

    says = "it uses after, which the release on web-2:/app/schedules.yaml does not know"
    state = health.read(db, "default", timedelta(hours=1))
    assert any(says in line for _, line in status.files(state))
    [problem] = [p for p in attention.problems(state, attention.Thresholds()) if says in p.what]
    assert problem.remedy == "upgrade yamlsched there, or stop its ticks"

    preview = plan.read(db, NEW_1, load(NEW_1.data, NEW_1.path, None), 7)
    assert preview.plan is not None
    assert says in preview.plan.explanation
    assert "a tick waits for other hosts" in in_text(preview)
    assert model.document(preview)["verdict"] == "awaits_hosts"

    presented = {one.place.host: one for one in deployments.read(db, "default", now).presented}
    assert presented["web-1"].state == "waits for hosts"
    assert says in presented["web-1"].why


@pytest.mark.parametrize("key", NEW_KEYS)
def test_each_new_key_is_found(key: str) -> None:
    written = {
        "after": '{"after": ["x"]}',
        "limit": '{"limit": "warehouse"}',
        "skip_on": '{"cron": "0 9 * * *", "skip_on": ["holidays"]}',
        "only_on": '{"cron": "0 9 * * *", "only_on": ["holidays"]}',
        "crons": '{"crons": ["0 9 * * *", "0 12 * * *"]}',
        "starts_on": '{"cron": "0 9 * * *", "starts_on": "2026-12-01"}',
        "ends_on": '{"cron": "0 9 * * *", "ends_on": "2026-12-01"}',
        "withdraw": '{"executor": "batch"}',
        "start_within": '{"start_within": "2m"}',
        "finish_within": '{"cron": "0 9 * * *", "finish_within": "15m"}',
    }[key]
    jobs = f'{{x: {{cron: "0 9 * * *", handler: a.b}}, y: {written[:-1]}, handler: a.b}}}}'
    executors = "executors: {batch: {type: command, command: [sbatch, x], withdraw: [scancel, x]}}"
    content = f"version: 1\n{HOLIDAYS}\n{executors}\njobs: {jobs}\n"
    loaded = load(content.encode(), "schedules.yaml", None)

    assert not loaded.has_errors, loaded.diagnostics
    assert list(needs(loaded.jobs.values())) == [key]
    assert needs([Job("x")]) == {}


def test_a_file_in_force_is_not_asked_about(db: Db) -> None:
    tick(db, NEW_1, NOON)
    tick_before(db, KNOWN_2, NOON)

    snapshot = poll(db, NEW_1, NOON + MINUTE)

    assert is_current(snapshot, NEW_1)
