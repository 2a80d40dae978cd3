"""The jobs of a valid schedules.yaml, and the one place that knows how a job is stored and shown.

A key of a job is a field of ``Job``. The field's type decides how its value is read from the file
(``build``), stored in job_definitions (``to_row``), read back (``from_row``) and shown
(``to_yaml``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import date, timedelta
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

from yamlsched.errors import CronError, ScheduleError
from yamlsched.runs.backoff import Backoff
from yamlsched.runs.lifecycle import DEFAULT_QUEUE, Keep, Priority
from yamlsched.schedule.values import parse, plain
from yamlsched.timetable.calendars import Calendars, of_rows, to_rows
from yamlsched.timetable.cron import Cron, parse_schedule, without_skipped, written
from yamlsched.timetable.zones import zone


class Overlap(StrEnum):
    """What happens to a slot that becomes due while a run of an earlier slot is unfinished."""

    WAIT = "wait"
    SKIP = "skip"
    ALLOW = "allow"


class Catchup(StrEnum):
    """Which slots are run when several are due at once."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class UpstreamFailure(StrEnum):
    """What becomes of a slot if the run that it waits for is dead, was cancelled, or does not
    exist.
    """

    WAIT = "wait"
    SKIP = "skip"
    RUN = "run"


class AfterEnqueued(StrEnum):
    """How the runs that an upstream's run has enqueued must have ended before a slot runs."""

    ENDED = "ended"
    SUCCEEDED = "succeeded"


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """Whom to notify of what. ``url_env`` names the variable that has the address, which is a
    secret.
    """

    url_env: str
    events: tuple[str, ...] = ("dead", "paused", "late", "failing", "recovered", "problem")


@dataclass(frozen=True, slots=True)
class Limit:
    """How many runs of the jobs that name it execute at once. ``by``: keys of the payload; each
    combination of their values is counted by itself.
    """

    max: int
    by: tuple[str, ...] = ()


class UniqueWhile(StrEnum):
    """Which runs of a job with ``unique`` count."""

    UNFINISHED = "unfinished"
    WAITING = "waiting"  # that no worker has claimed yet


@dataclass(frozen=True, slots=True)
class Unique:
    """A job of which one run counts at a time for each combination of the values of its payload
    under the keys ``by``.
    """

    by: tuple[str, ...]
    while_: UniqueWhile = UniqueWhile.UNFINISHED


class Mode(StrEnum):
    """Which attempts of a queue share a process."""

    PROCESS = "process"  # none: each has one of its own while it executes
    ASYNC = "async"  # all of them, as coroutines of one event loop


@dataclass(frozen=True, slots=True)
class Start:
    """How a worker of a queue is started; see service/starts.py."""

    command: tuple[str, ...]
    max_workers: int
    start_timeout: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Queue:
    """How the runs of a queue execute, and who serves it.

    ``concurrency`` is how many of its runs one worker executes at once; None: what the host's limit
    leaves, or of coroutines DEFAULT_ASYNC_CONCURRENCY. A queue with ``start`` is dedicated.
    """

    mode: Mode = Mode.PROCESS
    concurrency: int | None = None
    dedicated: bool = False  # only workers that name it serve it
    start: Start | None = None

    def __post_init__(self) -> None:
        if self.start:
            object.__setattr__(self, "dedicated", True)


