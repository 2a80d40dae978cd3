"""Warnings about the keys of a job; all warnings about a file.

Warnings are about what the file says: a default of yamlsched that does not suit a job is not
reported.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from yamlsched import durations
from yamlsched.schedule.job import Job, UpstreamFailure
from yamlsched.schedule.lint import Linter, cron, values
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.schema import HOOKS
from yamlsched.schedule.source import Diagnostic
from yamlsched.schedule.timezones import ABBREVIATIONS
from yamlsched.timetable.slots import span
from yamlsched.timetable.zones import zone


def last_attempt(linter: Linter, job: Job) -> None:
    if job.max_attempts == 1 and job.enabled and not job.on_dead and not job.notify:
        message = "one failure is final, and nobody is notified"
        remedy = "Add on_dead or notify, or increase max_attempts."
        linter.warn("YS420", job, "max_attempts", message, remedy)


def pause_after(linter: Linter, job: Job) -> None:
    told = any("paused" in target.events for name, target in job.targets if name in job.notify)
    if job.pause_after is not None and job.notify and not told:
        message = "no target in notify has the event paused, so nobody is notified of the pause"
        remedy = "Add paused to the events of a target."
        linter.warn("YS467", job, "pause_after", message, remedy)


def zone_names(linter: Linter, job: Job) -> None:
    name, root = job.timezone, linter.loaded.root
    spot = linter.loaded.written(job.name, "timezone") or (root and root.get("timezone"))
    if spot is None:
        return
    if name in ABBREVIATIONS:
        remedy = f'Write an IANA name such as "{ABBREVIATIONS[name]}".'
        linter.findings.warning(spot, "YS412", f"timezone {name} is an abbreviation", remedy)
    elif re.fullmatch(r"Etc/GMT[-+][1-9][0-9]*", name):
        side = "behind" if "+" in name else "ahead of"
        message = f"timezone {name} is {name[8:]} h {side} UTC: its sign is reversed"
        remedy = "Write an IANA name such as Europe/Berlin."
        linter.findings.warning(spot, "YS412", message, remedy)


def backoff(linter: Linter, job: Job) -> None:
    backoff = job.backoff
    if backoff.policy != "steps" and backoff.max_delay < backoff.delay:
        delay, most = durations.show(backoff.delay), durations.show(backoff.max_delay)
        message = f"the delay {delay} is limited to max_delay {most}"
        linter.warn("YS414", job, "backoff", message, f"Write max_delay: {delay} or more.")


def calendars(linter: Linter, job: Job) -> None:
    """Report calendars that are complete for a short time only: after it, what they skip runs."""
    for calendar in (*job.skip_on, *job.only_on):
        what, root = calendar.ends_soon(linter.now), linter.loaded.root
        spot = root and root.get("calendars", calendar.name, "until")
        if what and spot:
            remedy = "Add the next dates, and a later until."
            linter.findings.warning(spot, "YS433", what, remedy)


def hooks(linter: Linter, job: Job) -> None:
    """Report hooks that do not run: they are not enabled where their job is, or no attempt of it is
    retried.
    """
    for key in HOOKS:
        for name in getattr(job, key) if job.enabled else ():
            if linter.is_off(name):
                message = f"its hook {name} is not enabled: it does not run"
                remedy = f"Enable both in the same environments, or remove {name} from {key}."
                linter.warn("YS460", job, key, message, remedy)
    if job.max_attempts == 1 and "on_failure" in linter.loaded.entries[job.name].value:
        message = "with max_attempts: 1 no attempt is retried, so on_failure never runs"
        linter.warn("YS461", job, "on_failure", message, "Write on_dead, or more max_attempts.")


def upstreams(linter: Linter, job: Job) -> None:
    """Report jobs that it follows and that may keep its slots from running."""
    for upstream in (linter.loaded.jobs[name] for name in job.after if name in linter.loaded.jobs):
        name = upstream.name
        must_succeed = job.on_upstream_failure is not UpstreamFailure.RUN
        if job.enabled and must_succeed and linter.is_off(name):
            message = f"it follows {name}, which is not enabled: its slots do not run"
            remedy = "Enable both in the same environments, or write on_upstream_failure: run."
            linter.warn("YS430", job, "after", message, remedy)
        if job.after_enqueued and upstream.command:
            message = f"{name} is a command, and runs that a command enqueues are not awaited"
            remedy = "Enqueue them from a handler, or remove after_enqueued."
            linter.warn("YS470", job, "after_enqueued", message, remedy)
        if job.catchup_window < upstream.timeout:
            window, limit = durations.show(job.catchup_window), durations.show(upstream.timeout)
            message = f"its slots are too late to run after {window}, but {name} may take {limit}"
            linter.warn("YS431", job, "catchup_window", message, "Write a longer catchup_window.")
        if (last := upstream.ends_on) and not (job.ends_on and job.ends_on <= last):
            message = f"it continues after {last}, when {name} ends: then it waits for nothing new"
            linter.warn("YS435", job, "after", message, f"Write ends_on: {last}, or remove {name}.")
        # a year may start or end between the slots of two that fire equally often
        if slots_in_a_year(linter, job) > slots_in_a_year(linter, upstream) + 1 > 1:
            message = f"it fires more often than {name}: several of its slots wait for the same run"
            remedy = f"Write a cron that fires once for each slot of {name}."
            linter.warn("YS432", job, "after", message, remedy)


def slots_in_a_year(linter: Linter, job: Job) -> int:
    if job.cron is None:
        return 0
    slots = span(job.cron, zone(job.timezone), linter.now, linter.now + timedelta(days=365))
    return slots.count if slots else 0


JOB_RULES = (
    cron.check,
    backoff,
    calendars,
    hooks,
    last_attempt,
    pause_after,
    upstreams,
    zone_names,
    values.executes_payload,
    values.secrets,
    values.shell_syntax,
)


def check(loaded: Loaded, now: datetime, require_owner: bool = False) -> list[Diagnostic]:
    """Return the warnings about the valid jobs.

    Clock changes are searched in the year after ``now``, an aware datetime.
    """
    linter = Linter(loaded, now)
    for job in loaded.jobs.values():
        for rule in JOB_RULES:
            rule(linter, job)
        if require_owner and not job.owner:
            spot = loaded.spot(job.name)
            linter.findings.warning(
                spot.key, "YS410", f"{spot} has no owner", "Add owner: team-name"
            )
    return linter.findings.diagnostics()
