"""Call your handlers in your own tests: no worker, no row, and no database unless the handler uses one.

from yamlsched.testing import FakeRun, call

run = FakeRun(payload={"user_id": 12})
call(handler, run)
call(handler, run.next_attempt())       # finds what the first attempt has done
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from yamlsched import client, jsonb
from yamlsched.errors import EffectInDoubt, YamlschedError
from yamlsched.handling.backends import PostgresBackend
from yamlsched.handling.once import (
    DEFAULT_RELEASE_ON,
    Effect,
    check_options,
    effect_key,
    proves_nothing_happened,
    requires_in_doubt,
)
from yamlsched.handling.run import Run

if TYPE_CHECKING:
    import psycopg

IN_DOUBT: Final = object()
"""The result of an effect of which nobody knows whether it happened."""


class Enqueue(NamedTuple):
    """A run that a handler has enqueued."""

    job: str
    payload: dict[str, Any]
    key: str | None = None
    run_at: datetime | timedelta | None = None


@dataclass(slots=True)
class FakeRun(Run):
    """A run that lives in memory. What a handler does to it can be read from ``result``, ``enqueued`` and ``effects``.

    ``connection`` is what ``transaction`` yields, inside a transaction of its own (a savepoint, where yours is open,
    so that a test can roll back everything). ``commit_fails`` lets that transaction fail at its end.
    ``effects`` holds results by key, ``IN_DOUBT`` for one in doubt; later attempts share it.
    """

    id: int = 1
    job_type: str = "a_job"
    key: str | None = None
    scheduled_for: datetime | None = None
    attempt: int = 1
    max_attempts: int = 5
    payload: dict[str, Any] = field(default_factory=dict)
    is_catchup: bool = False
    backend: PostgresBackend = field(default_factory=lambda: PostgresBackend("", "default", "a test"), repr=False)
    enqueued: list[Enqueue] = field(default_factory=list)
    connection: psycopg.Connection[Any] | None = field(default=None, repr=False)
    commit_fails: bool = False
    effects: dict[str, Any] = field(default_factory=dict)

    def next_attempt(self) -> FakeRun:
        """Return the run as its next attempt finds it."""
        return replace(
            self, attempt=self.attempt + 1, result=None, enqueued=[], committed=False, commit_fails=False,
            _outside=None, _entered=set(), _open={},
        )  # fmt: skip

    def leave_in_doubt(self, name: str, *, scope: Literal["run", "namespace"] = "run") -> None:
        """Let an earlier attempt have died inside the effect ``name``."""
        self.effects[effect_key(self.id, name, scope)] = IN_DOUBT

    def enqueue_many(
        self,
        job: str,
        payloads: Iterable[dict[str, Any]],
        *,
        keys: Iterable[str | None] | None = None,
        run_at: datetime | timedelta | None = None,
    ) -> None:
        """See ``Run``."""
        if self.committed:
            raise YamlschedError("run.transaction() has ended, and the run with it: enqueue inside it, or before")
        texts, names = client.validate_payloads(job, payloads, keys)
        client.run_at_parameters(run_at)
        self.enqueued += [Enqueue(job, json.loads(text), name, run_at) for text, name in zip(texts, names, strict=True)]

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """See ``Run``."""
        import psycopg

        if self.connection is None:
            raise YamlschedError("the handler uses run.transaction(): give FakeRun(connection=psycopg.connect(...))")
        if self.committed or self._outside is not None:
            raise YamlschedError("run.transaction() is to be used once in an attempt: its end is the run's success")
        self._outside = len(self.enqueued)
        try:
            with self.connection.transaction():
                yield self.connection
                self.result = _stored(self.result, "the result")
                if self.commit_fails:
                    raise psycopg.OperationalError("the commit failed, as the test wants it")
            self.committed = True
        except BaseException:
            del self.enqueued[self._outside :]
            raise
        finally:
            self._outside = None

    @requires_in_doubt
    @contextmanager
    def once(
        self,
        name: str,
        *,
        in_doubt: Literal["raise", "skip", "repeat"],
        scope: Literal["run", "namespace"] = "run",
        release_on: tuple[type[Exception], ...] = DEFAULT_RELEASE_ON,
    ) -> Iterator[Effect]:
        """See ``Run``."""
        if self.committed:
            raise YamlschedError(
                "run.transaction() has ended, and the run with it: use run.once() inside it, or before"
            )
        check_options(name, in_doubt, release_on)
        key = effect_key(self.id, name, scope)
        if key in self._open:
            raise YamlschedError(f'effect "{key}" is used inside itself, or by two threads at once')
        if self.effects.get(key) is IN_DOUBT and in_doubt == "raise":
            raise EffectInDoubt(f'effect "{key}" is in doubt')
        if self.effects.get(key) is IN_DOUBT and in_doubt == "skip":
            self.effects[key] = None  # counts as done
        effect = Effect(key not in self.effects or self.effects[key] is IN_DOUBT, provider_key(key))
        if not effect.first:
            effect.result = self.effects[key]
            yield effect
            return
        self.effects[key] = IN_DOUBT
        self._open[key] = ""
        try:
            yield effect
        except BaseException as error:
            if proves_nothing_happened(error, release_on):
                del self.effects[key]
            raise
        finally:
            del self._open[key]
        self.effects[key] = _stored(effect.result, f'the result of effect "{name}"')


def provider_key(key: str) -> str:
    """Return ``effect.key`` as a FakeRun has it: a UUID, the same for the same ``key`` of ``FakeRun.effects``."""
    return str(uuid5(NAMESPACE_OID, key))


def call(handler: Callable[..., Any], run: FakeRun) -> Any:
    """Call ``handler`` as a worker does, and return what would be kept as the run's result.

    The payload arrives as keyword arguments, after its way through JSON; ``run`` goes to a parameter of that name; an
    ``async def`` gets an event loop of its own. Raises Refused where payload or result could not be stored.
    """
    [text], _ = client.validate_payloads(run.job_type, [run.payload], None)
    arguments = json.loads(text)
    if "run" in inspect.signature(handler).parameters:
        arguments["run"] = run
    value = handler(**arguments)
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    return run.result if run.committed else _stored(value, "the result")


async def _awaited(value: Any) -> Any:
    return await value


def _stored(value: Any, what: str) -> Any:
    """Return ``value`` as it comes back from the database."""
    text = jsonb.encode_result(value, what)
    return None if text is None else json.loads(text)
