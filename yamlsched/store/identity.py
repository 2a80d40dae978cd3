"""Which database this is: part of every key that is passed to a provider."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from yamlsched.store.statements import load


class Identity(NamedTuple):
    """A UUID, and when the database got it."""

    identity: str
    created_at: datetime


def read(connection: psycopg.Connection[Any]) -> Identity | None:
    """Return the database's identity; None if its row was deleted."""
    row = connection.execute(load("identity")["identity"]).fetchone()
    return row and Identity(*row)


def renew(connection: psycopg.Connection[Any], namespace: str, who: str) -> Identity:
    """Give the database a new identity, and record that ``who`` did."""
    [row] = connection.execute(load("identity")["renew"], {"namespace": namespace, "who": who}).fetchall()
    return Identity(*row)
