"""Fill a database with three weeks of history of an online shop: for demonstrations, screenshots and tests.

    python docs/demo_data.py DSN              # an empty database; its tables are created
    python docs/demo_data.py DSN --healthy    # nothing needs attention
    python docs/demo_data.py DSN --jobs 300   # and that many further jobs

The jobs are those of demo_schedules.yaml. The history ends now, and is otherwise the same each time. No host ticks; so
that jobs keep their states while one looks at them, nothing comes due in the 45 minutes after it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from support.schedules import sync_by_hand
from yamlsched import db as store
from yamlsched import log
from yamlsched.act.pause import pause
from yamlsched.ask.history import definitions as ids_of
from yamlsched.sync.files import ScheduleFile
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.keys import slot_key
from yamlsched.timetable.slots import Slot, next_slot, slots
from yamlsched.timetable.zones import zone

NAMESPACE = "shop"
SCHEDULE = Path(__file__).with_name("demo_schedules.yaml")
HISTORY = timedelta(days=21)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
COMMITS = (
    ("Maria Keller", "Schedule the jobs of the shop"),
    ("Jonas Wirth", "The old CRM is gone: remove its sync"),
    ("Maria Keller", "Give the backup two hours: it did not end in time"),
)
"""Author and subject of each edit."""
QUIET = 45 * MINUTE
"""How long after the end of the history no lease or timeout ends, and no slot or retry comes due."""
RETIRED_JOB, RETIRED_AGO = "sync_old_crm", 6 * DAY
OUTAGE = (5 * DAY + 2 * HOUR, 5 * DAY - HOUR)
"""From when to when, before now, no host ticked."""
HOSTS = ("worker-1", "worker-2")
COLUMNS = (
    *(
        "id",
        "namespace",
        "definition_id",
        "job_type",
        "payload",
        "idempotency_key",
        "scheduled_for",
        "run_at",
        "status",
    ),
    *(
        "attempts",
        "max_attempts",
        "exclusive",
        "locked_by",
        "locked_until",
        "started_at",
        "finished_at",
    ),
    *(
        "failed_at",
        "dead_at",
        "last_error",
        "error_type",
        "result",
        "parent_id",
        "created_at",
        "updated_at",
    ),
)
LATENESS = """
update yamlsched.job_runs r
set begun_at = least(r.started_at, r.failed_at), finish_by = r.scheduled_for + d.finish_within,
    late_at = case when not r.unreleased and coalesce(r.blocked_on, 'limit/') like 'limit/%'
                   then greatest(coalesce(r.scheduled_for, r.run_at), r.created_at)
                        + d.spread + d.start_within end
from yamlsched.job_definitions d where d.id = r.definition_id
"""
FAILURE_COLUMNS = (
    "run_id",
    "attempt",
    "worker",
    "started_at",
    "failed_at",
    "error",
    "error_type",
    "stack",
)
OUTPUT_COLUMNS = ("run_id", "attempt", "worker", "ended_at", "omitted_bytes", "output")
ERRORS = {
    "currency_rates": ("ReadTimeout", "the read operation timed out after 10 s"),
    "import_supplier_prices": (
        "HTTPStatusError",
        "503 Service Unavailable from https://edi.nordwind-textil.example/prices",
    ),
    "send_invoice_reminder": (
        "SMTPRecipientsRefused",
        "550 5.1.1 <accounts@bergmann.example>: user unknown",
    ),
    "send_welcome_mail": ("SMTPServerDisconnected", "connection unexpectedly closed"),
    "sync_inventory": ("ConnectionResetError", "[Errno 104] connection reset by peer"),
    "refresh_cache": ("OperationalError", "canceling statement due to lock timeout"),
    "charge_subscriptions": (
        "EffectInDoubt",
        'it is unknown whether the effect "charge:812" happened: ReadTimeout',
    ),
    "nightly_backup": ("Timeout", "took longer than its timeout of 2h"),
    "score_orders": ("LostWorker", "lost its worker"),
}
OTHER_ERROR = ("ValueError", "could not convert string to float: '12,50'")
PROGRAMS = {
    "nightly_backup": "pg_dump: last built-in OID is 16383\npg_dump: saving encoding = UTF8\n4.1 GiB written\n"
}
"""What the jobs that are programs print."""
STACK = """Traceback (most recent call last):
  File "/srv/shop/{path}.py", line 41, in {name}
    answer = client.get(url, timeout=TIMEOUT_SECONDS)
  File "/srv/shop/http.py", line 118, in get
    raise_for_status(response)
{type}: {error}
"""


@dataclass(frozen=True)
class Behaviour:
    """How a job's runs end: seconds of an attempt, and the probabilities that it fails and that its run dies."""

    seconds: float = 20.0
    fails: float = 0.01
    dies: float = 0.0


