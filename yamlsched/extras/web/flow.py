"""How an action of the page goes: a form, what will happen, and, once that is confirmed, the
action.

    GET  /actions/retry?run=118            what will happen; or the form, if something is missing
    POST /actions/retry                    what will happen
    POST /actions/retry  confirm=1         do it, and redirect to the run

The first two read with the read-only session. An action is a module in ``actions/``: what it asks
for, what it will do, and doing it. Each form has an id from the first time that it is shown, which
is recorded with what it does. So it is done once: if it is sent twice, and if a browser goes back
to what will happen.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from yamlsched.act.runs import RunState, operator
from yamlsched.ask import history
from yamlsched.ask.trail import TrailEntry, trail
from yamlsched.db.query import now
from yamlsched.errors import Refused
from yamlsched.extras.web.ask import audit, outlook
from yamlsched.extras.web.pool import Pool
from yamlsched.extras.web.render import sentence
from yamlsched.extras.web.visit import Result, Visit
from yamlsched.sync import definitions
from yamlsched.sync.definitions import Definition
from yamlsched.text import did_you_mean
from yamlsched.timetable import times
from yamlsched.timetable.times import TimeInput

MAX_TEXT_CHARS = 500
MAX_OFFERED_JOBS = 500
PICKED = ".local"
RESERVED = ("confirm", "edit", "request", "seen")


class Field(NamedTuple):
    """A field of a form.

    ``kind`` is text, area, check, select, radio, time, or subject: what the action is about, which
    is not asked for if the link has it. A time is picked, in the field NAME.local, or written.
    ``choices`` are pairs of a value and a label; of a job, names that exist.
    """

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    choices: Sequence[tuple[str, str]] = ()
    is_required: bool = False


RUN = Field("run", "Run", "subject", "Its id or its key.", is_required=True)


class Invalid(Exception):
    """What a field has cannot be used. The form is shown again, with the reason at the field."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


class Conflict(Exception):
    """Nothing was done, because the state is not the one that was confirmed."""


class AlreadyDone(Exception):
    """The form was sent before: this is what it did."""

    def __init__(self, entries: Sequence[TrailEntry]) -> None:
        super().__init__()
        self.entries = entries


class Given(dict[str, str]):
    """The values of a form's fields, or of a link to it; "" for one that is missing."""

    def __missing__(self, name: str) -> str:
        return ""

    def number(self, name: str, highest: int = 10**18) -> int:
        value = self[name]
        if not (value.isascii() and value.isdigit()) or int(value[:20]) > highest:
            raise Invalid(name, f'"{value}" is not a number.')
        return int(value)

    def time(self, name: str) -> TimeInput | None:
        """Return a time in any form; None if it is empty."""
        try:
            return times.parse(self[name]) if self[name] else None
        except (ValueError, OverflowError) as error:
            raise Invalid(name, sentence(str(error))) from None

    def instant(self, name: str) -> datetime | None:
        """Return an instant as a review has written it; None if it is empty."""
        value = self.time(name)
        if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
            raise Invalid(name, "This is not an instant.")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        if self[name] not in choices:
            raise Invalid(name, f"Choose one of: {', '.join(choices)}.")
        return self[name]


@dataclass(frozen=True)
class Asking:
    """A form: its fields, and what to know about its subject."""

    fields: Sequence[Field]
    lines: Sequence[str] = ()
    values: Mapping[str, str] = field(default_factory=dict)  # of fields that are empty


@dataclass(frozen=True)
class Review:
    """What will happen. Without ``refusal`` it can be confirmed by ``button``.

    ``asks`` are fields beside the button. ``carried`` has what was seen, to be compared when it is
    done. ``target`` is that of the audit trail: whatever happened to it since the review is a
    conflict. ``listed`` are names, of which there are ``total``, shown under ``heading``.
    """

    title: str
    button: str
    back: str
    state: str = ""
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    refusal: str = ""
    asks: Sequence[Field] = ()
    carried: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    heading: str = ""
    listed: Sequence[str] = ()
    total: int = 0
    is_final: bool = False  # the button warns
    change: str = ""  # the button that leads to the form


class Redirect(NamedTuple):
    """Where to go, below the prefix, and what to say there."""

    path: str
    result: Result


