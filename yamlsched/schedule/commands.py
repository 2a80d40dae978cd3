"""Whether the programs of commands can be started on this host, and which of their words look like secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from yamlsched.runs.lifecycle import LOCAL
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.source import Diagnostic
from yamlsched.text import quoted, truncate

if TYPE_CHECKING:
    from yamlsched.schedule.load import Calls, Loaded


MAX_FIRST_LINE_BYTES = 256
MAX_SHOWN_CHARS = 200
MAX_SHOWN_PATH_CHARS = 60
"""Of PATH, in a message: cron's is short and matters, that of a login shell is long and would hide the message."""


def _shown(text: str) -> str:
    return quoted(text, MAX_SHOWN_CHARS)


class Obstacle(NamedTuple):
    """Why a program cannot be started, and what to do about it."""

    message: str
    remedy: str


def directory_obstacle(folder: str, written: str) -> Obstacle | None:
    """Return why no program can be started in ``folder``, which messages call ``written``; None if one can."""
    if not exists(folder):
        if obstacle := _unreachable(folder, written):
            return obstacle
        return Obstacle(f"the directory {_shown(written)} does not exist", "Create it, or correct cwd.")
    if not isdir(folder):
        return Obstacle(f"{_shown(written)} is not a directory", "Correct cwd.")
    if not os.access(folder, os.X_OK):
        return Obstacle(f"the directory {_shown(written)} cannot be entered", "Permit it to the user of the worker.")
    return None


def _unreachable(path: str, written: str) -> Obstacle | None:
    """Return an obstacle if it is unknown whether ``path`` exists, because a folder above it may not be entered."""
    try:
        os.stat(path)
    except PermissionError:
        above = (str(parent) for parent in reversed(Path(path).parents))
        closed = next((folder for folder in above if isdir(folder) and not os.access(folder, os.X_OK)), path)
        message = f"{_shown(written)} cannot be reached: permission denied for {_shown(closed)}"
        return Obstacle(message, "Permit the user of the worker to enter it.")
    except OSError:
        pass
    return None


def program_obstacle(program: str, folder: str, search_path: str) -> Obstacle | None:
    """Return why ``program`` cannot be started in ``folder``; None if nothing is known against it.

    A name without a slash is searched in the directories of ``search_path``, as PATH lists them.
    """
    if not program:
        return Obstacle("the program is an empty string", "Write its name first: [program, argument].")
    if "/" not in program:
        return None if which(program, folder, search_path) else not_on_path(program, search_path)
    path = os.path.join(folder, program)
    if not exists(path):
        if obstacle := _unreachable(path, program):
            return obstacle
        if " " in program:
            return Obstacle(f"{_shown(program)} does not exist", "Write each argument as an item of its own.")
        return Obstacle(f"{_shown(program)} does not exist", "Correct the path, or install the program on this host.")
    if not isfile(path):
        return Obstacle(f"{_shown(program)} is not a file", "Write the path of the program.")
    if not os.access(path, os.X_OK):
        return Obstacle(f"{_shown(program)} is not executable", f"Run: chmod +x {program}")
    return _script_obstacle(program, path)


def not_on_path(program: str, search_path: str) -> Obstacle:
    if " " in program:
        return Obstacle(f"there is no program {_shown(program)}", "Write each argument as an item of its own.")
    message = f"there is no program {_shown(program)} in PATH"
    path = truncate(search_path, MAX_SHOWN_PATH_CHARS)
    return Obstacle(message, f"Install it, write its full path, or set PATH in env (PATH is {path}).")


def which(program: str, folder: str, search_path: str) -> str | None:
    """Return the path of the program that a name without a slash means in ``folder``; None if there is none."""
    for entry in search_path.split(os.pathsep):
        path = os.path.join(folder, entry, program)
        if isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _script_obstacle(program: str, path: str) -> Obstacle | None:
    """Return an obstacle if a script does not begin with #!, or names an interpreter that does not exist."""
    try:
        with open(path, "rb") as file:
            start = file.read(MAX_FIRST_LINE_BYTES)
    except OSError:
        return None  # a program may be executable and not readable
    if not start.startswith(b"#!"):
        if b"\0" in start:  # not text
            return None
        return Obstacle(f"{_shown(program)} has no #! line", "Begin it with a line such as #!/bin/sh")
    line = start[2:].partition(b"\n")[0].decode("utf-8", "replace")
    interpreter = line.strip(" \t\n").split(" ")[0].split("\t")[0]
    if exists(interpreter):
        return None
    if interpreter.endswith("\r"):
        message = f"the first line of {_shown(program)} ends with a carriage return"
        return Obstacle(message, "Save the file with Unix line endings.")
    message = f"the first line of {_shown(program)} names {_shown(interpreter)}, which does not exist"
    return Obstacle(message, "Correct that line, or install the interpreter.")


