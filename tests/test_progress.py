"""run.progress(): what is accepted, how it reaches the database, and how it is shown."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import Cli, command_line
from support.database import temporary_database
from support.project import Project, a_project, until
from support.rows import a_job, a_run, a_started_run, value
from yamlsched import db as connections
from yamlsched.errors import Refused
from yamlsched.runs.lifecycle import ClaimedRun
from yamlsched.runs.progress import MAX_COUNT, MAX_NOTE_CHARS, Progress, StoredProgress, progress
from yamlsched.schedule.job import Job
from yamlsched.testing import FakeRun
from yamlsched.worker import clock, leases, statements
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.leases import INTERVAL_SECONDS, Leases
from yamlsched.worker.local.protocol import SLOT_BYTES, SLOTS_AT, ProgressSlots
from yamlsched.worker.sessions import look_up

Db = psycopg.Connection[Any]
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
RUN = ClaimedRun(7, "purge", None, None, 2, 5, "{}", False, 120.0, "A")
LONGEST_NOTE = "\U0001f600" * MAX_NOTE_CHARS


# -- what is accepted


@pytest.mark.parametrize(
    "given, shown",
    [
        ((0,), "0"),
        ((12_000, 50_000, "customers"), "12,000 of 50,000 (24 %), customers"),
        ((1, 3), "1 of 3 (33 %)"),
        ((49_999, 50_000), "49,999 of 50,000 (99 %)"),
        ((50_000, 50_000), "50,000 of 50,000 (100 %)"),
        ((50_001, 50_000), "50,001 of 50,000 (100 %)"),
        ((0, 0), "0 of 0"),
        ((0.5, 1), "0.5 of 1 (50 %)"),
        ((1e-9, 1), "0 of 1 (0 %)"),
        ((Decimal("2.25"), Fraction(9, 2)), "2.25 of 4.5 (50 %)"),
        ((MAX_COUNT, MAX_COUNT), "9,007,199,254,740,992 of 9,007,199,254,740,992 (100 %)"),
        ((7, None, "  a\nb\x1b[31m\x00  "), r"7, a b\x1b[31m\x00"),
        ((7, None, ""), "7"),
        ((7, None, "x" * 201), "7, " + "x" * 199 + "…"),
    ],
)
def test_progress_is_shown_in_one_line(given: tuple[Any, ...], shown: str) -> None:
    assert str(progress(*given)) == shown


@pytest.mark.parametrize(
    "done, shown",
    [
        (-1, "-1 (int)"),
        (math.nan, "nan (float)"),
        (math.inf, "inf (float)"),
        (2.0**60, "1.15292e+18 (float)"),
        (10**400, "nan (int)"),
        (-(10**5000), "nan (int)"),
        (True, "nan (bool)"),
        ("12", "nan (str)"),
        (None, "nan (NoneType)"),
        (1j, "nan (complex)"),
        (object(), "nan (object)"),
        ([1], "nan (list)"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_not_a_count_is_refused(done: Any, shown: str) -> None:
    with pytest.raises(Refused) as refused:
        progress(done)
    assert str(refused.value) == (
        f"run.progress(): done must be a number from 0 to 9,007,199,254,740,992, not {shown}"
    )


def test_a_total_and_a_note_are_checked_as_well() -> None:
    with pytest.raises(Refused, match=r"total must be a number from 0 to .*, not nan"):
        progress(1, math.nan)
    with pytest.raises(Refused, match="note must be a string, not int"):
        progress(1, 2, 7)


@given(st.floats(0, MAX_COUNT), st.none() | st.floats(0, MAX_COUNT), st.text())
def test_whatever_is_accepted_fits_into_its_slot_of_memory(
    done: float, total: float | None, note: str
) -> None:
    slots, reported = ProgressSlots(3), progress(done, total, note)

    slots.reporter(2, RUN)(reported)

    assert slots.read(2, RUN) == reported
    assert reported.percent is None or 0 <= reported.percent <= 100


# -- from the child to its parent


def test_a_slot_has_the_progress_of_one_claim_only() -> None:
    slots = ProgressSlots(2)
    assert not slots.is_used
    assert slots.read(0, RUN) is None

    slots.reporter(0, RUN)(Progress(1.0, 2.0, LONGEST_NOTE))

    assert slots.is_used
    assert slots.read(0, RUN) == Progress(1.0, 2.0, LONGEST_NOTE)
    for other in (RUN._replace(locked_by="B"), RUN._replace(attempt=3), RUN._replace(id=8)):
        assert slots.read(0, other) is None
    assert slots.read(1, RUN) is None


def test_a_slot_that_is_being_written_is_left_for_the_next_time() -> None:
    slots = ProgressSlots(4)
    slots.reporter(3, RUN)(Progress(1.0, 2.0, "whole"))
    slots._bytes[SLOTS_AT + 3 * SLOT_BYTES + 10] ^= 1

    assert slots.read(3, RUN) is None


# -- when it is written


def an_attempt(run: ClaimedRun = RUN) -> Attempt:
    return Attempt(run, Job("purge"), 0.0, 0.0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the worker's clock."""

    def set_clock(seconds: float) -> None:
        monkeypatch.setattr(clock, "now", lambda: seconds)

    set_clock(100.0)
    return set_clock


