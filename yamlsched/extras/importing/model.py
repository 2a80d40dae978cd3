"""What an importer returns: jobs for schedules.yaml, and notes on everything that was changed,
dropped or refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from yamlsched.errors import ScheduleError
from yamlsched.extras.importing.calendar import OnCalendar
from yamlsched.secret_forms import mask_command, mask_value
from yamlsched.text import escape_line, truncate
from yamlsched.timetable.cron import Cron, combine, parse_cron
from yamlsched.timetable.zones import zone

MAX_JOBS = 2_000
"""More jobs than this are not imported at once."""
MAX_NAME_CHARS = 63
NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
YAML_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))
"""Words that one version of YAML or another reads as something else than a string."""
FAITHFUL = {"overlap": "allow", "catchup": "none", "max_attempts": 1, "timeout": "7d"}
"""What cron does: no run waits for another, none is made up for, repeated or stopped."""


class Treatment(StrEnum):
    """What the import did with a part of the source."""

    CHANGED = "changed"  # the job was imported and behaves differently
    DROPPED = "dropped"  # the job was imported without this setting
    REFUSED = "left out"  # the job was not imported
    ADVICE = "advice"  # imported as it is, but yamlsched has something better for it


@dataclass(frozen=True, slots=True)
class ImportNote:
    """One line of the report. ``line`` is 1-based; 0 if the source has no lines for it."""

    effect: Treatment
    file: str
    line: int
    message: str


class Refusal(ValueError):
    """A job, or a schedule, that cannot be imported. The message says why and what to do.

    ``line`` is the place if it is not that of the job; else 0.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def cron_keys(expressions: Iterable[str]) -> dict[str, Any]:
    """Return the key of a job with these expressions."""
    different = list(dict.fromkeys(expressions))
    return {"cron": different[0]} if len(different) == 1 else {"crons": different}


def expression(keys: Mapping[str, Any]) -> Cron:
    """Return when a job with these keys fires."""
    texts = keys.get("crons", [keys.get("cron")])
    return combine([parse_cron(text) for text in texts], "crons" in keys)


@dataclass(frozen=True, slots=True)
class Origin:
    """The text of a file to import.

    ``zone`` is the time zone where it names none; ``is_faithful``: see --policy. ``home`` is where
    cron starts commands; empty if unknown.
    """

    text: str
    file: str
    zone: str = "UTC"
    is_faithful: bool = True
    home: str = ""


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """A job for schedules.yaml. ``origin`` is the text it was made from, ``times`` are the
    schedules by which its source would start it.
    """

    name: str
    file: str
    line: int
    origin: str
    keys: Mapping[str, Any]
    times: Sequence[OnCalendar]