_directory_obstacle, _program_obstacle = cache(directory_obstacle), cache(program_obstacle)
"""For jobs that start the same program: see ``check``."""


def check(loaded: Loaded, file: Path) -> list[Diagnostic]:
    """Return what keeps the commands of enabled jobs from being started on this host; other executors are elsewhere.

    A name that is not in PATH is a warning: the PATH of the worker may be another one.
    """
    findings, folder = Findings(loaded.source), str(file.resolve().parent)
    for cached in (_directory_obstacle, _program_obstacle):
        cached.cache_clear()  # programs may have changed since the last check
    for calls in loaded.calls:
        if findings.is_full:
            break
        _check_calls(loaded, calls, folder, findings)
    return findings.diagnostics()


def check_again(loaded: Loaded, calls: Calls, file: Path) -> list[Diagnostic]:
    """Return what is wrong with one job's command, by what ``check`` has found on this host."""
    findings = Findings(loaded.source)
    _check_calls(loaded, calls, str(file.resolve().parent), findings)
    return findings.diagnostics()


def _check_calls(loaded: Loaded, calls: Calls, home: str, findings: Findings) -> None:
    """Report what is wrong with one job's command, in a file in the folder ``home``."""
    job = loaded.jobs.get(calls.job)
    if not calls.command or (job is not None and not (job.enabled and job.executor == LOCAL)):
        return
    program, env = calls.command[0], calls.env or {}
    folder = os.path.join(home, calls.cwd or "")
    spot = loaded.spot(calls.job, "command").child(0)
    if obstacle := _directory_obstacle(folder, calls.cwd or folder):
        at = loaded.spot(calls.job, "cwd") if calls.cwd else spot
        findings.error(at, "YS311", f"{at}: {obstacle.message}", obstacle.remedy)
    elif obstacle := _program_obstacle(program, folder, env.get("PATH") or os.environ.get("PATH") or os.defpath):
        is_name = "/" not in program and bool(program)
        if is_name and len(calls.command) == 1 and " " in program:
            return  # a whole command line, which is a warning of its own
        report, code = (findings.warning, "YS422") if is_name else (findings.error, "YS310")
        report(spot, code, f"{spot}: {obstacle.message}", obstacle.remedy)


SECRET_NAME = re.compile(
    r"(^|_)(password|passwd|passphrase|pwd|secret|token|credentials?|api_?key|access_?key|private_?key|dsn)($|_)"
    r"|PASSWORD$|(^|_)(pass|auth|authorization|cookies?|webhook(_ur[il])?)$|._sk$",
    re.I,
)
REFERENCE_KEY = re.compile(
    r"(?<!webhook)_(name|file|path|dir|env|env_?var|var|variable|id|arn|ref|reference|key_name|field|header|param"
    r"|parameter|type|kind|version|ttl|length|policy|expiry|store|manager|url|uri)$",
    re.I,
)
REFERENCE = re.compile(
    r"/run/secrets/|\$\{|\$[A-Z_]+$|(arn|aws-sm|env|file|gsm|op|secrets?|sm|ssm|vault):"
    r"|(none|basic|bearer|digest|oauth2?|true|false)$",
    re.I,
)
"""Keys and values that say where a secret is or of which kind. The URL of a webhook is a secret itself."""
ASSIGNMENT = re.compile(r"(?<![\w-])(-{0,2}([A-Za-z_][\w-]*)=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)")
"""``NAME=value`` in a command. The search is linear: it starts only where a word starts."""
TOKEN = re.compile(r"\b(?:((?:bearer|basic)\s+)[\w.~+/=-]{8,}|(cookie:\s*)[^'\"\n]+)", re.I)
SPACE_OR_QUOTE = re.compile(r"[\s'\"]")
USER_AND_PASSWORD = re.compile(
    r"(?<!\S)((?:-[uU]|--(?:proxy-)?user(?=[=\s]))[=\s]*['\"]?)(?!\d+:\d+(?:\s|$))"
    r"([^\s:'\"]+:)(?!//)[^\s'\"]+"
)
"""``-u NAME:PASSWORD``, but neither ids of a user and a group nor a URL."""
PASSWORD_OPTIONS = {
    program: re.compile(rf"(?<!\S)({option})(?:'[^']*'|\"[^\"]*\"|\S+)")
    for program, option in {"mysql": "-p", "mariadb": "-p", "redis-cli": r"-a\s*", "sshpass": r"-p\s*"}.items()
}
"""Short options with a password, by a part of the program's name: elsewhere they mean something else."""
HIDDEN = "***"
"""What is recorded in place of a secret."""


