"""A file that cannot be used, syncs at the same time, and what blocks one job: no other job is held up."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.rows import a_run
from support.schedules import (
    DAY,
    HOUR,
    MINUTE,
    a_bad_file,
    a_file,
    at,
    definition,
    finish,
    gaps,
    prune,
    runs,
    slots,
    sync_by_hand,
)
from yamlsched import db as store
from yamlsched.act import pause
from yamlsched.ask import attention, health
from yamlsched.ask.problem import Thresholds
from yamlsched.sync import apply, converge, due
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.sync.hosts import current, poll
from yamlsched.sync.in_use import Verdict

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
HOURLY = {"cron": "0 * * * *"}


def ticks(db: Db, file: ScheduleFile, *instants: str) -> None:
    for instant in instants:
        sync(db, file, at(instant))


# -- a bad file, the database's clock, races ---------------------------------------------------------------------------


def test_an_invalid_file_changes_nothing_and_slots_continue(db: Db) -> None:
    ticks(db, a_file(x=HOURLY), "2026-01-14 12:00")
    before = definition(db)

    for _ in range(2):
        result = sync(db, a_bad_file(), at("2026-01-14 13:00"))
        assert result.has_findings
        assert any("hanlder" in message for message in result.messages)

    assert slots(db) == ["01-14 13:00"]
    assert definition(db).handler == before.handler
    assert definition(db).retired_at is None


def test_a_file_is_rejected_while_this_host_lacks_its_handlers(db: Db, tmp_path: Path) -> None:
    # given two jobs; the handler of one is beside the file
    (tmp_path / "errands_here.py").write_text(
        "raise RuntimeError('nothing is imported')\ndef run(): ...\n"
    )
    jobs = {"here": {"handler": "errands_here.run"}, "gone": {"handler": "errands_elsewhere.run"}}
    file = replace(a_file(path=str(tmp_path / "schedules.yaml"), **jobs), handler_path=())

    for _ in range(2):
        result = sync(db, file, NOON)
        assert (result.has_findings, definition(db, "here")) == (True, None)
        assert "YS303" in result.messages[0]
        assert result.jobs is not None
        assert list(result.jobs) == ["here"]

    (tmp_path / "errands_elsewhere.py").write_text("def run(): ...\n")
    assert sync(db, file, NOON).verdict is Verdict.APPLY


def test_a_payload_that_does_not_fit_its_handler_is_an_error_of_every_job_that_shares_it(
    db: Db, tmp_path: Path
) -> None:
    # given a payload of three jobs that fits one of them, and one job whose diagnostic is suppressed
    (tmp_path / "takes.py").write_text("def it(older): ...\ndef nothing(): ...\n")
    text = """version: 1
jobs:
  one: {handler: takes.nothing, cron: "@daily", payload: &rows {older: 30}}
  two: {handler: takes.nothing, cron: "@daily", payload: *rows}
  three: {handler: takes.it, cron: "@daily", payload: {older: 30}}
  four:
    handler: takes.nothing
    payload:
      older: 30  # yamlsched: ignore[YS304]
