"""Sends what is due: takes targets whose variables this host has, sends, and writes what they were
told.

All of it happens in a helper process, so that neither a library nor a slow receiver holds up the
worker. The addresses are secrets: they are in the environment of this process, and in no log line,
error or row. The logs of Apprise and of urllib3 are discarded, because they contain the paths of
addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import psycopg

from yamlsched import db, log
from yamlsched.db.connection import SESSION_SETTINGS
from yamlsched.db.query import execute, fetch
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.monitors.delivery import send_streams
from yamlsched.extras.notify import own_variables
from yamlsched.extras.notify.message import Note, compose
from yamlsched.sync.hosts import environment_in_use
from yamlsched.worker import clock
from yamlsched.worker.sessions import run_in_helper
from yamlsched.worker.worker import Worker

MAX_SECONDS = 5.0
"""For everything, in a tick: to import Apprise, connect, send, and write what was sent."""
MAX_LOOP_SECONDS = 20.0  # the same in a loop
SECONDS_TO_WRITE = 0.7  # of it, for the database at the end
POLL_INTERVAL_SECONDS = 0.5  # for runs that have died
MAX_INTERVAL_SECONDS = 30.0  # for what other hosts have noted
MISSING = 'the library Apprise is not installed: pip install "yamlsched[notify]"'
STATUS = re.compile(r"\berror=([1-5][0-9][0-9])\b")
SETTINGS = {**SESSION_SETTINGS, "statement_timeout": "3s", "lock_timeout": "1s"}


class Message(NamedTuple):
    """A message for one target; ``notes`` is what it tells."""

    target: str
    variable: str
    title: str
    text: str
    is_good: bool
    notes: list[Note]


def send(dsn: str, namespace: str, variables: Mapping[str, str]) -> None:
    """Send what is due to targets, whose variables this host has, in at most ``MAX_SECONDS``. Never
    raises.
    """
    asyncio.run(_send_in_helper(dsn, namespace, variables, MAX_SECONDS))


async def send_continually(worker: Worker) -> None:
    """Send as runs of ``worker`` die, and what others have noted, until cancelled; what is on its
    way is awaited.
    """
    dead_count, next_at = worker.report.dead_count, 0.0
    most = MAX_LOOP_SECONDS if worker.is_continuous else MAX_SECONDS
    while True:
        await asyncio.sleep(POLL_INTERVAL_SECONDS)
        variables = own_variables(worker.workload.jobs)
        if not variables:
            continue
        if worker.report.dead_count == dead_count and clock.now() < next_at:
            continue
        dead_count = worker.report.dead_count
        workload = worker.workload
        helper = asyncio.create_task(
            _send_in_helper(workload.dsn, workload.namespace, variables, most)
        )
        try:
            seconds = await asyncio.shield(helper)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_SECONDS):
                    await helper
            raise
        next_at = clock.now() + max(
            POLL_INTERVAL_SECONDS, min(MAX_INTERVAL_SECONDS, seconds or MAX_INTERVAL_SECONDS)
        )


async def _send_in_helper(
    dsn: str, namespace: str, variables: Mapping[str, str], seconds: float
) -> float | None:
    if find_spec("apprise") is None:
        log.warning("notify.failed", variable=min(variables.values()), error=MISSING)
        return None
    try:
        async with asyncio.timeout(seconds):
            return await run_in_helper(partial(send_due, dsn, namespace, variables, seconds))
    except TimeoutError:
        return None
    except (EnvironmentFailed, psycopg.Error) as error:
        log.warning("notify.failed", error=type(error).__name__)
        return None


def send_due(
    dsn: str, namespace: str, variables: Mapping[str, str], seconds: float
) -> float | None:
    """Send what is due within ``seconds``. Return in how many seconds more may be due.

    ``variables`` are those of the targets in the file, by their names: the database does not decide
    where to send.
    """
    deadline = time.monotonic() + seconds - SECONDS_TO_WRITE
    with db.connect(dsn, SETTINGS) as connection:
        parameters = {
            "namespace": namespace,
            "targets": list(variables),
            "problems": None,
            "now": None,
        }
        execute(connection, "notify.settle", **parameters)
        messages = _messages(
            connection, namespace, variables, fetch(connection, Note, "notify.take", **parameters)
        )
        for message, error in send_streams([[message] for message in messages], send_one, deadline):
            _write(connection, namespace, message, error)
        [due] = execute(connection, "notify.next_due", **parameters).fetchall()
        return None if due.seconds is None else float(due.seconds)


def _messages(
    connection: psycopg.Connection[Any],
    namespace: str,
    variables: Mapping[str, str],
    rows: list[Note],
) -> list[Message]:
    by_target: dict[str, list[Note]] = {}
    for row in (
        row for row in rows if row.kind
    ):  # what is over since a moment ago is settled next time
        by_target.setdefault(row.target, []).append(row)
    environment = environment_in_use(connection, namespace) if rows else ""
    page = os.environ.get("YAMLSCHED_WEB_URL")
    return [
        Message(target, variables[target], *compose(notes, namespace, environment, page), notes)
        for target, notes in by_target.items()
    ]


def _write(
    connection: psycopg.Connection[Any], namespace: str, message: Message, error: str
) -> None:
    """Write what a target was told, or why it was not."""
    parameters = {
        "namespace": namespace,
        "target": message.target,
        "error": error or None,
    }
    if error:
        log.warning("notify.failed", target=message.target, variable=message.variable, error=error)
    else:
        notes = message.notes
        log.info("notify.sent", target=message.target, subjects=len(notes))
        told = {
            "subjects": [note.subject for note in notes],
            "since": [note.since for note in notes],
            "dead_runs": [note.dead_runs for note in notes],
            "pauses": [None if note.is_problem else note.pause for note in notes],
            "events": [None if note.ended_at else ",".join(note.events) for note in notes],
        }
        execute(connection, "notify.sent", **parameters, **told)
    execute(connection, "notify.end_send", **parameters)


def send_one(message: Message, deadline: float) -> str:
    """Send ``message`` to the address in its variable. Return "", or an error without any part of
    the address.
    """
    import apprise  # an optional library, and only the helper process needs it

    logging.lastResort = None  # so that nothing is printed
    logging.getLogger().handlers.clear()

    asset = apprise.AppriseAsset(async_mode=False, storage_mode="memory", http_redirects=False)
    services = apprise.Apprise(asset=asset)
    kind = apprise.NotifyType.SUCCESS if message.is_good else apprise.NotifyType.FAILURE
    try:
        if not services.add(os.environ.get(message.variable, "").strip()):
            return "it is not an address that Apprise knows"
        for service in services:
            service.socket_read_timeout = service.socket_connect_timeout = max(
                0.1, deadline - time.monotonic()
            )
        result = services.notify(
            title=message.title, body=message.text, notify_type=kind, body_format="text"
        )
    except Exception as error:  # of a plugin: its text may contain the address
        return type(error).__name__
    if result:
        return ""
    entries = [
        e
        for outcome in getattr(result, "results", ())
        for attempt in outcome.attempts
        for e in attempt.logs
    ]
    status = next(filter(None, (STATUS.search(str(e.message)) for e in entries)), None)
    return f"HTTP {status[1]}" if status else "the service has not accepted the message"