@dataclass(frozen=True, slots=True)
class Output:
    """What becomes of what attempts print."""

    keep: Keep = Keep.FAILED


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished runs, keys of pruned runs, and effects are kept."""

    succeeded: timedelta = timedelta(days=30)
    dead: timedelta = timedelta(days=90)
    cancelled: timedelta = timedelta(days=30)
    keys: timedelta = timedelta(days=365)
    effects: timedelta = timedelta(days=365)
    # the folder to which what is pruned is written, relative to the file
    archive: str | None = None

    def ages(self) -> dict[str, timedelta]:
        """Return how long each kind of row is kept."""
        return {
            item.name: getattr(self, item.name) for item in fields(self) if item.name != "archive"
        }


@dataclass(frozen=True, slots=True)
class ExitCodes:
    """How the exit code of a command ends the attempt; every other code fails it. No code is in two
    of them.
    """

    success: tuple[int, ...] = (0,)
    discard: tuple[int, ...] = ()
    retry_after: dict[int, timedelta] = field(
        default_factory=lambda: {os.EX_TEMPFAIL: timedelta(minutes=15)}
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it applies on this host: defaults merged in, ``enabled`` combined with the
    environment.

    It has a ``handler`` or a ``command``, which ``env``, ``cwd``, ``stdin``, ``exit_codes`` and
    ``kill_after`` are for. The fields are in the order in which a reviewer reads them.
    """

    name: str
    _: KW_ONLY
    cron: Cron | None = None
    timezone: str = "UTC"
    after: tuple[str, ...] = ()
    on_upstream_failure: UpstreamFailure = UpstreamFailure.WAIT
    after_enqueued: AfterEnqueued | None = None
    skip_on: Calendars = ()
    only_on: Calendars = ()
    handler: str | None = None
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: str | None = None
    exit_codes: ExitCodes = ExitCodes()
    payload: dict[str, Any] = field(default_factory=dict)
    requires_env: tuple[str, ...] = ()
    queue: str = DEFAULT_QUEUE
    enabled: bool = True
    priority: Priority = Priority.NORMAL
    max_attempts: int = 5
    backoff: Backoff = Backoff()
    timeout: timedelta = timedelta(hours=1)
    kill_after: timedelta = timedelta(seconds=10)
    lease: timedelta = timedelta(minutes=2)
    overlap: Overlap = Overlap.WAIT
    limit: str | None = None
    limit_by: tuple[str, ...] = ()  # of the file: by which values the limit counts
    unique: Unique | None = None
    expires_after: timedelta | None = None
    catchup: Catchup = Catchup.LATEST
    catchup_window: timedelta = timedelta(days=365)
    spread: timedelta = timedelta(0)
    start_within: timedelta = timedelta(minutes=15)
    finish_within: timedelta | None = None
    pause_after: int | None = None
    on_dead: tuple[str, ...] = ()
    on_failure: tuple[str, ...] = ()
    on_success: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    output: Output = Output()
    description: str = ""
    owner: str = ""
    tags: tuple[str, ...] = ()
    environments: tuple[str, ...] | None = None  # in which it is enabled; None: in all
    paths: tuple[str, ...] = ()  # of the file, not of the job: where the handler is imported from
    is_followed: bool = False  # of the file: other jobs follow it
    queue_rules: Queue = Queue()  # of the file: those of its queue
    targets: tuple[
        tuple[str, NotifyTarget], ...
    ] = ()  # of the file: those of notifications, by name

    @property
    def secret_env(self) -> tuple[str, ...]:
        """The variables that no command gets: they have the addresses of targets."""
        return tuple(sorted({target.url_env for _, target in self.targets}))

    @property
    def crons(self) -> tuple[str, ...]:
        """The expressions of a job that has a list of them."""
        return tuple(written(self.cron)) if self.cron and self.cron.parts else ()

    @property
    def every(self) -> str | None:
        """How many weeks are between those that have slots, as the file has it."""
        return f"{self.cron.every}w" if self.cron and self.cron.every > 1 else None

    @property
    def starts_on(self) -> date | None:
        """The first local date with slots."""
        return self.cron.starts_on if self.cron else None

    @property
    def ends_on(self) -> date | None:
        """The last local date with slots."""
        return self.cron.ends_on if self.cron else None

    @property
    def fires(self) -> Cron | None:
        """The cron without the slots that calendars skip."""
        return without_skipped(self.cron, self.skip_on, self.only_on) if self.cron else None

    @property
    def calendars(self) -> dict[str, Any]:
        """The calendars that it names, as the file has them."""
        return {calendar.name: calendar.to_yaml() for calendar in (*self.skip_on, *self.only_on)}

    @property
    def is_async(self) -> bool:
        """Whether its handler is one of many coroutines of a process."""
        return self.queue_rules.mode is Mode.ASYNC


def to_row(job: Job) -> dict[str, Any]:
    """Return the columns of job_definitions that a file decides, as JSON values, without those of
    DEFAULT_ROW.

    Most jobs set few keys, and for any edit, all jobs of the file are sent to the database.
    """
    values = zip(COLUMNS.values(), _values(job), _DEFAULTS, strict=True)
    return {
        column.name: column.store(value)
        for column, value, default in values
        if value is not default and value != default
    }


