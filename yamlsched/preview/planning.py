"""What the next sync would do to a database: the pure parts of sync, on one state of it that is only read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from yamlsched import durations
from yamlsched.definitions.job import Job, Retention, to_row
from yamlsched.errors import CronError
from yamlsched.preview import effects
from yamlsched.preview.compare import compare
from yamlsched.preview.values import Entry, Level, Note, Preview, Side
from yamlsched.store import definitions, files, preview, slots
from yamlsched.store.files import FileState
from yamlsched.store.preview import AppliedDefinition
from yamlsched.store.slots import Gap, KeyHolder
from yamlsched.sync import ScheduleFile, slot_plan
from yamlsched.sync.in_force import FileVersion, Verdict, decide, explain, is_up_to_date

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.definitions.load import Loaded

DAY = timedelta(days=1)
IN_FORCE = "the database"


@dataclass(frozen=True, slots=True)
class Run:
    """A run to be made. ``settles``: it is owed by a definition that the file changes."""

    job_type: str
    key: str
    slot: datetime
    run_at: datetime
    settles: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """A slot that is due and is accounted for when the run of an earlier slot is done (``overlap: wait``)."""

    job_type: str
    slot: datetime
    open_slot: datetime


@dataclass(frozen=True, slots=True)
class Leaving:
    """Unfinished runs of a job that is not in the file. What is left of them is cancelled."""

    job_type: str
    runs: int
    running: int
    cancelled_at: datetime


@dataclass(frozen=True, slots=True)
class Paused:
    """A job that an operator has paused: no sync touches that. One that leaves the file is still among them."""

    job_type: str
    since: datetime
    until: datetime | None
    by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Planned:
    """What ``yamlsched sync`` would do at ``now``. ``verdict`` is what a tick would do with the file instead."""

    now: datetime
    path: str
    version: FileVersion
    verdict: Verdict
    state: FileState
    preview: Preview
    returned: tuple[str, ...]
    runs: tuple[Run, ...]
    gaps: tuple[Gap, ...]
    waiting: tuple[Waiting, ...]
    leaving: tuple[Leaving, ...]
    paused: tuple[Paused, ...]
    unreadable: tuple[str, ...]

    @property
    def explanation(self) -> str:
        """Why a tick would not apply the file; empty if it would."""
        if self.verdict in (Verdict.HELD_BACK, Verdict.OTHER_ENVIRONMENT):
            return explain(self.verdict, self.state, self.path, self.version)
        return ""


def read(
    connection: Connection[Any], schedule: ScheduleFile, loaded: Loaded, days: int, now: datetime | None = None
) -> Planned:
    """Return what syncing a valid file would do. The database is only read, in a transaction that is rolled back."""
    namespace = loaded.namespace or "default"
    with preview.snapshot(connection):
        instant = preview.now(connection, now)
        state = files.state(connection, namespace, schedule.presented(), instant)
        stored = preview.definitions(connection, namespace)
        rows = [to_row(job) for job in loaded.jobs.values()]
        differing = definitions.differences(connection, namespace, rows)
        kept = preview.retention(connection, namespace)
        is_older = state.in_force_id is not None and not is_up_to_date(
            state.in_force_yamlsched, state.in_force_tzdata, schedule.version
        )
        accounts = _account(connection, namespace, stored, {d.id for d in differing if d.id}, instant, is_older)

        base = Side(IN_FORCE, namespace, _entries(stored), retention=_retention(kept))
        entries = {name: Entry(job, job.enabled, None) for name, job in loaded.jobs.items()}
        head = Side(schedule.path, namespace, entries, loaded.timezone, loaded.environments, loaded.retention)
        until = instant + days * DAY
        keys = list(_keys(base, head, instant, until))
        holders = slots.key_holders(connection, namespace, keys) if keys else {}
        holders |= {run.key: KeyHolder(run.job_type, run.slot) for run in accounts.runs}
        others = preview.other_namespaces(connection, namespace, schedule.host, schedule.path)

        away = {d.id: d.job_type for d in differing if d.id and d.is_gone}
        retired_at = {a.id: a.retired_at or instant for a in stored if a.id in away or _stays_away(a, loaded)}
        unfinished = preview.unfinished(connection, namespace, list(retired_at))
    by_id = {applied.id: applied for applied in stored}
    edit = compare(base, head, instant, until, schedule.environment or None, holders)
    returned = {d.job_type: by_id[d.id].retired_at for d in differing if d.id and d.is_retired}
    return Planned(
        instant,
        schedule.path,
        schedule.version,
        decide(state, schedule.version, at_once=False),
        state,
        _noted(edit, returned, others),
        tuple(sorted(returned)),
        tuple(accounts.runs),
        tuple(accounts.gaps),
        tuple(accounts.waiting),
        tuple(
            Leaving(by_id[id].job_type, runs, running, retired_at[id] + DAY)
            for id, (runs, running) in sorted(unfinished.items(), key=lambda item: by_id[item[0]].job_type)
        ),
        tuple(_paused(stored, loaded.jobs, instant)),
        tuple(accounts.unreadable),
    )


@dataclass
class _Accounts:
    runs: list[Run]
    gaps: list[Gap]
    waiting: list[Waiting]
    unreadable: list[str]


def _account(
    connection: Connection[Any],
    namespace: str,
    stored: Iterable[AppliedDefinition],
    changed: set[int],
    now: datetime,
    recompute: bool,
) -> _Accounts:
    """Return what becomes of the slots that are owed: of changed jobs all of them, else of those that are due."""
    found = _Accounts([], [], [], [])
    owed: list[tuple[slot_plan.OwedSlots, bool]] = []
    for definition in stored:
        settles = definition.id in changed
        try:
            following = definition.next_slot_at
            if recompute and following is not None:
                following = slot_plan.next_slot_of(definition, definition.accounted_to)
            if settles or (following is not None and following <= now):
                owed.append((slot_plan.owed_slots(definition, now, settles), settles))
        except (CronError, KeyError) as error:
            found.unreadable.append(f"{definition.job_type}: {error.args[0]}")
    open_slots = slots.earliest_open_slots(connection, namespace, [one.definition.id for one, _ in owed])
    keys = [key for one, _ in owed for key, _ in one.candidates]
    holders = slots.key_holders(connection, namespace, keys) if keys else {}
    for one, settles in owed:
        job, open_slot = one.definition, open_slots.get(one.definition.id)
        if open_slot is not None and job.overlap == "wait" and not settles:
            assert job.next_slot_at is not None
            found.waiting.append(Waiting(job.job_type, job.next_slot_at, open_slot))
            continue
        decided = slot_plan.decide(one, open_slot, holders)
        found.runs += [Run(job.job_type, run.key, run.slot, run.run_at, settles) for run in decided.runs]
        found.gaps += decided.gaps
    return found


def _entries(stored: Iterable[AppliedDefinition]) -> dict[str, Entry]:
    jobs = (applied.job for applied in stored if applied.retired_at is None)
    return {job.name: Entry(job, job.enabled, None) for job in jobs}


def _retention(kept: dict[str, str] | None) -> Retention | None:
    return Retention(**{name: durations.parse(text) for name, text in kept.items()}) if kept else None


def _keys(base: Side, head: Side, at: datetime, until: datetime) -> Iterable[str]:
    """Yield the keys of slots to come that the edit may have made collide."""
    for name, entry in head.entries.items():
        before = base.entries.get(name)
        if effects.rule(entry.job) != effects.rule(before.job if before else None):
            yield from (key for key, _ in effects.keyed(entry.job, at, until))


def _stays_away(applied: AppliedDefinition, loaded: Loaded) -> bool:
    return applied.retired_at is not None and applied.job_type not in loaded.jobs


def _noted(edit: Preview, returned: Mapping[str, datetime | None], others: list[str]) -> Preview:
    jobs = list(edit.jobs)
    for nth, job in enumerate(jobs):
        since = returned.get(job.job_type)
        if since is not None:
            text = f"it was retired at {since:%Y-%m-%dT%H:%M:%SZ} and returns with its history and its keys"
            jobs[nth] = replace(job, notes=(Note(text), *job.notes), looks_like=None)
    notes = list(edit.notes)
    if others:
        text = (
            f"this host has also applied this path to {', '.join(others)}: the jobs there are not retired by a file "
            f"that names {edit.head.namespace}"
        )
        notes.append(Note(text, Level.WARNING))
    return replace(edit, jobs=tuple(jobs), notes=tuple(notes))


def _paused(stored: Iterable[AppliedDefinition], jobs: Mapping[str, Job], now: datetime) -> Iterable[Paused]:
    for applied in stored:
        is_over = applied.paused_until is not None and applied.paused_until <= now
        if applied.paused_at is not None and not is_over and (applied.retired_at is None or applied.job_type in jobs):
            until, by, reason = applied.paused_until, applied.paused_by, applied.paused_reason
            yield Paused(applied.job_type, applied.paused_at, until, by, reason)