BEHAVIOURS = {
    "nightly_backup": Behaviour(2300, 0.08),
    "cleanup_nightly": Behaviour(48),
    "loyalty_points": Behaviour(310, 0.1),
    "sales_report": Behaviour(75),
    "reconcile_payments": Behaviour(190, 0.05),
    "export_to_warehouse": Behaviour(1250, 0.05),
    "charge_subscriptions": Behaviour(420),
    "sync_inventory": Behaviour(14, 0.02, 0.001),
    "refresh_cache": Behaviour(38, 0.03, 0.002),
    "score_orders": Behaviour(95, 0.01),
    "purge_carts": Behaviour(3.5),
    "currency_rates": Behaviour(2.2, 0.25, 0.004),
    "import_supplier_prices": Behaviour(64, 0.05),
    "rebuild_search_index": Behaviour(2600, 0.03),
    "invoice_reminders": Behaviour(1.4),
}


@dataclass
class Demo:
    """The rows to write. Ids are given in the order in which the runs were created."""

    now: datetime
    is_healthy: bool
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    runs: list[dict[str, Any]] = field(default_factory=list)
    failures: list[tuple[dict[str, Any], tuple[Any, ...]]] = field(default_factory=list)
    outputs: list[tuple[dict[str, Any], tuple[Any, ...]]] = field(default_factory=list)
    gaps: list[tuple[Any, ...]] = field(default_factory=list)
    waiting: dict[int, datetime] = field(
        default_factory=dict
    )  # by job: the slot that waits for an unfinished run

    def worker(self) -> str:
        return f"{self.chance.choice(HOSTS)}:{self.chance.randint(400, 32000)}:{self.chance.randbytes(6).hex()}"

    def took(self, job: str) -> timedelta:
        seconds = BEHAVIOURS.get(job, Behaviour()).seconds
        return timedelta(seconds=seconds * self.chance.lognormvariate(0, 0.22))

    def run(
        self,
        job: Any,
        created: datetime,
        key: str | None = None,
        slot: datetime | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Add a queued run and return its columns."""
        run = dict.fromkeys(COLUMNS) | {
            "namespace": NAMESPACE,
            "definition_id": job.id,
            "job_type": job.job_type,
            "payload": json.dumps(job.payload),
            "idempotency_key": key,
            "scheduled_for": slot,
            "run_at": slot or created,
            "status": "queued",
            "attempts": 0,
            "max_attempts": job.max_attempts,
            "exclusive": slot is not None and job.overlap != "allow",
            "created_at": created,
            "updated_at": created,
            **more,
        }
        self.runs.append(run)
        return run

    def start(self, run: dict[str, Any], at: datetime) -> None:
        run |= {
            "attempts": run["attempts"] + 1,
            "locked_by": self.worker(),
            "started_at": at,
            "updated_at": at,
        }

    def fail(self, run: dict[str, Any], at: datetime, is_last: bool = False) -> datetime:
        """End the current attempt as failed; return when the next one is due."""
        kind, error = ERRORS.get(run["job_type"], OTHER_ERROR)
        module, _, name = run["job_type"].partition("_")
        stack = STACK.format(path=module, name=name or "run", type=kind, error=error)
        due = at + MINUTE * 2 ** (run["attempts"] - 1)
        run |= {
            "status": "failed",
            "failed_at": at,
            "last_error": error,
            "error_type": kind,
        }
        run |= {"run_at": due, "updated_at": at}
        if is_last:
            run |= {"status": "dead", "finished_at": at, "dead_at": at}
        row = (run["attempts"], run["locked_by"], run["started_at"], at, error, kind, stack)
        self.failures.append((run, row))
        self.keep_output(run, at, f"reading page 1\nreading page 2\n{error}\n")
        return due

    def keep_output(self, run: dict[str, Any], at: datetime, text: str) -> None:
        self.outputs.append((run, (run["attempts"], run["locked_by"], at, 0, text)))

    def succeed(self, run: dict[str, Any], at: datetime) -> None:
        run |= {"status": "succeeded", "finished_at": at, "updated_at": at}
        if run["job_type"] in PROGRAMS:
            self.keep_output(run, at, PROGRAMS[run["job_type"]])
        else:
            run["result"] = json.dumps({"rows": self.chance.randint(3, 4000)})

    def finish(
        self, run: dict[str, Any], at: datetime, fails: int = 0, is_dead: bool = False
    ) -> datetime:
        """Execute the run from ``at`` on: ``fails`` failed attempts, and then a success; return when it ended."""
        for _ in range(fails):
            self.start(run, at)
            end = at + self.took(run["job_type"]) * self.chance.uniform(0.1, 0.9)
            at = self.fail(run, end, is_last=is_dead and run["attempts"] == fails) + timedelta(
                seconds=self.chance.uniform(0, 40)
            )
        if is_dead:
            return end
        self.start(run, at)
        end = at + self.took(run["job_type"])
        self.succeed(run, end)
        return end

    def history_of(self, job: Any) -> None:
        """Add the runs and gaps of a job's slots up to now."""
        cron, where = parse_cron(job.schedule), zone(job.timezone)
        behaviour = BEHAVIOURS.get(job.job_type, Behaviour())
        until = self.now - RETIRED_AGO if job.retired_at else self.now
        found = list(slots(cron, where, self.now - HISTORY, until))
        busy_until = self.now - HISTORY
        skipped: list[tuple[Slot, str]] = []
        for nth, slot in enumerate(found):
            reason = self.reason(
                job, slot, found[nth + 1] if nth + 1 < len(found) else None, busy_until
            )
            if reason:
                skipped.append((slot, reason))
                continue
            if job.job_type == "score_orders" and nth + 1 == len(found) and not self.is_healthy:
                self.waiting[job.id] = slot.at
                continue
            started = max(slot.at, busy_until, self.outage_end(slot.at)) + timedelta(
                seconds=self.chance.uniform(1, 55)
            )
            run = self.run(job, started, slot_key(job.job_type, cron, slot), slot.at)
            left = len(found) - nth
            if self.present(run, job, started, left):
                busy_until = self.now if run["status"] == "running" else busy_until
                continue
            dies = self.chance.random() < behaviour.dies
            fails = run["max_attempts"] if dies else 0
            while (
                not dies
                and fails < run["max_attempts"] - 1
                and self.chance.random() < behaviour.fails
            ):
                fails += 1
            if (
                not self.is_healthy
                and job.job_type == "import_supplier_prices"
                and left in (2, 3, 4)
            ):
                dies, fails = True, run["max_attempts"]
            before = len(self.failures), len(self.outputs), dict(run)
            end = self.finish(run, started, fails, dies)
            if end > self.now:  # it would end in the future: it succeeded quickly instead
                del self.failures[before[0] :], self.outputs[before[1] :]
                run |= before[2]
                started = min(started, self.now - timedelta(seconds=4))
                run |= {"created_at": started}
                self.start(run, started)
                self.succeed(run, self.now - timedelta(seconds=2))
                end = self.now
            busy_until = end if job.overlap != "allow" else busy_until
        self.add_gaps(job, skipped)

    def outage_end(self, at: datetime) -> datetime:
        begin, end = (self.now - edge for edge in OUTAGE)
        return end if begin < at <= end else at

    def reason(
        self, job: Any, slot: Slot, following: Slot | None, busy_until: datetime
    ) -> str | None:
        """Return why a slot was skipped, None for one that has a run."""
        begin, end = (self.now - edge for edge in OUTAGE)
        ago = self.now - slot.at
        if job.job_type == "rebuild_search_index" and 9 * DAY < ago < 10 * DAY + 5 * HOUR:
            return "paused"
        if (
            job.job_type == "warm_edge_caches_of_all_storefronts_regions_and_currencies"
            and 2 * DAY < ago < 3 * DAY
        ):
            return "disabled"
        if job.job_type == "loyalty_points" and 7 * DAY < ago <= 8 * DAY:
            return "key_taken"
        if begin < slot.at <= end:
            if job.catchup == "none" or job.catchup_window < HOUR:
                return "late"
            if job.catchup == "latest" and following is not None and following.at <= end:
                return "superseded"
        if job.job_type == "refresh_cache" and (
            busy_until > slot.at or 20 * HOUR < ago < 21 * HOUR
        ):
            return "overlap"
        return (
            "superseded"
            if following is not None and following.at <= busy_until < self.now
            else None
        )

    def add_gaps(self, job: Any, skipped: list[tuple[Slot, str]]) -> None:
        """Add a row for each series of slots that were skipped for one reason."""
        series: list[list[Any]] = []
        for slot, reason in skipped:
            near = series and reason == series[-1][3] and slot.at - series[-1][1] < 5 * HOUR
            if near and (reason != "superseded" or slot.at - series[-1][1] < 2 * HOUR):
                series[-1][1], series[-1][2] = slot.at, series[-1][2] + 1
            else:
                series.append([slot.at, slot.at, 1, reason])
        self.gaps += [(job.id, *gap, min(gap[1] + HOUR, self.now)) for gap in series]

    def present(self, run: dict[str, Any], job: Any, started: datetime, left: int) -> bool:
        """Leave the newest runs of some jobs unfinished; return whether this is one of them."""
        name, is_newest = job.job_type, left == 1
        if name in ("sync_inventory", "purge_carts") and is_newest:
            started = min(started, self.now - timedelta(seconds=9))
            run["created_at"] = started
            self.execute(run, started, self.now + QUIET + MINUTE)
            return True
        if self.is_healthy:
            return False
        if name == "score_orders" and left == 2:
            self.execute(run, run["created_at"], self.now + QUIET + MINUTE)
            return True
        if name == "export_to_warehouse" and is_newest:
            begin = self.now - 50 * MINUTE
            run["created_at"] = begin
            self.execute(run, begin, self.now - 12 * MINUTE)
            return True
        if name == "import_supplier_prices" and is_newest:
            begin = self.now - 70 * timedelta(seconds=1)
            run["created_at"] = begin
            self.start(run, begin)
            self.fail(run, self.now - 20 * timedelta(seconds=1))
            run["run_at"] = self.now + QUIET + MINUTE
            return True
        if name == "reconcile_payments" and is_newest:
            run["created_at"] = self.now - 26 * MINUTE
            run["run_at"] = self.now - 26 * MINUTE
            return True
        if name == "charge_subscriptions" and left == 2:
            self.start(run, run["created_at"])
            self.fail(run, run["created_at"] + 73 * timedelta(seconds=1), is_last=True)
            return True
        return False

    def execute(self, run: dict[str, Any], started: datetime, lease_end: datetime) -> None:
        self.start(run, started)
        run |= {"status": "running", "locked_until": lease_end}

    def enqueued(self, jobs: dict[str, Any]) -> None:
        """Add the runs that handlers and the application enqueued."""
        for parent in [
            run
            for run in self.runs
            if run["job_type"] == "invoice_reminders" and run["status"] == "succeeded"
        ]:
            for invoice in self.chance.sample(range(8000, 9900), self.chance.randint(3, 9)):
                key, payload = (
                    f"invoice_reminder:{invoice}:{parent['created_at']:%Y-%m-%d}",
                    json.dumps({"invoice": invoice}),
                )
                run = self.run(
                    jobs["send_invoice_reminder"],
                    parent["finished_at"],
                    key,
                    payload=payload,
                    parent_id=parent["id"],
                )
                run["parent"] = parent
                dies = self.chance.random() < 0.03 and not self.is_healthy
                self.finish(run, parent["finished_at"], 3 if dies else 0, dies)
        begin, span = self.now - 10 * DAY, 10 * DAY.total_seconds()
        for customer in range(100200, 100640):
            at = begin + timedelta(seconds=self.chance.uniform(0, span - 900))
            run = self.run(
                jobs["send_welcome_mail"],
                at,
                f"welcome:{customer}",
                payload=json.dumps({"customer": customer}),
            )
            self.finish(run, at, int(self.chance.random() < 0.02))
        for customer in range(100640, 100655):
            at = self.now + QUIET + timedelta(minutes=self.chance.uniform(5, 600))
            self.run(jobs["send_welcome_mail"], self.now - HOUR, f"welcome:{customer}", run_at=at)
        if not self.is_healthy:
            for minutes in (12, 17, 31):
                at = self.now - minutes * MINUTE
                run = self.run(
                    jobs["send_invoice_reminder"],
                    at - 8 * MINUTE,
                    None,
                    payload=json.dumps({"invoice": 8000 + minutes}),
                )
                self.finish(run, at - 8 * MINUTE, 3, is_dead=True)


def fill(
    dsn: str,
    is_healthy: bool = False,
    more_jobs: int = 0,
    history: bool = True,
    ended: timedelta = timedelta(0),
) -> None:
    """Create the tables if they are missing, apply the schedule and write a history that ended ``ended`` ago."""
    with store.connect(dsn) as connection:
        store.migrations.migrate(connection)
        [[now]] = connection.execute("select clock_timestamp() - %s", [ended]).fetchall()
        text = SCHEDULE.read_text("utf-8") + "".join(_further_jobs(more_jobs))
        present(connection, as_before(text), now - HISTORY)
        shorter = text.split(f"  {RETIRED_JOB}:")[0] + "".join(_further_jobs(more_jobs))
        present(connection, as_before(shorter), now - RETIRED_AGO)
        file = present(connection, shorter, now - 3 * DAY)
        for nth, (author, subject) in enumerate(COMMITS):
            commit = hashlib.sha1(subject.encode(), usedforsecurity=False).hexdigest()
            connection.execute(
                "update yamlsched.edits set commit = %s, author = %s, subject = %s where id = ("
                "select id from yamlsched.edits order by applied_at limit 1 offset %s)",
                [commit, author, subject, nth],
            )
        connection.execute("delete from yamlsched.job_runs; delete from yamlsched.skipped_slots")
        if history:
            with connection.transaction():
                # a busy machine may compute the history for longer than sessions may idle
                connection.execute("set local idle_in_transaction_session_timeout = 0")
                write(connection, now, is_healthy)
        for host in HOSTS:
            sync_file(connection, file, host, now)
        if not is_healthy and history:
            trouble(connection, file, now)
        connection.execute(
            """
            update yamlsched.hosts h
            set expected_until = q.until, queues = jsonb_build_object(
                    '*', jsonb_build_object('seen_at', h.seen_at, 'until', q.until))
            from (select n.ctid as row, greatest(n.expected_until, n.seen_at + %s) as until
                  from yamlsched.hosts n) q
            where q.row = h.ctid
            """,
            [QUIET + MINUTE],
        )
        connection.execute("analyze")


def as_before(text: str) -> str:
    """Return a schedule as it was before the last edit."""
    return text.replace("timeout: 2h", "timeout: 90m", 1)


def _further_jobs(number: int) -> Iterator[str]:
    for nth in range(number):
        cron = f"{nth % 60} {nth % 24} * * *"
        yield f'  tenant_{nth:04}_statement:\n    cron: "{cron}"\n    handler: shop.tenants.statement\n'


def present(connection: psycopg.Connection[Any], text: str, at: datetime) -> bytes:
    """Apply a schedule as of ``at``; return it."""
    sync_file(connection, text.encode(), HOSTS[0], at)
    return text.encode()


def sync_file(connection: psycopg.Connection[Any], data: bytes, host: str, at: datetime) -> None:
    found = sync_by_hand(
        connection,
        ScheduleFile(data, "/srv/shop/schedules.yaml", "production", host),
        at,
    )
    assert not found.has_findings, found.messages


def write(connection: psycopg.Connection[Any], now: datetime, is_healthy: bool) -> None:
    """Write the runs, failures, gaps and cursors."""
    rows = connection.execute(
        "select d.* from yamlsched.job_definitions d order by d.id"
    ).fetchall()
    jobs = {row.job_type: row for row in rows}
    demo = Demo(now, is_healthy)
    for job in rows:
        if job.schedule and (job.enabled or job.retired_at):
            demo.history_of(job)
    demo.enqueued(jobs)
    demo.runs.sort(key=lambda run: run["created_at"])
    for nth, run in enumerate(demo.runs, start=1):
        run["id"] = nth
    for run in demo.runs:
        run["parent_id"] = run["parent"]["id"] if "parent" in run else None
    copy(connection, "job_runs", COLUMNS, [[run[name] for name in COLUMNS] for run in demo.runs])
    connection.execute(LATENESS)
    copy(
        connection,
        "job_failures",
        FAILURE_COLUMNS,
        [(run["id"], *row) for run, row in demo.failures],
    )
    copy(
        connection,
        "attempt_outputs",
        OUTPUT_COLUMNS,
        [(run["id"], *row) for run, row in demo.outputs],
    )
    gap_columns = ("definition_id", "first_slot", "last_slot", "slots", "reason", "recorded_at")
    copy(connection, "skipped_slots", gap_columns, demo.gaps)
    connection.execute(
        "select setval(pg_get_serial_sequence('yamlsched.job_runs', 'id'), %s)",
        [len(demo.runs) + 1],
    )
    for job in rows:
        if job.schedule and job.enabled and job.retired_at is None:
            cron, where = parse_cron(job.schedule), zone(job.timezone)
            past = [slot.at for slot in slots(cron, where, now - HISTORY, now)]
            coming = next_slot(cron, where, now + QUIET)
            next_at = coming.at if coming else None
            if job.id in demo.waiting:
                next_at = past.pop()
            connection.execute(
                "update yamlsched.job_definitions set last_slot_at = %s, next_slot_at = %s where id = %s",
                [past[-1] if past else None, next_at, job.id],
            )
    connection.execute("update yamlsched.job_definitions set created_at = %s", [now - HISTORY])


def copy(
    connection: psycopg.Connection[Any], table: str, columns: tuple[str, ...], rows: list[Any]
) -> None:
    with connection.cursor().copy(
        f"copy yamlsched.{table} ({', '.join(columns)}) from stdin"
    ) as copying:
        for row in rows:
            copying.write_row(row)


def trouble(connection: psycopg.Connection[Any], file: bytes, now: datetime) -> None:
    """Add what needs attention besides failed runs: a pause, effects in doubt, other files; and operators' actions."""
    [paused] = ids_of(connection, NAMESPACE, ["rebuild_search_index"], ()) or []
    pause(
        connection,
        NAMESPACE,
        [paused],
        "maria",
        reason="rebuilding by hand, SEARCH-4711",
        until=now + 9 * HOUR,
    )
    [[dead, worker, since]] = connection.execute(
        "select id, locked_by, dead_at from yamlsched.job_runs"
        " where job_type = 'charge_subscriptions' and status = 'dead' order by id desc limit 1"
    ).fetchall()
    for name in ("charge", "receipt"):
        key = f"run:{dead}:{name}:812"
        entry, provider_key = (
            uuid.uuid5(uuid.NAMESPACE_URL, f"{key}:{part}") for part in ("entry", "provider")
        )
        effect = {
            "namespace": NAMESPACE,
            "key": key,
            "run_id": dead,
            "attempt": 1,
            "locked_by": worker,
            "entry": entry,
        }
        effect |= {
            "provider_key": provider_key,
            "state": "in_doubt",
            "claimed_at": since,
            "doubted_at": since,
        }
        insert(connection, "effects", **effect)
    stale = ScheduleFile(
        file.replace(b"timeout: 2h", b"timeout: 3h"),
        "/srv/shop/schedules.yaml",
        "production",
        "worker-3",
    )
    place = {**stale.version._asdict(), "host": stale.host, "path": stale.path, "is_named": False}
    since = {
        "first_seen_at": now - 22 * MINUTE,
        "since": now - 22 * MINUTE,
        "seen_at": now,
        "expected_until": now + QUIET,
    }
    insert(connection, "hosts", namespace=NAMESPACE, **place, **since)
    connection.execute(
        "update yamlsched.hosts set refused_at = %s, errors = '{x,y}' where host = 'worker-2'",
        [now - 25 * MINUTE],
    )
    for ago, who, verb, target, detail in (
        (6 * DAY, "jonas", "retry", "run:1200", {"was": "dead"}),
        (2 * DAY, "maria", "cancel", "run:1430", {"was": "running"}),
        (26 * HOUR, "jonas", "enqueue", "job:send_welcome_mail", {"runs": 1}),
    ):
        action = {
            "at": now - ago,
            "who": who,
            "verb": verb,
            "target": target,
            "detail": json.dumps(detail),
        }
        insert(connection, "operator_actions", namespace=NAMESPACE, **action)


def insert(connection: psycopg.Connection[Any], table: str, **values: Any) -> None:
    places = ", ".join(["%s"] * len(values))
    connection.execute(
        f"insert into yamlsched.{table} ({', '.join(values)}) values ({places})",
        list(values.values()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", metavar="DSN")
    parser.add_argument("--healthy", action="store_true", help="without failures and findings")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="further jobs")
    parser.add_argument("--no-history", action="store_true", help="jobs without runs")
    given = parser.parse_args()
    log.configure(verbosity=-1)
    fill(given.dsn, given.healthy, given.jobs, not given.no_history)


if __name__ == "__main__":
    main()
