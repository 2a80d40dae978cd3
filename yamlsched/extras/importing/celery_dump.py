"""django-celery-beat: the JSON of ``dumpdata``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from yamlsched.extras.importing import celery, python_source
from yamlsched.extras.importing.model import Place, Refusal, shown

PERIODS = ("days", "hours", "minutes", "seconds")
DISABLE = "the job is disabled if it has passed, else disable it then"
DISABLED = "the job is disabled, enable it then"


def read(whole: Place, now: datetime) -> None:
    """Add the jobs of a dump. Tasks that do not run at ``now`` are disabled."""
    try:
        rows = json.loads(whole.source.text)
    except ValueError as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 0
        raise Refusal("it is not valid JSON", line) from error
    rows = rows if isinstance(rows, list) else []
    rows = [row for row in rows if isinstance(row, dict) and isinstance(row.get("fields"), dict)]
    by_key = {(str(row.get("model")), str(row.get("pk"))): row["fields"] for row in rows}
    tasks = [row["fields"] for row in rows if row.get("model") == "django_celery_beat.periodictask"]
    if not tasks:
        raise Refusal(
            "no django_celery_beat.periodictask in this dump: dumpdata django_celery_beat writes"
            " them"
        )
    lines = _lines(whole.source.text)
    for fields in tasks:
        name = str(fields.get("name") or "")
        place = whole.at(lines.get(name, 0), f"{shown(name)}: ")
        with place.reporting():
            _periodic_task(place, name, fields, by_key, now)


def _lines(text: str) -> dict[str, int]:
    """Return the line of each name; dumps of one line have none."""
    numbers: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.fullmatch(r'\s*"name": ("[^"]*"),?\s*', line):
            with suppress(ValueError):  # an escape that is cut off
                numbers.setdefault(json.loads(match[1], strict=False), number)
    return numbers


Row = Mapping[str, Any]
Rows = Mapping[tuple[str, str], Row]


def _periodic_task(place: Place, name: str, fields: Row, rows: Rows, now: datetime) -> None:
    if fields.get("task") == "celery.backend_cleanup":
        place.dropped("retention prunes results")
        return
    if fields.get("one_off"):
        raise Refusal("it runs once: use yamlsched enqueue --at")
    try:
        args, kwargs = (
            json.loads(fields.get("args") or "[]"),
            json.loads(fields.get("kwargs") or "{}"),
        )
        entry = {**fields, "args": args, "kwargs": kwargs}
    except (TypeError, ValueError) as error:
        raise Refusal("its args or kwargs are not JSON") from error
    expires, starts = _instant(entry.pop("expires", None)), _instant(entry.pop("start_time", None))
    if expires is not None:
        place.changed(f"its end {expires:%Y-%m-%d %H:%MZ} is not imported: {DISABLE}")
    if starts is not None and starts > now:
        place.changed(f"its start {starts:%Y-%m-%d %H:%MZ} is to come: {DISABLED}")
    if (expires is not None and expires <= now) or (starts is not None and starts > now):
        entry["enabled"] = False
    if fields.get("crontab") is not None:
        row = rows.get(("django_celery_beat.crontabschedule", str(fields["crontab"])))
        if row is None:
            raise Refusal(f"its crontab schedule {shown(fields['crontab'])} is not in this dump")
        if not row.get("timezone"):
            place.changed(f"its crontab schedule has no timezone: {place.source.zone} is used")
        written, times = celery.crontab(
            {key: row[key] for key in celery.FIELDS if key in row},
            str(row.get("timezone") or place.source.zone),
        )
        celery.add_job(place, name, written, times, entry)
    elif fields.get("interval") is not None:
        row = rows.get(("django_celery_beat.intervalschedule", str(fields["interval"]))) or {}
        period = row.get("period")
        every = (
            python_source.interval({str(period): row.get("every")}) if period in PERIODS else None
        )
        celery.add_interval(place, name, every, entry)
    else:
        raise Refusal("its schedule is neither a crontab nor an interval")


def _instant(text: Any) -> datetime | None:
    """Return a time of a dump; None if there is none. Raises Refusal if it is not valid."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise Refusal(f"{shown(text)} is not a valid time") from error