@dataclass(frozen=True)
class Doing:
    """A confirmed form. ``seen`` is the latest action on the target that the review has seen."""

    pool: Pool
    namespace: str
    user: str | None
    request: str
    seen: int
    file: Path

    @property
    def who(self) -> str:
        return self.user or anonymous()

    @contextmanager
    def transaction(
        self, target: str = "", is_whole: bool = True
    ) -> Iterator[psycopg.Connection[Any]]:
        """Yield a session that may write, in a transaction whose actions are recorded with the
        form.

        Raises AlreadyDone if the form has been carried out, and Conflict if anybody has done
        something to ``target`` since the review. An action in several transactions, not
        ``is_whole``, must find what is left to do itself.
        """
        with self.pool.transaction() as connection:
            audit.start_request(connection, self.request, self.namespace, target or self.request)
            if is_whole:
                if done := trail(connection, self.namespace, request=self.request, limit=1):
                    raise AlreadyDone(done)
                latest = audit.latest(connection, self.namespace, target) if target else None
                if latest is not None and latest.id > self.seen:
                    raise Conflict(f"{self.say(connection, latest)}.")
            yield connection

    def say(self, connection: psycopg.Connection[Any], entry: TrailEntry) -> str:
        return audit.sentence(entry, now(connection), self.user)

    def since(self, connection: psycopg.Connection[Any], target: str) -> str:
        """Return a clause about the latest action on ``target`` if the review has not seen it; else
        "".
        """
        latest = audit.latest(connection, self.namespace, target)
        return (
            f": {self.say(connection, latest)}"
            if latest is not None and latest.id > self.seen
            else ""
        )


class Action(NamedTuple):
    """An action of the page, at ``/actions/NAME``.

    ``required`` are the fields without which ``review`` cannot be called; ``fields`` all that a
    form may have.
    """

    name: str
    title: str
    fields: Sequence[str]
    required: Sequence[str]
    ask: Callable[[Visit, Given], Asking]
    review: Callable[[Visit, Given], Review]
    perform: Callable[[Doing, Given], Redirect]
    limits: Mapping[
        str, int
    ] = {}  # of characters, for fields that may be longer than MAX_TEXT_CHARS
    asks_first: bool = False  # a link leads to the form: it has fields that are not required
    one_of: Sequence[str] = ()  # unless it has one of these


def anonymous() -> str:
    """Return who is recorded if the page does not ask who its users are: the user of
    its process.
    """
    return f"web ({operator()})"


def new_request() -> str:
    return str(uuid.uuid4())


def is_request(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def path_of(entry: TrailEntry) -> str:
    """Return the page of the target of an action."""
    kind, _, name = entry.target.partition(":")
    return {"run": f"/runs/{name}", "job": f"/jobs/{name}"}.get(kind, "/actions")


def run_of(visit: Visit, values: Given) -> RunState:
    """Return the run that the field ``run`` names by its id or key."""
    try:
        run = outlook.find(
            visit.connection,
            visit.namespace,
            history.find(visit.connection, visit.namespace, values["run"]),
        )
    except Refused as error:
        raise Invalid("run", sentence(str(error))) from None
    if run is None:
        raise Invalid(
            "run",
            f'Run {values["run"]} does not exist in namespace "{visit.namespace}", or was pruned.',
        )
    return run


def job_field(visit: Visit, values: Given) -> Field:
    """Return the field ``job``. If a link has not set it, names are offered."""
    names = (
        []
        if values["job"]
        else definitions.names(visit.connection, visit.namespace)[:MAX_OFFERED_JOBS]
    )
    return Field(
        "job", "Job", "subject", choices=[(name, name) for name in names], is_required=True
    )


def timezone_of(visit: Visit, action: Action, values: Given) -> str:
    """Return the time zone of times without an offset; "" while that of the job is not known."""
    if "job" in action.required:
        with suppress(Invalid):  # the form says so
            return job_of(visit, values).timezone if values["job"] else ""
        return ""
    return visit.timezone_of(values["job"])


def job_of(visit: Visit, values: Given) -> Definition:
    """Return the job that the field ``job`` names."""
    return job_for(visit.connection, visit.namespace, values["job"])


def job_for(connection: psycopg.Connection[object], namespace: str, name: str) -> Definition:
    """Return the job ``name``. Raises Invalid for the field ``job``."""
    definition = definitions.find(connection, namespace, name)
    if definition is None:
        hint = did_you_mean(name, definitions.names(connection, namespace))
        raise Invalid("job", f'There is no job "{name}" in namespace "{namespace}". {hint}'.strip())
    return definition
