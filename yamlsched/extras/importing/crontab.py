"""crontab(5) and /etc/cron.d, read as Debian's cron reads them; CRON_TZ as cronie does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from yamlsched import durations
from yamlsched.extras.importing import shell
from yamlsched.extras.importing.calendar import DEBIAN, EVERY_MATCH, OnCalendar
from yamlsched.extras.importing.expression import (
    CRON_RULES,
    FieldRange,
    cron_expression,
    fields_of,
    number_of,
)
from yamlsched.extras.importing.model import (
    FAITHFUL,
    Place,
    Refusal,
    free_name,
    job_name,
    known_zone,
    shown,
)
from yamlsched.extras.importing.simplify import (
    ANY_FLOCK,
    DATA,
    Simplified,
    advice,
    simplify,
    without_flock,
)
from yamlsched.timetable.cron import ALIASES
from yamlsched.timetable.zones import zone

ASSIGNMENT = re.compile(r"""("[^"]*"|'[^']*'|[^\s="'][^\s=]*)[ \t]*=[ \t]*(.*)""")
VALUE_IN_DEBIAN = re.compile(r"""("[^"]*"|'[^']*')\s*|[^\s"'].*""")
WORD = r"[a-z0-9]+(?![a-z0-9])"
ITEM = rf"(?:(?:\*|{WORD}-{WORD})(?:/{WORD}|(?!/))|{WORD}(?![/-]))"
FIELD_IN_DEBIAN = re.compile(rf"({ITEM}(?:,{ITEM})*)(?!,)", re.IGNORECASE)
"""What follows such a field is skipped: Debian's cron reads 1#2 as 1."""
STEP = FieldRange("step", 1, 9999)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OTHER_SETTINGS = (
    "RANDOM_DELAY",
    "START_HOURS_RANGE",
    "MAILFROM",
    "CONTENT_TYPE",
    "CONTENT_TRANSFER_ENCODING",
)
STARTS_YAMLSCHED = re.compile(r"\byamlsched\b[^|;&]*?\s(?:tick|work|sync)\b")
GUARD_REWRITTEN = (
    "cron ignores the exit code, and here 1 ends the run dead: the guard becomes an if, which"
    " exits 0"
)
NOTIFY = (
    "`notify: {ops: {url_env: OPS_NOTIFY_URL}}` and `defaults: {notify: [ops]}`, and set "
    "OPS_NOTIFY_URL=mailtos://USER:PASSWORD@HOST?to="
)
DATE = (
    "$(date) is the time at which the run starts, also of a slot that is made up for or retried:"
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
    "cron ignores the exit code, and here any but 0 is a failure: check what the command exits with"
)
MAX_LINE_CHARS, MAX_COMMAND_BYTES = 10_000, 998
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
    lines: dict[str, int] = field(default_factory=dict)
    """The line on which each variable was set last."""


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
        line, place = raw.strip(" \t"), whole.at(number)
        if line and not line.startswith("#") and not _is_valid_in_debian(line, has_user):
            place.advise("Debian's cron ignores a whole file with such a line")
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if len(line) > MAX_LINE_CHARS:
            place.refused(f"the line has more than {MAX_LINE_CHARS:,} characters: {shown(line)}")
            continue
        if raw.endswith("\\"):
            place.advise(
                "a backslash at the end continues no line in cron: the next line stands alone"
            )
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
    elif not source.text.endswith("\n") and line and not line.startswith("#"):
        place.advise("there is no newline at the end: Debian's cron ignores such a file")


def _is_valid_in_debian(line: str, has_user: bool) -> bool:
    if assignment := ASSIGNMENT.fullmatch(line):
        return VALUE_IN_DEBIAN.fullmatch(assignment[2]) is not None
    size = 1 if line.startswith("@") else 5
    parts = line.split(None, size + has_user)
    if len(parts) < size + 2 * has_user:
        return False
    command = "".join(parts[size + has_user :])
    if len(command.encode(errors="replace")) > MAX_COMMAND_BYTES or "".join(
        parts[size : size + 1]
    ).startswith("*"):
        return False
    if size == 1:
        return parts[0] in (*ALIASES, "@reboot")
    return all(map(_is_field_in_debian, parts, CRON_RULES))


