"""Commands of a crontab as argv lists. Shell syntax is read as text; nothing is executed."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from yamlsched.extras.importing.tokens import CannotSplit, split

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
BUILTINS = re.compile(
    r"[.:[!{]|\[\[|alias|bg|break|cd|command|eval|exec|exit|export|hash|read|set|shift|source|test|times?|trap|type|ulimit|umask"
    r"|unset|wait|if|for|while|until|case|function|select"
)
PLAIN_SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash", "sh", "bash")
PIPEFAIL_SHELLS = ("bash", "zsh", "ksh")
GUARDS = frozenset(
    (
        "test",
        "[",
        "[[",
        "command",
        "which",
        "type",
        "hash",
        "grep",
        "pgrep",
        "pidof",
        "mountpoint",
        "!",
    )
)
MAY_FAIL_IN_PIPES = frozenset(("grep", "egrep", "zgrep", "diff", "cmp", "yes", "head"))
"""A pipe with one of them ends with another exit code than 0 although nothing is wrong."""
TAKES_OUTPUT = frozenset(("logger", "mail", "mailx", "sendmail", "systemd-cat"))
DATE = re.compile(r"(?:\$\(|`)\s*(?:/bin/)?date\b")
RELATIVE = re.compile(
    r"~|\.\.?/|[\w.-]+/[\w./-]*$|[\w-]+\.(?:[ctp]sv|jsonl?|xml|sql|dump|gz|zip|tar|tgz|log|txt|py|sh|php|rb|pl|js|jar|ya?ml)$"
)
IN_FOLDER = frozenset(("git", "make", "npm", "yarn", "bundle", "rake", "docker-compose", "artisan"))

ANY_GUARD = re.compile(r"&&|\|\||\A(?:test\s|\[\s|grep\s)")
KEYWORDS = frozenset(("if", "then", "else", "do", "while", "until", "!", "{", "("))
WRAPPERS = frozenset(
    ["sudo", "nice", "ionice", "env", "exec", "chronic", "nohup", "time", "setsid", "chrt"]
)
WITH_VALUES = frozenset(["timeout", "flock"])
DURATION = re.compile(r"[\d.]+[smhd]?")
INTERPRETERS = re.compile(r"(python|php|perl|ruby|node|bash|sh|java|npx|uv|poetry)[\d.]*")
SUFFIX = re.compile(r"\.(sh|py|php|pl|rb|js|bash|jar)\Z")


def split_percent(command: str) -> tuple[str, str | None]:
    r"""Split at the first unescaped %, as cron does: the rest is standard input, with % for line
    ends.

    Debian's cron also reads two backslashes in front of it as one.

    >>> split_percent(r"mail -s 100\% root%Hello%World"), split_percent("date")
    (('mail -s 100% root', 'Hello\nWorld\n'), ('date', None))
    """
    pieces = [""]
    for part in re.split(r"(\\.|%)", command):
        if part == "%":
            pieces.append("")
        else:
            is_escape = part == r"\%" or (part == r"\\" and len(pieces) == 1)
            pieces[-1] += part[1:] if is_escape else part
    text = "\n".join(pieces[1:])
    program = pieces[0].rstrip()
    if program.endswith("\\") and program != pieces[0]:
        program += " "  # escaped
    return program, (text if text.endswith("\n") else f"{text}\n") if text else None


def argv(command: str, shell: str) -> list[str]:
    """Return ``command`` as a list: of its words if no shell is needed, else for ``shell -c``.

    >>> argv("/usr/bin/backup --opt 'a b'", "/bin/sh"), argv("a; b", "/bin/bash")
    (['/usr/bin/backup', '--opt', 'a b'], ['/bin/bash', '-c', 'a; b'])
    """
    needs_shell = [shell, "-c", command]
    try:
        line = split(command)
    except CannotSplit:
        return needs_shell
    part = line.parts[0]
    words = [word.literal for word in part.words]
    if (
        len(line.parts) > 1
        or part.operator
        or part.redirects
        or line.comment_at is not None
        or not words
    ):
        return needs_shell
    is_builtin = BUILTINS.fullmatch(part.words[0].text) or ASSIGNMENT.match(part.words[0].text)
    if shell not in PLAIN_SHELLS or is_builtin:
        return needs_shell
    plain = [word for word in words if word is not None]
    return plain if len(plain) == len(words) else needs_shell


def with_pipefail(command: str, shell: str) -> tuple[str, str, str]:
    """Return a command with pipes that fails if any part of a pipe does, its shell, and what
    prevents that.

    >>> with_pipefail("pg_dump app | gzip > app.gz", "/bin/sh")
    ('set -o pipefail; pg_dump app | gzip > app.gz', '/bin/bash', '')
    """
    try:
        line = split(command)
    except CannotSplit:
        return command, shell, ""
    if "|" not in line.operators or "pipefail" in command:
        return command, shell, ""
    programs = [part.program for part in line.parts]
    if reasons := [program for program in programs if program in MAY_FAIL_IN_PIPES]:
        return command, shell, reasons[0]
    if shell in PLAIN_SHELLS and not shell.endswith("bash"):
        shell = "/bin/bash"
    if PurePosixPath(shell).name not in PIPEFAIL_SHELLS:
        return command, shell, shell
    return f"set -o pipefail; {command}", shell, ""


def needs_home(command: str) -> bool:
    """Return whether a path in ``command`` is relative to the directory in which it starts."""
    try:
        line = split(command)
    except CannotSplit:
        return True
    words = [word for part in line.parts for word in part.words]
    if len(words) > 1 and words[0].text == "cd" and words[1].text.strip("\"'").startswith("/"):
        return False
    targets = [redirect.target for part in line.parts for redirect in part.redirects]
    texts = [word.text.strip("\"'") for word in (*words, *targets)]
    values = [text.rpartition("=")[2] if text.startswith("-") else text for text in texts]
    return any(map(RELATIVE.match, values)) or any(text in IN_FOLDER for text in texts)


def output_takers(command: str) -> list[str]:
    """Return the programs that a pipe passes the output on to, so that yamlsched has none of it."""
    try:
        line = split(command)
    except CannotSplit:
        return []
    pairs = zip(line.parts, line.parts[1:], strict=False)
    return [
        after.program
        for before, after in pairs
        if before.operator == "|" and after.program in TAKES_OUTPUT
    ]


def without_failing_guard(command: str) -> tuple[str, str]:
    """Return ``command`` with its leading guards as the condition of an ``if``, and what follows
    them.

    Such an ``if`` exits 0 where they are false. Without guards, all of the command follows them.

    >>> without_failing_guard("test -x /usr/bin/a && /usr/bin/a -q")
    ('if test -x /usr/bin/a; then /usr/bin/a -q; fi', '/usr/bin/a -q')
    """
    try:
        line = split(command)
    except CannotSplit:
        return command, command
    count = 0
    for number, part in enumerate(line.parts[:-1], 1):
        if part.operator == "&&" and part.program in GUARDS:
            count = number
        elif part.operator != "|":
            break
    others = {part.operator for part in line.parts[count:]} - {"|", "&&", ""}
    if not count or others or line.has_groups or line.comment_at is not None:
        return command, command  # behind ||, ; or & the guard would apply to something else
    rest = command[line.parts[count].start :].rstrip()
    return f"if {command[: line.parts[count - 1].end]}; then {rest}; fi", rest


def name_of(command: str) -> str:
    """Return what a job is named after: the program that matters, without directory and suffix.

    >>> name_of("cd /srv/app && nice -n 10 python3 manage.py clearsessions -v0")
    'manage_clearsessions'
    >>> name_of('echo "$A|$B" | bin/send;')
    'send'
    >>> name_of('echo "$A|$B"')
    'echo'
    """
    fallback = ""
    unquoted = re.sub(
        r"'[^']*'|\"[^\"]*\"", lambda quoted: re.sub(r"[;&|]", " ", quoted[0]), command
    )
    for segment in re.split(r"&&|\|\||[;|]", unquoted):
        words = [word for word in _words(segment) if not ASSIGNMENT.match(word)]
        while words:
            program = words[0].rsplit("/", 1)[-1]
            if words[0] in KEYWORDS:
                words = words[1:]
            elif program in WRAPPERS or program in WITH_VALUES:
                words = words[1:]
                while words and (words[0].startswith("-") or DURATION.fullmatch(words[0])):
                    words = words[2 if program == "sudo" and words[0] in ("-u", "-g") else 1 :]
                words = words[1:] if program == "flock" else words
            elif INTERPRETERS.fullmatch(program):
                words = [word for word in words[1:] if word not in ("run", "exec")]
                while words and words[0].startswith("-"):
                    words = words[1:]
            else:
                break
        if not words:
            continue
        program = SUFFIX.sub("", words[0].rsplit("/", 1)[-1])
        argument = next(
            (word for word in words[1:2] if re.fullmatch(r"[a-z][a-z0-9:_-]*", word)), ""
        )
        name = f"{program}_{argument}" if argument else program
        if not BUILTINS.fullmatch(program) and program not in (
            "[",
            "sleep",
            "mkdir",
            "echo",
            "true",
            "fi",
            "done",
        ):
            return name
        fallback = fallback or name
    return fallback


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
