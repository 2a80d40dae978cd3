"""Commands of a crontab without what yamlsched does itself: redirects, directory, lock, random
sleep and ping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePosixPath

from yamlsched import durations
from yamlsched.extras.importing.shell import GUARDS, PLAIN_SHELLS
from yamlsched.extras.importing.tokens import (
    CannotSplit,
    CommandLine,
    Part,
    Redirect,
    split,
    without_spans,
)

FLOCK = re.compile(
    r"(?:\S*/)?flock(?P<options>(?:\s+(?:-[nxeoF]+|(?:-E|--conflict-exit-code)[\s=]?\d+|--no-fork|--nonblock|--nb"
    r"|--exclusive|--close))*)\s+(?P<file>/[\w./-]+)"
    r"\s+(?P<options2>(?:(?:-n|--nonblock)\s+)*)(?P<is_shell>(?:-c|--command)\s+)?(?P<rest>[^-\s].*)",
    re.DOTALL,
)
ANY_FLOCK = re.compile(r"(?<![\w-])flock\s")
RANDOM_SLEEP = re.compile(
    r"""(?:\A|(?<=[;&]\s)|(?<=[;&]))\s*(?:
        (?:\S*/)?sleep\s+(?:
            \$\(\(\s*\$?RANDOM\s*%\s*(?P<modulo>\d{1,6})\s*(?:\+\s*\d+\s*)?\)\)
          | [$`]\(?\s*(?:\S*/)?shuf\s+(?=[^)`]*-n\s*1)[^)`]*-i\s*\d+-(?P<shuf>\d{1,6})[^)`]*[)`]
        )(?P<unit>[smh]?)
      | perl\s+-e\s+(?P<quote>['"])\s*sleep\s*\(?\s*int\s*\(?\s*rand\s*\(?\s*(?P<perl>\d{1,6})[\s);]*(?P=quote)
    )\s*(?:&&|;)\s*""",
    re.VERBOSE,
)
ANY_RANDOM_SLEEP = re.compile(r"(?<![\w-])sleep\b[^;&|]*(?:RANDOM|shuf|rand|random)")
NULL = "/dev/null"
LOG = re.compile(
    r"^/proc/\w+/fd/|^/dev/(?:std|tty|console)|(?:^|/)logs?/|\.(?:log|out|err)(?![a-z])|[_-]log$"
)
DATA = re.compile(
    r"\.(?:[ctp]sv|jsonl?|ndjson|xml|html?|sql|dump|bak|gz|bz2|xz|zst|zip|tar|tgz|dat|db|sqlite3?|md|ics|pdf|prom|ya?ml"
    r"|conf|cfg|ini|crt|pem|key|parquet|avro|png|jpg|svg)$"
)
PING = re.compile(
    r"https://(?:hc-ping\.com|cronitor\.link|nosnch\.in|(?:uptime|betteruptime)\.[a-z.]+/api/v1/heartbeat"
    r"|heartbeat\.uptimerobot\.com|push\.statuscake\.com|ping\.ohdear\.app|[\w.-]+/ping/[0-9a-f]{8}-)[\w./?=&-]*"
)
PING_STATE = re.compile(r"/(?:start|fail|log|\d{1,3})/?$")
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
MAX_SPREAD = timedelta(hours=24)


@dataclass(slots=True)
class Simplified:
    """A command without what yamlsched does itself, and what that was."""

    command: str
    cwd: str = ""
    overlap: str = ""
    lock: str = ""
    spread: timedelta | None = None
    ping: str = ""
    shell: str = ""
    is_background: bool = False
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def simplify(command: str, home: str, is_advised: bool, limits: Mapping[str, str]) -> Simplified:
    """Return ``command`` without its redirects to logs, its ``cd`` and its ping, and if advised
    without lock and sleep.

    ``home`` is where it starts; empty if unknown. A lock whose limit is empty is kept.
    """
    done = Simplified(command.lstrip())
    steps: list[Callable[[Simplified, CommandLine], None]] = [
        _comment,
        _subshell,
        _background,
        _redirects,
        _ping,
    ]
    steps.append(lambda done, line: _folder(done, line, home))
    steps.append(_inner_shell)
    before = ""
    while before != done.command:
        before = done.command
        for step in steps:
            try:
                step(done, split(done.command))
            except CannotSplit:
                return done
        if is_advised:
            _lock(done, limits)
            _sleep(done)
    return done


def _comment(done: Simplified, line: CommandLine) -> None:
    if line.comment_at:
        done.command = done.command[: line.comment_at].rstrip()


def _subshell(done: Simplified, line: CommandLine) -> None:
    """Remove the parentheses around the whole command."""
    first, last = line.parts[0], line.parts[-1]
    parentheses = [part.operator for part in line.parts if part.operator and part.operator in "()"]
    if (
        parentheses == ["(", ")"]
        and first.operator == "("
        and not first.words
        and last.operator == ")"
    ):
        done.command = done.command.strip()[1:-1].strip()


def _background(done: Simplified, line: CommandLine) -> None:
    if line.parts[-1].operator == "&" and "&" not in {part.operator for part in line.parts[:-1]}:
        done.command, done.is_background = done.command.rstrip()[:-1].rstrip(), True


def _redirects(done: Simplified, line: CommandLine) -> None:
    outputs = [(part, _output_redirects(part, part is line.parts[-1])) for part in line.parts]
    kept = [
        one
        for part, removed in outputs
        for one in part.redirects
        if one not in removed and _is_file(one)
    ]
    if not (line.has_groups and (kept or "|" in line.operators)):
        removed = sorted(
            (one for _, redirects in outputs for one in redirects), key=lambda one: one.start
        )
        done.removed += [one.text for one in removed if _is_file(one)]
        done.command = without_spans(done.command, [(one.start, one.end) for one in removed])
    else:
        kept = [one for part in line.parts for one in part.redirects if _is_file(one)]
    done.kept = [one.text for one in kept if one.target.text != NULL]


def _is_file(redirect: Redirect) -> bool:
    return (
        redirect.operator.startswith(">")
        and not redirect.target.text.isdigit()
        and redirect.target.text != "-"
    )


def _output_redirects(part: Part, is_last: bool) -> list[Redirect]:
    """Return the redirects of a simple command that only put its output away."""
    to_stdout = [one for one in part.redirects if one.text == "2>&1"]
    files = [one for one in part.redirects if _is_file(one)]
    outs = [one for one in files if one.fd in ("", "1", "&")]
    errors = [one for one in files if one.fd == "2"]
    is_test = part.operator == "||" or part.program in GUARDS
    if part.operator in ("|", "|&") or len(outs) > 1 or len(to_stdout) > 1:
        return [one for one in errors if one.target.text != NULL]
    removed = [one for one in errors if one.target.text != NULL or (is_last and not is_test)]
    if not outs:
        return removed + (to_stdout if not is_test else [])
    out, path = outs[0], outs[0].target.text.strip("\"'")
    is_both = (
        out.fd == "&" or out.operator == ">&" or any(one.start > out.start for one in to_stdout)
    )
    if path == NULL:
        is_output = not is_test
    else:
        is_output = bool(LOG.search(path)) or (
            not DATA.search(path) and (is_both or out.operator == ">>")
        )
    return removed + ([out, *to_stdout] if is_output else [])


def _ping(done: Simplified, line: CommandLine) -> None:
    """Remove the pings of a monitoring service at the end, and at the start."""
    parts = list(line.parts)
    if line.has_groups or "|" in line.operators:
        return
    urls = []
    while (
        len(parts) > 1 and (url := _pinged(parts[-1])) and parts[-2].operator in ("&&", ";", "||")
    ):
        urls.append(url)
        parts.pop()
    while len(parts) > 1 and (url := _pinged(parts[0])) and parts[0].operator in ("&&", ";"):
        urls.append(url)
        parts.pop(0)
    if urls and len({PING_STATE.sub("", url) for url in urls}) == 1:
        done.ping = PING_STATE.sub("", urls[0])
        done.command = done.command[parts[0].start : parts[-1].end]


def _pinged(part: Part) -> str:
    """Return the URL of a ping that sends nothing else; else an empty string."""
    words = [word.literal for word in part.words]
    urls = [word for word in words if word and PING.fullmatch(word)]
    sends = any(
        word is None or re.match(r"-d$|-F$|--data|--post|--form|-X$|--request", word)
        for word in words
    )
    return urls[0] if part.program in ("curl", "wget") and len(urls) == 1 and not sends else ""


def _folder(done: Simplified, line: CommandLine, home: str) -> None:
    """Replace a leading ``cd`` by the directory in which the command starts."""
    first, rest = line.parts[0], line.parts[1:]
    if first.program != "cd" or len(first.words) != 2 or first.redirects or not rest:
        return
    if first.operator == "||" and rest[0].program in ("exit", "return") and len(rest) > 1:
        rest = rest[1:]
    elif first.operator not in ("&&", ";") or (first.operator == "&&" and "||" in line.operators):
        return
    if "&" in line.operators or not rest[0].words:
        return
    path = _path(first.words[1].literal, first.words[1].text, done.cwd or home, home)
    if path:
        done.cwd, done.command = path, done.command[rest[0].start :]


def _path(literal: str | None, written: str, folder: str, home: str) -> str:
    """Return the absolute path of a directory; empty if it is not known."""
    for prefix in ("~", "$HOME", '"$HOME"', "${HOME}"):
        rest = written.removeprefix(prefix)
        if (
            literal is None
            and home
            and rest != written
            and (not rest or re.fullmatch(r"/[\w./-]*", rest))
        ):
            return home + rest.rstrip("/")
    if not literal or literal.startswith("-") or not (literal.startswith("/") or folder):
        return ""
    return str(PurePosixPath(folder or "/", literal))


def _inner_shell(done: Simplified, line: CommandLine) -> None:
    """Replace ``bash -c "..."`` by its string."""
    [part], words = line.parts[:1], [word.literal for word in line.parts[0].words]
    if (
        len(line.parts) == 1
        and not part.redirects
        and len(words) == 3
        and words[0] in PLAIN_SHELLS
        and words[1] == "-c"
    ):
        done.shell, done.command = words[0] or "", (words[2] or "").strip() or done.command


def _lock(done: Simplified, limits: Mapping[str, str]) -> None:
    locked = without_flock(done.command)
    if locked and not done.lock and limits.get(locked[2]) != "":
        done.command, done.overlap, done.lock = locked


def _sleep(done: Simplified) -> None:
    slept = without_random_sleep(done.command)
    if slept and done.spread is None:
        done.command, done.spread = slept[0].strip(), slept[1]


def without_flock(command: str) -> tuple[str, str, str] | None:
    """Return the command that flock protects, the ``overlap`` that does the same, and the lock
    file; else None.

    >>> without_flock("flock -n /tmp/x.lock /usr/bin/sync --all")
    ('/usr/bin/sync --all', 'skip', '/tmp/x.lock')
    """
    locked = FLOCK.fullmatch(command)
    if locked is None:
        return None
    rest = locked["rest"]
    if locked["is_shell"]:
        rest = _one_word(rest)
        if not rest:
            return None
    elif not _is_simple(rest):
        return None  # a pipe or && behind the program is outside of the lock
    options = f"{locked['options']} {locked['options2']}".split()
    is_skip = any(
        option.startswith("--n") or (option[1] != "-" and "n" in option) for option in options
    )
    return rest, "skip" if is_skip else "wait", locked["file"]


def without_random_sleep(command: str) -> tuple[str, timedelta] | None:
    """Return the command without its random sleep, and the longest sleep; None if it has none that
    is understood.

    >>> without_random_sleep("sleep $((RANDOM % 300)); certbot renew")
    ('certbot renew', datetime.timedelta(seconds=300))
    """
    match = RANDOM_SLEEP.search(command)
    if match is None:
        return None
    seconds = int(match["modulo"] or match["shuf"] or match["perl"]) * UNITS[match["unit"] or ""]
    rest = command[: match.start()] + (" " if match.start() else "") + command[match.end() :]
    return (rest, min(timedelta(seconds=seconds), MAX_SPREAD)) if seconds and rest.strip() else None


def _one_word(text: str) -> str:
    """Return the string that one word stands for; empty if it is another one, or several."""
    try:
        line = split(text)
    except CannotSplit:
        return ""
    words = line.parts[0].words
    is_one = len(line.parts) == 1 and len(words) == 1 and not line.parts[0].redirects
    return (words[0].literal or "") if is_one else ""


def _is_simple(command: str) -> bool:
    try:
        line = split(command)
    except CannotSplit:
        return False
    return len(line.parts) == 1 and not line.parts[0].operator and not line.parts[0].redirects


def advice(command: str, limits: Mapping[str, str]) -> list[str]:
    """Return what yamlsched does better than a part of ``command``. ``limits`` are
    those for locks.
    """
    hints = []
    locked = without_flock(command)
    limit = limits.get(locked[2]) if locked else ""
    if locked and limit != "":
        waits = ", but waits where it skips" if limit and locked[1] == "skip" else ""
        key = f"limit: {limit}" if limit else f"overlap: {locked[1]}"
        exits = (
            ". While the lock is held, flock -n exits 1, which is a failure here"
            if locked[1] == "skip"
            else ""
        )
        hints.append(
            f"flock: {key} does this on all hosts together{waits}; --policy advised writes"
            f" it{exits}"
        )
    elif ANY_FLOCK.search(command):
        hints.append("flock: overlap, or a limit that jobs share, does this on all hosts together")
    if slept := without_random_sleep(command):
        hints.append(
            f"random sleep: spread: {durations.show(slept[1])} does this; --policy advised"
            " writes it"
        )
    elif ANY_RANDOM_SLEEP.search(command):
        hints.append("random sleep: spread does this, with the same delay each time")
    return hints
