"""Effects of an edit as sentences: what a reviewer would have to work out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from yamlsched import backoff, durations
from yamlsched.definitions.job import Catchup, Job, Overlap
from yamlsched.definitions.wording import join_words
from yamlsched.preview.values import Entry, Level, Note, Side
from yamlsched.sync.slot_plan import CATCHUP_NONE_WINDOW, spread_offset

Words = Iterator[Note]

OVERLAP = {
    Overlap.WAIT: "a slot that is due while a run is unfinished now waits: two runs never execute at the same time",
    Overlap.SKIP: "a slot that is due while a run is unfinished is now recorded as skipped, not run",
    Overlap.ALLOW: "a second run no longer waits for the first: two runs of this job may execute at the same time",
}
CATCHUP = {
    Catchup.LATEST: "of several missed slots only the newest now runs",
    Catchup.ALL: "of several missed slots each now runs, oldest first",
    Catchup.NONE: f"slots missed by {durations.show(CATCHUP_NONE_WINDOW)} or more are now recorded as late, not run",
}


def of_edit(before: Entry, after: Entry, environment: str | None) -> Words:
    """Yield what a changed job will do otherwise, its slots left aside."""
    yield from _whether(before, after, environment)
    for words in RULES:
        yield from words(before.job, after.job)


def _whether(before: Entry, after: Entry, environment: str | None) -> Words:
    """Say where it runs, and whether at all."""
    if before.environments != after.environments:
        yield Note(_environments(before.environments, after.environments))
    old, new = before.job, after.job
    where = f" in {environment}" if environment else ""
    if old.enabled and not new.enabled:
        yield Note(f"disabled{where}: no slots, no claims, enqueue is rejected", Level.WARNING)
    elif new.enabled and not old.enabled:
        yield Note(f"enabled{where}: its slots count from the edit on, and past slots are not run")
    elif not new.enabled:
        yield Note(f"it stays disabled{where}")


def _environments(before: tuple[str, ...] | None, after: tuple[str, ...] | None) -> str:
    if after is None:
        return "it now runs in every environment"
    if before is None:
        return f"it now runs only in {_listed(after)}"
    come = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    parts = []
    if come:
        parts.append(f"now runs in {_listed(come)}")
    if gone:
        parts.append(f"no longer runs in {_listed(gone)}")
    return "it " + " and ".join(parts) if parts else "its environments are written in another order"


def _cron(before: Job, after: Job) -> Words:
    if before.cron and not after.cron:
        yield Note("it no longer has slots: it runs only when it is enqueued", Level.WARNING)
    elif after.cron and not before.cron:
        yield Note("it now has slots, in addition to enqueued runs")


def _handler(before: Job, after: Job) -> Words:
    if before.handler != after.handler:
        yield Note("runs that are already queued also use the new handler")


def _payload(before: Job, after: Job) -> Words:
    if before.payload != after.payload and after.cron:
        yield Note("runs created after the edit get the new payload; earlier runs keep theirs")


def _retries(before: Job, after: Job) -> Words:
    old, new = _gives_up(before), _gives_up(after)
    if old != new:
        yield Note(f"a failing run now gives up {new} instead of {old}")


def _gives_up(job: Job) -> str:
    if job.max_attempts == 1:
        return "at its first failure"
    waits = (backoff.delay(job.backoff, attempt, random=0.0) for attempt in range(1, job.max_attempts))
    return f"after {job.max_attempts} attempts and {durations.show(sum(waits, timedelta(0)))} of waiting"


def _timeout(before: Job, after: Job) -> Words:
    if before.timeout != after.timeout:
        yield Note(f"an attempt is now killed after {_shown(after.timeout)} instead of {_shown(before.timeout)}")


def _lease(before: Job, after: Job) -> Words:
    if before.lease != after.lease:
        within = f"{_shown(after.lease)} instead of {_shown(before.lease)}"
        yield Note(f"a run whose worker dies is taken over after {within}")


def _overlap(before: Job, after: Job) -> Words:
    if before.overlap is not after.overlap and before.cron and after.cron:
        level = Level.WARNING if after.overlap is Overlap.ALLOW else Level.NOTE
        yield Note(OVERLAP[after.overlap], level)


def _catchup(before: Job, after: Job) -> Words:
    if not (before.cron and after.cron):
        return
    if before.catchup is not after.catchup:
        yield Note(CATCHUP[after.catchup])
    old, new = before.catchup_window, after.catchup_window
    if new < old:
        yield Note(f"slots missed for more than {_shown(new)} are now recorded as late, not run (was {_shown(old)})")
    elif new > old:
        yield Note(f"slots missed for up to {_shown(new)} are now run (was {_shown(old)})")


def _spread(before: Job, after: Job) -> Words:
    old, new = spread_offset(before.name, before.spread), spread_offset(after.name, after.spread)
    if old != new and after.cron:
        starts = f"{_shown(new)} after" if new else "at"
        yield Note(f"its runs now start {starts} their slot instead of {_shown(old) + ' after' if old else 'at'} it")


def _on_dead(before: Job, after: Job) -> Words:
    if before.on_dead and not after.on_dead:
        yield Note("nothing is called when a run is dead", Level.WARNING)
    elif after.on_dead != before.on_dead:
        yield Note(f"when a run is dead, {after.on_dead} is called")


RULES: tuple[Callable[[Job, Job], Words], ...] = (
    _cron,
    _handler,
    _payload,
    _retries,
    _timeout,
    _lease,
    _overlap,
    _catchup,
    _spread,
    _on_dead,
)


def of_file(before: Side, after: Side) -> Words:
    """Yield what changes outside of jobs mean."""
    if before.namespace != after.namespace:
        yield Note(
            f"all jobs move from namespace {before.namespace} to {after.namespace}, where they are new, without "
            f"history or used keys. The jobs in {before.namespace} are not retired: their queued runs wait for a file "
            "that names it",
            Level.WARNING,
        )
    if before.retention is not None and after.retention is not None:
        old, new = before.retention.keys, after.retention.keys
        if new < old:
            yield Note(f"a key can be used again {_shown(new)} after its run was pruned (was {_shown(old)})")


def retired(job: Job) -> Note:
    """Say what becomes of a job that leaves the file."""
    return Note("it is retired: no slots, no claims; its unfinished runs are cancelled a day later")


def _shown(duration: timedelta) -> str:
    return durations.show(duration)


def _listed(names: Iterable[str]) -> str:
    return join_words(names, "and")
