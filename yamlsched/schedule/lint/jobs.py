"""Warnings about the keys of a job."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta

from yamlsched import durations
from yamlsched.runs import backoff as delays
from yamlsched.schedule.job import Catchup, Job, Overlap, UpstreamFailure
from yamlsched.schedule.lint import Linter
from yamlsched.schedule.load import Calls
from yamlsched.schedule.node import Spot
from yamlsched.schedule.schema import HOOKS
from yamlsched.schedule.timezones import ABBREVIATIONS
from yamlsched.secret_forms import mask_command, mask_value
from yamlsched.text import quoted
from yamlsched.timetable.cron import Cron, smallest_gap

COMMAND = re.compile(
    r"(subprocess|builtins|runpy|pty|code|posix)[.:].+"
    r"|os[.:](system|popen|exec[a-z]*|spawn[a-z]*|posix_spawnp?)"
)
"""Handlers that execute programs or code given to them."""
VARIABLES = {"env": re.compile(r"\$\{?[A-Z_]"), "payload": re.compile(r"\$\{[A-Z_]")}
"""What looks like a variable for a shell. A payload may well have $USD."""
LONG_LEASE = timedelta(minutes=10)
FREQUENT_INTERVAL = timedelta(minutes=5)


def retries(linter: Linter, job: Job, cron: Cron) -> None:
    keys = [key for key in ("backoff", "max_attempts") if linter.is_written(job, key)]
    if job.overlap is Overlap.ALLOW or not keys:
        return
    longest = replace(job.backoff, jitter=0.0)
    total = sum(
        (delays.delay(longest, attempt, 0.0) for attempt in range(1, job.max_attempts)),
        timedelta(0),
    )
    if total > smallest_gap(cron):
        effect = "skips slots" if job.overlap is Overlap.SKIP else "delays later slots"
        every = durations.show(smallest_gap(cron))
        message = (
            f"retries take up to {durations.show(total)}, but slots come every {every}: a failing"
            f" run {effect}"
        )
        linter.warn(
            "YS406",
            job,
            keys[0],
            message,
            "Reduce max_attempts or the delays, or write overlap: allow.",
        )


def timeout(linter: Linter, job: Job, cron: Cron) -> None:
    if job.overlap is not Overlap.WAIT or not linter.is_written(job, "timeout"):
        return
    if job.timeout > smallest_gap(cron):
        apart = durations.show(smallest_gap(cron))
        message = (
            f"an attempt may take {durations.show(job.timeout)}, but slots come every {apart}:"
            " later slots wait"
        )
        remedy = f"Write a timeout of at most {apart}, or overlap: skip."
        linter.warn("YS407", job, "timeout", message, remedy)


def catchup(linter: Linter, job: Job, cron: Cron) -> None:
    if job.catchup is Catchup.ALL and smallest_gap(cron) < FREQUENT_INTERVAL:
        message = f"after a day of downtime it runs {len(cron.times):,} times"
        linter.warn(
            "YS408", job, "catchup", message, "Write catchup: latest, or a short catchup_window."
        )


def lease(linter: Linter, job: Job) -> None:
    if job.lease > LONG_LEASE and linter.is_written(job, "lease"):
        message = f"a run whose worker dies stays locked for up to {durations.show(job.lease)}"
        remedy = (
            f"Write at most {durations.show(LONG_LEASE)}: a lease is renewed while the handler"
            " runs."
        )
        linter.warn_where_written("YS417", job, "lease", message, remedy)


def last_attempt(linter: Linter, job: Job) -> None:
    is_silent = not job.on_dead and not job.notify
    if (
        job.max_attempts == 1
        and is_silent
        and job.enabled
        and linter.is_written(job, "max_attempts")
    ):
        message = "one failure is final, and nobody is notified"
        linter.warn_where_written(
            "YS420",
            job,
            "max_attempts",
            message,
            "Add on_dead or notify, or increase max_attempts.",
        )


def pause_after(linter: Linter, job: Job) -> None:
    told = any("paused" in target.events for name, target in job.targets if name in job.notify)
    if job.pause_after is not None and job.notify and not told:
        message = "no target in notify has the event paused, so nobody is notified of the pause"
        remedy = "Add paused to the events of a target."
        linter.warn("YS467", job, "pause_after", message, remedy)


def executes_payload(linter: Linter, calls: Calls) -> None:
    if calls.handler is not None and COMMAND.fullmatch(calls.handler):
        spot = linter.loaded.spot(calls.job, "handler")
        message = (
            f"{spot}: {calls.handler} executes its payload, which anyone who can enqueue can set"
        )
        remedy = "Write command: [program, argument] in place of the handler."
        linter.findings.warning(spot, "YS421", message, remedy)


def secrets(linter: Linter, calls: Calls) -> None:
    """Report what looks like a secret in the values that a job passes on."""

    def warn(spot: Spot, at: Spot, remedy: str) -> None:
        message = (
            f"{spot} looks like a secret: it is stored in git, and unencrypted in the database"
        )
        linter.findings.warning(at, "YS409", message, remedy)

    remedy = "Read it from a file, or from the environment of the worker."
    words = calls.command or ()
    for nth, (word, masked) in enumerate(zip(words, mask_command(words), strict=True)):
        if word != masked:
            spot = linter.loaded.spot(calls.job, "command").child(nth)
            warn(spot, spot, remedy)
    for key in ("env", "payload"):
        top = linter.loaded.written(calls.job, key) if getattr(calls, key) else None
        for spot in _strings(top) if top else ():
            if VARIABLES[key].search(spot.value):
                message = f"{spot}: {quoted(spot.value)} is passed as it is: nothing expands it"
                expand = "Write the value, or read the variable in the handler or program."
                linter.findings.warning(spot, "YS423", message, expand)
                continue
            name = str(spot.path[-1]) if isinstance(spot.path[-1], str) else ""
            if mask_value(name, spot.value) == spot.value:
                continue
            if key == "env" and name.startswith("PG"):  # a command does not get the worker's
                pgpass = "Write it to ~/.pgpass, or to a file that PGPASSFILE in env names."
                warn(spot, spot.key, pgpass)
            else:
                warn(spot, spot.key, remedy)


def _strings(spot: Spot) -> Iterator[Spot]:
    """Yield the strings in a value."""
    if isinstance(spot.value, str):
        yield spot
    for child in spot.children():
        yield from _strings(child)


def zone_names(linter: Linter, job: Job, cron: Cron) -> None:
    name = job.timezone
    if name in ABBREVIATIONS:
        reason, remedy = (
            f"{name} is an abbreviation",
            f'Write an IANA name such as "{ABBREVIATIONS[name]}".',
        )
    elif re.fullmatch(r"Etc/GMT[-+][1-9][0-9]*", name):
        hours, side = name[8:], "behind" if "+" in name else "ahead of"
        reason = f"{name} is {hours} h {side} UTC: its sign is reversed"
        remedy = "Write an IANA name such as Europe/Berlin."
    else:
        return
    if linter.is_written(job, "timezone"):
        linter.warn("YS412", job, "timezone", f"timezone {reason}", remedy)
    elif linter.loaded.root and (spot := linter.loaded.root.get("timezone")):
        linter.findings.warning(spot, "YS412", f"timezone {reason}", remedy)


def backoff(linter: Linter, job: Job) -> None:
    spot = linter.loaded.written(job.name, "backoff")
    if spot is None:
        return
    backoff = job.backoff

    def add(key: str, message: str, remedy: str) -> None:
        linter.findings.warning(spot.child(key).key, "YS414", f"{spot}: {message}", remedy)

    if backoff.policy == "steps":
        for key in ("delay", "max_delay"):
            if key in spot.value:
                add(key, f"{key} has no effect with the policy steps", "Remove it.")
    elif backoff.max_delay < backoff.delay:
        delay = durations.show(backoff.delay)
        message = f"the delay {delay} is limited to max_delay {durations.show(backoff.max_delay)}"
        add(
            "max_delay" if "max_delay" in spot.value else "delay",
            message,
            f"Write max_delay: {delay} or more.",
        )


def hooks(linter: Linter, job: Job) -> None:
    """Report hooks that do not run: they are not enabled where their job is, or no attempt of it is
    retried.
    """
    for key in HOOKS:
        for name in getattr(job, key):
            if missing := linter.environments(job.name) - linter.environments(name):
                message = f"its hook {name} is not enabled{_where(missing)}: then it does not run"
                remedy = f"Enable both in the same environments, or remove {name} from {key}."
                linter.warn("YS460", job, key, message, remedy)
    own = linter.loaded.entries[job.name].value
    if job.max_attempts == 1 and "on_failure" in own:
        message = "with max_attempts: 1 no attempt is retried, so on_failure never runs"
        linter.warn("YS461", job, "on_failure", message, "Write on_dead, or more max_attempts.")


def _where(environments: Collection[str]) -> str:
    return f" in {', '.join(sorted(environments))}" if any(environments) else ""


def upstreams(linter: Linter, job: Job) -> None:
    """Report jobs that it follows and that may keep its slots from running."""
    for upstream in (linter.loaded.jobs[name] for name in job.after if name in linter.loaded.jobs):
        missing = linter.environments(job.name) - linter.environments(upstream.name)
        if missing and job.on_upstream_failure is not UpstreamFailure.RUN:
            message = (
                f"it follows {upstream.name}, which is not enabled{_where(missing)}: then its slots"
                " do not run"
            )
            remedy = "Enable both in the same environments, or write on_upstream_failure: run."
            linter.warn("YS430", job, "after", message, remedy)
        if job.after_enqueued and upstream.command:
            message = f"runs that a command enqueues are not awaited, and {upstream.name} is one"
            remedy = "Enqueue them from a handler, or remove after_enqueued."
            linter.warn("YS470", job, "after_enqueued", message, remedy)
        if job.catchup_window < upstream.timeout:
            window, limit = durations.show(job.catchup_window), durations.show(upstream.timeout)
            message = (
                f"its slots are late {window} after their time, and {upstream.name} may take"
                f" {limit}"
            )
            linter.warn("YS431", job, "catchup_window", message, "Write a longer catchup_window.")
        last, own_last = (one.cron and one.cron.ends_on for one in (upstream, job))
        if last and not (own_last and own_last <= last):
            message = (
                f"it goes on after {last}, when {upstream.name} ends: then no slot waits for a"
                " new run"
            )
            linter.warn(
                "YS435", job, "after", message, f"Write ends_on: {last}, or remove {upstream.name}."
            )
        # a year may start or end between the slots of two that fire equally often
        if linter.slots(job) > linter.slots(upstream) + 1 > 1:
            message = f"it fires more often than {upstream.name}: several of its slots wait for one"
            remedy = f"Write a cron that fires once for each slot of {upstream.name}."
            linter.warn("YS432", job, "after", message, remedy)
