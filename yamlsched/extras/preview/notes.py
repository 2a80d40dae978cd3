"""The effects of an edit as sentences: what a reviewer would otherwise have to work out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from yamlsched.durations import show
from yamlsched.extras.preview import slot_changes
from yamlsched.extras.preview.model import (
    Entry,
    Hint,
    JobChange,
    KeyConflict,
    Level,
    MovedSlot,
    Side,
    note,
    warning,
)
from yamlsched.runs import backoff
from yamlsched.schedule.job import AfterEnqueued, Catchup, Job, Overlap, UpstreamFailure
from yamlsched.sync.slot_plan import CATCHUP_NONE_WINDOW
from yamlsched.text import join_first, join_words, quoted
from yamlsched.timetable import keys
from yamlsched.timetable.words import describe
from yamlsched.timetable.zones import zone

MAX_NAMES = 10
"""Jobs that a sentence names."""
OVERLAP = {
    Overlap.WAIT: (
        "a slot that is due while a run is unfinished now waits: two runs never execute at the same"
        " time"
    ),
    Overlap.SKIP: (
        "a slot that is due while a run is unfinished is now recorded as skipped, not run"
    ),
    Overlap.ALLOW: (
        "a second run no longer waits for the first: two runs of this job may execute at the same"
        " time"
    ),
}
CATCHUP = {
    Catchup.LATEST: "of several missed slots only the newest now runs",
    Catchup.ALL: "of several missed slots each now runs, oldest first",
    Catchup.NONE: (
        f"slots missed by {show(CATCHUP_NONE_WINDOW)} or more are now recorded as late, not run"
    ),
}
UPSTREAM_FAILURE = {
    UpstreamFailure.WAIT: "now waits for a retry of that",
    UpstreamFailure.SKIP: "is now skipped, also one that waits already",
    UpstreamFailure.RUN: "now runs, also one that waits already",
}
AFTER_ENQUEUED = {
    None: "a slot no longer waits for the runs that those it follows enqueue",
    AfterEnqueued.ENDED: "a slot now waits until the runs that those it follows enqueue have ended",
    AfterEnqueued.SUCCEEDED: (
        "a slot now waits until the runs that those it follows enqueue have succeeded"
    ),
}
HOOK_EVENTS = {
    "on_dead": "when a run is dead",
    "on_failure": "when an attempt fails and will be retried",
    "on_success": "when a run succeeds",
}
RETIRED = note("it is retired: no slots, no claims; its unfinished runs are cancelled a day later")


def of_conflicts(conflicts: Sequence[KeyConflict], job: Job) -> Iterator[Hint]:
    for slot in conflicts:
        by = (
            f"the slot at {_local(slot.by, job)}" if slot.by else "a run that was enqueued manually"
        )
        yield warning(
            f"it does not run at {_local(slot.scheduled_for, job)}: its key {slot.key} was used by"
            f" {by}"
        )


def of_missed(missed: Sequence[MovedSlot], job: Job) -> Iterator[Hint]:
    for move in missed:
        yield warning(
            f"its slot at {_local(move.before, job)} is removed, and the new time,"
            f" {_local(move.after, job)}, has passed: an edit never fires past slots, so there is"
            " no run on that date"
        )


def _local(instant: datetime, job: Job) -> str:
    return f"{instant.astimezone(zone(job.timezone)):%Y-%m-%d %H:%M}"


def of_edit(namespace: str, before: Entry, after: Entry, environment: str | None) -> Iterator[Hint]:
    """Yield what a changed job does differently, apart from its slots."""
    if before.environments != after.environments:
        yield note(_environments(before.environments, after.environments))
    old, new = before.job, after.job
    where = f" in {environment}" if environment else ""
    if old.enabled and not new.enabled:
        yield warning(f"disabled{where}: no slots, no claims, enqueue is rejected")
    elif new.enabled and not old.enabled:
        yield note(f"enabled{where}: its slots count from the edit on, and past slots are not run")
    elif not new.enabled:
        yield note(f"it remains disabled{where}")
    if old.cron and not new.cron:
        yield warning("it no longer has slots: it runs only when it is enqueued")
    elif new.cron and not old.cron:
        yield note("it now has slots, in addition to enqueued runs")
    yield from _of_runs(old, new)
    yield from _of_policies(namespace, old, new)
    if edges := _sets(old.after, new.after, "wait for", "no longer wait for"):
        yield note(
            "slots after the edit"
            f" {edges}{', as earlier ones do' * bool(_without(old.after, new.after))}"
        )
    if old.after and new.after and old.after_enqueued != new.after_enqueued:
        yield note(AFTER_ENQUEUED[new.after_enqueued])
    if old.after and new.after and old.on_upstream_failure is not new.on_upstream_failure:
        yield warning(
            "a slot that waits for a dead or cancelled run"
            f" {UPSTREAM_FAILURE[new.on_upstream_failure]}"
        )
    for key, when in HOOK_EVENTS.items():
        hooks: tuple[str, ...] = getattr(new, key)
        if getattr(old, key) and not hooks:
            yield warning(f"no hook runs {when}")
        elif getattr(old, key) != hooks:
            yield note(f"{join_words(hooks, 'and')} {'runs' if len(hooks) == 1 else 'run'} {when}")


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]


def of_slots(entry: Entry, base: Side, head: Side, at: datetime) -> Iterator[Hint]:
    """Yield when a job fires or whose slots it has, and which come before the first of a new job
    that it follows.
    """
    job = entry.job
    if entry.slots_of:
        yield note(f"it has the slots of {join_words(entry.slots_of, 'and')}")
    elif job.enabled and job.cron and (when := describe(job.cron, job.timezone, at)):
        yield note(when)
    first = slot_changes.next_run_slot(slot_changes.rule(job), at, ())
    for name in job.after if first and job.on_upstream_failure is not UpstreamFailure.RUN else ():
        other = slot_changes.next_run_slot(slot_changes.rule(head.entries[name].job), at, ())
        if name not in {*base.entries, *base.invalid, *base.retired} and not (
            other and first and other <= first
        ):
            which = f"its slots before {_local(other, job)}" if other else "its slots"
            yield warning(
                f"{which} have nothing to wait for, because {name} is new: they are skipped"
            )


def of_followers(name: str, base: Side, head: Side) -> Iterator[Hint]:
    """Yield what becomes of slots that wait for a job that is disabled or removed."""
    if name in head.entries:
        slots, names = (
            "after the edit have nothing to wait for: they are skipped",
            followers(name, head),
        )
    else:
        slots, names = (
            "that wait for it are skipped, unless its run is executing",
            followers(name, base),
        )
    if names:
        yield warning(f"slots of {join_first(names, MAX_NAMES)} {slots}")


def followers(name: str, side: Side) -> tuple[str, ...]:
    """Return the jobs whose slots are skipped if there is nothing to wait for at one that they
    follow.
    """
    jobs = (entry.job for entry in side.entries.values())
    return tuple(
        job.name
        for job in jobs
        if name in job.after and job.on_upstream_failure is not UpstreamFailure.RUN
    )


def _environments(before: tuple[str, ...] | None, after: tuple[str, ...] | None) -> str:
    if after is None:
        return "it now runs in every environment"
    if before is None:
        return f"it now runs only in {join_words(after, 'and')}"
    change = _sets(before, after, "now runs in", "no longer runs in")
    return f"it {change}" if change else "its environments are written in another order"


def _sets(before: Sequence[str], after: Sequence[str], gains: str, loses: str) -> str:
    pairs = ((gains, _without(after, before)), (loses, _without(before, after)))
    return " and ".join(f"{verb} {join_words(names, 'and')}" for verb, names in pairs if names)


def _of_runs(old: Job, new: Job) -> Iterator[Hint]:
    """Yield how runs execute, are retried and end."""
    if (old.handler, old.command) != (new.handler, new.command):
        yield note(
            "runs that are already queued also use the new"
            f" {'command' if new.command else 'handler'}"
        )
    if old.payload != new.payload and new.cron:
        yield note("runs created after the edit get the new payload; earlier runs keep theirs")
    if _gives_up(old) != _gives_up(new):
        yield note(f"a failing run now gives up {_gives_up(new)} instead of {_gives_up(old)}")
    if old.timeout != new.timeout:
        yield note(
            f"an attempt is now killed after {show(new.timeout)} instead of {show(old.timeout)}"
        )
    if old.lease != new.lease:
        yield note(
            f"a run whose worker dies is taken over after {show(new.lease)} instead of"
            f" {show(old.lease)}"
        )


def _gives_up(job: Job) -> str:
    if job.max_attempts == 1:
        return "at its first failure"
    waits = (
        backoff.delay(job.backoff, attempt, random=0.0) for attempt in range(1, job.max_attempts)
    )
    return f"after {job.max_attempts} attempts and {show(sum(waits, timedelta(0)))} of waiting"


def _of_policies(namespace: str, old: Job, new: Job) -> Iterator[Hint]:
    """Yield which slots run, and when."""
    if old.cron and new.cron:
        if old.overlap is not new.overlap:
            yield Hint(
                Level.WARNING if new.overlap is Overlap.ALLOW else Level.NOTE, OVERLAP[new.overlap]
            )
        if old.catchup is not new.catchup:
            yield note(CATCHUP[new.catchup])
        was, window = old.catchup_window, new.catchup_window
        if window < was:
            yield note(
                f"slots missed for more than {show(window)} are now recorded as late, not run (was"
                f" {show(was)})"
            )
        elif window > was:
            yield note(f"slots missed for up to {show(window)} are now run (was {show(was)})")
    starts = [keys.offset(namespace, job.name, job.spread) for job in (old, new)]
    if starts[0] != starts[1] and new.cron:
        before, after = (f"{show(delay)} after" if delay else "at" for delay in starts)
        yield note(
            f"its runs now start {after} their slot instead of {before} it; a run that waits for"
            " its time moves, too"
        )


def of_base(base: Side, head: Side) -> Iterator[Hint]:
    """Yield what is unknown because the base is missing or invalid."""
    if base.remark is not None:
        yield base.remark
    removed = [quoted(name) for name in base.invalid if name not in head.entries]
    if removed:
        yield note(
            f"jobs that have errors in {base.name} are removed: {join_first(removed, MAX_NAMES)}"
        )


def of_file(
    before: Side, after: Side, jobs: Sequence[JobChange], is_timezone_changed: bool
) -> Iterator[Hint]:
    """Yield what changes outside of jobs mean."""
    if before.namespace != after.namespace:
        yield warning(
            f"all jobs move from namespace {before.namespace} to {after.namespace}, where they are"
            f" new, without history or used keys. The jobs in {before.namespace} are not retired:"
            " their queued runs wait for a file that names it"
        )
    if (
        before.retention is not None
        and after.retention is not None
        and after.retention.keys < before.retention.keys
    ):
        new, old = show(after.retention.keys), show(before.retention.keys)
        yield note(f"a key can be used again {new} after its run was pruned (was {old})")
    if is_timezone_changed:
        moved = [
            job.job_type
            for job in jobs
            if job.slots and any(change.field == "timezone" for change in job.fields)
        ]
        slots = f"the slots of {join_first(moved, MAX_NAMES)}" if moved else "no slots"
        yield note(f"the new timezone moves {slots}")
