"""crontab(5) and /etc/cron.d, read as Debian's cron reads them; CRON_TZ as cronie does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from yamlsched import durations
from yamlsched.extras.importing import shell
from yamlsched.extras.importing.calendar import DEBIAN, EVERY_MATCH, OnCalendar
from yamlsched.extras.importing.expression import cron_expression, fields_of
from yamlsched.extras.importing.model import (
    Place,
    Refusal,
    free_name,
    job_name,
    known_zone,
    shown,
)
from yamlsched.extras.importing.simplify import Simplified, simplify
from yamlsched.timetable.cron import ALIASES
from yamlsched.timetable.cron_fields import FIELDS

ASSIGNMENT = re.compile(r"""("[^"]*"|'[^']*'|[^\s="'][^\s=]*)[ \t]*=[ \t]*(.*)""")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_COUNTERPART = re.compile(
    "LOGNAME|RANDOM_DELAY|START_HOURS_RANGE|MAILFROM|CONTENT_TYPE|CONTENT_TRANSFER_ENCODING"
)
STARTS_YAMLSCHED = re.compile(r"\byamlsched\b[^|;&]*?\s(?:tick|work|sync)\b")
GUARD_REWRITTEN = (
    "cron ignores exit codes; here exit 1 would count as a failure, so the guard became an if"
)
NOTIFY = (
    "`notify: {ops: {url_env: OPS_NOTIFY_URL}}` and `defaults: {notify: [ops]}`, and set "
    "OPS_NOTIFY_URL=mailtos://USER:PASSWORD@HOST?to="
)
ADVICE = {
    r"(?<![\w-])flock\s": "flock works on one host only. Use overlap, or a limit that jobs share,"
    " for all hosts: --policy advised writes them instead of a flock around the whole command."
    " While another run has the lock, flock -n exits 1, which counts as a failure here",
    r"(?<![\w-])sleep\b[^;&|]*(?:RANDOM|shuf|rand)": "random sleep: use spread, whose delay is"
    " the same each time. --policy advised writes it",
}
"""For a part of a command: what yamlsched has for it."""
DATE = re.compile(r"(?:\$\(|`)\s*(?:/bin/)?date\b")
DATE_ADVICE = (
    "$(date) is the time at which the run starts, also for a slot that runs late or is retried:"
    ' for the date of the slot write $(date -d "$YAMLSCHED_SCHEDULED_FOR" ...)'
)
NO_HOME = (
    "cron starts it in the home directory, yamlsched in that of schedules.yaml: pass --home DIR, or"
    " set cwd"
)
NO_USER = (
    "the command runs as the user of yamlsched tick: run a tick as that user, or write sudo -u into"
    " the command"
)
AS_ROOT = "user root: the command runs as the user of yamlsched tick, which must be root"
EXIT_CODES = (
    "cron ignores exit codes; here any exit code other than 0 is a failure: check this command"
)
MAX_LINE_CHARS = 10_000
SIXTH_FIELD = re.compile(
    r"[0-9*?][0-9*?,/LW#-]*|(?:(?:sun|mon|tue|wed|thu|fri|sat)\w*[,-]?)+", re.IGNORECASE
)


@dataclass
class _Settings:
    """What assignments above a line set."""

    zone: str
    shell: str = "/bin/sh"
    home: str = ""
    env: dict[str, str] = field(default_factory=dict)


