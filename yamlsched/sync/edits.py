"""The record of an edit: how a file changes each job, and what it says outside of its jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from psycopg.types.json import Jsonb

from yamlsched import secret_forms
from yamlsched.db.query import Connection, execute, fetch_column
from yamlsched.errors import YamlschedError
from yamlsched.runs.lifecycle import Keep
from yamlsched.schedule.job import KEYS, Job, Output, from_row
from yamlsched.schedule.load import Loaded
from yamlsched.sync import field_changes
from yamlsched.sync.definitions import Difference
from yamlsched.sync.due import Changes
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.revision import Revision

MAX_VALUE_CHARS = 2_000
"""Of one value, as JSON, that are recorded."""
DEFAULTS = Job("")
COMMAND_DEFAULTS = Job("", output=Output(Keep.ALWAYS))


def latest_settings(connection: Connection, namespace: str) -> dict[str, Any] | None:
    """Return what the file that was applied last says outside of its jobs; None: there is none."""
    rows = fetch_column(connection, "edits.latest_settings", namespace=namespace)
    return rows[0] if rows else None


def job_edits(
    connection: Connection, differences: Iterable[Difference], jobs: Mapping[str, Job]
) -> list[dict[str, Any]]:
    """Return how each job changes, as the columns of edited_jobs with the job's name. The
    definitions are not written yet.
    """
    ids = [difference.id for difference in differences if difference.id is not None]
    rows = execute(connection, "edits.definitions", ids=ids)
    stored = {row.job_type: row._asdict() for row in rows}
    return [
        _job_edit(each, stored.get(each.job_type), jobs.get(each.job_type)) for each in differences
    ]


def _job_edit(
    difference: Difference, row: dict[str, Any] | None, new: Job | None
) -> dict[str, Any]:
    old = _readable_job(row)
    one_side = new or old or DEFAULTS
    defaults = COMMAND_DEFAULTS if one_side.command else DEFAULTS
    changes = field_changes.job_changes(
        _keys(old) if old else None, _keys(new) if new else None, _keys(defaults)
    )
    before = {change.field: _shown(change.field, change.before) for change in changes}
    after = {change.field: _shown(change.field, change.after) for change in changes}
    if row and old and old.cron is None and "cron" in before:
        before["cron"] = row["schedule"]  # this release cannot read it
    if row is None or new is None:
        before, after = _without_unset(before), _without_unset(after)
    return {
        "job_type": difference.job_type,
        "change": difference.change,
        "before": None if row is None else before,
        "after": None if new is None else after,
    }


def _readable_job(row: dict[str, Any] | None) -> Job | None:
    if row is None:
        return None
    try:
        return from_row(row)
    except (YamlschedError, ValueError, KeyError, TypeError):
        return None  # another release wrote it


def _keys(job: Job) -> dict[str, Any]:
    return {key: read(getattr(job, key)) for key, read in KEYS.items()}


def _without_unset(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _shown(field: str, value: Any) -> Any:
    """Return a value as it is recorded: without secrets, and as a string if it is long."""
    if value is None:
        return None
    if field == "command":
        kept = secret_forms.mask_command(value)
    else:
        kept = secret_forms.mask_value(field.rpartition(".")[2], value)
    if not isinstance(kept, (str, list, dict)):
        return kept
    text = kept if isinstance(kept, str) else json.dumps(kept, ensure_ascii=False)
    return kept if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "…"


def record(
    connection: Connection,
    schedule: ScheduleFile,
    loaded: Loaded,
    revision: Revision,
    changes: Changes,
) -> None:
    """Record the edit that applies a file, in the caller's transaction."""
    settings = field_changes.settings(loaded)
    former = latest_settings(connection, str(loaded.namespace))
    fields = list(field_changes.settings_changes(former or {}, settings))
    before = {change.field: change.before for change in fields}
    recorded = execute(
        connection,
        "edits.record",
        namespace=loaded.namespace,
        environment=schedule.environment,
        hash=schedule.sha256,
        host=schedule.host,
        path=schedule.path,
        yamlsched_version=schedule.version.yamlsched_version,
        commit=revision.commit,
        is_dirty=revision.is_dirty,
        author=revision.author,
        subject=revision.subject,
        counts=Jsonb(changes.summary()),
        before=None if former is None else Jsonb(before),
        after=Jsonb({change.field: change.after for change in fields}),
        settings=Jsonb(settings),
        now=changes.now,
        jobs=Jsonb(changes.edits),
    ).rowcount
    assert recorded == len(changes.edits)
