"""For any history of a job, every slot has a run or lies in exactly one gap."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.schedules import DAY, HOUR, MINUTE, a_bad_file, a_file, at, prune, sync_by_hand
from yamlsched import db as store
from yamlsched.sync.due import account_for_owed_slots
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.sync.slot_plan import next_slot_at
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.slots import next_slot, slots

Db = psycopg.Connection[Any]

CRONS = [
    "*/7 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "15 1,3 * * *",
    "0 12 * * 1-5",
    "59 23 * * *",
    "* 3 * * *",
]
ZONES = ["UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]


def schedule_of(job: dict[str, Any]) -> str | None:
    weeks = f" every {job['every']} from {job['starts_on']}" if "every" in job else ""
    return job["cron"] + weeks if "cron" in job else None


@dataclass
class History:
    """The history of a database, and the slots that each job must account for."""

    db: Db
    dsn: str
    now: datetime
    files: int = 0
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    #: job -> spans (after, until, cron, zone); the last one is open
    eras: dict[str, list[list[Any]]] = field(default_factory=dict)
    pruned: set[str] = field(default_factory=set)

    def file(self) -> ScheduleFile:
        return a_file(top=f"x-edit: {self.files}", **self.jobs)

    def apply(self, jobs: dict[str, dict[str, Any]], race: bool = False) -> None:
        """Apply a new file; with ``race``, while hosts with the old one and with the new one tick."""
        before = self.file()
        self.files += 1
        self.jobs = jobs
        if race:
            self.race(before, self.file(), self.file())
        sync_by_hand(self.db, self.file(), self.now)
        for name, job in jobs.items():
            rule = (schedule_of(job), job.get("timezone", "UTC"))
            spans = self.eras.setdefault(name, [])
            if not spans or (spans[-1][2], spans[-1][3]) != rule:
                if spans:
                    spans[-1][1] = self.now
                spans.append([self.now, None, *rule])

    def tick(self) -> None:
        sync(self.db, self.file(), self.now)

    def race(self, *files: ScheduleFile) -> None:
        """Tick on three hosts at once."""
        failures: list[BaseException] = []

        def one(file: ScheduleFile) -> None:
            try:
                with store.connect(self.dsn) as connection:
                    sync(connection, file, self.now)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=one, args=[file]) for file in files or [self.file()] * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def bad_file(self) -> None:
        assert sync(self.db, a_bad_file(), self.now).has_findings

    def end_runs(self, status: str, part: float, choice: random.Random) -> None:
        """End a part of the unfinished runs, or let them fail and wait for a retry."""
        rows = self.db.execute(
            "select id from yamlsched.job_runs where finished_at is null"
        ).fetchall()
        ids = [row.id for row in rows if choice.random() < part]
        final = status in ("succeeded", "dead", "cancelled")
        self.db.execute(
            "update yamlsched.job_runs set status = %s, finished_at = %s, dead_at = %s where id = any (%s)",
            [status, self.now if final else None, self.now if status == "dead" else None, ids],
        )

    def prune(self) -> None:
        self.pruned |= prune(self.db)

    def foreign_key(self, choice: random.Random) -> None:
        """Use, for another job, the key of a future slot."""
        name = choice.choice(sorted(self.eras))
        day = self.now + timedelta(days=choice.randrange(3))
        key = choice.choice([f"{name}:{day:%Y-%m-%d}", f"{name}:{day:%Y-%m-%dT%H:00Z}"])
        self.db.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, idempotency_key, run_at, "
            "max_attempts, status, finished_at) select namespace, id, job_type, %s, %s, 5, 'succeeded', %s "
            "from yamlsched.job_definitions where job_type = 'other' and not exists "
            "(select from yamlsched.used_keys where idempotency_key = %s) on conflict do nothing",
            [key, self.now, self.now, key],
        )

    def pause(self, name: str, until: datetime | None) -> None:
        self._switch(name, self.now, until)

    def resume(self, name: str) -> None:
        self._switch(name, None, None)

    def _switch(self, name: str, paused_at: datetime | None, until: datetime | None) -> None:
        with self.db.transaction():
            row = self.db.execute(
                "select id from yamlsched.job_definitions where job_type = %s", [name]
            ).fetchone()
            assert row is not None
            instant, [job], _ = account_for_owed_slots(self.db, "default", [row.id], self.now)
            paused = replace(job, paused_at=paused_at, paused_until=until)
            following = next_slot_at(paused, instant)
            self.db.execute(
                "update yamlsched.job_definitions set paused_at = %s, paused_until = %s, next_slot_at = %s "
                "where id = %s",
                [paused_at, until, following, job.id],
            )

    def check(self) -> None:
        """Assert G1 and G2 of every job."""
        keys = Counter(
            row.idempotency_key
            for row in self.db.execute(
                "select idempotency_key from yamlsched.job_runs where idempotency_key is not null "
                "union all select idempotency_key from yamlsched.used_keys"
            )
        )
        assert not [key for key, number in keys.items() if number > 1]
        assert self.pruned <= set(keys)
        for name, eras in self.eras.items():
            self.check_job(name, eras)

    def check_job(self, name: str, eras: list[list[Any]]) -> None:
        row = self.db.execute(
            "select * from yamlsched.job_definitions where job_type = %s", [name]
        ).fetchone()
        assert row is not None
        cursor = row.last_slot_at
        rows = self.db.execute(
            "select scheduled_for from yamlsched.job_runs where job_type = %(n)s and scheduled_for is not null "
            "union all select scheduled_for from yamlsched.used_keys "
            "where job_type = %(n)s and scheduled_for is not null",
            {"n": name},
        ).fetchall()
        made = [r.scheduled_for for r in rows]
        assert len(made) == len(set(made))
        gaps = self.db.execute(
            "select first_slot, last_slot, slots, reason from yamlsched.skipped_slots where definition_id = %s "
            "order by first_slot",
            [row.id],
        ).fetchall()

        expected = set()
        for after, until, text, zone in eras:
            if text is not None:
                parsed = parse_schedule(text)
                expected |= {s.at for s in slots(parsed, ZoneInfo(zone), after, until or self.now)}
        assert set(made) <= expected, "a slot was run that the job does not have"
        for one, following in pairwise(gaps):
            assert one.last_slot < following.first_slot, "gaps overlap"
        for gap in gaps:
            inside = {slot for slot in expected if gap.first_slot <= slot <= gap.last_slot}
            assert {gap.first_slot, gap.last_slot} <= inside
            assert gap.slots == len(inside), f"{gap} has {len(inside)} slots"
            assert not inside & set(made), f"{gap} holds a run"
        for slot in expected:
            if cursor is not None and slot <= cursor:
                in_gaps = sum(gap.first_slot <= slot <= gap.last_slot for gap in gaps)
                assert (slot in made) + in_gaps == 1, (
                    f"{name}: {slot} is in {in_gaps} gaps, made: {slot in made}"
                )
            else:
                assert slot not in made
        if row.enabled and row.retired_at is None and row.paused_at is None and row.schedule:
            after = max(row.effective_from, cursor or row.effective_from)
            following = next_slot(parse_schedule(row.schedule), ZoneInfo(row.timezone), after)
            assert row.next_slot_at == (following and following.at)


a_job = st.fixed_dictionaries(
    {"cron": st.sampled_from(CRONS), "timezone": st.sampled_from(ZONES)},
    optional={
        "enabled": st.booleans(),
        "overlap": st.sampled_from(["wait", "skip", "allow"]),
        "catchup": st.sampled_from(["latest", "none"]),
        "catchup_window": st.sampled_from(["5m", "90m", "2d"]),
        "max_attempts": st.integers(1, 3),
    },
) | st.fixed_dictionaries(
    {
        "cron": st.sampled_from(CRONS),
        "catchup": st.just("all"),
        "overlap": st.sampled_from(["wait", "allow"]),
    }
)
a_job |= st.fixed_dictionaries(
    {
        "cron": st.sampled_from(["15 1,3 * * *", "0 12 * * 1-5", "0 */6 LW * *"]),
        "timezone": st.sampled_from(ZONES),
        "every": st.sampled_from(["2w", "3w"]),
        "starts_on": st.sampled_from(["2026-02-02", "2026-02-09", "2026-02-20"]),
        "overlap": st.just("allow"),
    },
    optional={"catchup": st.just("all")},
)
some_jobs = st.dictionaries(st.sampled_from(["a", "b", "c"]), a_job, max_size=3)
a_wait = st.sampled_from([MINUTE, 7 * MINUTE, HOUR, 5 * HOUR, DAY, 3 * DAY])
a_step = st.tuples(
    a_wait,
    st.one_of(
        st.just(("tick",)),
        st.just(("tick",)),
        st.just(("race",)),
        st.just(("bad_file",)),
        st.just(("prune",)),
        st.just(("foreign_key",)),
        st.tuples(st.just("apply"), some_jobs, st.booleans()),
        st.tuples(
            st.just("end_runs"),
            st.sampled_from(["succeeded", "succeeded", "failed", "dead", "cancelled"]),
            st.sampled_from([0.3, 1.0]),
        ),
        st.tuples(st.just("pause"), st.sampled_from(["a", "b"]), st.none() | a_wait),
        st.tuples(st.just("resume"), st.sampled_from(["a", "b"])),
    ),
)
STARTS = [
    at("2026-03-06 17:03"),
    at("2026-10-30 20:59"),
    at("2026-04-03 13:30"),
    at("2026-07-01 00:00"),
]


def play(
    db: Db,
    dsn: str,
    start: datetime,
    first: dict[str, Any],
    steps: list[Any],
    choice: random.Random,
) -> History:
    history = History(db, dsn, start)
    always = {"other": {}}
    history.apply(always | first)
    for wait, (act, *arguments) in steps:
        history.now += wait
        if act == "apply":
            history.apply(always | arguments[0], race=arguments[1])
        elif act == "end_runs":
            history.end_runs(arguments[0], arguments[1], choice)
        elif act == "foreign_key":
            history.foreign_key(choice) if len(history.eras) > 1 else history.tick()
        elif act in ("pause", "resume") and arguments[0] not in history.eras:
            history.tick()
        elif act == "pause":
            history.pause(arguments[0], history.now + arguments[1] if arguments[1] else None)
        else:
            getattr(history, act)(*arguments)
        history.check()
    return history


def clear(db: Db) -> None:
    for table in (
        "job_runs",
        "used_keys",
        "skipped_slots",
        "job_definitions",
        "files",
        "hosts",
        "namespaces",
    ):
        db.execute(f"delete from yamlsched.{table}".encode())


@settings(max_examples=15)
@given(
    start=st.sampled_from(STARTS),
    first=some_jobs,
    steps=st.lists(a_step, min_size=3, max_size=15),
    choice=st.randoms(use_true_random=False),
)
def test_every_slot_up_to_the_cursor_has_a_run_or_lies_in_exactly_one_gap(
    db: Db,
    dsn: str,
    start: datetime,
    first: dict[str, Any],
    steps: list[Any],
    choice: random.Random,
) -> None:
    clear(db)

    history = play(db, dsn, start, first, steps, choice)

    history.now += MINUTE
    history.tick()
    history.check()


@pytest.mark.story
def test_months_of_ticks_with_outages_accounts_for_every_slot_of_jobs_in_several_zones(
    db: Db, dsn: str
) -> None:
    """There is a tick every minute except in outages; ticks without due slots are skipped.

    Until May, the clocks of New York and Berlin are set forward, and those of Lord Howe back.
    """
    choice = random.Random(1)
    db.execute("set synchronous_commit = off")
    db.prepare_threshold = 3
    jobs: dict[str, dict[str, Any]] = {
        "nightly": {"cron": "30 2 * * *", "timezone": "America/New_York"},
        "twice": {"cron": "15 1,3 * * *", "timezone": "Australia/Lord_Howe", "catchup": "all"},
        "often": {"cron": "0 */8 * * *", "timezone": "Europe/Berlin", "overlap": "skip"},
        "weekdays": {
            "cron": "0 9 * * 1-5",
            "timezone": "Asia/Kolkata",
            "overlap": "allow",
            "catchup": "none",
        },
        "monthly": {"cron": "0 0 1 * *", "timezone": "America/Sao_Paulo", "catchup_window": "6h"},
    }
    history = History(db, dsn, at("2026-01-01 00:00"))
    history.apply(jobs)
    end = history.now + 120 * DAY

    while True:
        row = db.execute(
            "select min(next_slot_at) as due from yamlsched.job_definitions"
        ).fetchone()
        assert row is not None
        if row.due > end:
            break
        is_outage = choice.random() < 0.01
        history.now = max(history.now + MINUTE, row.due) + (
            choice.randrange(60 * 72) * MINUTE if is_outage else timedelta(0)
        )
        history.tick()
        history.end_runs("succeeded", 1.0, choice)

    history.now = max(history.now, end)
    history.check()
    nightly = db.execute(
        "select count(*) as n from yamlsched.job_runs where job_type = 'nightly'"
    ).fetchone()
    assert nightly is not None
    assert nightly.n > 90
