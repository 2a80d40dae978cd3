"""Commands of a crontab as argv lists. Shell syntax is recognized by sight; nothing is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import timedelta

from yamlsched import durations

SHELL_CHARACTERS = re.compile(r"[|&;<>()$`\\\"'*?\[\]#~!{}\n]")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
BUILTINS = re.compile(
    r"[.:]|alias|bg|break|cd|command|eval|exec|exit|export|hash|read|set|shift|source|test|times?|trap|type|ulimit|umask"
    r"|unset|wait|if|for|while|until|case"
)
PLAIN_SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash", "sh", "bash")
FLOCK = re.compile(
    r"(?:\S*/)?flock(?P<options>(?:\s+(?:-[nxeo]+|--nonblock|--nb|--exclusive|--close))*)\s+(?P<file>/[\w./-]+)"
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
GUARD = re.compile(
    r"(?P<guard>(?:(?:test\s|\[\s|command\s+-v\s|which\s|type\s)[^;&|()#]*&&\s*)+)"
    r"(?P<rest>(?:[^;&|#]|\|(?!\|)(?<!\|\|)|&&|(?<=>)&)+)",
    re.DOTALL,
)
"""Behind ``||``, ``;``, ``&`` or a comment, the guard or the ``fi`` would apply to something else."""
ANY_GUARD = re.compile(r"&&|\|\||\A(?:test\s|\[\s|grep\s)")
KEYWORDS = frozenset(("if", "then", "else", "do", "while", "until", "!", "{", "("))
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
MAX_SPREAD = timedelta(hours=24)
WRAPPERS = frozenset(["sudo", "nice", "ionice", "env", "exec", "chronic", "nohup", "time", "setsid", "chrt"])
WITH_VALUES = frozenset(["timeout", "flock"])
DURATION = re.compile(r"[\d.]+[smhd]?")
INTERPRETERS = re.compile(r"(python|php|perl|ruby|node|bash|sh|java|npx|uv|poetry)[\d.]*")
SUFFIX = re.compile(r"\.(sh|py|php|pl|rb|js|bash|jar)\Z")


def split_percent(command: str) -> tuple[str, str | None]:
    r"""Split at the first unescaped %, as cron does: the rest is standard input, with % for line ends.

    Debian's cron also reads two backslashes as one.

    >>> split_percent(r"mail -s 100\% root%Hello%World"), split_percent("date")
    (('mail -s 100% root', 'Hello\nWorld\n'), ('date', None))
    """
    pieces = [""]
    for part in re.split(r"(\\.|%)", command):
        if part == "%":
            pieces.append("")
        else:
            pieces[-1] += part[1:] if part in (r"\%", r"\\") else part
    text = "\n".join(pieces[1:])
    program = pieces[0].rstrip()
    if program.endswith("\\") and program != pieces[0]:
        program += " "  # escaped
    return program, (text if text.endswith("\n") else f"{text}\n") if text else None


def argv(command: str, shell: str) -> list[str]:
    """Return ``command`` as a list: of its words if no shell is needed, else for ``shell -c``.

    >>> argv("/usr/bin/backup --all", "/bin/sh"), argv("a | b", "/bin/bash")
    (['/usr/bin/backup', '--all'], ['/bin/bash', '-c', 'a | b'])
    """
    words = command.split()
    needs_shell = not words or SHELL_CHARACTERS.search(command) or ASSIGNMENT.match(words[0])
    if shell in PLAIN_SHELLS and not needs_shell and not BUILTINS.fullmatch(words[0]):
        return words
    return [shell, "-c", command]


def without_flock(command: str) -> tuple[str, str, str] | None:
    """Return the command that flock protects, the ``overlap`` that does the same, and the lock file; else None.

    >>> without_flock("flock -n /tmp/x.lock /usr/bin/sync --all")
    ('/usr/bin/sync --all', 'skip', '/tmp/x.lock')
    """
    locked = FLOCK.fullmatch(command)
    if locked is None:
        return None
    rest = locked["rest"]
    if locked["is_shell"]:
        words = _words(rest)
        if len(words) != 1:
            return None
        rest = words[0]
    elif SHELL_CHARACTERS.search(rest):
        return None  # a pipe or && behind the program is outside of the lock
    options = f"{locked['options']} {locked['options2']}".split()
    is_skip = any(option.startswith("--n") or (option[1] != "-" and "n" in option) for option in options)
    return rest, "skip" if is_skip else "wait", locked["file"]


def without_random_sleep(command: str) -> tuple[str, timedelta] | None:
    """Return the command without its random sleep, and the longest sleep; None if it has none that is understood.

    >>> without_random_sleep("sleep $((RANDOM % 300)); certbot renew")
    ('certbot renew', datetime.timedelta(seconds=300))
    """
    match = RANDOM_SLEEP.search(command)
    if match is None:
        return None
    seconds = int(match["modulo"] or match["shuf"] or match["perl"]) * UNITS[match["unit"] or ""]
    rest = command[: match.start()] + (" " if match.start() else "") + command[match.end() :]
    return (rest, min(timedelta(seconds=seconds), MAX_SPREAD)) if seconds and rest.strip() else None


def without_failing_guard(command: str) -> str:
    """Return ``command`` with its leading guards as the condition of an ``if``, which exits 0 where they are false.

    >>> without_failing_guard("test -x /usr/bin/a && /usr/bin/a -q")
    'if test -x /usr/bin/a; then /usr/bin/a -q; fi'
    """
    guarded = GUARD.fullmatch(command)
    if guarded is None:
        return command
    return f"if {guarded['guard'].rstrip().removesuffix('&&').rstrip()}; then {guarded['rest'].rstrip()}; fi"


def advice(command: str, limits: Mapping[str, str]) -> list[str]:
    """Return what yamlsched does better than a part of ``command``. ``limits`` are those for locks."""
    hints = []
    locked = without_flock(command)
    limit = limits.get(locked[2]) if locked else ""
    if locked and limit != "":
        waits = ", but waits where it skips" if limit and locked[1] == "skip" else ""
        key = f"limit: {limit}" if limit else f"overlap: {locked[1]}"
        hints.append(f"flock: {key} does this on all hosts together{waits}; --policy advised writes it")
    elif ANY_FLOCK.search(command):
        hints.append("flock: overlap, or a limit that jobs share, does this on all hosts together")
    if slept := without_random_sleep(command):
        hints.append(f"random sleep: spread: {durations.show(slept[1])} does this; --policy advised writes it")
    elif ANY_RANDOM_SLEEP.search(command):
        hints.append("random sleep: spread does this, with the same delay each time")
    return hints


def name_of(command: str) -> str:
    """Return what a job is named after: the program that matters, without directory and suffix.

    >>> name_of("cd /srv/app && nice -n 10 python3 manage.py clearsessions -v0")
    'manage_clearsessions'
    >>> name_of('echo "$A|$B" | bin/send;')
    'send'
    >>> name_of('echo "$A|$B"')
    'echo'
    """
    command = slept[0] if (slept := without_random_sleep(command)) else command
    command = locked[0] if (locked := without_flock(command)) else command
    fallback = ""
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", lambda quoted: re.sub(r"[;&|]", " ", quoted[0]), command)
    for segment in re.split(r"&&|\|\||[;|]", unquoted):
        words = [word for word in _words(segment) if not ASSIGNMENT.match(word)]
        while words:
            program = words[0].rsplit("/", 1)[-1]
            if words[0] in KEYWORDS:
                words = words[1:]
            elif program in WRAPPERS or program in WITH_VALUES:
                words = words[1:]
                while words and (words[0].startswith("-") or DURATION.fullmatch(words[0])):
                    words = words[1:]
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
        argument = next((word for word in words[1:2] if re.fullmatch(r"[a-z][a-z0-9:_-]*", word)), "")
        name = f"{program}_{argument}" if argument else program
        if not BUILTINS.fullmatch(program) and program not in ("[", "sleep", "mkdir", "echo", "true", "fi", "done"):
            return name
        fallback = fallback or name
    return fallback


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