"""
    file = ScheduleFile(text.encode(), str(tmp_path / "schedules.yaml"), handler_path=())

    result = sync(db, file, NOON)

    assert result.has_findings
    assert result.jobs is not None
    assert list(result.jobs) == ["three", "four"]


def test_without_a_given_time_the_clock_of_the_database_is_used(db: Db) -> None:
    file = a_file(x={"cron": "* * * * *"})
    sync(db, file)
    db.execute(
        "update yamlsched.job_definitions set effective_from = now() - interval '10 minutes', next_slot_at = now()"
    )

    result = sync(db, file)

    [row] = db.execute(
        "select scheduled_for <= clock_timestamp() as past, scheduled_for from yamlsched.job_runs"
    ).fetchall()
    assert result.runs == 1
    assert row.past


def test_the_cursor_does_not_move_back_with_the_clock(db: Db) -> None:
    file = a_file(x=HOURLY)
    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00")
    finish(db, at("2026-01-14 13:01"))

    ticks(db, file, "2026-01-14 12:30")
    sync(
        db,
        a_file(x={**HOURLY, "description": "edited under a clock that is behind"}),
        at("2026-01-14 12:40"),
    )

    assert definition(db).last_slot_at == at("2026-01-14 13:00")
    assert definition(db).next_slot_at == at("2026-01-14 14:00")
    assert len(runs(db)) == 1


def test_concurrent_syncs_skip_what_the_other_has_locked(db: Db, dsn: str) -> None:
    file = a_file(x=HOURLY, y=HOURLY)
    sync(db, file, NOON)

    # given an uncommitted sync that has locked x
    with store.connect(dsn) as other, other.transaction():
        other.execute(
            "select 1 from yamlsched.job_definitions where job_type = 'x' for no key update"
        )

        # when another sync runs, it does not wait, and processes only y
        result = sync(db, file, at("2026-01-14 13:00"))
        assert result.runs == 1
        assert (slots(db, "x"), slots(db, "y")) == ([], ["01-14 13:00"])

    # then the next sync processes x
    assert sync(db, file, at("2026-01-14 13:00")).runs == 1


def test_a_job_that_this_version_cannot_read_is_reported_and_the_others_continue(db: Db) -> None:
    file = a_file(x=HOURLY, y=HOURLY)
    sync(db, file, NOON)
    db.execute(
        "update yamlsched.job_definitions set timezone = 'Mars/Olympus' where job_type = 'x'"
    )

    result = sync(db, file, at("2026-01-14 13:00"))

    assert (result.has_findings, slots(db, "x"), slots(db, "y")) == (True, [], ["01-14 13:00"])
    assert "Mars/Olympus" in result.messages[0]


def test_a_key_used_by_another_job_costs_only_that_slot(db: Db) -> None:
    file = a_file(**{f"job_{n}": HOURLY for n in range(3)}, other={})
    sync(db, file, NOON)
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, idempotency_key, run_at, max_attempts) "
        "select namespace, id, job_type, 'job_1:2026-01-14T13:00Z', %s, 5 "
        "from yamlsched.job_definitions where job_type = 'other'",
        [NOON],
    )

    result = sync(db, file, at("2026-01-14 13:00"))

    assert result.runs == 2
    assert gaps(db, "job_1") == [("01-14 13:00", "01-14 13:00", 1, "key_taken")]


@pytest.fixture
def x_is_refused(db: Db) -> Iterator[None]:
    """A trigger that refuses runs of job x."""
    db.execute(
        "create function public.refuse() returns trigger language plpgsql as "
        "$$ begin if new.job_type = 'x' then raise 'x is refused'; end if; return new; end $$; "
        "create trigger refuse before insert on yamlsched.job_runs for each row execute function public.refuse()"
    )
    yield
    db.execute("drop function public.refuse cascade")


@pytest.mark.parametrize("follows", [{}, {"after": ["y"]}])
def test_a_job_whose_slots_cannot_be_written_is_a_problem_at_once_and_late(
    db: Db, x_is_refused: None, follows: dict[str, Any]
) -> None:
    # given a job that a trigger refuses
    file = a_file(x=HOURLY | follows, y=HOURLY)
    sync(db, file, NOON)

    result = sync(db, file, at("2026-01-14 13:00"))

    # then the others continue, and it is a problem
    assert (slots(db, "x"), slots(db, "y")) == ([], ["01-14 13:00"])
    assert result.messages == [
        'job "x": its due slots could not be written: x is refused. The next tick tries again'
    ]
    state = health.read(db, "default", HOUR, [])
    [problem] = [one for one in attention.problems(state, Thresholds()) if one.kind == "slots"]
    assert (problem.job_type, problem.what) == (
        "x",
        "x: its due slots cannot be written: x is refused",
    )
    late = "select late_why as why from yamlsched.job_queues where job_type = 'x'"
    assert db.execute(late).fetchone() == ("no sync has created the run of its slot",)
    db.execute("drop trigger refuse on yamlsched.job_runs")
    sync(db, file, at("2026-01-14 13:01"))
    assert slots(db, "x") == ["01-14 13:00"]
    assert health.read(db, "default", HOUR, []).unwritten == []


@pytest.mark.parametrize("follows", [{}, {"after": ["y"]}])
def test_a_job_whose_slots_cannot_be_written_stops_neither_an_edit_nor_a_pause(
    db: Db, x_is_refused: None, follows: dict[str, Any]
) -> None:
    sync(db, a_file(x=HOURLY | follows, y=HOURLY, z=HOURLY), NOON)

    for hour, act in ((13, "edit"), (14, "pause"), (15, "resume")):
        now = at(f"2026-01-14 {hour}:00")
        if act == "edit":
            edited = a_file(x=HOURLY | follows | {"priority": "high"}, y=HOURLY, z=HOURLY)
            result = sync_by_hand(db, edited, now)
            assert any(
                "x is refused. They are recorded as skipped, because they are late" in line
                for line in result.messages
            )
        else:
            ids = [definition(db, name).id for name in "xyz"]
            [one, *_] = (pause.pause if act == "pause" else pause.resume)(
                db, "default", ids, "ann", now=now
            )
            assert one.changed

    assert definition(db).priority == 1
    assert slots(db, "y") == slots(db, "z") == ["01-14 13:00", "01-14 14:00"]
    assert [(first, reason) for first, _, _, reason in gaps(db)] == [
        ("01-14 13:00", "late"),
        ("01-14 14:00", "late"),
        ("01-14 15:00", "paused"),
    ]


def test_many_concurrent_syncs_create_each_run_once(db: Db, dsn: str) -> None:
    file = a_file(
        **{
            f"job_{n}": {"cron": "* * * * *", "catchup": "all", "overlap": "allow"}
            for n in range(40)
        }
    )
    sync(db, file, NOON)
    made: list[int] = []

    def race() -> None:
        with store.connect(dsn) as connection:
            for minute in range(1, 6):
                made.append(sync(connection, file, NOON + minute * MINUTE).runs)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.append(sync(db, file, NOON + 5 * MINUTE).runs)

    assert sum(made) == 200
    assert (
        db.execute("select count(distinct idempotency_key) as n from yamlsched.job_runs")
        .fetchone()
        .n
        == 200
    )  # type: ignore[union-attr]


def test_two_hosts_that_apply_the_same_new_file_at_once_apply_it_once(db: Db, dsn: str) -> None:
    jobs = {f"job_{n}": HOURLY for n in range(50)}
    verdicts: list[Verdict | None] = []

    def apply(host: str) -> None:
        with store.connect(dsn) as connection:
            verdicts.append(sync(connection, a_file(host=host, **jobs), NOON).verdict)

    threads = [threading.Thread(target=apply, args=(f"web-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(map(str, verdicts)) == ["apply", "current", "current", "current"]
    assert db.execute("select count(*) as n from yamlsched.job_definitions").fetchone().n == 50  # type: ignore[union-attr]


# -- what an idle tick costs -------------------------------------------------------------------------------------------


def test_a_poll_imports_nothing_that_reads_yaml_or_cron(db: Db, dsn: str) -> None:
    file = a_file(x=HOURLY)
    sync(db, file)
    script = (
        "import sys; from yamlsched import db as store\n"
        "from yamlsched.sync.files import ScheduleFile\n"
        "from yamlsched.sync.hosts import current, poll\n"
        f"file = ScheduleFile({file.data!r}, {file.path!r}, '', {file.host!r})\n"
        f"snapshot = poll(store.connect({dsn!r}), file)\n"
        "assert current(snapshot, file), snapshot\n"
        "heavy = ('yaml', 'croniter', 'jsonschema', 'click', 'yamlsched.timetable.cron')\n"
        "print([m for m in heavy if m in sys.modules])"
    )

    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert output.strip() == "[]"


def test_a_poll_recognizes_an_unchanged_file_and_returns_what_is_due(db: Db) -> None:
    file = a_file(x={**HOURLY, "overlap": "allow"})
    assert poll(db, file, NOON).namespace is None
    sync(db, file, NOON)

    idle = poll(db, file, NOON + 30 * MINUTE)
    assert (current(idle, file) is not None, idle.has_due_jobs, idle.has_claimable_runs) == (
        True,
        False,
        False,
    )
    due = poll(db, file, NOON + HOUR)
    assert (due.has_due_jobs, due.has_claimable_runs) == (True, False)
    sync(db, file, NOON + HOUR)
    made = poll(db, file, NOON + HOUR)
    assert (made.has_due_jobs, made.has_claimable_runs) == (False, True)


def test_an_exclusive_run_and_one_with_an_expired_lease_are_claimable(db: Db) -> None:
    file = a_file(x=HOURLY)
    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00")
    assert poll(db, file, at("2026-01-14 13:01")).has_claimable_runs

    db.execute(
        "update yamlsched.job_runs set status = 'running', attempts = 1, locked_by = 'w', locked_until = %s",
        [at("2026-01-14 13:05")],
    )

    assert not poll(db, file, at("2026-01-14 13:04")).has_claimable_runs
    assert poll(db, file, at("2026-01-14 13:06")).has_claimable_runs


def scans_of_runs(db: Db) -> Any:
    return db.execute(
        "select seq_scan, idx_scan, idx_tup_fetch from pg_stat_xact_user_tables"
        " where schemaname = 'yamlsched' and relname = 'job_runs'"
    ).fetchone()


def test_a_waiting_job_costs_a_poll_one_index_probe(db: Db) -> None:
    file = a_file(**{f"job_{n}": HOURLY for n in range(300)})
    sync(db, file, NOON)
    sync(db, file, NOON + HOUR)
    db.execute("analyze yamlsched.job_definitions, yamlsched.job_runs")

    with db.transaction():
        before = scans_of_runs(db)
        poll(db, file, NOON + 2 * HOUR + DAY)
        after = scans_of_runs(db)

    # then each job is one search, and a few search the runs of all jobs
    assert after.seq_scan == before.seq_scan
    assert 300 <= after.idx_scan - before.idx_scan <= 310
    assert after.idx_tup_fetch - before.idx_tup_fetch <= 310


# -- what blocks one job, but no other


def test_an_unreadable_stored_definition_is_named_and_stops_neither_slots_nor_an_edit(
    db: Db,
) -> None:
    # given jobs of an older release: one with an expression that is now invalid, one with a zone that no longer exists
    file = a_file(x=HOURLY, y=HOURLY, z=HOURLY)
    sync(db, file, NOON)
    db.execute("update yamlsched.job_definitions set schedule = '5-5 * * * *' where job_type = 'x'")
    db.execute(
        "update yamlsched.job_definitions set timezone = 'Mars/Olympus' where job_type = 'z'"
    )

    # when slots are due
    result = sync(db, file, NOON + HOUR)

    # then both jobs are named, with a remedy, and the third gets its slot
    assert (result.has_findings, len(result.messages), slots(db, "y")) == (True, 2, ["01-14 13:00"])
    assert 'job "x": its due slots could not be written' in result.messages[0]
    assert "Correct its entry in schedules.yaml" in result.messages[0]
    assert 'job "z": its due slots could not be written' in result.messages[1]

    # and when a newer release reads the file again, which replaces both, this is reported once
    db.execute("update yamlsched.namespaces set yamlsched_version = '0.0.1'")
    result = sync(db, file, NOON + 3 * HOUR + 30 * MINUTE)
    assert (result.has_findings, result.verdict) == (True, Verdict.RENEW)
    assert [
        'job "x" was changed' in result.messages[0],
        'job "z" was changed' in result.messages[1],
    ] == [True, True]
    for job in ("x", "z"):
        assert gaps(db, job) == [("01-14 13:00", "01-14 15:30", 1, "late")]

    finish(db, NOON + 4 * HOUR)
    result = sync(db, file, NOON + 4 * HOUR)
    assert (result.has_findings, slots(db, "x"), slots(db, "z")) == (
        False,
        ["01-14 16:00"],
        ["01-14 16:00"],
    )


def test_an_unreadable_stored_definition_does_not_stop_the_computation_of_other_jobs(
    db: Db,
) -> None:
    sync(db, a_file(x=HOURLY, y=HOURLY), NOON)
    db.execute(
        "update yamlsched.job_definitions set next_slot_at = next_slot_at + interval '17 minutes'"
    )
    db.execute("update yamlsched.job_definitions set schedule = '5-5 * * * *' where job_type = 'x'")
    db.execute("update yamlsched.namespaces set tzdata_version = '2019a'")

    result = sync_by_hand(db, a_file(y=HOURLY), NOON + MINUTE)

    assert result.has_findings
    assert definition(db, "y").next_slot_at == NOON + HOUR
    assert definition(db, "x").retired_at == NOON + MINUTE


def test_an_uncommitted_key_of_another_session_blocks_only_its_own_job(db: Db, dsn: str) -> None:
    file = a_file(**{f"job_{n}": HOURLY for n in range(5)}, other={})
    sync(db, file, NOON)
    with store.connect(dsn) as squatter, squatter.transaction(force_rollback=True):
        squatter.execute(
            "insert into yamlsched.job_runs "
            "(namespace, definition_id, job_type, idempotency_key, run_at, max_attempts) "
            "select namespace, id, job_type, 'job_1:2026-01-14T13:00Z', now(), 5 "
            "from yamlsched.job_definitions where job_type = 'other'"
        )

        result = sync(db, file, NOON + HOUR)

        assert (result.runs, result.has_findings, len(result.messages)) == (4, True, 1)
        assert 'job "job_1"' in result.messages[0]
        assert "The next tick tries again" in result.messages[0]

    result = sync(db, file, NOON + HOUR)
    assert (result.runs, result.has_findings, slots(db, "job_1")) == (1, False, ["01-14 13:00"])


def test_a_sync_that_cannot_get_its_lock_still_creates_the_slots_of_the_file_in_use(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "LOCK_TIMEOUT_SECONDS", 0.05)
    sync(db, a_file(x=HOURLY), NOON)
    edited = a_file(x={**HOURLY, "description": "edited"})
    with store.connect(dsn) as other, other.transaction():
        other.execute("select 1 from yamlsched.namespaces for update")

        result = sync(db, edited, NOON + HOUR)

        assert (result.has_findings, result.runs, definition(db).description) == (True, 1, "")
        assert "another session holds a lock" in result.messages[0]

    assert sync(db, edited, NOON + HOUR).verdict is Verdict.APPLY


def test_an_advisory_lock_of_another_application_blocks_nothing(db: Db, dsn: str) -> None:
    with store.connect(dsn) as other, other.transaction():
        other.execute("select pg_advisory_xact_lock(hashtextextended('yamlsched:default', 0))")

        assert sync(db, a_file(x=HOURLY), NOON).verdict is Verdict.APPLY


def test_a_key_whose_run_is_being_pruned_is_not_used_again(db: Db, dsn: str) -> None:
    # given a slot with a run, and a cursor before it (a backfilled slot, or a restored definition)
    file = a_file(x=HOURLY)
    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00")
    finish(db, NOON + HOUR)
    db.execute(
        "update yamlsched.job_definitions set last_slot_at = null, next_slot_at = %s", [NOON + HOUR]
    )

    # when a sync runs while the run is being pruned
    with store.connect(dsn) as pruner, pruner.transaction():
        assert prune(pruner) == {"x:2026-01-14T13:00Z"}
        result = sync(db, file, NOON + HOUR)

    # then it neither waits nor creates a second run, and the slot is accounted for
    assert (result.runs, result.has_findings, runs(db), gaps(db)) == (0, False, [], [])
    assert definition(db).last_slot_at == NOON + HOUR


def test_a_sync_at_its_time_limit_leaves_the_rest_to_the_next(db: Db) -> None:
    file = a_file(**{f"job_{n}": HOURLY for n in range(5)})
    sync(db, file, NOON)

    made = due.account_for_due_slots(db, "default", NOON + HOUR, deadline=0.0)
    assert (made.runs, made.jobs_left) == (0, 5)

    assert sync(db, file, NOON + HOUR).runs == 5


def test_concurrent_syncs_above_read_committed_create_each_run_once(db: Db, dsn: str) -> None:
    # sessions use read committed; a different default of the database must not make a sync fail
    file = a_file(
        **{
            f"job_{n}": {"cron": "* * * * *", "catchup": "all", "overlap": "allow"}
            for n in range(20)
        }
    )
    sync(db, file, NOON)
    made: list[int] = []

    def race() -> None:
        with store.connect(dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            for minute in range(1, 4):
                made.append(sync(connection, file, NOON + minute * MINUTE).runs)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.append(sync(db, file, NOON + 3 * MINUTE).runs)

    assert sum(made) == 60
    assert len({key for n in range(20) for key, _ in runs(db, f"job_{n}")}) == 60


def test_while_a_file_is_applied_other_ticks_of_its_host_poll_without_waiting(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file whose application takes long
    file = a_file(x=HOURLY)
    sync(db, file, NOON)
    db.execute("update yamlsched.namespaces set tzdata_version = '2019a'")
    apply = converge.converge

    def and_look(*arguments: Any) -> Any:
        changes = apply(*arguments)
        with store.connect(dsn) as other:
            other.execute("set lock_timeout = '100ms'")
            assert poll(other, file, NOON + MINUTE).namespace == "default"
        return changes

    monkeypatch.setattr(converge, "converge", and_look)

    assert sync(db, file, NOON + MINUTE).verdict is Verdict.RENEW


def test_a_host_of_another_environment_does_nothing_also_while_the_lock_is_held(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "LOCK_TIMEOUT_SECONDS", 0.05)
    sync(db, a_file(x=HOURLY), NOON)
    with store.connect(dsn) as other, other.transaction():
        other.execute("select 1 from yamlsched.namespaces for update")

        result = sync(
            db,
            a_file(environment="staging", top="environments: {staging: {}}", x=HOURLY),
            NOON + HOUR,
        )

    assert (result.verdict, result.may_claim, runs(db)) == (Verdict.OTHER_ENVIRONMENT, False, [])


def test_a_failed_batch_is_written_one_job_at_a_time(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a definition whose slots cannot be written
    file = a_file(**{f"job_{n}": HOURLY for n in range(3)})
    sync(db, file, NOON)
    db.execute(
        "alter table yamlsched.job_runs add constraint never check (job_type <> 'job_1') not valid"
    )
    try:
        result = sync(db, file, NOON + HOUR)
    finally:
        db.execute("alter table yamlsched.job_runs drop constraint never")

    assert (result.runs, result.has_findings) == (2, True)
    assert 'job "job_1"' in result.messages[0]


def test_an_edit_of_overlap_changes_only_waiting_slot_runs_of_its_job(db: Db) -> None:
    # given two jobs, each with a waiting slot run, a finished slot run and an enqueued run
    jobs = {name: {"cron": "0 * * * *", "overlap": "wait"} for name in ("x", "y")}
    sync(db, a_file(**jobs), NOON)
    for name in jobs:
        job = definition(db, name).id
        a_run(db, job, exclusive=True, scheduled_for=NOON)
        a_run(db, job, "succeeded", exclusive=True, scheduled_for=NOON - HOUR)
        a_run(db, job)

    # when the overlap of one is edited
    sync(db, a_file(x={**jobs["x"], "overlap": "allow"}, y=jobs["y"]), NOON + MINUTE)

    # then only its waiting slot run changes
    rows = db.execute("select job_type, exclusive from yamlsched.job_runs order by id").fetchall()
    assert [tuple(row) for row in rows] == [
        ("x", False), ("x", True), ("x", False), ("y", True), ("y", True), ("y", False),
    ]  # fmt: skip
