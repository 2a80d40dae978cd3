"""Statements about effects, see ``sql/effects.sql``. An attempt may repeat its own when an answer
was lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from yamlsched.db.query import Connection, execute, fetch

EffectStatement: TypeAlias = Literal[
    "mark_in_doubt", "take_over", "assume_done", "mark_done", "release"
]
"""The statements of an attempt about an effect that it has entered or found."""


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """An attempt's use of an effect: the key, and the attempt's fence. ``entry`` is a UUID, new for
    each use.
    """

    namespace: str
    key: str
    run_id: int
    attempt: int
    locked_by: str
    entry: str


@dataclass(frozen=True, slots=True)
class FoundEffect:
    """What ``claim`` found. ``state`` is None if the key was free, or was released while the
    statement waited for it.

    ``run_id``, ``attempt`` and ``entry`` are those of the entry that holds the key;
    ``holder_is_live`` says that this attempt is not over.
    """

    is_first: bool
    state: str | None
    result: Any
    provider_key: str
    run_id: int | None = None
    attempt: int | None = None
    entry: str | None = None
    claimed_at: datetime | None = None
    holder_is_live: bool = False


def claim(connection: Connection, entry: EffectEntry) -> FoundEffect | None:
    """Take the key if it is free. Return what was found, or None if the attempt has
    lost its run.
    """
    # business keys cannot start like this
    parameters = asdict(entry) | {"is_of_run": entry.key.startswith("run:")}
    return next(iter(fetch(connection, FoundEffect, "effects.claim", **parameters)), None)


def write(
    connection: Connection,
    statement: EffectStatement,
    entry: EffectEntry,
    doubted: str | None = None,
    result: str | None = None,
) -> bool:
    """Change an effect. Return False if another attempt, or a person, was faster.

    ``mark_in_doubt`` is about the effect that was entered by ``doubted``, by default by this entry.
    ``mark_done`` stores ``result``, which is JSON.
    """
    return (
        execute(
            connection,
            f"effects.{statement}",
            **asdict(entry),
            doubted=doubted or entry.entry,
            result=result,
        ).rowcount
        == 1
    )


@dataclass(frozen=True, slots=True)
class EffectStatus:
    """The state of an effect. ``is_running``: the attempt that claimed it is not over."""

    state: str
    run_id: int
    attempt: int
    provider_key: str  # effect.key
    claimed_at: datetime
    doubted_at: datetime | None  # set in a done effect: in_doubt="skip" counted it as done
    done_at: datetime | None
    is_running: bool

    @property
    def can_be_settled(self) -> bool:
        """Whether it is in doubt, or was counted as done without knowing."""
        if self.state == "done":
            return self.doubted_at is not None
        return self.state == "in_doubt" or not self.is_running


def find(connection: Connection, namespace: str, key: str) -> EffectStatus | None:
    found = fetch(connection, EffectStatus, "effects.find", namespace=namespace, key=key)
    return next(iter(found), None)


def settle_effect(
    connection: Connection,
    namespace: str,
    key: str,
    happened: bool,
    result: str | None = None,
) -> Any:
    """Write whether an effect in doubt happened, with its result (JSON). Return its run_id and
    job_type; None if it is not in doubt.
    """
    values = {"namespace": namespace, "key": key, "happened": happened, "result": result}
    return execute(connection, "effects.settle", **values).fetchone()


class Identity(NamedTuple):
    """A UUID, and when the database got it."""

    identity: str
    created_at: datetime


def read_identity(connection: Connection) -> Identity | None:
    """Return the database's identity; None if its row was deleted."""
    row = execute(connection, "identity.identity").fetchone()
    return row and Identity(*row)


def renew_identity(connection: Connection, namespace: str, who: str) -> Identity:
    """Give the database a new identity, and record that ``who`` did."""
    [row] = execute(connection, "identity.renew", namespace=namespace, who=who).fetchall()
    return Identity(*row)
