"""Statements on effects, see ``sql/effects.sql``. Those of an attempt may be sent again when an answer was lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from yamlsched.store.statements import load

if TYPE_CHECKING:
    from psycopg import Connection


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """The key of an effect, and the claim of the attempt that asks for it. ``entry`` is a UUID, new for each use."""

    namespace: str
    key: str
    run_id: int
    attempt: int
    locked_by: str
    entry: str

    def parameters(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "key": self.key,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "locked_by": self.locked_by,
            "entry": self.entry,
            "is_of_run": self.key.startswith("run:"),  # a business key may not start so
        }


@dataclass(frozen=True, slots=True)
class FoundEffect:
    """What ``claim`` found. ``state`` is None if the key was free, or was released while the statement waited for it.

    ``run_id``, ``attempt`` and ``entry`` are those of the entry that holds the key; ``holder_is_live`` says that this
    attempt is not over.
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


def claim(connection: Connection[Any], entry: EffectEntry) -> FoundEffect | None:
    """Take the key if it is free. Return what was found, or None if the attempt has lost its run."""
    row = connection.execute(load("effects")["claim"], entry.parameters()).fetchone()
    return None if row is None else FoundEffect(**row._asdict())


def mark_in_doubt(connection: Connection[Any], entry: EffectEntry, doubted: str | None = None) -> bool:
    """Mark the effect as in doubt that was entered by ``entry``, or without one by ourselves."""
    parameters = {**entry.parameters(), "doubted": doubted or entry.entry}
    return connection.execute(load("effects")["mark_in_doubt"], parameters).rowcount == 1


def take_over(connection: Connection[Any], entry: EffectEntry) -> bool:
    """Enter an effect in doubt again; False if somebody else was quicker, or our lease is over."""
    return connection.execute(load("effects")["take_over"], entry.parameters()).rowcount == 1


def assume_done(connection: Connection[Any], entry: EffectEntry) -> bool:
    """Count an effect in doubt as done; False if somebody else was quicker, or our lease is over."""
    return connection.execute(load("effects")["assume_done"], entry.parameters()).rowcount == 1


def mark_done(connection: Connection[Any], entry: EffectEntry, result: str | None) -> bool:
    """Store the effect's result (JSON text); False if it is ours no more."""
    return connection.execute(load("effects")["mark_done"], {**entry.parameters(), "result": result}).rowcount == 1


def release(connection: Connection[Any], entry: EffectEntry) -> None:
    """Free the key: the effect was not done."""
    connection.execute(load("effects")["release"], entry.parameters())


@dataclass(frozen=True, slots=True)
class EffectStatus:
    """How an effect stands; ``is_running``: the attempt that claimed it goes on."""

    state: str
    run_id: int
    attempt: int
    claimed_at: datetime
    done_at: datetime | None
    is_running: bool


def find(connection: Connection[Any], namespace: str, key: str) -> EffectStatus | None:
    row = connection.execute(load("effects")["find"], {"namespace": namespace, "key": key}).fetchone()
    return None if row is None else EffectStatus(*row)


def settle(
    connection: Connection[Any], namespace: str, key: str, who: str, happened: bool, result: str | None = None
) -> bool:
    """Say of an effect in doubt whether it happened, with its result (JSON text); False if it is not in doubt."""
    statement = load("effects")["settle_done" if happened else "settle_not_done"]
    parameters = {"namespace": namespace, "key": key, "who": who, "result": result}
    return connection.execute(statement, parameters).rowcount == 1