@dataclass
class Imported:
    """The jobs that importers found, and their notes. ``names`` are those that no further job can
    have.

    ``limits`` are the names of limits, by the lock that several lines use; empty for one that must
    be kept.
    """

    names: set[str] = field(default_factory=set)
    limits: dict[str, str] = field(default_factory=dict)
    jobs: list[ImportedJob] = field(default_factory=list)
    notes: list[ImportNote] = field(default_factory=list)
    differing: int = 0
    """How many jobs fire at other times than in their source."""
    assumes_utc: bool = False
    """Whether a file names no time zone and its scheduler uses that of its host, which is unknown
    here.
    """

    @property
    def has_refusals(self) -> bool:
        """Whether a job of a source is missing from the result."""
        return any(note.effect is Treatment.REFUSED for note in self.notes)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source, 0 for all of it, where something is noted or a job is added. Notes start
    with ``label``.
    """

    batch: Imported
    source: Origin
    line: int = 0
    label: str = ""

    def at(self, line: int, label: str | None = None) -> Place:
        return replace(self, line=line, label=self.label if label is None else label)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report a Refusal in the block as a job that is left out."""
        try:
            yield
        except Refusal as error:
            (self.at(error.line) if error.line else self).refused(str(error))
        except RecursionError:
            self.refused("it is nested too deeply")

    def _note(self, effect: Treatment, message: str) -> None:
        self.batch.notes.append(
            ImportNote(effect, self.source.file, self.line, self.label + message)
        )

    def changed(self, message: str) -> None:
        """Report that a job is imported, and behaves differently."""
        self._note(Treatment.CHANGED, message)

    def dropped(self, message: str) -> None:
        """Report a setting without which a job is imported."""
        self._note(Treatment.DROPPED, message)

    def refused(self, message: str) -> None:
        """Report a job that is left out."""
        self._note(Treatment.REFUSED, message)

    def advise(self, message: str) -> None:
        """Report something that yamlsched has a better way for."""
        self._note(Treatment.ADVICE, message)

    def add(
        self,
        name: str,
        origin: str,
        keys: Mapping[str, Any],
        *times: OnCalendar,
    ) -> None:
        """Add a job under a valid name that is free, in the time zone of its ``times``. Raises
        Refusal for what JSON cannot hold.
        """
        if len(self.batch.jobs) == MAX_JOBS:
            raise Refusal(f"{MAX_JOBS:,} jobs are imported at once: import the rest by itself")
        try:
            json.dumps(keys, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise Refusal(
                "it has a value that is not a constant, or that JSON cannot store"
            ) from error
        defaults = FAITHFUL if self.source.is_faithful else {}
        keys = {**defaults, **keys, "timezone": times[0].zone.key}
        if env := self.without_secrets(keys.pop("env", None) or {}):
            keys["env"] = env
        command = keys.get("command") or []
        if mask_command(command) != command:  # it would not work without its secret
            self.advise(
                "the command contains what looks like a secret: move it to a file or to the "
                "environment of the worker before you commit schedules.yaml"
            )
        wanted = job_name(name)
        free = free_name(wanted, self.batch.names)
        if free != wanted:
            self.changed(f"the name {wanted} is taken: the job is called {free}")
        self.batch.jobs.append(ImportedJob(free, self.source.file, self.line, origin, keys, times))

    def without_secrets(self, env: Mapping[str, str]) -> dict[str, str]:
        """Leave out variables that look like secrets: the file is in git, and what it says in the
        database.
        """
        secret = [name for name, value in env.items() if mask_value(name, value) != value]
        for name in secret:
            remedy = (
                "~/.pgpass, or PGPASSFILE in env"
                if name.startswith("PG")
                else "set it where the worker starts"
            )
            self.dropped(
                f"{shown(name)} looks like a secret, which does not belong in the file: {remedy}"
            )
        return {name: value for name, value in env.items() if name not in secret}


def free_name(name: str, taken: set[str]) -> str:
    """Return ``name``, or if it is taken the first of name_2, name_3 and so on that is not, which
    then is.
    """
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name[: MAX_NAME_CHARS - len(str(number)) - 1]}_{number}"
    taken.add(free)
    return free


def job_name(text: str) -> str:
    """Return ``text`` as a valid job name.

    >>> job_name("Backup-DB.sh"), job_name("7zip"), job_name("true"), job_name("")
    ('backup_db_sh', 'job_7zip', 'job_true', 'job')
    """
    name = NOT_IN_NAMES.sub("_", text[:1000].lower()).strip("_")
    if not name[:1].isalpha() or name in YAML_WORDS:
        name = f"job_{name}" if name else "job"
    return name[:MAX_NAME_CHARS].rstrip("_")


def known_zone(name: Any) -> ZoneInfo:
    """Return the time zone called ``name``. Raises Refusal if it is not known."""
    try:
        return zone(str(name))
    except ScheduleError as error:
        raise Refusal(f"unknown time zone {shown(name)}") from error


def shown(value: Any) -> str:
    """Return a value of the source as messages show it: on one line, truncated."""
    if isinstance(value, str):
        return escape_line(truncate(value, 80))
    try:
        return escape_line(truncate(json.dumps(value, ensure_ascii=False), 80))
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__
