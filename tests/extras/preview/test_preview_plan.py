"""``yamlsched plan``: it announces exactly what sync does, and changes nothing."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.command_line import Cli, command_line
from support.documents import in_markdown, in_text
from support.schedules import (
    DAY,
    HOUR,
    MINUTE,
    a_bad_file,
    a_file,
    at,
    finish,
    gaps,
    slots,
    sync_by_hand,
)
from yamlsched import db as store
from yamlsched.act import pause as pausing
from yamlsched.extras.preview import plan as preview_rows
from yamlsched.extras.preview.model import Level, Preview, SyncPlan, document
from yamlsched.extras.preview.plan import read
from yamlsched.schedule.load import load
from yamlsched.show import terminal as _output
from yamlsched.sync.field_changes import Change
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.flow import sync
from yamlsched.sync.in_use import Verdict

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
TABLES = [
    "job_definitions",
    "job_runs",
    "skipped_slots",
    "files",
    "hosts",
    "used_keys",
    "operator_actions",
]


def plan(db: Db, file: ScheduleFile, now: Any = NOON, days: int = 7) -> Preview:
    loaded = load(file.data, file.path, file.environment or None)
    assert loaded.diagnostics == ()
    return read(db, file, loaded, days, now)


def plan_of(preview: Preview) -> SyncPlan:
    assert preview.plan is not None
    return preview.plan


def contents(db: Db) -> list[Any]:
    """Return every row of every table."""
    return [
        db.execute(f"select * from yamlsched.{table} order by 1".encode()).fetchall()
        for table in TABLES
    ]


def announced(preview: Preview, result: SyncResult, db: Db, before: set[int]) -> None:
    """Assert that ``result`` matches ``planned``; ``before`` are the runs before the sync."""
    edit, changes, planned = preview, result.changes, plan_of(preview)
    rows = db.execute(
        "select id, job_type, idempotency_key, scheduled_for, run_at from yamlsched.job_runs order by id"
    ).fetchall()
    made = [tuple(row)[1:] for row in rows if row.id not in before]
    assert sorted(made) == sorted(
        (run.job_type, run.idempotency_key, run.scheduled_for, run.run_at) for run in planned.runs
    )
    gaps = [(gap.job_type, gap.first, gap.last, gap.slots, gap.reason) for gap in result.gaps]
    assert sorted(gaps) == sorted(dataclasses.astuple(gap) for gap in planned.skipped)
    if changes is None:
        assert not edit.jobs
        return
    added = {*edit.named(Change.ADDED)} - {*planned.returned}
    assert (added, {*edit.named(Change.CHANGED)}) == ({*changes.added}, {*changes.changed})
    assert ({*edit.named(Change.REMOVED)}, tuple(planned.returned)) == (
        {*changes.retired},
        changes.returned,
    )


def ids(db: Db) -> set[int]:
    return {row.id for row in db.execute("select id from yamlsched.job_runs")}


def _valid(jobs: dict[str, Any]) -> dict[str, Any]:
    """Return the jobs, each with the keys that it may have, and following those before it that have slots."""
    found: dict[str, Any] = {}
    for name, drawn in sorted(jobs.items()):
        job = dict(drawn)
        overlap, catchup = job.pop("policies", "wait latest").split()
        names, policy, has_own_slots = job.pop("follows", ("", "wait", True))
        after = [
            one for one in names if one < name and found.get(one, {}).keys() & {"cron", "after"}
        ]
        if after and not has_own_slots:
            after = after[:1]  # whose slots it has
            job = {key: job[key] for key in job if key not in ("cron", "timezone")}
        if "cron" not in job and not (after and not has_own_slots):
            found[name] = {key: job[key] for key in job if key in ("payload", "enabled")}
            continue
        follows = {"after": after, "on_upstream_failure": policy} if after else {}
        catchup = "latest" if after and catchup == "none" else catchup
        found[name] = {**job, "overlap": overlap, "catchup": catchup, **follows}
    return found


OVERLAPS, CATCHUPS = ["wait", "skip", "allow"], ["latest", "none", "all"]
CRONS = ["*/7 * * * *", "0 * * * *", "30 2 * * *", "15 1,3 * * *", "0 23 * * *", "59 11 * * *"]
JOBS = st.dictionaries(
    st.sampled_from(["x", "y", "z"]),
    st.fixed_dictionaries(
        {},
        optional={
            "cron": st.sampled_from(CRONS),
            "timezone": st.sampled_from(["UTC", "America/New_York"]),
            "policies": st.sampled_from(
                [f"{o} {c}" for o in OVERLAPS for c in CATCHUPS if (o, c) != ("skip", "all")]
            ),
            "catchup_window": st.sampled_from(["5m", "2d"]),
            "enabled": st.booleans(),
            "spread": st.sampled_from(["0s", "1m"]),
            "payload": st.sampled_from([{}, {"a": 1}, {"a": 1.5, "b": [None, True]}]),
            "backoff": st.sampled_from([{"policy": "steps", "delays": ["1s"]}, {"delay": "90s"}]),
            "follows": st.tuples(
                st.sampled_from(["x", "y", "xy"]),
                st.sampled_from(["wait", "skip", "run"]),
                st.booleans(),
            ),
        },
    ),
).map(_valid)


@pytest.mark.story
@settings(max_examples=12)
@given(
    files=st.lists(JOBS, min_size=2, max_size=5),
    pauses=st.lists(st.sampled_from(["", "x", "y"]), min_size=5, max_size=5),
    minutes=st.lists(st.integers(1, 3000), min_size=5, max_size=5),
    choice=st.randoms(use_true_random=False),
)
def test_plan_announces_exactly_what_sync_does(
    dsn: str, files: list[Any], pauses: list[str], minutes: list[int], choice: random.Random
) -> None:
    with store.connect(dsn) as db:
        for table in (
            "skipped_slots",
            "job_runs",
            "used_keys",
            "job_definitions",
            "files",
            "hosts",
            "namespaces",
        ):
            db.execute(f"delete from yamlsched.{table}".encode())
        now = NOON
        for nth, jobs in enumerate(files):
            # given earlier files, finished and unfinished runs, and jobs that may be paused
            now += minutes[nth] * MINUTE
            if choice.random() < 0.5:
                finish(db, now)
            paused = db.execute(
                "select id from yamlsched.job_definitions where job_type = %s", [pauses[nth]]
            ).fetchone()
            if paused:
                pausing.pause(
                    db,
                    "default",
                    [paused.id],
                    "ann",
                    until=now + choice.choice([HOUR, DAY]),
                    now=now,
                )
                now += choice.randrange(90) * MINUTE
            file = a_file(top=f"x-edit: {nth}", **jobs)
            before, held = contents(db), ids(db)

            # when plan computes what a sync would do
            planned = plan(db, file, now)

            # then nothing has changed, and the sync does exactly this
            assert contents(db) == before
            announced(planned, sync_by_hand(db, file, now), db, held)
            assert in_text(planned)
            assert json.loads(_output.document(**document(planned)))["jobs"] is not None


@pytest.mark.parametrize(
    "edited",
    [
        {},
        {"enabled": False},
        {"cron": "0 2 * * *"},
        {"cron": "*/7 * * * *", "catchup": "all"},
        {"cron": "*/7 * * * *", "catchup_window": "5m"},
        {"cron": "*/7 * * * *", "overlap": "skip"},
        {"cron": "*/7 * * * *", "overlap": "allow"},
    ],
)
def test_plan_knows_what_becomes_of_owed_slots_whose_job_leaves_its_upstream(
    db: Db, edited: dict[str, Any]
) -> None:
    # given two slots of a job that follows another, which neither has a run yet
    loads, reports = {"cron": "*/7 * * * *"}, {"after": ["load"]}
    sync_by_hand(db, a_file(load=loads, report=reports), NOON + MINUTE)
    now = NOON + 15 * MINUTE
    file = a_file(load=loads, report=edited)

    planned = plan(db, file, now)
    sync_by_hand(db, file, now)

    rows = db.execute(
        "select job_type, idempotency_key, scheduled_for, run_at from yamlsched.job_runs order by id"
    ).fetchall()
    assert sorted(map(tuple, rows)) == sorted(
        (run.job_type, run.idempotency_key, run.scheduled_for, run.run_at)
        for run in plan_of(planned).runs
    )


def test_a_plan_cannot_write(db: Db) -> None:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), preview_rows.snapshot(db):
        db.execute("delete from yamlsched.job_runs")


def test_the_complete_output_of_a_plan(db: Db) -> None:
    # given jobs that ran in the night, one that is late, one paused, one with unfinished runs, and one that waits
    old = a_file(
        nightly={"cron": "0 2 * * *"},
        leaves={"cron": "0 * * * *", "overlap": "allow"},
        refresh={"cron": "*/10 * * * *", "catchup_window": "10m"},
        rests={"cron": "0 5 * * *"},
        waits={"cron": "0 * * * *"},
    )
    sync(db, old, NOON - DAY)
    sync(db, old, NOON - 65 * MINUTE)
    finish(db, NOON - HOUR, "nightly")
    finish(db, NOON - HOUR, "refresh")
    finish(db, NOON - HOUR, "rests")
    [rests] = db.execute(
        "select id from yamlsched.job_definitions where job_type = 'rests'"
    ).fetchall()
    pausing.pause(db, "default", [rests.id], "ann", reason="until the disk is new", now=NOON - HOUR)

    # when the nightly job moves to the evening of the same day, and one job is removed
    new = a_file(
        nightly={"cron": "0 23 * * *"},
        refresh={"cron": "*/10 * * * *", "catchup_window": "10m"},
        rests={"cron": "0 5 * * *"},
        waits={"cron": "0 * * * *"},
    )
    planned = plan(db, new)

    # then the plan announces all of it
    assert in_text(planned) == EXPECTED.format(new=new.sha256[:8], old=old.sha256[:8])
    comment = in_markdown(planned)
    for line in (
        "## yamlsched plan",
        f"* file      /app/schedules.yaml, hash {new.sha256[:8]}: the second tick with it applies it, because it"
        " retires jobs",
        r"* \- leaves: had 168 slots a week",
        "* runs to create: 2",
        "  * leaves:2026-01-14T12:00Z, owed by the definition in use",
        "  * rests  since 2026-01-14T11:00:00Z by ann, until it is resumed: until the disk is new",
    ):
        assert line in comment.splitlines()
    held = ids(db)
    announced(planned, sync_by_hand(db, new, NOON), db, held)


@pytest.mark.parametrize(
    "reason", ["x\n::error::forged", "a`b ##[error]c", "</details>\n\n# forged"]
)
def test_a_plan_escapes_what_an_operator_wrote(db: Db, reason: str) -> None:
    sync(db, a_file(x={"cron": "0 5 * * *"}), NOON - DAY)
    [job] = db.execute("select id from yamlsched.job_definitions").fetchall()
    shown = []
    for each in ("plain", reason):
        pausing.pause(db, "default", [job.id], "ann", reason=each, now=NOON - HOUR)
        planned = plan(db, a_file(top="x-edit: 2", x={"cron": "0 5 * * *"}))
        shown.append((in_text(planned), in_markdown(planned)))

    for plain, forged in zip(*shown, strict=True):
        assert plain.count("\n") == forged.count("\n")
        assert "##[" not in forged
        assert "\n::" not in forged


EXPECTED = """\
namespace default at 2026-01-14T12:00:00Z
file      /app/schedules.yaml, hash {new}: the second tick with it applies it, because it retires jobs
in use    /app/schedules.yaml, hash {old}, of host web-1, since 2026-01-13T12:00:00Z
jobs      1 job changed, 1 removed, 3 unchanged; 1190 slots a week (before: 1358)

