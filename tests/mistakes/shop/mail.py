"""Handlers of every kind that validate distinguishes by reading."""

import functools
from collections.abc import Iterator
from typing import Any

from .purge import run as clean_up

SENDER = "shop@example.org"
also_digest = functools.partial(print)

__all__ = ["clean_up"]


def digest(run: Any, to: str, *, limit: int = 10) -> None:
    """Needs ``to``."""


async def fetch(url: str) -> None:
    """Is asynchronous."""


async def charge(run: Any) -> None:
    """Has an effect that an operator must look up."""
    async with run.once("charge", in_doubt="raise"):
        pass


def remind_all(run: Any) -> None:
    """Enqueues a run for each customer."""
    run.enqueue_many("remind", [{"to": "ann@example.org"}])


def ping() -> None:
    """Takes nothing."""


def send(**headers: Any) -> None:
    """Takes anything."""


def alert(run: Any, level: str = "high") -> None:
    """Is a hook."""


def pages(size: int) -> Iterator[int]:
    """Is a generator by mistake."""
    yield size


def by_position(to: str, /) -> None:
    """Cannot be called by name."""


@functools.cache
def wrapped(*args: Any) -> None:
    """Is hidden behind a decorator."""


class Mailer:
    """Not a function."""

    def send(self) -> None:
        """Is one, and is not at the top level."""