def from_row(row: Mapping[str, Any]) -> Job:
    """Return the job that a row of job_definitions describes; other columns are ignored.

    The job has no ``cron`` if this release or its time zone data cannot read the expression or the
    time zone, and no calendars if it cannot read these.
    """
    values = {key: column.load(row[column.name]) for key, column in COLUMNS.items()}
    try:
        zone(values["timezone"])
    except ScheduleError:
        values["cron"] = None
    return Job(**values)


def to_yaml(job: Job) -> dict[str, Any]:
    """Return the keys of a job as a file with everything written out has them; None: the key would
    be left out.
    """
    return {key: show(getattr(job, key)) for key, show in KEYS.items()}


class Column(NamedTuple):
    """How a key is stored in its column, read back, and shown."""

    name: str
    store: Callable[[Any], Any]
    load: Callable[[Any], Any]
    show: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _cron_text(expression: Cron | None) -> str | None:
    return expression.source if expression else None


def _load_cron(text: str | None) -> Cron | None:
    with suppress(CronError):
        return parse_schedule(text) if text else None
    return None


def _show_cron(expression: Cron | None) -> str | None:
    return None if expression is None or expression.parts else written(expression)[0]


def _load_calendars(rows: Any) -> Calendars:
    with suppress(ScheduleError):
        return of_rows(rows)
    return ()


def _show_names(calendars: Calendars) -> list[str] | None:
    return [calendar.name for calendar in calendars] or None


def _show_date(day: date | None) -> str | None:
    return day.isoformat() if day else None


def _store_duration(duration: timedelta | None) -> str | None:
    return None if duration is None else f"{duration.total_seconds():.6f} seconds"


def _show_backoff(backoff: Backoff) -> dict[str, Any]:
    """Return the keys that the policy uses."""
    unused = ("delay", "max_delay") if backoff.policy == "steps" else ()
    return {key: value for key, value in plain(backoff).items() if key not in unused}


def _unless_empty(value: Any) -> Any:
    return plain(value) or None


TYPES = get_type_hints(Job)
FORMS: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    Cron | None: (_cron_text, _load_cron, _show_cron),
    Calendars: (to_rows, _load_calendars, _show_names),
    timedelta: (_store_duration, _same, plain),
    timedelta | None: (_store_duration, _same, plain),
    Priority: (int, Priority, plain),
    Backoff: (plain, partial(parse, Backoff), _show_backoff),
    tuple[str, ...]: (plain, tuple, _unless_empty),
    str: (_same, _same, _unless_empty),
}
"""By a field's type: how its values are stored, read back and shown. Others are JSON: ``values``.
"""
COLUMN_NAMES = {
    "name": "job_type",
    "cron": "schedule",
    "limit": "limit_name",
    "unique": "unique_rule",
}
"""The columns that are not named after their key."""
COLUMNS = {
    item.name: Column(
        COLUMN_NAMES.get(item.name, item.name),
        *FORMS.get(TYPES[item.name], (plain, partial(parse, TYPES[item.name]), plain)),
    )
    for item in fields(Job)
    if item.name not in ("environments", "paths", "is_followed", "queue_rules", "targets")
}
"""By key: the columns of job_definitions that a file decides."""
DERIVED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "cron": {
        "crons": _unless_empty,
        "every": _same,
        "starts_on": _show_date,
        "ends_on": _show_date,
    },
    "only_on": {"calendars": _unless_empty},
}
"""After a key that is a column: what is shown beside it and is not stored by itself."""
KEYS = {
    key: show
    for name, column in COLUMNS.items()
    for key, show in ((name, column.show), *DERIVED.get(name, {}).items())
    if key != "name"
}
"""By key of the file, in the order in which a reviewer reads them: how the attribute of ``Job`` is
shown.
"""
_values = attrgetter(*COLUMNS)
_DEFAULTS = _values(Job(""))
DEFAULT_ROW = {
    column.name: column.store(default)
    for column, default in zip(COLUMNS.values(), _DEFAULTS, strict=True)
}
"""The columns of a job that sets no key, as JSON values."""