- leaves: had 168 slots a week
    cron     0 * * * *
    handler  handlers.cleanup.run
    * it is retired: no slots, no claims; its unfinished runs are cancelled a day later

~ nightly: 7 slots a week, unchanged, next Thu 2026-01-15 23:00 UTC
    cron  0 2 * * * -> 0 23 * * *
    ! it does not run at 2026-01-14 23:00: its key nightly:2026-01-14 was used by the slot at 2026-01-14 02:00
    * At 23:00, every day (UTC)
    slots of 7 days (UTC)
      moved    Thu 2026-01-15 02:00 -> 23:00
      moved    Fri 2026-01-16 02:00 -> 23:00
      moved    Sat 2026-01-17 02:00 -> 23:00
      moved    Sun 2026-01-18 02:00 -> 23:00
      moved    Mon 2026-01-19 02:00 -> 23:00
      moved    Tue 2026-01-20 02:00 -> 23:00
      moved    Wed 2026-01-21 02:00 -> 23:00
      added    Wed 2026-01-14 23:00  skipped: key_taken

runs to create: 2
    leaves:2026-01-14T12:00Z, owed by the definition in use
    refresh:2026-01-14T12:00Z

slots to skip: 3
    leaves  1 slot, 2026-01-14T11:00:00Z: superseded
    refresh  5 slots, 2026-01-14T11:00:00Z to 2026-01-14T11:40:00Z: late
    refresh  1 slot, 2026-01-14T11:50:00Z: superseded