def _is_field_in_debian(text: str, rule: FieldRange) -> bool:
    field = FIELD_IN_DEBIAN.match(text)
    try:
        for slash, word in re.findall(r"(/?)(\w+)", field[1] if field else ""):
            number_of(word, STEP if slash else rule)
    except Refusal:
        return False
    return field is not None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _assign(place: Place, settings: _Settings, name: str, value: str) -> None:
    if name == "CRON_TZ":
        try:
            settings.zone = known_zone(value)
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
    elif name in OTHER_SETTINGS or name == "LOGNAME":
        place.dropped(f"{name} has no counterpart")
    elif name == "SHELL":
        settings.shell = value
    elif name == "HOME":
        settings.home = settings.env[name] = value
    elif VARIABLE.fullmatch(name):
        settings.env[name] = value
        settings.lines[name] = place.line
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
    times, keys = _schedule(place, expression, settings.zone)
    if has_user:
        is_root = parts[size] == "root"
        place.changed(AS_ROOT if is_root else f"user {shown(parts[size])}: {NO_USER}")
    command, stdin = shell.split_percent(command)
    if not command.strip():
        raise Refusal("it has no command")
    if STARTS_YAMLSCHED.search(command):
        place.dropped("this line starts yamlsched: leave it in the crontab")
        return
    if r"\\" in re.split(r"(?<!\\)%", parts[-1])[0]:
        place.changed(r"\\ becomes \, as in Debian's cron; cronie keeps both")
    keys |= FAITHFUL if place.source.is_faithful else {}
    keys["command"], name = _simplified(place, command, settings, keys)
    if stdin is not None:
        keys["stdin"] = stdin
        place.advise(
            r"what follows the first % is standard input, as in cron; a percent sign is \%"
        )
    if settings.env:
        keys["env"] = dict(settings.env)
    place.add(name, line.rstrip(), keys, times, settings.lines)


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
    elif is_advised and ANY_FLOCK.search(done.command):
        place.advise(_flock_kept(done.command, limits))
    if done.spread:
        keys["spread"] = durations.show(done.spread)
        place.changed(f"the random sleep is replaced by spread: {keys['spread']}, a stable delay")
    for message in [] if is_advised else advice(done.command, limits):
        place.advise(message)
    rewritten, rest = shell.without_failing_guard(done.command)
    if rewritten != done.command:
        place.changed(GUARD_REWRITTEN)
    if shell.ANY_GUARD.search(rest):
        place.advise(EXIT_CODES)
    if is_advised and shell.DATE.search(rewritten):
        place.advise(DATE)
    used_shell = done.shell or settings.shell
    text, pipe_shell, obstacle = shell.with_pipefail(rewritten, used_shell)
    if text != rewritten:
        place.changed(
            f"set -o pipefail, in {pipe_shell}: a run fails if any part of its pipe does, not only"
            " the last"
        )
    elif obstacle:
        place.advise(
            f"its pipe succeeds if its last part does: {shown(obstacle)} prevents set -o pipefail"
        )
    return shell.argv(text, pipe_shell if text != rewritten else used_shell), name


def _report(place: Place, done: Simplified, job: str) -> None:
    for text in dict.fromkeys(done.removed):
        place.changed(
            f"{shown(text)} is removed: the output is kept. To see it: yamlsched show RUN --output"
        )
    for text in dict.fromkeys(done.kept):
        if not DATA.search(text.strip("\"'")):
            place.advise(f"{shown(text)} is kept, as it may be data: remove it if it is a log")
    for program in shell.output_takers(done.command):
        place.advise(
            f"{program} takes the output: without it, yamlsched keeps the output and reports what"
            " fails"
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


def _schedule(place: Place, expression: str, zone_name: str) -> tuple[OnCalendar, dict[str, Any]]:
    alias = expression.lower()
    if alias == "@reboot":
        raise Refusal("@reboot is not supported: start the program with systemd")
    if expression.startswith("@") and alias not in ALIASES:
        raise Refusal(f"{shown(expression)} is not an alias of cron")
    calendar = calendar_of(ALIASES.get(alias, expression), zone_name)
    written = cron_expression(calendar, ALIASES.get(alias, expression).split())
    if alias in ALIASES:
        written = alias
    elif written != expression:
        place.changed(f"{shown(expression)} is written as {written}")
    return calendar, {"cron": written, "timezone": zone_name}


def calendar_of(expression: str, zone_name: str) -> OnCalendar:
    """Return five fields as Debian's cron reads them. Raises Refusal."""
    parts = expression.split()
    if any("~" in part for part in parts):
        raise Refusal("~ chooses a random time: write a fixed time, and spread for a stable delay")
    # a field that starts with * restricts nothing on its own, even with a step: then a date must
    # match both
    either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
    clock = EVERY_MATCH if parts[0].startswith("*") or parts[1].startswith("*") else DEBIAN
    return OnCalendar(fields_of(parts, CRON_RULES), zone(zone_name), clock, either_day)


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


def _flock_kept(command: str, limits: Mapping[str, str]) -> str:
    if locked := without_flock(command):
        return (
            f"flock {shown(locked[2])} is kept: other lines use the same lock, and not all in"
            " this way"
        )
    return (
        "flock is kept, as it is not all of the command, or has other options: overlap or a limit"
        " does this as well"
    )


def shared_locks(crontabs: Iterable[tuple[str, bool]], taken: set[str]) -> dict[str, str]:
    """Return the limit to write for each lock that several lines take; empty if one of them does
    anything else with it.

    Each of ``crontabs`` is a text, and whether it has users. The names of limits are added to
    ``taken``.
    """
    lines = [(line.strip(), has_user) for text, has_user in crontabs for line in text.split("\n")]
    lines = [(line, has_user) for line, has_user in lines if line and not line.startswith("#")]
    mentions = Counter(word for line, _ in lines for word in set(re.findall(r"[\w./-]+", line)))
    shared: dict[str, str] = {}
    for lock, count in Counter(_lock(*line) for line in lines).items():
        if mentions[lock] > 1:
            shared[lock] = (
                free_name(job_name(PurePath(lock).name), taken) if mentions[lock] == count else ""
            )
    return shared


def _lock(line: str, has_user: bool) -> str:
    """Return the lock that the command of a line takes, if flock is all of it but what ``simplify``
    removes.
    """
    command, _ = shell.split_percent(
        line.split(None, (1 if line.startswith("@") else 5) + has_user)[-1]
    )
    return simplify(command, "", True, {}).lock
