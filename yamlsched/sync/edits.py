"""What is recorded of an edit: how it changes jobs, key by key, without what looks like a secret."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from yamlsched.definitions import field_changes, secrets
from yamlsched.definitions.job import COLUMNS, Job, Output, from_row
from yamlsched.definitions.load import Loaded
from yamlsched.errors import YamlschedError
from yamlsched.runs import Keep
from yamlsched.store import edits as store
from yamlsched.store.dsn import redactor
from yamlsched.sync.model import ScheduleFile
from yamlsched.sync.revision import Revision

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.store.definitions import Difference
    from yamlsched.sync.converge import Changes

MAX_VALUE_CHARS = 2_000
"""Of one value, as JSON, that are recorded."""
DEFAULTS = Job("")
COMMAND_DEFAULTS = Job("", output=Output(Keep.ALWAYS))
KEYS = {key: column.show for key, column in COLUMNS.items() if key != "name"}
"""How each key of a job is shown, in the order in which a reviewer reads them."""
_values = attrgetter(*KEYS)
_redact = redactor("")


class StoredJob(NamedTuple):
    """A job as it is stored; None if this release cannot read it. ``schedule`` is its cron, readable or not."""

    job: Job | None
    schedule: str | None


def stored_jobs(connection: Connection[Any], ids: list[int]) -> dict[str, StoredJob]:
    """Return jobs as they are stored, by name."""
    return {row["job_type"]: StoredJob(_job(row), row["schedule"]) for row in store.definitions(connection, ids)}


def _job(row: dict[str, Any]) -> Job | None:
    try:
        return from_row(row)
    except (YamlschedError, ValueError, KeyError, TypeError):
        return None


def of_jobs(
    differences: Iterable[Difference], before: Mapping[str, StoredJob], jobs: Mapping[str, Job]
) -> list[dict[str, Any]]:
    """Return how each job changes, as the columns of edited_jobs with the job's name."""
    return [_of_job(one, before.get(one.job_type), jobs.get(one.job_type)) for one in differences]


def _of_job(difference: Difference, stored: StoredJob | None, new: Job | None) -> dict[str, Any]:
    old = stored.job if stored else None
    one_side = new or old or DEFAULTS
    defaults = COMMAND_DEFAULTS if one_side.command else DEFAULTS
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    if stored and new:
        differing = list(_differing(old or defaults, new))
        fields = field_changes.of_job(
            _keys(old, differing) if old else None, _keys(new, differing), _keys(defaults, differing)
        )
        before = {one.field: _shown(one.field, one.before) for one in fields}
        after = {one.field: _shown(one.field, one.after) for one in fields}
        if old and old.cron is None and "cron" in before:
            before["cron"] = stored.schedule
    elif stored:
        before = _set_keys(old or defaults, defaults)
    elif new:
        after = _set_keys(new, defaults)
    return {"job_type": difference.job_type, "change": difference.change, "before": before, "after": after}


def _differing(one: Job, other: Job) -> Iterator[str]:
    """Yield the keys that differ. Most are alike: only the others are made readable."""
    for key, a, b in zip(KEYS, _values(one), _values(other), strict=True):
        if a is not b and (a != b or (a and isinstance(a, dict) and not field_changes.is_same(a, b))):
            yield key


def _set_keys(job: Job, defaults: Job) -> dict[str, Any]:
    """Return the keys of a job that differ from the defaults."""
    shown = ((key, KEYS[key](getattr(job, key))) for key in _differing(job, defaults))
    return {key: _shown(key, value) for key, value in shown if value is not None}


def _keys(job: Job, keys: Iterable[str]) -> dict[str, Any]:
    return {key: KEYS[key](getattr(job, key)) for key in keys}


def _shown(field: str, value: Any) -> Any:
    """Return a value as it is recorded: without secrets, and as a string if it is long."""
    if value is None:
        return None
    if field == "command":
        kept = secrets.command_without_secrets(value, _redact)
    else:
        kept = secrets.without_secrets(field.rpartition(".")[2], value, _redact)
    if not isinstance(kept, (str, list, dict)):
        return kept
    text = kept if isinstance(kept, str) else json.dumps(kept, ensure_ascii=False)
    return kept if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "…"


def _shown_settings(loaded: Loaded) -> dict[str, Any]:
    """Return what a file says outside of its jobs, as it is recorded."""
    found = {key: value for key, value in field_changes.settings(loaded).items() if key != "executors"}
    executors = {
        name: {key: _shown(key, value) for key, value in executor.to_yaml().items()}
        for name, executor in loaded.executors.items()
    }
    return {**found, "executors": executors}


def record(
    connection: Connection[Any],
    schedule: ScheduleFile,
    loaded: Loaded,
    revision: Revision,
    changes: Changes,
) -> None:
    """Record the edit that applies a file, in the caller's transaction."""
    namespace = str(loaded.namespace)
    settings = _shown_settings(loaded)
    former = store.latest_settings(connection, namespace)
    fields = list(field_changes.of_settings(former, settings)) if former is not None else []
    recorded = store.record(
        connection,
        {
            "namespace": namespace,
            "environment": schedule.environment,
            "hash": schedule.sha256,
            "host": schedule.host,
            "path": schedule.path,
            "yamlsched_version": schedule.version.yamlsched_version,
            "commit": revision.commit,
            "is_dirty": revision.is_dirty,
            "author": revision.author,
            "subject": revision.subject,
            "counts": changes.summary(),
            "before": None if former is None else {one.field: one.before for one in fields},
            "after": {one.field: one.after for one in fields},
            "settings": settings,
            "now": changes.now,
        },
        changes.edits,
    )
    assert recorded == len(changes.edits)