def read(whole: Place, has_user: bool) -> None:
    """Add the jobs of a crontab. ``has_user``: a user's name follows the five fields (/etc/crontab,
    /etc/cron.d).
    """
    source, batch = whole.source, whole.batch
    settings = _Settings(source.zone, home=source.home)
    before = len(batch.jobs) + len(batch.notes)
    if "\r\n" in source.text:
        whole.changed(
            "lines end with CR LF: cron passes the CR on to commands, and here it is removed"
        )
    for number, raw in enumerate(source.text.split("\n"), 1):
        line, place = raw.strip(), whole.at(number)
        if not line or line.startswith("#"):
            continue
        if len(line) > MAX_LINE_CHARS:
            place.refused(f"the line has more than {MAX_LINE_CHARS:,} characters: {shown(line)}")
            continue
        assignment = ASSIGNMENT.fullmatch(line)
        try:
            if assignment:
                _assign(place, settings, *map(_unquoted, assignment.groups()))
            else:
                _job(place, raw.lstrip(" \t").rstrip("\r"), settings, has_user)
        except Refusal as error:
            place.refused(f"{error}: {shown(line)}")
    if len(batch.jobs) + len(batch.notes) == before:
        whole.refused("it has no jobs")


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _assign(place: Place, settings: _Settings, name: str, value: str) -> None:
    if name == "CRON_TZ":
        try:
            settings.zone = known_zone(value).key
        except Refusal as error:
            place.changed(f"{error}: {settings.zone} is used instead")
            return
        place.changed(f"CRON_TZ sets the time zone {value}, as in cronie; Debian's cron ignores it")
    elif name == "MAILTO":
        if value:
            message = (
                f"MAILTO={shown(value)}: output is kept in the database instead of mailed. For"
                " mails about runs that"
            )
            place.dropped(f"{message} die, write {NOTIFY}{shown(value)}")
    elif NO_COUNTERPART.fullmatch(name):
        place.dropped(f"{name} has no counterpart")
    elif name == "SHELL":
        settings.shell = value
    elif name == "HOME":
        settings.home = settings.env[name] = value
    elif VARIABLE.fullmatch(name):
        settings.env.pop(name, None)
        settings.env |= place.without_secrets({name: value})
        if name == "TZ":
            place.advise(
                "TZ is set for the commands only, as in cron; for the schedule see --timezone"
            )
    else:
        place.dropped(f"the variable {shown(name)} has an unusual name")


def _job(place: Place, line: str, settings: _Settings, has_user: bool) -> None:
    size = 1 if line.startswith("@") else 5
    parts = line.removeprefix("-").split(None, size + has_user)  # "-": SUSE's cron logs less
    if len(parts) < size + has_user + 1:
        raise Refusal(f"it is not a line of a crontab{' with a user' * has_user}")
    expression, command = " ".join(parts[:size]), parts[-1]
    if size == 5 and SIXTH_FIELD.fullmatch(parts[size].split()[0]):
        raise Refusal(
            "it has six or seven fields: seconds and years are not supported, write the five fields"
            " of cron"
        )
    times, written = _schedule(place, expression, settings.zone)
    keys: dict[str, Any] = {"cron": written}
    if has_user:
        is_root = parts[size] == "root"
        place.changed(AS_ROOT if is_root else f"user {shown(parts[size])}: {NO_USER}")
    command, stdin = shell.split_percent(command)
    if not command.strip():
        raise Refusal("it has no command")
    if STARTS_YAMLSCHED.search(command):
        place.dropped("this line starts yamlsched: leave it in the crontab")
        return
    keys["command"], name = _simplified(place, command, settings, keys)
    if stdin is not None:
        keys["stdin"] = stdin
        place.advise(
            r"what follows the first % is standard input, as in cron; a percent sign is \%"
        )
    if settings.env:
        keys["env"] = dict(settings.env)
    place.add(name, line.rstrip(), keys, times)


def _simplified(
    place: Place, command: str, settings: _Settings, keys: dict[str, Any]
) -> tuple[list[str], str]:
    """Return the argv and the name of a job, with the keys for what yamlsched does itself; report
    the changes.
    """
    limits, is_advised = place.batch.limits, not place.source.is_faithful
    essential = simplify(command, settings.home, True, {}).command
    name = shell.name_of(shell.without_failing_guard(essential)[1])
    done = simplify(command, settings.home, is_advised, limits)
    _report(place, done, free_name(job_name(name), set(place.batch.names)))
    if done.cwd or settings.home:
        keys["cwd"] = done.cwd or settings.home
    elif shell.needs_home(done.command):
        place.changed(NO_HOME)
    if done.lock:
        _use_limit(place, done, keys)
    if done.spread:
        keys["spread"] = durations.show(done.spread)
        place.changed(f"the random sleep is replaced by spread: {keys['spread']}, a stable delay")
    rewritten, rest = shell.without_failing_guard(done.command)
    if rewritten != done.command:
        place.changed(GUARD_REWRITTEN)
    if shell.ANY_GUARD.search(rest):
        place.advise(EXIT_CODES)
    for part, message in ADVICE.items():
        if re.search(part, rewritten):
            place.advise(message)
    if is_advised and DATE.search(rewritten):
        place.advise(DATE_ADVICE)
    text, pipe_shell, obstacle = shell.with_pipefail(rewritten, settings.shell)
    if text != rewritten:
        place.changed(
            f"set -o pipefail, in {pipe_shell}: a run fails if any part of its pipe does, not only"
            " the last"
        )
    elif obstacle:
        place.advise(
            f"its pipe succeeds if its last part does: {shown(obstacle)} prevents set -o pipefail"
        )
    return shell.argv(text, pipe_shell), name


