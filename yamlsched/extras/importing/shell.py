"""Commands of a crontab as argv lists. Shell syntax is read as text; nothing is executed."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from yamlsched.extras.importing.tokens import split

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
BUILTINS = re.compile(
    r"[.:[!{]|\[\[|alias|bg|break|cd|command|eval|exec|exit|export|hash|read|set|shift|source|test"
    r"|times?|trap|type|ulimit|umask|unset|wait|if|for|while|until|case|function|select"
)
PLAIN_SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash", "sh", "bash")
PIPEFAIL_SHELLS = ("bash", "zsh", "ksh")
GUARDS = re.compile(r"test|\[\[?|command|which|type|hash|p?grep|pidof|mountpoint|!")
MAY_FAIL_IN_PIPES = re.compile(r"[ez]?grep|diff|cmp|yes|head")
"""A pipe with one of them ends with another exit code than 0 although nothing is wrong."""
RELATIVE = re.compile(
    r"~|\.\.?/|[\w.-]+/[\w./-]*$|[\w-]+\.(?:[ctp]sv|jsonl?|xml|sql|dump|gz|zip|tar|tgz|log|txt)$"
    r"|[\w-]+\.(?:py|sh|php|rb|pl|js|jar|ya?ml)$"
    r"|(?:git|make|npm|yarn|bundle|rake|docker-compose|artisan)$"
)
"""A path, or a program that works on the directory in which it starts."""
PROGRAM = re.compile(
    r"""\s*
    (?:(?:\S*/)?(?:
        (?:sudo(?:\s+-[ug]\s+\S+)* | flock(?:\s+-\S+|\s+\d+)*\s+/\S+ | timeout | nice | ionice
          | env | exec | chronic | nohup | time | setsid | chrt
          | (?:python|php|perl|ruby|node|bash|sh|java|npx|uv|poetry)[\d.]*
        )(?:\s+-\S+|\s+[\d.]+[smhd]?(?!\S)|\s+(?:run|exec)(?!\S))*\s+
      | [A-Za-z_]\w*=\S*\s+ | (?:if|then|else|do|while|until|!|\{)\s+)
    )*
    (?:\S*/)?(?P<program>[\w.:@+\[-]+?)(?:\.(?:sh|py|php|pl|rb|js|bash|jar))?(?!\S)
    (?:\s+(?P<argument>[a-z][a-z0-9:_-]*)(?!\S))?""",
    re.VERBOSE,
)
"""The program that matters in a command, behind those that only start another one."""
ANY_GUARD = re.compile(r"&&|\|\||\A(?:test\s|\[\s|grep\s)")
NAMELESS = re.compile(rf"{BUILTINS.pattern}|sleep|mkdir|echo|true|fi|done")


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
    line = split(command)
    part = line.parts[0]
    words = [word.literal for word in part.words]
    needs_shell = (
        len(line.parts) > 1
        or part.operator
        or part.redirects
        or line.comment_at is not None
        or not words
        or shell not in PLAIN_SHELLS
        or BUILTINS.fullmatch(part.words[0].text)
        or ASSIGNMENT.match(part.words[0].text)
    )
    plain = [word for word in words if word is not None]
    return [shell, "-c", command] if needs_shell or len(plain) < len(words) else plain


def with_pipefail(command: str, shell: str) -> tuple[str, str, str]:
    """Return a command with pipes that fails if any part of a pipe does, its shell, and what
    prevents that.

    >>> with_pipefail("pg_dump app | gzip > app.gz", "/bin/sh")
    ('set -o pipefail; pg_dump app | gzip > app.gz', '/bin/bash', '')
    """
    line = split(command)
    if "|" not in line.operators or "pipefail" in command:
        return command, shell, ""
    programs = [part.program for part in line.parts]
    if reasons := [*filter(MAY_FAIL_IN_PIPES.fullmatch, programs)]:
        return command, shell, reasons[0]
    if shell in PLAIN_SHELLS and not shell.endswith("bash"):
        shell = "/bin/bash"
    if PurePosixPath(shell).name not in PIPEFAIL_SHELLS:
        return command, shell, shell
    return f"set -o pipefail; {command}", shell, ""


def needs_home(command: str) -> bool:
    """Return whether a path in ``command`` is relative to the directory in which it starts."""
    parts = split(command).parts
    words = [word.text.strip("\"'") for part in parts for word in part.words]
    if not words or (words[0] == "cd" and words[1:2] and words[1].startswith("/")):
        return not words
    words += [redirect.target.text.strip("\"'") for part in parts for redirect in part.redirects]
    return any(
        RELATIVE.match(word.rpartition("=")[2] if word.startswith("-") else word) for word in words
    )


def without_failing_guard(command: str) -> tuple[str, str]:
    """Return ``command`` with its leading guards as the condition of an ``if``, and what follows
    them.

    Such an ``if`` exits 0 where they are false. Without guards, all of the command follows them.

    >>> without_failing_guard("test -x /usr/bin/a && /usr/bin/a -q")
    ('if test -x /usr/bin/a; then /usr/bin/a -q; fi', '/usr/bin/a -q')
    """
    line = split(command)
    count = 0
    for number, part in enumerate(line.parts[:-1], 1):
        if part.operator == "&&" and GUARDS.fullmatch(part.program):
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
    for segment in re.split(r"&&|[|;(\n]", re.sub("[\"']", "", command)):
        if named := PROGRAM.match(segment):
            name = "_".join(filter(None, named.groups()))
            if not NAMELESS.fullmatch(named["program"]):
                return name
            fallback = fallback or name
    return fallback
