"""Create the missing runs of past slots of a job; see ``yamlsched backfill``."""

from __future__ import annotations

from yamlsched.act import backfill
from yamlsched.act.backfill import BackfillSlot
from yamlsched.errors import Refused
from yamlsched.extras.web import flow
from yamlsched.extras.web.flow import Action, Asking, Doing, Field, Given, Invalid, Redirect, Review
from yamlsched.extras.web.render import count, sentence
from yamlsched.extras.web.visit import Result, Visit
from yamlsched.timetable import times
from yamlsched.timetable.times import rfc3339, short_utc
from yamlsched.timetable.zones import zone

MAX_SLOTS = 5_000
"""Slots of one form, which is one transaction."""
MAX_LISTED = 50
FIRST = Field(
    "first",
    "From",
    "time",
    "Words are yesterday or 2026-01-14 (all of that day), 17:30 or mon 08:00 (the last one), 3d"
    " (ago), or 2026-01-14T01:00Z.",
    is_required=True,
)
LAST = Field(
    "last",
    "To",
    "time",
    "The same; a date includes the whole day. Empty: only the day or slot of From.",
)
BEFORE_FIRST = Field("before_first", "Also slots from before the job was first applied", "check")


def ask(visit: Visit, values: Given) -> Asking:
    lines = [
        "A backfill creates the runs of past slots (scheduled times) that have none. It does not"
        " change when the job runs next."
    ]
    return Asking([flow.job_field(visit, values), FIRST, LAST, BEFORE_FIRST], lines)


def review(visit: Visit, values: Given) -> Review:
    name, connection = values["job"], visit.connection
    flow.job_of(visit, values)
    try:
        job = backfill.definition_for(
            connection, visit.namespace, name, is_range=bool(values["last"])
        )
    except Refused as error:
        raise Invalid("job", sentence(str(error))) from None
    where = zone(job.timezone)
    first = values.time("first")
    assert first is not None
    start, end = backfill.read_range(first, values.time("last"), where, visit.now)
    if end < start:
        raise Invalid("last", f"{times.show(end, where)} is before {times.show(start, where)}.")
    try:
        chosen = backfill.select(connection, job, start, end, bool(values["before_first"]))
    except Refused as error:
        raise Invalid(
            "first",
            f"{sentence(str(error).partition(': pass')[0])} Tick the box to include earlier slots.",
        ) from None
    if chosen.slots > MAX_SLOTS:
        command = (
            f"yamlsched backfill {name} --from {short_utc(chosen.first)} --to {short_utc(end)}"
        )
        raise Invalid(
            "last",
            f"These are {chosen.slots:,} slots, more than {MAX_SLOTS:,}. Choose a shorter span, or"
            f" run: {command}",
        )
    last = min(chosen.last, visit.now)
    refusal, trial = "", backfill.BackfillResult()
    try:
        backfill.backfill(
            connection, visit.namespace, job, chosen.first, last, "", dry_run=True, result=trial
        )
    except Refused as error:
        refusal = sentence(str(error))
    if not refusal and not trial.made:
        span = f"from {times.show(chosen.first, where)} to {times.show(last, where)}"
        had = count(len(trial.existing) + len(trial.used), "slot")
        refusal = (
            f"Nothing is missing: {had} of this span had a run."
            if trial.done
            else f"The job has no slot {span}."
        )
    lines = [
        f"The span is {times.show(chosen.first, where)} to {times.show(last, where)}.",
        f"{count(len(trial.made), 'run')} will be created, due at once, the oldest first.",
    ]
    if trial.existing:
        lines.append(
            f"{count(len(trial.existing), 'slot')} {'has' if len(trial.existing) == 1 else 'have'}"
            " a run already."
        )
    if trial.used:
        lines.append(
            f"The keys of {count(len(trial.used), 'slot')} were used, by pruned runs or by others:"
            " none is created."
        )
    if job.overlap != "allow":
        lines.append("They are run one after another.")
    lines.append("They run with the handler and the payload that the job has now.")
    if chosen.left_out_before:
        lines.append(
            f"Slots before {chosen.left_out_before}, when the job was first applied, are left out."
        )
    if chosen.skipped:
        lines.append(
            f"Left out: {count(chosen.skipped, 'slot')} that calendars skip. To run one, give its"
            " date alone."
        )
    if end > visit.now:
        lines.append("Slots in the future are left out: sync creates those runs.")
    if job.is_paused(visit.now):
        lines.append("The job is paused: the runs wait until the pause ends.")
    return Review(
        title=f"Backfill {name}",
        button=f"Create {count(len(trial.made), 'run')}",
        back=f"/jobs/{name}",
        lines=lines,
        refusal=refusal,
        carried={"start": rfc3339(chosen.first), "end": rfc3339(last)},
        target=f"job:{name}",
        heading="Runs that will be created",
        listed=[_slot(slot) for slot in trial.made[:MAX_LISTED]],
        total=len(trial.made),
        change="Change",
    )


def _slot(slot: BackfillSlot) -> str:
    return f"{slot.key} for {short_utc(slot.scheduled_for)}"


def perform(doing: Doing, values: Given) -> Redirect:
    name = values["job"]
    start, end = values.instant("start"), values.instant("end")
    if start is None or end is None:
        raise Invalid("first", "Confirm the span again.")
    with doing.transaction(f"job:{name}") as connection:
        job = backfill.definition_for(
            connection, doing.namespace, name, is_range=bool(values["last"])
        )
        if backfill.select(connection, job, start, end, before_first=True).slots > MAX_SLOTS:
            raise Invalid("last", f"That is more than {MAX_SLOTS:,} slots.")
        result = backfill.backfill(connection, doing.namespace, job, start, end, doing.who)
    made = len(result.made)
    others = (
        f"; {count(result.done - made, 'slot')} had one, or its key was used"
        if result.done > made
        else ""
    )
    return Redirect(
        f"/jobs/{name}",
        Result(f"{count(made, 'run')} {'was' if made == 1 else 'were'} created{others}."),
    )


ACTION = Action(
    "backfill",
    "Backfill slots",
    ("job", "first", "last", "before_first", "start", "end"),
    ("job", "first"),
    ask,
    review,
    perform,
)
