"""What targets of notifications are told: each death is noted, nothing is lost, and what was told is not told again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from .evidence import Evidence, Message, Version, seconds
from .schedule import TARGETS

EDIT_SECONDS = 3.0
RESET = "next minute"
"""The application_name of the session that lets a minute pass for targets."""
RECOVERED = re.compile(r"^(?:\[[^]]*\] )?(\w+):? has recovered\b", re.MULTILINE)


def check_noted(e: Evidence) -> Iterator[str]:
    """A death is noted for the targets of its job, in the transaction in which the run dies."""
    for run, versions in e.runs.items():
        for before, after in pairwise(versions):
            if (
                after.status != "dead"
                or before.status == "dead"
                or may_be_off(e, after.row["definition_id"], after.at)
            ):
                continue
            for target in ("ops", f"of_{after.row['job_type']}"):
                noted = e.notes.get((target, after.row["job_type"]), [])
                if not any(note.xact == after.xact for note in noted):
                    yield f"run {run} of {after.row['job_type']} died at version {after.seq}, and {target} has no row"


def may_be_off(e: Evidence, definition: int, at: float) -> bool:
    """Return whether a job was disabled, paused or retired at a time, or shortly before or after."""
    versions = e.definitions.get(definition, [])
    before = [version for version in versions if version.at <= at - EDIT_SECONDS][-1:]
    around = [version for version in versions if abs(version.at - at) < EDIT_SECONDS]
    rows = [version.row for version in (*before, *around)]
    return not rows or any(
        not row["enabled"] or row["retired_at"] or row["paused_at"] for row in rows
    )


def check_told(e: Evidence) -> Iterator[str]:
    """A death is forgotten only if it was told, or the job has recovered or is off; at the end nothing is due."""
    for (target, subject), versions in e.notes.items():
        name = f"{subject} for {target}"
        for before, after in pairwise(versions):
            row, is_over = after.row, after.row["ended_at"] is not None
            if after.op == "DELETE":
                is_off = row["definition_id"] is None or may_be_off(
                    e, row["definition_id"], after.at
                )
                if before.op != "DELETE" and row["due_at"] and not is_over and not is_off:
                    yield f"{name} was due and was deleted (version {after.seq})"
            elif before.op == "DELETE" or is_over:
                continue
            elif row["dead_runs"] < row["told_runs"]:
                yield f"{name} has {row['dead_runs']} deaths, and {row['told_runs']} were sent (version {after.seq})"
            elif row["since"] == before.row["since"] and row["dead_runs"] < before.row["dead_runs"]:
                yield f"{name} lost {before.row['dead_runs'] - row['dead_runs']} deaths (version {after.seq})"
            elif (
                row["dead_runs"] > row["told_runs"]
                and not row["due_at"]
                and not may_be_off(e, row["definition_id"], after.at)
            ):
                yield f"{name} has deaths that are never told (version {after.seq})"
        last = versions[-1]
        if (
            last.op != "DELETE"
            and (due_at := seconds(last.row["due_at"])) is not None
            and due_at < e.ended
        ):
            yield f"{name} was due at {last.row['due_at']} and not told"


def check_one_sender(e: Evidence) -> Iterator[str]:
    """Nobody takes a target before the minute of the one who took it has ended."""
    for target, versions in e.targets.items():
        until = float("-inf")
        for before, after in pairwise(versions):
            next_at = seconds(after.row["next_at"]) if after.row["next_at"] != "-infinity" else None
            if after.writer == RESET:
                until = float("-inf")
            elif next_at is not None and after.row["next_at"] != before.row["next_at"]:
                is_take = (
                    after.row["failing_since"] == before.row["failing_since"]
                    and next_at > after.at + 50
                )
                if is_take and after.at < until:
                    yield f"{target} was taken again {until - after.at:.1f} s early, by {after.writer}"
                until = max(until, next_at)


def check_said_once(e: Evidence) -> Iterator[str]:
    """A message that was sent, and is written as told, is not sent again; and no recovery is said twice."""
    for target in TARGETS:
        messages = [message for message in e.messages if message.target == target]
        for nth, message in enumerate(messages):
            later = messages[nth + 1 :]
            if not was_written(e, message, later[0].at if later else float("inf")):
                continue
            for other in later:
                # which may be the same twice, and is counted below
                is_end = RECOVERED.search(message.text)
                if (
                    other.text == message.text
                    and not is_end
                    and not was_reset(e, target, message.at, other.at)
                ):
                    yield f"{target} was told twice: {message.text!r}"
            for name in RECOVERED.findall(message.text):
                versions = e.notes.get((target, name), [])
                ends = sum(after.row["ended_at"] is not None and before.row["ended_at"] is None
                           for before, after in pairwise(versions))  # fmt: skip
                said = sum(name in RECOVERED.findall(other.text) for other in (message, *later))
                if said > ends and not was_reset(e, target, message.at, e.ended):
                    yield f"{target} was told {said} times that {name} has recovered, which it did {ends} times"


def was_written(e: Evidence, message: Message, until: float) -> bool:
    """Return whether the sender has written that a message was told: it changes the target's row, and not its time."""
    return any(
        message.at <= after.at <= until
        and after.row["error"] is None
        and after.row["next_at"] == before.row["next_at"]
        for before, after in pairwise(e.targets.get(message.target, []))
    )


def was_reset(e: Evidence, target: str, start: float, end: float) -> bool:
    """Return whether rows of a target were deleted: what is told of the job after that is new."""
    rows: list[Version] = [
        v for (name, _), versions in e.notes.items() if name == target for v in versions
    ]
    return any(version.op == "DELETE" and start - 1 <= version.at <= end for version in rows)


CHECKS = (check_noted, check_told, check_one_sender, check_said_once)
