"""Commands of a crontab without what yamlsched does itself: redirects, directory, lock, random
sleep and ping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePosixPath

from yamlsched.extras.importing.shell import GUARDS
from yamlsched.extras.importing.tokens import (
    CommandLine,
    Part,
    Redirect,
    Word,
    split,
    without_spans,
)

FLOCK = re.compile(
    r"""(?:\S*/)?flock
    (?P<options>(?:\s+(?:
        -[nxeoF]+ | (?:-E|--conflict-exit-code)[\s=]?\d+
      | --no-fork | --nonblock | --nb | --exclusive | --close
    ))*)
    \s+(?P<file>/[\w./-]+) (?P<options2>(?:\s+(?:-n|--nonblock))*)
    \s+(?P<is_shell>(?:-c|--command)\s+)? (?P<rest>[^-\s].*)""",
    re.VERBOSE | re.DOTALL,
)
SKIPS = re.compile(r"\s-(?:[xeoF]*n|-nb|-nonblock)")
RANDOM_SLEEP = re.compile(
    r"""(?:\A|(?<=[;&]\s)|(?<=[;&]))\s*(?:
        (?:\S*/)?sleep\s+(?:
            \$\(\(\s*\$?RANDOM\s*%\s*(?P<modulo>\d{1,6})\s*(?:\+\s*\d+\s*)?\)\)
          | [$`]\(?\s*(?:\S*/)?shuf\s+(?=[^)`]*-n\s*1)[^)`]*-i\s*\d+-(?P<shuf>\d{1,6})[^)`]*[)`]
        )(?P<unit>[smh]?)
      | perl\s+-e\s+(?P<quote>['"])\s*sleep\s*\(?\s*int\s*\(?\s*rand\s*\(?
        \s*(?P<perl>\d{1,6})[\s);]*(?P=quote)
    )\s*(?:&&|;)\s*""",
    re.VERBOSE,
)
NULL_OR_LOG = re.compile(
    r"^/dev/(?:null$|std|tty|console)|^/proc/\w+/fd/|(?:^|/)logs?/"
    r"|\.(?:log|out|err)(?![a-z])|[_-]log$"
)
DATA = re.compile(
    r"\.(?:[ctp]sv|jsonl?|ndjson|xml|html?|sql|dump|bak|gz|bz2|xz|zst|zip|tar|tgz|dat|db|sqlite3?"
    r"|md|ics|pdf|prom|ya?ml|conf|cfg|ini|crt|pem|key|parquet|avro|png|jpg|svg)$"
)
PING = re.compile(
    r"https://(?:hc-ping\.com|cronitor\.link|nosnch\.in"
    r"|(?:uptime|betteruptime)\.[a-z.]+/api/v1/heartbeat|heartbeat\.uptimerobot\.com"
    r"|push\.statuscake\.com|ping\.ohdear\.app|[\w.-]+/ping/[0-9a-f]{8}-)[\w./?=&-]*"
)
PING_STATE = re.compile(r"/(?:start|fail|log|\d{1,3})/?$")
SENDS = re.compile(r"-d$|-F$|--data|--post|--form|-X$|--request")
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
    is_background: bool = False
    removed: list[str] = field(default_factory=list)


def simplify(command: str, home: str, is_advised: bool, limits: Mapping[str, str]) -> Simplified:
    """Return ``command`` without its redirects to logs, its ``cd`` and its ping, and if advised
    without lock and sleep.

    ``home`` is where it starts; empty if unknown. A lock whose limit is empty is kept.
    """
    done = Simplified(command.lstrip())
    before = ""
    while before != done.command:
        before = done.command
        for step in (_comment, _subshell, _background, _redirects, _ping):
            step(done, split(done.command))
        _folder(done, split(done.command), home)
        if is_advised:
            _lock(done, split(done.command), limits)
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
        and not first.words
        and (first.operator, last.operator) == ("(", ")")
    ):
        done.command = done.command.strip()[1:-1].strip()


def _background(done: Simplified, line: CommandLine) -> None:
    operators = [part.operator for part in line.parts]
    if operators[-1] == "&" and operators.count("&") == 1:
        done.command, done.is_background = done.command.rstrip()[:-1].rstrip(), True


def _redirects(done: Simplified, line: CommandLine) -> None:
    """Remove the redirects that only put output away, of a group if it has no others."""
    removed = [redirect for part in line.parts for redirect in _put_away(part)]
    files = [one for part in line.parts for one in part.redirects if _is_file(one)]
    if line.has_groups and ("|" in line.operators or any(one not in removed for one in files)):
        return
    done.removed += [one.text for one in removed if _is_file(one)]
    done.command = without_spans(done.command, [(one.start, one.end) for one in removed])


def _is_file(redirect: Redirect) -> bool:
    target = redirect.target.text
    return redirect.operator.startswith(">") and not target.isdigit() and target != "-"


def _put_away(part: Part) -> list[Redirect]:
    """Return the redirects of a simple command that only put its output away."""
    to_stdout = [one for one in part.redirects if one.text == "2>&1"]
    files = [one for one in part.redirects if _is_file(one)]
    outs = [one for one in files if one.fd in ("", "1", "&")]
    errors = [one for one in files if one.fd == "2"]
    is_condition = part.operator == "||" or GUARDS.fullmatch(part.program)
    if is_condition or part.operator in ("|", "|&") or len(outs) > 1 or len(to_stdout) > 1:
        return []
    if not outs:
        return errors + to_stdout
    out, path = outs[0], outs[0].target.text.strip("\"'")
    is_both = (
        out.fd == "&" or out.operator == ">&" or any(one.start > out.start for one in to_stdout)
    )
    is_log = NULL_OR_LOG.search(path) or (
        not DATA.search(path) and (is_both or out.operator == ">>")
    )
    return [*errors, out, *to_stdout] if is_log else errors


def _ping(done: Simplified, line: CommandLine) -> None:
    """Remove the pings of a monitoring service at the end, and at the start."""
    parts, urls = list(line.parts), set[str]()
    if line.has_groups or "|" in line.operators:
        return
    while len(parts) > 1 and _pinged(parts[-1]) and parts[-2].operator in ("&&", ";", "||"):
        urls.add(_pinged(parts.pop()))
    while len(parts) > 1 and _pinged(parts[0]) and parts[0].operator in ("&&", ";"):
        urls.add(_pinged(parts.pop(0)))
    if len(urls) == 1:
        done.ping = urls.pop()
        done.command = done.command[parts[0].start : parts[-1].end]


def _pinged(part: Part) -> str:
    """Return the URL of a ping that sends nothing else; else an empty string."""
    words = [word.literal or "-d" for word in part.words]
    urls = [word for word in words if PING.fullmatch(word)]
    is_ping = (
        part.program in ("curl", "wget") and len(urls) == 1 and not any(map(SENDS.match, words))
    )
    return PING_STATE.sub("", urls[0]) if is_ping else ""


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
    if path := _path(first.words[1].text, done.cwd or home, home):
        done.cwd, done.command = path, done.command[rest[0].start :]


def _path(written: str, folder: str, home: str) -> str:
    """Return the absolute path of a directory; empty if it is not known."""
    if home:
        written = re.sub(r"^(\"?)(?:~|\$HOME|\$\{HOME\})(?=[/\"]|$)", rf"\1{home}", written)
    path = Word(written, 0, 0).literal
    if not path or path.startswith("-") or not (path.startswith("/") or folder):
        return ""
    return str(PurePosixPath(folder or "/", path))


def _lock(done: Simplified, line: CommandLine, limits: Mapping[str, str]) -> None:
    """Replace flock by ``overlap`` or a limit, if it is all of the command."""
    locked, part = FLOCK.fullmatch(done.command), line.parts[0]
    if not locked or done.lock or limits.get(locked["file"]) == "":
        return
    if len(line.parts) > 1 or part.operator or part.redirects or not part.words:
        return  # a pipe or && behind the program is outside of the lock
    rest: str | None = locked["rest"]
    if locked["is_shell"]:
        [*_, last] = part.words
        rest = last.literal if last.start == locked.start("rest") else None
    if rest:
        is_skip = SKIPS.search(locked["options"] + locked["options2"])
        done.command, done.lock = rest, locked["file"]
        done.overlap = "skip" if is_skip else "wait"


def _sleep(done: Simplified) -> None:
    """Replace a random sleep by ``spread``: the longest sleep."""
    match = RANDOM_SLEEP.search(done.command)
    if match is None or done.spread is not None:
        return
    seconds = int(match["modulo"] or match["shuf"] or match["perl"]) * UNITS[match["unit"] or ""]
    rest = f"{done.command[: match.start()]} {done.command[match.end() :]}".strip()
    if seconds and rest:
        done.command, done.spread = rest, min(timedelta(seconds=seconds), MAX_SPREAD)
