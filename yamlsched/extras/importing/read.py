"""Reads files of other schedulers: which importer reads a file, and the report of what it found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import PurePath
from typing import Any

from yamlsched.extras.importing import (
    celery,
    celery_dump,
    compare,
    crontab,
    kubernetes,
    systemd,
    write,
)
from yamlsched.extras.importing.model import (
    Imported,
    ImportedJob,
    ImportNote,
    Origin,
    Place,
    Treatment,
)
from yamlsched.schedule.load import Loaded, load
from yamlsched.text import escape_line, join_first

KINDS = ("crontab", "cron.d", "kubernetes", "celery", "systemd")
ON_HOST_CLOCK = ("crontab", "cron.d", "systemd")
"""Kinds that use the time zone of their host where a file names none."""
WITH_USER = re.compile(
    r"^[ \t]*(?:@\w+[ \t]+|(?=[-\d*])(?:\S+[ \t]+){5})(\S+)[ \t]+\S", re.MULTILINE
)
USERS = {"root", "www-data", "nobody", "apache", "nginx", "postgres", "mysql"}
NO_ZONE = (
    "time zone: UTC is used where a file names none. Pass --timezone if its host is in another one"
)
MAX_LINES = 5
OF_HOST: dict[str, Any] = {"env": {}, "cwd": "."}
"""Keys whose defaults are those of one crontab, with the values that a command without them has."""


def kind_of(source: Origin) -> str:
    """Return the kind of a file, by its name and then by its text."""
    path = PurePath(source.file)
    match path.suffix:
        case ".timer" | ".service":
            return "systemd"
        case ".yaml" | ".yml":
            return "kubernetes"
        case ".json":
            return "kubernetes" if re.search('"CronJob', source.text) else "celery"
        case ".py":
            return "celery"
    if "cron.d" in path.parts or path.parts[-2:] == ("etc", "crontab") or _has_users(source.text):
        return "cron.d"
    if re.search(r"^\s*\"?kind\"?:\s*\"?(CronJob|List)", source.text, re.MULTILINE):
        return "kubernetes"
    return "crontab"


def _has_users(text: str) -> bool:
    """Return whether the names of users stand in front of the commands of a crontab."""
    words = set(WITH_USER.findall(text))
    return "root" in words or (bool(words) and words <= USERS)


def read(
    sources: Sequence[Origin],
    kind: str | None,
    into: Loaded | None,
    start: datetime,
    days: int = 400,
) -> Imported:
    """Return the jobs of ``sources``, with names that ``into`` does not have, and notes sorted by
    place.

    ``kind`` is that of all sources; None means that of each. Fire times are compared for ``days``
    days from ``start`` on, an aware time.
    """
    kinds = [(source, kind or kind_of(source)) for source in sources]
    crontabs = [
        (source.text, name == "cron.d") for source, name in kinds if name in ("crontab", "cron.d")
    ]
    names, limits = (set(into.entries), set(into.limits)) if into else (set(), set())
    batch = Imported(names, crontab.shared_locks(crontabs, limits))
    units = [source for source, name in kinds if name == "systemd"]
    for source, name in kinds:
        place = Place(batch, source)
        with place.reporting():
            match name:
                case "crontab" | "cron.d":
                    crontab.read(place, has_user=name == "cron.d")
                case "kubernetes":
                    kubernetes.read(place)
                case "celery":
                    _read_celery(place, start)
                case _ if source is units[0]:
                    systemd.read(units, batch)
    _leave_out_invalid(batch)
    if into is not None:
        _keep_apart(batch, into)
    compare.compare(batch, start, days)
    on_host_clock = {source.file for source, name in kinds if name in ON_HOST_CLOCK}
    batch.assumes_utc = any(
        job.keys["timezone"] == "UTC" and job.file in on_host_clock for job in batch.jobs
    )
    order = {source.file: index for index, source in enumerate(sources)}
    batch.notes.sort(key=lambda note: (order[note.file], note.line))
    return batch


def _read_celery(place: Place, now: datetime) -> None:
    before = len(place.batch.jobs)
    if place.source.text.lstrip()[:1] in ("[", "{"):
        celery_dump.read(place, now)
    else:
        celery.read(place)
    if len(place.batch.jobs) > before:
        place.changed(celery.HANDLERS)


def _keep_apart(batch: Imported, into: Loaded) -> None:
    """Give commands an environment and a directory of their own: those in the defaults are of
    another crontab.
    """
    defaults = into.root.get("defaults") if into.root else None
    own = {key: value for key, value in OF_HOST.items() if defaults and key in defaults.value}
    for number, job in enumerate(batch.jobs):
        missing = {
            key: value
            for key, value in own.items()
            if key not in job.keys and "command" in job.keys
        }
        batch.jobs[number] = replace(job, keys={**job.keys, **missing})


def _leave_out_invalid(batch: Imported) -> None:
    """Leave out jobs that ``validate`` would reject, so that the rest is a valid file."""
    if not batch.jobs or not _errors(batch.jobs):
        return
    for job in list(batch.jobs):
        for message in _errors([job])[:1]:
            batch.jobs.remove(job)
            batch.notes.append(
                ImportNote(Treatment.REFUSED, job.file, job.line, f"{job.name}: {message}")
            )


def _errors(jobs: Sequence[ImportedJob]) -> list[str]:
    diagnostics = load(write.as_file(jobs, "UTC").encode(), "", None).diagnostics
    return [one.message for one in diagnostics if one.severity == "error"]


def report(batch: Imported, into: Loaded | None, has_zone: bool) -> list[str]:
    """Return the notes as lines, one for each message with all its places, and a summary.

    ``into`` is the file that the jobs were appended to. ``has_zone``: --timezone was passed.
    """
    by_message: dict[tuple[str, Treatment, str], list[int]] = {}
    for note in batch.notes:
        by_message.setdefault((note.file, note.effect, note.message), []).append(note.line)
    lines = []
    for (file, effect, message), numbers in by_message.items():
        place = f"{file}:{numbers[0]}" if numbers[0] else file
        others = [str(number) for number in numbers[1:] if number]
        also = (
            f" (also line{'s' * (len(others) > 1)} {join_first(others, MAX_LINES)})"
            if others
            else ""
        )
        lines.append(f"{place}: {effect}: {message}{also}")
    if batch.assumes_utc and not has_zone:
        lines.append(NO_ZONE)
    if into is not None and batch.jobs and (inherited := _inherited(into, batch)):
        lines.append(f"{into.source.file}: the imported jobs also get its defaults: {inherited}")
    left_out = sum(note.effect is Treatment.REFUSED for note in batch.notes)
    jobs = "1 job" if len(batch.jobs) == 1 else f"{len(batch.jobs)} jobs"
    times = f" ({batch.differing} with other fire times)" if batch.differing else ""
    lines.append(f"{jobs} imported{times}, {left_out} left out")
    return [escape_line(line) for line in lines]


def _inherited(into: Loaded, batch: Imported) -> str:
    defaults = into.root.get("defaults") if into.root else None
    keys = defaults.value if defaults else {}
    return ", ".join(key for key in keys if not all(key in job.keys for job in batch.jobs))
