"""A preview for programs: plain values, ready for JSON. Slots are bounded; their number is always whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from yamlsched import times
from yamlsched.preview.planning import Planned
from yamlsched.preview.values import Change, FieldChange, JobChange, Note, PileUp, Preview, Side, SlotChanges

LISTED = 100
"""At most this many slots of a kind, the first ones, are listed."""


def parts(preview: Preview) -> dict[str, Any]:
    """Return the members of the document."""
    return {
        "at": instant(preview.at),
        "until": instant(preview.until),
        "environment": preview.environment,
        "base": _side(preview.base),
        "head": _side(preview.head),
        "has_changes": preview.has_changes,
        "summary": {
            **{str(change): len(preview.named(change)) for change in Change},
            "unchanged": preview.unchanged,
            "fires_per_week_before": preview.per_week_before,
            "fires_per_week_after": preview.per_week_after,
        },
        "fields": _fields(preview.fields),
        "notes": _notes(preview.notes),
        "jobs": [_job(job) for job in preview.jobs],
        "pile_ups": [_pile_up(one) for one in preview.pile_ups],
    }


def planned(plan: Planned) -> dict[str, Any]:
    """Return the members of the document of a plan."""
    state = plan.state
    in_force = None
    if state.in_force_id is not None:
        in_force = {
            "hash": state.in_force_hash,
            "environment": state.in_force_environment or None,
            "host": state.in_force_host,
            "path": state.in_force_path,
            "since": instant(state.in_force_since),
        }
    return {
        "namespace": plan.preview.head.namespace,
        "file": {"path": plan.path, "hash": plan.version.hash, "environment": plan.version.environment or None},
        "in_force": in_force,
        "verdict": str(plan.verdict),
        "explanation": plan.explanation or None,
        **parts(plan.preview),
        "returned": list(plan.returned),
        "runs": [
            {
                "job_type": run.job_type,
                "idempotency_key": run.key,
                "scheduled_for": instant(run.slot),
                "run_at": instant(run.run_at),
                "settles": run.settles,
            }
            for run in plan.runs
        ],
        "skipped": [
            {
                "job_type": gap.job_type,
                "first_slot": instant(gap.first),
                "last_slot": instant(gap.last),
                "slots": gap.slots,
                "reason": gap.reason,
            }
            for gap in plan.gaps
        ],
        "waiting": [
            {"job_type": one.job_type, "scheduled_for": instant(one.slot), "open_slot": instant(one.open_slot)}
            for one in plan.waiting
        ],
        "leaving": [
            {
                "job_type": one.job_type,
                "unfinished": one.runs,
                "running": one.running,
                "cancelled_at": instant(one.cancelled_at),
            }
            for one in plan.leaving
        ],
        "paused": [
            {
                "job_type": one.job_type,
                "paused_at": instant(one.since),
                "paused_until": instant(one.until),
                "paused_by": one.by,
                "paused_reason": one.reason,
            }
            for one in plan.paused
        ],
        "unreadable": list(plan.unreadable),
    }


def instant(value: datetime | None) -> str | None:
    """Return an instant in RFC 3339."""
    return None if value is None else times.rfc3339(value)


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "namespace": side.namespace,
        "timezone": side.timezone,
        "jobs": len(side.entries),
        "invalid_jobs": list(side.invalid),
    }


def _fields(fields: Sequence[FieldChange]) -> list[dict[str, Any]]:
    return [{"field": one.field, "before": one.before, "after": one.after} for one in fields]


def _notes(notes: Sequence[Note]) -> list[dict[str, str]]:
    return [{"level": str(note.level), "text": note.text} for note in notes]


def _job(job: JobChange) -> dict[str, Any]:
    return {
        "job_type": job.job_type,
        "change": str(job.change),
        "looks_like": job.looks_like,
        "timezone": job.timezone,
        "fields": _fields(job.fields),
        "fires_per_week_before": job.per_week_before,
        "fires_per_week_after": job.per_week_after,
        "next_slot_at": instant(job.next_slot_at),
        "slots": _slots(job.slots),
        "key_taken": [{"scheduled_for": instant(one.slot), "key": one.key, "by": instant(one.by)} for one in job.taken],
        "notes": _notes(job.notes),
    }


def _slots(slots: SlotChanges) -> dict[str, Any]:
    return {
        "added_count": len(slots.added),
        "added": [instant(slot) for slot in slots.added[:LISTED]],
        "removed_count": len(slots.removed),
        "removed": [instant(slot) for slot in slots.removed[:LISTED]],
        "compared_until": instant(slots.compared_until),
        "moved_count": len(slots.moved),
        "moved": [{"before": instant(one.before), "after": instant(one.after)} for one in slots.moved[:LISTED]],
    }


def _pile_up(one: PileUp) -> dict[str, Any]:
    return {
        "jobs": list(one.jobs),
        "times": one.times,
        "first_at": instant(one.first_at),
        "jobs_before": one.jobs_before,
    }