slots that wait: 1
    waits  2026-01-14T11:00:00Z, until the run of 2026-01-14T10:00:00Z has finished

unfinished runs of jobs that are not in the file: 1
    leaves  1 run, 0 of them running; those left are cancelled from 2026-01-15T12:00:00Z on

paused; sync does not change this: 1
    rests  since 2026-01-14T11:00:00Z by ann, until it is resumed: until the disk is new"""


def test_a_job_that_returns_continues_and_its_missed_slots_are_recorded(db: Db) -> None:
    sync(db, a_file(x={"cron": "0 * * * *"}), NOON)
    sync_by_hand(db, a_file(), NOON + HOUR)
    planned = plan(db, a_file(top="x-edit: 2", x={"cron": "0 * * * *"}), NOON + 3 * HOUR + MINUTE)
    assert plan_of(planned).returned == ["x"]
    assert [(gap.slots, gap.reason) for gap in plan_of(planned).skipped] == [(2, "retired")]
    assert "it was retired at 2026-01-14T13:00:00Z and returns with its history" in in_text(planned)


def test_a_key_that_was_used_by_hand_or_long_ago_is_found_in_the_database(db: Db) -> None:
    sync(db, a_file(x={"cron": "0 2 * * *"}, y={}), NOON)
    db.execute(
        "insert into yamlsched.used_keys (namespace, idempotency_key, run_id, job_type, scheduled_for) "
        "values ('default', 'x:2026-01-16', 7, 'x', null)"
    )
    planned = plan(db, a_file(x={"cron": "0 3 * * *"}, y={}))
    [job] = planned.jobs
    assert [(one.scheduled_for, one.key, one.by) for one in job.key_taken] == [
        (at("2026-01-16 03:00"), "x:2026-01-16", None)
    ]
    assert "its key x:2026-01-16 was used by a run that was enqueued manually" in in_text(planned)


def test_a_due_run_that_is_not_created_yet_uses_the_key_of_its_date(db: Db) -> None:
    # given a nightly job with a due slot without a run
    sync(db, a_file(x={"cron": "0 2 * * *"}), NOON - DAY)
    moved = a_file(x={"cron": "0 23 * * *"})

    # when it moves to the evening
    planned = plan(db, moved)
    [job] = planned.jobs

    # then the date has its run, and sync does the same
    assert [run.idempotency_key for run in plan_of(planned).runs] == ["x:2026-01-14"]
    assert [(one.scheduled_for, one.by) for one in job.key_taken] == [
        (at("2026-01-14 23:00"), at("2026-01-14 02:00"))
    ]
    sync(db, moved, NOON)
    finish(db, NOON)
    assert [(gap.first, gap.reason) for gap in sync(db, moved, at("2026-01-14 23:00")).gaps] == [
        (at("2026-01-14 23:00"), "key_taken")
    ]
    assert job.next_slot_at == at("2026-01-15 23:00")
    assert sync(db, moved, job.next_slot_at).runs == 1


def test_all_owed_slots_of_a_changed_job_are_announced_although_its_run_is_unfinished(
    db: Db,
) -> None:
    # given 150 due slots of a job that waits for an unfinished run
    old = a_file(x={"cron": "* * * * *", "catchup": "all"})
    sync(db, old, NOON)
    sync(db, old, NOON + MINUTE)
    now = NOON + 151 * MINUTE

    # when it is changed, then all of them are announced and created; unchanged they would wait
    new = a_file(x={"cron": "* * * * *", "catchup": "all", "owner": "team-b"})
    planned, held = plan(db, new, now), ids(db)
    assert (len(plan_of(planned).runs), {run.settles for run in plan_of(planned).runs}) == (
        150,
        {True},
    )
    assert (plan_of(plan(db, old, now)).runs, len(plan_of(plan(db, old, now)).waiting)) == ([], 1)
    announced(planned, sync(db, new, now), db, held)


def test_a_run_that_an_edit_of_spread_moves_is_announced_at_its_new_time(db: Db) -> None:
    # given a slot that is due, and whose run would wait for its time
    old, edited = a_file(x={"cron": "0 * * * *", "spread": "1h"}), a_file(x={"cron": "0 * * * *"})
    sync(db, old, NOON - MINUTE)
    [former] = plan_of(plan(db, old)).runs

    # when it has no spread any more
    planned, held = plan(db, edited), ids(db)

    # then the run is announced, and created, with its new time
    assert former.run_at > NOON
    assert [run.run_at for run in plan_of(planned).runs] == [NOON]
    announced(planned, sync(db, edited, NOON), db, held)


def test_an_edit_of_a_job_settles_the_slots_of_those_that_follow_it_and_plan_says_so(
    db: Db,
) -> None:
    # given a job whose due slots wait for another, which is edited, and of which the sync makes no gap at once
    follower = {
        "cron": "5 * * * *",
        "after": ["extract"],
        "catchup": "all",
        "on_upstream_failure": "run",
    }
    jobs: dict[str, Any] = {"load": follower}
    sync(db, a_file(extract={"cron": "0 * * * *"}, **jobs), NOON)
    edited, held = a_file(extract={"cron": "0 * * * *", "owner": "team-b"}, **jobs), ids(db)
    now = NOON + 70 * MINUTE

    planned = plan(db, edited, now)

    assert [(run.idempotency_key, run.settles) for run in plan_of(planned).runs] == [
        ("extract:2026-01-14T13:00Z", True),
        ("load:2026-01-14T12:05Z", True),
        ("load:2026-01-14T13:05Z", True),
    ]
    announced(planned, sync(db, edited, now), db, held)


def test_unfinished_runs_of_a_removed_job_are_counted_with_the_day_of_their_cancellation(
    db: Db,
) -> None:
    sync(db, a_file(x={"cron": "0 * * * *", "overlap": "allow"}), NOON)
    sync(db, a_file(x={"cron": "0 * * * *", "overlap": "allow"}), NOON + HOUR)
    planned = plan(db, a_file(), NOON + HOUR + MINUTE)
    [leaving] = plan_of(planned).leaving
    assert (leaving.job_type, leaving.unfinished, leaving.running) == ("x", 1, 0)
    assert leaving.cancelled_at == NOON + HOUR + MINUTE + DAY

    # after its removal they are still shown until none is left
    sync_by_hand(db, a_file(), NOON + 2 * HOUR)
    [left] = plan_of(plan(db, a_file(), NOON + 3 * HOUR)).leaving
    assert (left.unfinished, left.cancelled_at) == (2, NOON + 2 * HOUR + DAY)


def test_a_slot_that_waits_for_the_run_before_it_is_not_announced_as_a_run(db: Db) -> None:
    file = a_file(x={"cron": "0 * * * *"})
    sync(db, file, NOON)
    sync(db, file, NOON + HOUR)
    planned = plan(db, file, NOON + 2 * HOUR)
    assert plan_of(planned).runs == []
    assert [(one.scheduled_for, one.open_slot) for one in plan_of(planned).waiting] == [
        (NOON + 2 * HOUR, NOON + HOUR)
    ]
    assert plan_of(planned).verdict is Verdict.CURRENT
    sync(db, file, NOON + 2 * HOUR)
    assert slots(db) == ["01-14 13:00"]


def test_a_plan_reports_whether_a_tick_would_apply_the_file(db: Db) -> None:
    old, new = a_file(x={"cron": "0 2 * * *"}), a_file(x={"cron": "0 3 * * *"})
    assert plan_of(plan(db, old)).verdict is Verdict.APPLY
    assert "no file has been applied yet" in in_text(plan(db, old))
    sync(db, old, NOON)
    sync(db, a_file("web-2", x={"cron": "0 3 * * *"}), NOON + MINUTE)
    assert plan_of(plan(db, new, NOON + 2 * MINUTE)).verdict is Verdict.CURRENT

    held = plan(db, old, NOON + 2 * MINUTE)
    assert plan_of(held).verdict is Verdict.SUPERSEDED
    assert "a tick does not apply it; yamlsched sync would do this" in in_text(held)
    assert "another host uses the file that superseded it" in plan_of(held).explanation

    elsewhere = plan(db, a_file(environment="live", x={"cron": "0 3 * * *"}), NOON + 2 * MINUTE)
    assert plan_of(elsewhere).verdict is Verdict.OTHER_ENVIRONMENT
    assert 'belongs to no environment, and this is environment "live"' in in_text(elsewhere)


def test_a_file_that_changes_its_namespace_reports_what_remains_in_the_old_one(db: Db) -> None:
    sync(db, a_file(x={"cron": "0 2 * * *"}), NOON)
    planned = plan(db, a_file(top="namespace: shop", x={"cron": "0 2 * * *"}))
    [warning] = [note.text for note in planned.notes if note.level is Level.WARNING]
    assert warning.startswith(
        "this host has also applied this path to default: the jobs there are not retired"
    )


def test_retention_is_compared_with_that_of_the_file_in_use(db: Db) -> None:
    sync(db, a_file(x={"cron": "0 2 * * *"}), NOON)
    planned = plan(db, a_file(top="retention: {succeeded: 1d}", x={"cron": "0 2 * * *"}))
    assert [(one.field, one.before, one.after) for one in planned.fields] == [
        ("retention.succeeded", "30d", "1d")
    ]


def test_limits_queues_and_calendars_are_compared_with_those_of_the_file_in_use(db: Db) -> None:
    job = {"cron": "0 2 * * *", "limit": "shop", "queue": "mail", "skip_on": ["holidays"]}
    top = (
        "limits: {{shop: {{max: {}}}}}\n"
        "queues: {{mail: {{concurrency: {}}}}}\n"
        "calendars: {{holidays: {{dates: [{}], until: 2027-12-31}}}}"
    )
    sync(db, a_file(top=top.format(3, 2, "2026-12-25"), x=job), NOON)

    planned = plan(db, a_file(top=top.format(4, 9, "2026-12-25, 2026-12-26"), x=job))

    assert [(one.field, one.before, one.after) for one in planned.fields] == [
        ("queues.mail.concurrency", 2, 9),
        ("limits.shop.max", 3, 4),
    ]
    [changed] = planned.jobs
    [calendar] = changed.fields
    assert calendar.field == "calendars.holidays"
    assert "limits.shop.max  " in in_text(planned)


@pytest.mark.parametrize("change", ["schedule = '0 0 2 * * * 2026'", "timezone = 'Mars/Olympus'"])
def test_a_job_whose_expression_or_time_zone_is_unknown_here_does_not_stop_the_plan(
    db: Db, change: str
) -> None:
    file = a_file(x={"cron": "0 2 * * *"}, y={"cron": "0 2 * * *"})
    sync(db, file, NOON)
    db.execute(f"update yamlsched.job_definitions set {change} where job_type = 'x'".encode())
    planned = plan(db, a_file(y={"cron": "0 2 * * *"}), NOON + DAY)
    assert [line.partition(":")[0] for line in plan_of(planned).unreadable] == ["x"]
    assert [run.job_type for run in plan_of(planned).runs] == ["y"]


def test_the_owed_slots_of_an_unreadable_job_that_is_changed_are_announced_as_one_gap(
    db: Db,
) -> None:
    # given a job whose stored time zone is unknown, with a due slot
    sync(db, a_file(x={"cron": "0 2 * * *"}), NOON)
    db.execute("update yamlsched.job_definitions set timezone = 'Mars/Olympus'")
    edited = a_file(x={"cron": "0 3 * * *"})

    planned = plan_of(plan(db, edited, NOON + DAY))
    sync(db, edited, NOON + DAY)

    # then sync records the gap that the plan announced
    announced = [(gap.first_slot, gap.last_slot, gap.slots, gap.reason) for gap in planned.skipped]
    assert announced == [(at("2026-01-15 02:00"), at("2026-01-15 12:00"), 1, "late")]
    assert gaps(db) == [("01-15 02:00", "01-15 12:00", 1, "late")]


# -- the command line


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_the_command_announces_what_sync_does_and_differences_exit_1_only_with_exit_code(
    cli: Cli, db: Db, tmp_path: Path
) -> None:
    (tmp_path / "schedules.yaml").write_bytes(a_file(x={"cron": "0 2 * * *"}).data)
    assert (cli("plan").code, cli("plan", "--exit-code").code) == (0, 1)
    found = json.loads(cli("plan", "--format", "json").out)
    assert [job["change"] for job in found["jobs"]] == ["added"]
    assert (found["verdict"], found["in_use"], found["runs"]) == ("apply", None, [])
    assert db.execute("select count(*) from yamlsched.hosts").fetchone() == (0,)

    assert cli("sync").out == "added: x\n"
    assert cli("sync", "-q").out == ""
    after = cli("plan", "--exit-code")
    assert after.code == 0
    assert "this file is in use" in after.out
    assert "jobs      no job changes (1 job)" in after.out


def test_another_environment_exits_1(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_bytes(a_file(x={"cron": "0 2 * * *"}).data)
    cli("sync", "-q")
    assert cli("plan", "--env", "live").code == 1


def test_errors_are_shown_and_nothing_is_planned(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_bytes(a_bad_file().data)
    done = cli("plan")
    assert (done.code, done.out) == (1, "")
    assert 'error[YS102]: unknown key "hanlder"' in done.err