def is_reference(key: str, value: Any) -> bool:
    """Return whether the key or the value says where a secret is, and is none itself."""
    return bool(REFERENCE_KEY.search(key) or (isinstance(value, str) and REFERENCE.match(value)))


def without_secrets(key: str, value: Any, redact: Callable[[str], str]) -> Any:
    """Return a JSON value without what looks like a secret; ``key`` is its name.

    ``redact`` removes passwords from strings such as URLs.

    >>> without_secrets("payload", {"week": 3, "api_key": "k-1", "token_file": "/etc/t"}, str)
    {'week': 3, 'api_key': '***', 'token_file': '/etc/t'}
    """
    if isinstance(value, dict):
        return {name: without_secrets(name, item, redact) for name, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(key, item, redact) for item in value]
    if is_secret_name(key) and value not in ("", None) and not isinstance(value, bool) and not is_reference(key, value):
        return HIDDEN
    return hide_in_string(value, redact) if isinstance(value, str) else value


def command_without_secrets(words: Sequence[str], redact: Callable[[str], str]) -> list[str]:
    """Return the words of a command without what looks like a secret.

    >>> command_without_secrets(["load", "--api-key", "k-1", "--db-password=x", "--file=a"], str)
    ['load', '--api-key', '***', '--db-password=***', '--file=a']
    >>> command_without_secrets(["curl", "-u", "maria:x y", "-H", "Cookie: id=1", "--auth", "k"], str)
    ['curl', '-u', 'maria:***', '-H', 'Cookie: ***', '--auth', '***']
    >>> command_without_secrets(["/usr/bin/redis-cli", "-a", "x y"], str)
    ['/usr/bin/redis-cli', '-a', '***']
    """
    programs = " ".join(words)
    redacted = [_hide_passwords(hide_in_string(word, redact), programs) for word in words]
    for nth, (option, value) in enumerate(pairwise(words), start=1):
        name = option.lstrip("-")
        if name == option:
            continue
        pair = _hide_passwords(f"{option} {SPACE_OR_QUOTE.sub('_', value)}", programs)
        if is_secret_name(name) and not value.startswith("-"):
            redacted[nth] = HIDDEN
        elif pair.endswith(HIDDEN):
            redacted[nth] = pair.rpartition(" ")[2]
    return redacted


def hide_in_string(text: str, redact: Callable[[str], str]) -> str:
    """Return a string without tokens, passwords in URLs and the values of secret assignments and options.

    >>> hide_in_string("PGPASSWORD=x psql -h db; curl -H 'Authorization: Bearer abcdefgh'", str)
    "PGPASSWORD=*** psql -h db; curl -H 'Authorization: Bearer ***'"
    >>> hide_in_string("mysql -psecret db; curl -b 'COOKIE: id=1' -u maria:x | docker run -u 1000:1000 -p 80:80", str)
    "mysql -p*** db; curl -b 'COOKIE: ***' -u maria:*** | docker run -u 1000:1000 -p 80:80"
    """
    text = redact(text)
    if "=" in text:
        text = ASSIGNMENT.sub(lambda match: match[1] + HIDDEN if is_secret_name(match[2]) else match[0], text)
    folded = text.casefold()
    if "bearer" in folded or "basic" in folded or "cookie" in folded:  # a search by pattern takes longer
        text = TOKEN.sub(lambda match: (match[1] or match[2]) + HIDDEN, text)
    return _hide_passwords(text, text) if "-" in text else text


def _hide_passwords(text: str, programs: str) -> str:
    """Return a string without the passwords of short options; ``programs`` has the names of the programs called."""
    text = USER_AND_PASSWORD.sub(rf"\g<1>\g<2>{HIDDEN}", text)
    for program, option in PASSWORD_OPTIONS.items():
        if program in programs:
            text = option.sub(rf"\g<1>{HIDDEN}", text)
    return text


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a key, a variable or an option looks like the name of a secret.

    >>> [is_secret_name(name) for name in ("DB_PASS", "HTTP_AUTH", "STRIPE_SK", "WEBHOOK_URL", "SESSION_COOKIE")]
    [True, True, True, True, True]
    >>> [is_secret_name(name) for name in ("pass_count", "compass", "author", "auth_mode", "sk", "token_url")]
    [False, False, False, False, False, False]
    """
    name = name.replace("-", "_")
    return bool(SECRET_NAME.search(name) and not REFERENCE_KEY.search(name))
