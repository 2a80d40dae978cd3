"""The tick that finds nothing to do, which most are: a program of its own.

It reads the file, polls, and if there is nothing to do, polls again to note that its place has the
file. Any other tick starts from the beginning with the command line. So only this program has a
reason to import little: it runs each minute, and imports are most of its time. Everything else
imports what it needs at the top of its modules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from yamlsched import db
from yamlsched.db.connection import SESSION_SETTINGS
from yamlsched.entry_points import may_have_plugins
from yamlsched.errors import YamlschedError
from yamlsched.service.host import CRON_UNSENT, permit_folder
from yamlsched.sync import hosts
from yamlsched.sync.files import ScheduleFile, as_namespace
from yamlsched.sync.hosts import Snapshot, needs_sync, poll

FLAGS = {"-q", "--quiet", "-v", "--verbose", "--cron"}
DURATION, COUNT = "[1-9][0-9]{0,3}[sm]", "[1-9][0-9]{0,2}"
QUEUE = r"(?!none\b)[a-z][a-z0-9_]{0,62}"
OPTIONS = {
    "--file": ".+",
    "--dsn": "(?!embedded$).+",
    "--env": ".*",
    "--namespace": ".+",
    "--log-format": "text|json",
    "--path": ".*",
    "--grace": DURATION,
    "--max-time": DURATION,
    "--concurrency": COUNT,
    "--queue": f"none|{QUEUE}(,{QUEUE})*",
    "--max-runs": COUNT,
}
"""What an idle tick may be called with. The command line reads all else, and refuses what is wrong.
"""
VARIABLES = {
    "YAMLSCHED_FILE": "--file",
    "YAMLSCHED_DSN": "--dsn",
    "YAMLSCHED_ENV": "--env",
    "YAMLSCHED_NAMESPACE": "--namespace",
    "YAMLSCHED_LOG_FORMAT": "--log-format",
}
NO_VALUE = "\n"
"""Which no pattern matches."""
MONITORS = ("YAMLSCHED_HEARTBEAT_URL", "YAMLSCHED_SENTRY_DSN")
"""How variables of monitoring services start. They hear of each tick."""
CONNECT_SECONDS = 2
SESSION = {**SESSION_SETTINGS, "statement_timeout": "5s", "lock_timeout": "1s"}
"""Short limits: the command line waits again, and longer."""


def finds_nothing(words: Sequence[str]) -> bool:
    """Return whether these words call a tick that has nothing to do but what was done here."""
    options = _options(words[1:]) if words[:1] == ["tick"] else None
    is_watched = any(name.startswith(MONITORS) for name in os.environ)
    if not options or "--dsn" not in options or is_watched or may_have_plugins():
        return False
    file = Path(options.get("--file", "schedules.yaml"))
    namespace = as_namespace(options["--namespace"]) if "--namespace" in options else None
    if "--namespace" in options and namespace is None:
        return False
    try:
        if "--cron" in options and (permit_folder(file) / CRON_UNSENT).exists():
            return False
        read = partial(ScheduleFile.read, file, options.get("--env"), (), namespace)
        schedule = read(find_patterns=lambda data: ())
        dsn = make_conninfo(options["--dsn"], connect_timeout=CONNECT_SECONDS)
        with db.connect(dsn, SESSION) as connection:
            if b"include" in schedule.data:
                # another file than at the latest tick is not idle: the patterns are in the hash
                known = hosts.patterns(connection, schedule)
                schedule = read(find_patterns=lambda data: known)
            if queues := options.get("--queue"):
                names = queues.split(",") if queues != "none" else []
                schedule = replace(schedule, queues=tuple(names))
            # only one poll of a tick writes: a place counts for twice the time since the last
            if not _is_idle(poll(connection, schedule, writes=False), schedule):
                return False
            poll(connection, schedule)
            return True
    except (psycopg.Error, YamlschedError, OSError, ValueError):
        return False  # the command line finds the same, and reports it


def _options(words: Sequence[str]) -> dict[str, str] | None:
    """Return the options, also those that variables set; None if one is for the command line."""
    remaining = iter(words)
    pairs = [(VARIABLES[name], value) for name, value in os.environ.items() if name in VARIABLES]
    options = {name: value for name, value in pairs if value}
    for word in remaining:
        name, has_value, value = word.partition("=")
        options[name] = value if has_value or name in FLAGS else next(remaining, NO_VALUE)
    for name, value in options.items():
        if not re.fullmatch("" if name in FLAGS else OPTIONS.get(name, "(?!)"), value):
            return None
    return options


def _is_idle(snapshot: Snapshot, schedule: ScheduleFile) -> bool:
    checksums = {str(each.version): each.checksum for each in db.migrations.all_migrations()}
    is_due = snapshot.has_claimable_runs or snapshot.needs_housekeeping
    is_due = is_due or any(snapshot.messages_due or ()) or needs_sync(snapshot, schedule)
    is_due = is_due or snapshot.checksums != checksums
    return not is_due and not schedule.unknown_queues(snapshot.queues)