class RecordedWrites:
    """A session on which each write succeeds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[list[Progress]] = []
        self.is_locked = False

        async def report(connection: Any, reports: Any) -> set[int]:
            self.writes.append(sorted(progress for _, progress in reports))
            return set() if self.is_locked else {run.id for run, _ in reports}

        monkeypatch.setattr(statements, "report_progress", report)

    async def run(self, do: Any, timeout: float) -> Any:
        return await do(None)


def test_it_is_written_once_a_second_and_not_while_it_stands_still(
    monkeypatch: pytest.MonkeyPatch, now: Callable[[float], None]
) -> None:
    attempt, other, session = (
        an_attempt(),
        an_attempt(RUN._replace(id=8)),
        RecordedWrites(monkeypatch),
    )
    writer = Leases(cast(Any, session), {attempt, other}, cast(Any, None), str)
    assert not writer.reporting()

    attempt.progress = Progress(1.0)
    assert writer.reporting()
    asyncio.run(writer.write_progress())

    # within a second, however much is reported
    attempt.progress, other.progress = Progress(2.0), Progress(5.0)
    now(100.0 + INTERVAL_SECONDS - 0.01)
    assert not writer.reporting()

    # all attempts together
    now(100.0 + INTERVAL_SECONDS)
    assert writer.reporting()
    asyncio.run(writer.write_progress())

    # the same value again is nothing new
    attempt.progress = Progress(2.0)
    now(200.0)
    assert not writer.reporting()

    # one that has ended is written with its outcome
    attempt.progress, attempt.took = Progress(3.0), 1.0
    assert not writer.reporting()
    assert session.writes == [[Progress(1.0)], [Progress(2.0), Progress(5.0)]]


def test_what_the_server_does_not_take_is_written_again(
    monkeypatch: pytest.MonkeyPatch, now: Callable[[float], None]
) -> None:
    attempt, session = an_attempt(), RecordedWrites(monkeypatch)
    writer = Leases(cast(Any, session), {attempt}, cast(Any, None), str)
    attempt.progress, session.is_locked = Progress(1.0), True
    asyncio.run(writer.write_progress())

    now(101.0)
    assert writer.reporting()
    attempt.is_lost = True
    assert not writer.reporting()


# -- the statements


@pytest.fixture
def run_of(db: Db, dsn: str) -> Callable[..., ClaimedRun]:
    """A function that returns a claimed run, of the id of an earlier one if given."""
    a_job(db, "mail")

    def claim(run_id: int | None = None) -> ClaimedRun:
        run = a_started_run(db, dsn, run_id)
        token = run.backend.locked_by
        return ClaimedRun(run.id, "mail", None, None, run.attempt, 5, "{}", False, 60.0, token)

    return claim


def report(
    dsn: str, *reports: tuple[ClaimedRun, Progress], settings: dict[str, str] | None = None
) -> set[int]:
    async def write() -> set[int]:
        async with await connections.connect_async(dsn, settings or {}, look_up) as connection:
            return await statements.report_progress(connection, reports, NOON)

    return asyncio.run(write())


def rows(db: Db) -> list[tuple[Any, ...]]:
    return [
        tuple(row)
        for row in db.execute(
            "select run_id, attempt, worker, done, total, note from yamlsched.attempt_progress order by 1, 2"
        ).fetchall()
    ]


@pytest.mark.parametrize("wrong", [{"attempt": 2}, {"locked_by": "B"}, {"id": 2**40}])
def test_only_the_claim_that_has_the_run_can_report(
    db: Db, dsn: str, run_of: Callable[..., ClaimedRun], wrong: dict[str, Any]
) -> None:
    run = run_of()

    assert report(dsn, (run._replace(**wrong), Progress(1.0))) == set()
    assert rows(db) == []


def test_a_run_that_is_not_running_takes_no_report(
    db: Db, dsn: str, run_of: Callable[..., ClaimedRun]
) -> None:
    run = run_of()
    db.execute(
        "update yamlsched.job_runs set status = 'cancelled', locked_until = null, finished_at = now()"
    )

    assert report(dsn, (run, Progress(1.0))) == set()


def test_a_worker_that_lost_the_run_does_not_overwrite_its_successor(
    db: Db, dsn: str, run_of: Callable[..., ClaimedRun]
) -> None:
    first = run_of()
    assert report(dsn, (first, Progress(1.0, 9.0, "first"))) == {first.id}
    # released at no cost: the number of the attempt is used again
    db.execute("update yamlsched.job_runs set status = 'queued', locked_until = null, attempts = 0")
    second = run_of(first.id)

    assert report(dsn, (second, Progress(2.0)), (first, Progress(8.0))) == {first.id}

    assert rows(db) == [(first.id, 1, second.locked_by, 2.0, None, "")]


def test_a_row_that_is_about_to_be_finished_is_skipped(
    db: Db, dsn: str, run_of: Callable[..., ClaimedRun]
) -> None:
    locked, free = run_of(), run_of()
    with psycopg.connect(dsn) as other:
        other.execute("select from yamlsched.job_runs where id = %s for no key update", [locked.id])

        assert report(dsn, (locked, Progress(1.0)), (free, Progress(2.0))) == {free.id}


def test_many_attempts_are_written_in_order(
    db: Db, dsn: str, run_of: Callable[..., ClaimedRun]
) -> None:
    runs = [run_of() for _ in range(101)]

    reports = [
        (run, Progress(float(number), 200.0, f"run {number}")) for number, run in enumerate(runs)
    ]
    assert report(dsn, *reports, settings={"enable_sort": "off"}) == {run.id for run in runs}

    assert [(row[0], row[3], row[5]) for row in rows(db)] == [
        (run.id, float(number), f"run {number}") for number, run in enumerate(runs)
    ]


def test_the_last_progress_is_written_although_the_row_was_locked(
    db: Db, dsn: str, run_of: Callable[..., ClaimedRun]
) -> None:
    attempt = an_attempt(run_of())
    attempt.progress = Progress(3.0)
    lock = f"begin; select from yamlsched.job_runs where id = {attempt.run.id} for update"

    async def write() -> None:
        other = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        await other.execute(lock.encode())
        async with await connections.connect_async(dsn, {}, look_up) as connection:
            writing = asyncio.create_task(leases.write_last_progress(connection, [attempt]))
            await asyncio.sleep(0.1)
            await other.close()
            await writing

    asyncio.run(write())
    assert [row[3] for row in rows(db)] == [3.0]
    assert attempt.written_progress == Progress(3.0)


# -- real processes


@pytest.fixture(scope="module")
def drained(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Project, Any]]:
    """Every way to end after progress, seen while the first attempts wait, and drained by one worker."""
    from support.handlers import REPORTING_ENDS

    with (
        temporary_database(server, template) as dsn,
        a_project(tmp_path_factory.mktemp("f"), dsn) as project,
    ):
        job = {"max_attempts": 2, "lease": "5m"}  # so that no busy machine loses one
        jobs = {
            f"{end}_s": {"handler": "support.handlers.reports_then", **job}
            for end in REPORTING_ENDS
        }
        shared = {"handler": "support.coroutine_handlers.reports_then", "queue": "shared", **job}
        shared_ends = {f"shared_{end}": end for end in ("return", "commit", "fail")}
        jobs |= {f"{end}_s": shared for end in shared_ends}
        others = {
            "reports_asynchronously": {"lease": "5m"},
            "reports_nonsense": {"max_attempts": 1, "lease": "5m"},
        }
        project.sync(nothing={}, **others, **jobs)
        ends = {**{end: end for end in REPORTING_ENDS}, **shared_ends}
        runs = {
            name: project.enqueue(f"{name}_s", {"then": then})[0] for name, then in ends.items()
        }
        more = {name: project.enqueue(name)[0] for name in others}
        worker = project.start("work", "--concurrency", str(len(runs) + 2))
        until(lambda: len(of(project, *runs.values())) == len(runs), "all report")
        seen = {end: of(project, run)[0] for end, run in runs.items()}
        project.touch("go")
        assert worker.wait() == 1, worker.text[-3000:]
        yield project, ({**runs, **more}, seen)


def of(project: Project, *runs: int) -> list[Any]:
    return project.db.execute(
        "select p.*, p.worker = r.locked_by as is_latest from yamlsched.attempt_progress p "
        "join yamlsched.job_runs r on r.id = p.run_id where p.run_id = any (%s) order by p.run_id, p.attempt",
        [list(runs)],
    ).fetchall()


def test_progress_is_visible_while_the_handler_runs(drained: tuple[Project, Any]) -> None:
    _, (_, seen) = drained
    assert {
        (row.attempt, row.done, row.total, row.note, row.is_latest) for row in seen.values()
    } == {(1, 1.0, 3.0, "attempt 1", True)}


@pytest.mark.parametrize(
    "end, note, status",
    [
        ("return", "all of it", "succeeded"),
        ("enqueue", "all of it", "succeeded"),
        ("commit", "in the transaction", "succeeded"),
        ("thread", "by a thread", "succeeded"),
        ("fork", "by a process", "succeeded"),
        ("shared_return", "all of it", "succeeded"),
        ("shared_commit", "in the transaction", "succeeded"),
    ],
)
def test_the_last_value_is_in_the_database_when_the_run_has_succeeded(
    drained: tuple[Project, Any], end: str, note: str, status: str
) -> None:
    project, (runs, _) = drained
    [row] = of(project, runs[end])

    assert (row.attempt, row.done, row.note, row.is_latest) == (1, 3.0, note, True)
    finished = project.row(runs[end])
    assert finished.status == status
    assert row.reported_at <= finished.finished_at


@pytest.mark.parametrize(
    "end, status",
    [
        ("fail", "succeeded"),
        ("segfault", "succeeded"),
        ("die", "dead"),
        ("shared_fail", "succeeded"),
    ],
)
def test_each_attempt_starts_without_progress_and_keeps_its_last(
    drained: tuple[Project, Any], end: str, status: str
) -> None:
    project, (runs, _) = drained
    first, second = of(project, runs[end])

    assert project.row(runs[end]).status == status
    assert (first.attempt, first.done, first.note, first.is_latest) == (1, 3.0, "all of it", False)
    assert (second.attempt, second.done, second.note, second.is_latest) == (
        2,
        1.0,
        "attempt 2",
        True,
    )


def test_an_asynchronous_handler_reports_as_well(drained: tuple[Project, Any]) -> None:
    project, (runs, _) = drained
    [row] = of(project, runs["reports_asynchronously"])
    assert (row.done, row.total, row.note) == (2.0, None, "without a total")


def test_a_report_that_has_no_meaning_fails_the_attempt(drained: tuple[Project, Any]) -> None:
    project, (runs, _) = drained
    row = project.row(runs["reports_nonsense"])
    assert (row.status, row.error_type) == ("dead", "Refused")
    assert (
        row.last_error
        == "run.progress(): done must be a number from 0 to 9,007,199,254,740,992, not -1 (int)"
    )


def test_a_value_that_stands_still_is_written_once(own_dsn: str, tmp_path: Any) -> None:
    with a_project(tmp_path, own_dsn) as project:
        # renewed each 4 seconds, and not lost on a busy machine
        project.sync(reports_then={"lease": "16s"})
        [run] = project.enqueue("reports_then", {"then": "return"})
        worker = project.start("work")
        until(lambda: of(project, run))
        written = "select xmin::text from yamlsched.attempt_progress"
        first = value(project.db, written)
        renewed = project.row(run).locked_until
        until(
            lambda: project.row(run).locked_until > renewed + timedelta(seconds=1.5),
            "leases are renewed",
        )

        assert value(project.db, written) == first
        project.touch("go")
        assert worker.wait() == 0


# -- how it is shown


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def a_report(db: Db, run: int, attempt: int = 1, **values: Any) -> None:
    """Insert the progress of an attempt of a run of ``a_run``."""
    row = {
        "run_id": run,
        "attempt": attempt,
        "worker": "web-1:4711:c0ffee",
        "done": 12_000,
        "total": 50_000,
        "note": "customers \x1b[2J",
        **values,
    }
    db.execute(
        "insert into yamlsched.attempt_progress (run_id, attempt, reported_at, done, total, worker, note) "
        "values (%(run_id)s, %(attempt)s, now() - interval '3 minutes', %(done)s, %(total)s, %(worker)s, %(note)s)",
        row,
    )


def test_show_says_how_far_it_is_and_since_when_it_stands_still(db: Db, cli: Cli) -> None:
    run = a_run(db, a_job(db), "running", attempts=2)
    a_report(db, run, 1, worker="web-1:1:a", done=7, total=None, note="")
    a_report(db, run, 2)
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error) "
        "values (%s, 1, 'web-1:1:a', now(), 'no route')",
        [run],
    )

    shown = cli("show", str(run)).out

    assert re.search(
        r"^progress  12,000 of 50,000 \(24 %\), customers \\x1b\[2J, \d+m(\d+s)? ago$", shown, re.M
    )
    assert "\n    reached 7, at 20" in shown
    found = json.loads(cli("show", str(run), "--format", "json").out)
    assert [one["attempt"] for one in found["progress"]] == [1, 2]
    reported = found["run"]["progress"]
    assert (reported["done"], reported["total"], reported["percent"]) == (12_000, 50_000, 24)
    assert reported["note"] == "customers \x1b[2J"


def test_runs_notes_the_progress_of_a_running_run(db: Db, cli: Cli) -> None:
    job = a_job(db)
    silent, ended = a_run(db, job, "running"), a_run(db, job, "succeeded")
    a_report(db, ended, done=1, total=1, note="")
    reporting = a_run(db, job, "running")
    a_report(db, reporting)

    lines = {line.split()[0]: line for line in cli("runs").out.splitlines()}

    assert "12,000 of 50,000 (24 %), customers" in lines[str(reporting)]
    assert "%" not in lines[str(silent)] + lines[str(ended)]
    found = json.loads(cli("runs", "--format", "json").out)["runs"]
    assert {run["id"]: run["progress"] and run["progress"]["done"] for run in found} == {
        silent: None,
        ended: None,
        reporting: 12_000,
    }


def test_stored_progress_is_shown_as_it_was_reported() -> None:
    assert str(StoredProgress(1, "w", 3, 4, "n", 75, NOON)) == "3 of 4 (75 %), n"


def test_a_fake_run_records_each_report() -> None:
    run = FakeRun()
    run.progress(1, 2, "one")
    run.progress(2, 2)

    assert run.reports == [(1, 2, "one"), (2, 2, "")]
    assert run.next_attempt().reports == []