def _report(place: Place, done: Simplified, job: str) -> None:
    for text in dict.fromkeys(done.removed):
        place.changed(
            f"{shown(text)} is removed: the output is kept. To see it: yamlsched show RUN --output"
        )
    if done.cwd:
        place.changed(f"cd becomes cwd: {shown(done.cwd)}")
    if done.is_background:
        place.changed("the & at the end is removed: a run ends with its command")
    if done.ping:
        variable = f"YAMLSCHED_HEARTBEAT_URL_{job.upper()}"
        place.changed(
            f"the ping is replaced by {variable}={shown(done.ping)}: set it in the environment of"
            " yamlsched tick"
        )


def _schedule(place: Place, expression: str, zone_name: str) -> tuple[OnCalendar, str]:
    """Return when Debian's cron fires, and the cron expression for that."""
    alias = expression.lower()
    if alias == "@reboot":
        raise Refusal("@reboot is not supported: start the program with systemd")
    if expression.startswith("@") and alias not in ALIASES:
        raise Refusal(f"{shown(expression)} is not an alias of cron")
    if "~" in expression:
        raise Refusal("~ chooses a random time: write a fixed time, and spread for a stable delay")
    parts = ALIASES.get(alias, expression).split()
    # a field that starts with * restricts nothing on its own, even with a step: then a date must
    # match both
    either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
    clock = EVERY_MATCH if parts[0].startswith("*") or parts[1].startswith("*") else DEBIAN
    calendar = OnCalendar(fields_of(parts, FIELDS), known_zone(zone_name), clock, either_day)
    written = alias if alias in ALIASES else cron_expression(calendar, parts)
    if written != alias and written != expression:
        place.changed(f"{shown(expression)} is written as {written}")
    return calendar, written


def _use_limit(place: Place, done: Simplified, keys: dict[str, Any]) -> None:
    keys["overlap"] = done.overlap
    what = f"overlap: {done.overlap}"
    if limit := place.batch.limits.get(done.lock):
        keys["limit"] = limit
        skips = " (flock -n skips)" if done.overlap == "skip" else ""
        what = (
            f"limit: {limit}: runs wait for these jobs on all hosts{skips}, and for no other use of"
            " the lock"
        )
    place.changed(f"flock {shown(done.lock)} is replaced by {what}")


def shared_locks(crontabs: Iterable[tuple[str, bool]], taken: set[str]) -> dict[str, str]:
    """Return the limit to write for each lock that several lines take; empty if one of them does
    anything else with it.

    Each of ``crontabs`` is a text, and whether it has users. The names of limits are added to
    ``taken``.
    """
    lines = [
        (line.strip(), has_user)
        for text, has_user in crontabs
        for line in text.split("\n")
        if line.strip() and not line.strip().startswith("#")
    ]
    mentions = Counter(word for line, _ in lines for word in set(re.findall(r"[\w./-]+", line)))
    locks = Counter(simplify(_command(*line), "", True, {}).lock for line in lines)
    return {
        lock: free_name(job_name(PurePath(lock).name), taken) if mentions[lock] == count else ""
        for lock, count in locks.items()
        if mentions[lock] > 1
    }


def _command(line: str, has_user: bool) -> str:
    words = line.split(None, (1 if line.startswith("@") else 5) + has_user)
    return shell.split_percent(words[-1])[0]
