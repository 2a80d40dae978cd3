"""Edits on record: who changed what, written by the sync that applies it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg
import pytest

from support.schedules import HOUR, MINUTE, a_file, at, runs, sync_by_hand
from yamlsched.ask import edits as operations
from yamlsched.sync import edits as sync_edits
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
HOURLY = {"cron": "0 * * * *"}


def apply(db: Db, file: ScheduleFile, now: datetime = NOON) -> None:
    result = sync_by_hand(db, file, now)
    assert result.changes is not None, result.messages


def changes(db: Db) -> list[tuple[str, str, Any, Any]]:
    """Return job, change, before and after of all changes, in their order."""
    rows = db.execute(
        "select job_type, change, before, after from yamlsched.definition_changes order by edit_id, job_type"
    )
    return [tuple(row) for row in rows.fetchall()]


def edits(db: Db) -> list[Any]:
    return db.execute("select * from yamlsched.edits order by id").fetchall()


def test_each_change_of_a_job_is_on_record_field_by_field(db: Db) -> None:
    # given a job that is added, changed, removed, and added again
    apply(db, a_file(x={**HOURLY, "timeout": "30m", "payload": {"days": 30, "keep": [1]}}))
    apply(
        db,
        a_file(
            x={**HOURLY, "timeout": "1h30m", "payload": {"days": 7, "keep": [1]}, "owner": "ops"}
        ),
        NOON + HOUR,
    )
    apply(db, a_file(), NOON + 2 * HOUR)
    apply(db, a_file(x=HOURLY), NOON + 3 * HOUR)

    # then each edit says what it changed, and nothing else
    handler, week = (
        {"handler": "handlers.cleanup.run"},
        {"payload": {"days": 7, "keep": [1]}, "timeout": "1h30m"},
    )
    month = {"payload": {"days": 30, "keep": [1]}, "timeout": "30m"}
    assert changes(db) == [
        ("x", "added", None, {**HOURLY, **handler, **month}),
        (
            "x",
            "changed",
            {"timeout": "30m", "payload.days": 30, "owner": None},
            {"timeout": "1h30m", "payload.days": 7, "owner": "ops"},
        ),
        ("x", "retired", {**HOURLY, **handler, **week, "owner": "ops"}, None),
        (
            "x",
            "returned",
            {**week, "owner": "ops"},
            {"payload": {}, "timeout": "1h", "owner": None},
        ),
    ]
    assert [edit.applied_at for edit in edits(db)] == [NOON + nth * HOUR for nth in range(4)]
    assert [edit.jobs for edit in edits(db)] == [
        {kind: {"jobs": 1, "first": ["x"]}} for kind in ("added", "changed", "retired", "returned")
    ]


def test_a_file_that_is_applied_again_is_no_edit_and_one_that_changes_no_job_is(db: Db) -> None:
    apply(db, a_file(x=HOURLY))
    for host in ("web-1", "web-2"):
        assert sync_by_hand(db, a_file(host, x=HOURLY), NOON + MINUTE).changes is None
    assert len(edits(db)) == 1

    apply(db, a_file(x=HOURLY, top="# a comment"), NOON + 2 * MINUTE)

    [_, comment] = edits(db)
    assert (comment.jobs, comment.before, comment.after) == ({}, {}, {})
    assert len(changes(db)) == 1


def test_keys_outside_of_jobs_are_compared_with_those_of_the_file_before(db: Db) -> None:
    apply(db, a_file(x=HOURLY))
    limits = "limits: {warehouse: {max: 8}}"
    apply(db, a_file(x=HOURLY, top=f"retention: {{dead: 30d}}\n{limits}"), NOON + MINUTE)
    more = limits.replace("8", "9")
    apply(db, a_file(x=HOURLY, top=f"retention: {{dead: 30d}}\n{more}"), NOON + 2 * MINUTE)

    [first, second, third] = edits(db)
    assert (first.before, first.after) == (None, {})
    assert second.before["retention.dead"] == "90d"
    assert second.after == {"retention.dead": "30d", "limits.warehouse": {"max": 8}}
    assert (third.before, third.after) == ({"limits.warehouse.max": 8}, {"limits.warehouse.max": 9})


def test_no_secret_is_recorded(db: Db) -> None:
    def file(secret: str) -> ScheduleFile:
        shell = f"PGPASSWORD={secret} mysql -p{secret} | curl -H 'Authorization: Bearer {secret}'"
        payload = {
            "api_key": secret,
            "url": f"amqp://bob:{secret}@mq/",
            "deep": [{"password": secret}],
        }
        program = {
            "command": ["/bin/sh", "-c", shell, "--token", secret, "-u", f"maria:{secret}"],
            "env": {
                "DB_PASSWORD": secret,
                "HTTP_AUTH": secret,
                "ALERT_WEBHOOK": secret,
                "MODE": "fast",
            },
            "stdin": f"password={secret}",
        }
        jobs = {"x": {"handler": "handlers.cleanup.run", "payload": payload}, "y": program}
        return replace(a_file(), data=f"version: 1\njobs: {json.dumps(jobs)}\n".encode())

    # when jobs with secrets are added, their secrets change, and they are removed
    for nth, secret in enumerate(("hunter2abc", "correcthorse")):
        apply(db, file(secret), NOON + nth * MINUTE)
    apply(db, a_file(), NOON + 2 * MINUTE)

    # then that is on record, and no secret is
    recorded = str(changes(db)) + str(edits(db))
    assert "hunter2" not in recorded
    assert "correcthorse" not in recorded
    [x, y] = changes(db)[2:4]
    hidden = {
        "payload.api_key": "***",
        "payload.url": "amqp://bob:***@mq/",
        "payload.deep": [{"password": "***"}],
    }
    assert x[2:] == (hidden, hidden)
    assert y[3]["env.DB_PASSWORD"] == "***"
    assert y[3]["command"][2:] == [
        "PGPASSWORD=*** mysql -p*** | curl -H 'Authorization: Bearer ***'",
        "--token",
        "***",
        "-u",
        "maria:***",
    ]
    assert y[3]["env.HTTP_AUTH"] == y[3]["env.ALERT_WEBHOOK"] == "***"


def test_a_long_value_is_cut(db: Db) -> None:
    apply(db, a_file(x={"payload": {"text": "ä" * 5_000, "list": ["b" * 100] * 100}}))

    [(_, _, _, after)] = changes(db)
    assert len(after["payload"]) == 2_001
    assert after["payload"].endswith("…")


def test_a_change_of_defaults_is_one_group_of_jobs(db: Db) -> None:
    jobs = {f"job_{nth:03}": HOURLY for nth in range(120)}
    apply(db, a_file(**jobs))
    apply(db, a_file(**jobs, top="defaults: {timeout: 30m}"), NOON + MINUTE)

    [edit, _] = operations.edits(db, "default")
    [group] = operations.changes(db, [edit])[edit.id]

    assert (group.change, group.before, group.after) == (
        "changed",
        {"timeout": "1h"},
        {"timeout": "30m"},
    )
    assert (group.jobs, group.groups, group.first) == (120, 1, sorted(jobs)[: operations.MAX_NAMES])
    assert operations.counts(edit.jobs) == "120 jobs changed"


def test_an_environment_enables_jobs_and_is_on_record(db: Db) -> None:
    top = "environments: {production: {}, staging: {}}"
    job = {**HOURLY, "environments": ["production"]}
    apply(db, a_file(environment="staging", x=job, top=top))
    apply(db, a_file(environment="production", x=job, top=top), NOON + MINUTE)

    assert [(edit.environment, edit.hash == edits(db)[0].hash) for edit in edits(db)] == [
        ("staging", True),
        ("production", True),
    ]
    assert changes(db)[1] == ("x", "changed", {"enabled": False}, {"enabled": True})


def test_a_rollback_is_an_edit_of_its_own(db: Db) -> None:
    old, new = a_file(x=HOURLY), a_file(x={**HOURLY, "timeout": "5m"})
    for nth, file in enumerate((old, new, old)):
        apply(db, file, NOON + nth * MINUTE)

    assert [edit.hash for edit in edits(db)] == [old.sha256, new.sha256, old.sha256]
    assert changes(db)[2] == ("x", "changed", {"timeout": "5m"}, {"timeout": "1h"})


def test_a_sync_that_fails_leaves_no_edit(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise psycopg.errors.LockNotAvailable("test")

    monkeypatch.setattr("yamlsched.sync.apply.hosts.use", fail)
    record = sync_edits.record

    result = sync(db, a_file(x=HOURLY), NOON)
    assert result.changes is None
    monkeypatch.undo()

    # nor does one that fails after the edit was written
    def record_and_fail(*given: Any) -> None:
        record(*given)
        raise psycopg.errors.LockNotAvailable("test")

    monkeypatch.setattr(sync_edits, "record", record_and_fail)
    assert sync(db, a_file(x=HOURLY), NOON).changes is None
    monkeypatch.undo()

    assert edits(db) == []
    apply(db, a_file(x=HOURLY), NOON + MINUTE)
    assert len(edits(db)) == len(changes(db)) == 1


def test_of_two_syncs_of_one_file_at_once_one_records_the_edit(
    db: Db, dsn: str, db_of: Any
) -> None:
    file = a_file(x=HOURLY)
    others = [db_of(dsn) for _ in range(2)]
    results: list[Any] = []

    # given two syncs that wait for the lock of the namespace
    db.execute("insert into yamlsched.namespaces (namespace) values ('default')")
    with db.transaction():
        db.execute("select from yamlsched.namespaces for update")
        threads = [
            threading.Thread(target=lambda c=c: results.append(sync_by_hand(c, file, NOON)))
            for c in others
        ]
        for thread in threads:
            thread.start()
        waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        while db.execute(waiting.encode()).fetchone()[0] < 2:  # type: ignore[index]
            db.execute("select pg_sleep(0.01), pg_stat_clear_snapshot()")

    # when they go on, then one of them has applied the file
    for thread in threads:
        thread.join()
    assert sorted(result.changes is None for result in results) == [False, True]
    assert len(edits(db)) == len(changes(db)) == 1


def test_what_the_old_definition_still_owed_belongs_to_the_edit_before(db: Db) -> None:
    # given an hourly job whose slot of 13:00 is due when an edit is applied
    job = {**HOURLY, "overlap": "allow"}
    first, second = a_file(x=job), a_file(x={**job, "timeout": "5m"})
    apply(db, first)
    apply(db, second, NOON + HOUR + MINUTE)
    sync(db, second, NOON + 2 * HOUR)
    assert len(runs(db)) == 2

    # then its run was created under the definition before, and the next one under the new one
    found = db.execute("select created_at, job_type from yamlsched.job_runs order by id").fetchall()
    in_use = [operations.in_use(db, "default", run.created_at, run.job_type) for run in found]
    assert [one and one.file.hash for one in in_use] == [first.sha256, second.sha256]
    assert [one and one.job and one.job.hash for one in in_use] == [first.sha256, second.sha256]


def test_the_edit_in_use_and_the_last_one_of_the_job_are_two_things(db: Db) -> None:
    assert operations.in_use(db, "default") is None
    apply(db, a_file(x=HOURLY))
    apply(db, a_file(x=HOURLY, y=HOURLY), NOON + HOUR)

    now = operations.in_use(db, "default", None, "x")
    assert now is not None
    assert now.job is not None
    assert (now.file.applied_at, now.job.applied_at) == (NOON + HOUR, NOON)
    assert operations.in_use(db, "default", NOON) is None
    assert operations.in_use(db, "other") is None


def test_edits_are_listed_newest_first_by_time_job_and_page(db: Db) -> None:
    for nth in range(5):
        y = {**HOURLY, "priority": "low" if nth == 3 else "normal"}
        apply(db, a_file(x={**HOURLY, "timeout": f"{nth + 1}m"}, y=y), NOON + nth * HOUR)

    def hours(**filters: Any) -> list[int]:
        return [
            int((edit.applied_at - NOON) / HOUR)
            for edit in operations.edits(db, "default", **filters)
        ]

    assert hours() == [4, 3, 2, 1, 0]
    assert hours(since=NOON + HOUR, until=NOON + 3 * HOUR) == [2, 1]
    assert hours(limit=2) == [4, 3]
    assert hours(limit=2, before=operations.edits(db, "default", limit=2)[-1].id) == [2, 1]
    assert hours(job_type="y") == [4, 3, 0]
    assert hours(before=10**9) == []
    assert operations.edits(db, "other") == []


def test_a_new_release_that_reads_the_same_file_differently_is_an_edit(db: Db) -> None:
    # given a file that an older release applied, with another value for a key
    file = a_file(x=HOURLY)
    apply(db, file)
    db.execute("update yamlsched.namespaces set yamlsched_version = '0.0.1'")
    sync(db, file, NOON + MINUTE)
    assert len(edits(db)) == 1  # nothing differs
    db.execute("update yamlsched.namespaces set yamlsched_version = '0.0.1'")
    db.execute("update yamlsched.job_definitions set lease = '3 minutes'")

    # when this release applies it again
    sync(db, file, NOON + 2 * MINUTE)

    # then that is on record
    assert [edit.hash for edit in edits(db)] == [file.sha256, file.sha256]
    assert changes(db)[1] == ("x", "changed", {"lease": "3m"}, {"lease": "2m"})


def test_a_stored_job_that_cannot_be_read_is_changed_and_its_cron_is_on_record(db: Db) -> None:
    apply(db, a_file(x=HOURLY, y=HOURLY))
    db.execute("update yamlsched.job_definitions set schedule = '61 * * * *' where job_type = 'x'")
    db.execute(
        """update yamlsched.job_definitions set backoff = '{"delay": "soon"}' where job_type = 'y'"""
    )

    apply(db, a_file(x={"cron": "5 * * * *"}, y={"cron": "5 * * * *"}), NOON + MINUTE)

    [x, y] = changes(db)[2:]
    assert x == ("x", "changed", {"cron": "61 * * * *"}, {"cron": "5 * * * *"})
    assert (y[1], y[2]["cron"], y[3]["cron"]) == ("changed", None, "5 * * * *")


def test_namespaces_have_edits_of_their_own(db: Db) -> None:
    apply(db, a_file(x=HOURLY))
    apply(db, a_file("web-2", x={**HOURLY, "timeout": "5m"}, top="namespace: other"), NOON + MINUTE)

    [other] = operations.edits(db, "other", job_type="x")
    [group] = operations.changes(db, [other], job_type="x")[other.id]
    assert (group.change, group.first, other.before) == ("added", ["x"], None)
    in_use = operations.in_use(db, "default", None, "x")
    assert in_use is not None
    assert in_use.file.applied_at == NOON


def test_the_same_edit_is_recorded_for_thousands_of_jobs_in_one_statement(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    execute = psycopg.Connection.execute

    def counted(self: Any, query: Any, *given: Any, **more: Any) -> Any:
        statements.append(query.decode() if isinstance(query, bytes) else str(query))
        return execute(self, query, *given, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    apply(db, a_file(**{f"job_{nth}": HOURLY for nth in range(1_000)}))

    assert sum("yamlsched.edited_jobs" in statement for statement in statements) == 1
    assert len(changes(db)) == 1_000
