"""Which runs an action on many is about: the filters of its form, and the runs that match."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from yamlsched.ask import search
from yamlsched.ask.runs import RunRow
from yamlsched.ask.search import Filter
from yamlsched.errors import Refused
from yamlsched.extras.web import flow
from yamlsched.extras.web.flow import Given, Invalid
from yamlsched.extras.web.render import sentence
from yamlsched.extras.web.visit import Visit
from yamlsched.timetable import times
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.zones import zone_or_utc

MAX_RUNS = 5_000
"""Runs of one form. Of more, the oldest are taken."""
NO_TYPE = "-"
"""In a link: runs that died without an error_type."""
FILTERS = ("job", "tag", "owner", "error_type", "since", "until", "runs", "all")
"""A link without any of these leads to the form. ``all`` filters nothing."""
LIMITS = {"runs": 2_000}


def reviewed(
    visit: Visit, values: Given, statuses: Sequence[str], newest: datetime | None
) -> tuple[list[RunRow], dict[str, str]]:
    """Return the runs of a review, and its span as the form carries it: up to ``newest``, if there
    is one.
    """
    timezone = visit.timezone_of(values["job"])
    since, until = (instant(values, name, timezone, visit.now) for name in ("since", "until"))
    until = min(until, newest) if until and newest else until or newest
    rows = select(visit.connection, visit.namespace, values, statuses, since, until)
    return rows, {
        "since": rfc3339(since) if since else "",
        "until": rfc3339(until) if until else "",
    }


def select(
    connection: Any,
    namespace: str,
    values: Given,
    statuses: Sequence[str],
    since: datetime | None,
    until: datetime | None,
) -> list[RunRow]:
    """Return the runs that a form is about, the oldest first; one more than ``MAX_RUNS`` if there
    are more.
    """
    if values["job"]:
        flow.job_for(connection, namespace, values["job"])
    filter = Filter(
        jobs=[values["job"]] if values["job"] else [],
        tags=[values["tag"]] if values["tag"] else [],
        owner=values["owner"],
        statuses=statuses,
        since=since,
        until=until,
        error_type={"": None, NO_TYPE: ""}.get(values["error_type"], values["error_type"]),
        ids=chosen_ids(values),
    )
    before = values.number("upto") + 1 if values["upto"] else None
    try:
        found = search.page(connection, namespace, filter, MAX_RUNS + 1, before=before, after=0)
    except Refused as error:
        field = "owner" if "the owner" in str(error) else "tag"
        raise Invalid(field, sentence(str(error))) from None
    return list(found.runs[::-1])


def instant(values: Given, name: str, timezone: str, now: datetime | None) -> datetime | None:
    """Return a time of the form; without ``now``, as the review has written it."""
    if now is None or (value := values.time(name)) is None:
        return values.instant(name)
    try:
        return times.resolve(value, lambda: zone_or_utc(timezone), now, is_future=False)
    except (ValueError, OverflowError) as error:
        raise Invalid(name, sentence(str(error))) from None


def chosen_ids(values: Given) -> list[int]:
    words = values["runs"].split()
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise Invalid("runs", "These are not ids of runs.")
    return [int(word) for word in dict.fromkeys(words)]


def condition(values: Given) -> str:
    names = {"": "", NO_TYPE: " without an error class"}
    parts = [names.get(values["error_type"], f" that died of {values['error_type']}")]
    parts += [
        f", {name} {values[name]}" for name in ("tag", "owner", "since", "until") if values[name]
    ]
    return "".join(parts)
