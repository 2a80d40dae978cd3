"""What secrets look like: in names, in commands, in text. The one list of these forms, and the
masks that hide them.

Searches take linear time on any text: no match attempt reads beyond the place where the next one
can start. Patterns are strings, which ``re`` compiles when they are first used: a tick that finds
nothing to do uses none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

HIDDEN = "***"
"""What is shown and recorded in place of a secret."""
MIN_SECRET_CHARS = 8
"""A shorter value may be an ordinary word. It is hidden only where a password is expected."""

SECRET_NAME = (
    r"(^|_)(password|passwd|passphrase|pwd|secret|(auth_?)?token|credentials?|creds|bearer"
    r"|(api|access|private|signing|encryption|master|subscription)_?key|dsn)($|_)"
    r"|password$|(^|_)(pass|auth|authorization|cookies?|salt|session_id|webhook(_ur[il])?)$"
    r"|._(sk|pat|pem)$"
)
REFERENCE_NAME = (
    r"^(no|skip|ask|prompt)_"
    r"|(?<!webhook)(?<!session)_(name|file|path|dir|env|env_?var|var|variable|id|arn|ref|reference"
    r"|key_name|field|header|param|parameter|type|kind|version|ttl|length|policy|expiry|store"
    r"|manager|url|uri|stdin|jar)$"
)
REFERENCE = (
    r"(?i)/run/secrets/|\$[{(]|\$[A-Za-z_]\w*(?!\S)"
    r"|(arn|aws-sm|env|file|gsm|id|op|secrets?|sm|ssm|vault)[:=]"
    r"|(~|\.{1,2})?(/[\w.@+-]+){2,}/?$"
    r"|(none|basic|bearer|digest|oauth2?|true|false|null|\*+)$"
)
"""Names and values that say where a secret is or of which kind. The URL of a webhook is a secret.
"""
CAMEL_CASE = r"(?<=[a-z0-9])(?=[A-Z])"
NOT_IN_NAMES = r"[-.]"


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a key, a variable, a header or an option looks like the name of a secret.

    >>> all(map(is_secret_name, ("DB_PASS", "HTTP_AUTH", "STRIPE_SK", "SESSION_COOKIE", "apiKey")))
    True
    >>> any(map(is_secret_name, ("pass_count", "compass", "author", "auth_mode", "token_url")))
    False
    """
    snake = re.sub(NOT_IN_NAMES, "_", re.sub(CAMEL_CASE, "_", name)).lower()
    return bool(re.search(SECRET_NAME, snake) and not re.search(REFERENCE_NAME, snake))


def is_reference(name: str, value: Any) -> bool:
    """Return whether the name or the value says where a secret is, and is none itself."""
    if not isinstance(value, str):
        return False
    snake = re.sub(NOT_IN_NAMES, "_", name).lower()
    return bool(re.search(REFERENCE_NAME, snake) or re.match(REFERENCE, value.strip("'\"")))


QUOTED = r"'[^'\n]*'?|\"(?:[^\"\\\n]|\\.)*\"?"
"""A string in quotes. That of a line that was cut has no end."""
ASSIGNMENT = r"(?<![\w.-])(-{0,2}([A-Za-z_][\w.-]*)[ \t]{0,3}=[ \t]{0,3}(?!=))"
ASSIGNED = rf"{QUOTED}|[^\s'\"&]+"
OPTION = rf"(?<!\S)(--?([A-Za-z][\w-]+)[ \t]+)(?![-|&;<>])({QUOTED}|\S+)"
FIELD = r"((?<!\\)(\\*[\"'])([A-Za-z_][\w.-]*)\2\s{0,9}:\s{0,9})" + rf"(\\+\"[^\"\\\n]*|{QUOTED})"
HEADER = (
    r"(?i)(?<![\w-])((authorization|cookie|[a-z]\w*(?:-\w+)+)[ \t]{0,3}:[ \t]{0,3}"
    r"(?:(?:bearer|basic|digest|token|negotiate|apikey)[ \t]+)?)([^\s'\",]+)"
)
USER_AND_PASSWORD = (
    r"(?<!\S)((?:-[uU]|--(?:proxy-)?user(?=[=\s]))[=\s]{0,3}['\"]?)(?!\d+:\d+(?:\s|$))"
    r"(([^\s:'\"]+):)(?![/~.])([^\s'\"]+)"
)
CONTAINER = r"\b(docker|podman|nerdctl|kubectl|compose|chroot|setpriv)\b"
CONTAINER_CHARS = 300
"""Within so many characters before ``-u``, a container's ``-u USER:GROUP`` is recognized."""


def _hide_named(match: re.Match[str]) -> str:
    """Hide the value of ``--name value`` or ``name: value``."""
    start, name, value = match.groups()
    return start + HIDDEN if is_secret_name(name) and not is_reference(name, value) else match[0]


def _hide_assigned(text: str) -> str:
    """Hide the values of ``NAME=value``. The value of another name may have an
    assignment itself.
    """
    parts, end = [], 0
    for match in re.finditer(ASSIGNMENT, text):
        if match.start() < end or not is_secret_name(match[2]):
            continue
        if value := re.compile(ASSIGNED).match(text, match.end()):
            shown = value[0] if is_reference(match[2], value[0]) else HIDDEN
            parts += [text[end : match.end()], shown]
            end = value.end()
    return "".join([*parts, text[end:]])


def _hide_field(match: re.Match[str]) -> str:
    start, quote, name, value = match.groups()
    if not is_secret_name(name) or is_reference(name, value.strip("\\")):
        return match[0]
    end = quote if value.endswith(("'", '"')) or value.startswith("\\") else ""
    return f"{start}{quote}{HIDDEN}{'' if value.startswith(chr(92)) else end}"


def _hide_user(match: re.Match[str]) -> str:
    """Hide the password of ``-u NAME:PASSWORD``, which is not a container's ``-u USER:GROUP``."""
    start, user, name, password = match.groups()
    before = max(0, match.start() - CONTAINER_CHARS)
    if name == password or re.compile(CONTAINER).search(match.string, before, match.start()):
        return match[0]
    return match[0] if is_reference("", password) else f"{start}{user}{HIDDEN}"


Forms: TypeAlias = "Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]"
URL_PASSWORD = (
    r"(://[^/\s:@]*:)(?!\d+(?:[/?#\s'\"]|$))(?!\$[{(A-Z]|\*\*\*@)"
    r"(?:[^@\s:]|:(?!//))+(?:@[^\s/'\"@:,]*)*(?=@)"
)
WEBHOOK = (
    r"(?i)(//(?:hooks\.slack\.com/\w+|discord(?:app)?\.com/api/webhooks"
    r"|[\w.-]{1,99}\.webhook\.office\.com|api\.telegram\.org/bot)/?)[^\s'\"]+"
)
TOKEN = (
    r"(?<![\w.-])(gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|[sr]k_live_|npm_|pypi-)[\w.-]{16,}"
)
BEHIND_START = rf"\1{HIDDEN}"
FORMS: Forms = (
    (URL_PASSWORD, BEHIND_START),
    (r"(?i)(?<=http)(s?://)[\w.~%+-]{16,}(?=@)", BEHIND_START),
    (WEBHOOK, BEHIND_START),
    (HEADER, _hide_named),
    (r"(?i)(?<![\w-])(cookie:\s{0,3})[^'\"\n]+", BEHIND_START),
    (r"(?i)\b(bearer\s{1,3})[\w.~+/=-]{16,}", BEHIND_START),
    (TOKEN, BEHIND_START),
    (r"(?<![\w.-])eyJ[\w-]{10,}\.[\w-]+\.[\w-]+", HIDDEN),
)
"""Forms that have no name."""
PRIVATE_KEY = r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)[^-]+"


PROGRAMS = {
    r"mysql\w*|mariadb[\w-]*": r"-p",
    r"redis-cli|valkey-cli": r"-a\s*",
    r"sshpass|mongo\w*|cqlsh|ncftp\w*": r"-p\s*",
    r"login": r"-p\s+",
    r"smb\w+|rpcclient": r"(?:-U|--user)[=\s]*[^\s%]+%",
    r"openssl": r"-pass(?:in|out)?\s+pass:",
    r"ldap\w+": r"-w\s*",
    r"7z\w*|7za|rar|unrar": r"-h?p(?=[^\s-])",
    r"zip|unzip|zipcloak|sqlcmd|bcp|osql|tsql|ipmitool": r"-P\s*",
    r"plink|pscp|psftp": r"-pw\s+",
    r"lftp": r"-u\s*[^\s,]+,",
    r"sqlplus|sqlldr|expdp|impdp": r"[\w$#]+/(?=\S*@)",
}
"""By names of programs: the option that has a secret, with the white space before it. With other
programs the option means something else.
"""
PROGRAM_NAME = "|".join(f"({names})" for names in PROGRAMS)
CALL = rf"(?<![\w.-])(?:{PROGRAM_NAME})(?=\s)(?:'[^'\n]*'|\"[^\"\n]*\"|[^\n;|&])*"
"""The call of such a program in a line of a shell."""
OPTIONS = tuple(
    rf"(?<!\S)({option})(?![\\'\"]*\$[A-Za-z_{{(])(?:'[^']*'|\"[^\"]*\"|[^\s'\"]\S*)"
    for option in PROGRAMS.values()
)
SPACE_OR_QUOTE = r"[\s'\"]"
WORD_ASSIGNMENT = r"(?s)(-{0,2}([A-Za-z_][\w.-]*)=)(.+)"


def _hide_in_call(match: re.Match[str]) -> str:
    return re.sub(OPTIONS[(match.lastindex or 1) - 1], BEHIND_START, match[0])


NAMED_FORMS: Forms = (
    (FIELD, _hide_field),
    (OPTION, _hide_named),
    (USER_AND_PASSWORD, _hide_user),
    (CALL, _hide_in_call),
)
"""Forms in which a name or a program says that a value is a secret, behind ``NAME=value``."""


HINT = (
    "pass|pwd|secret|token|cred|bearer|key|dsn|auth|cookie|salt|session|webhook|_sk|_pat|_pem|://"
    "|slack|discord|telegram|-u|gh|glpat-|xox|k_live_|npm_|pypi-|eyj|mysql|mariadb|-cli|mongo|cqlsh"
    "|ncftp|login|smb|rpcclient|openssl|ldap|7z|rar|zip|sqlcmd|bcp|osql|tsql|ipmitool|plink|pscp"
    "|psftp|lftp|sqlplus|sqlldr|expdp|impdp"
)
"""A line without any of these, in lower case, has no secret: output is masked while claims wait."""


def mask(text: str) -> str:
    """Return a string without what looks like a secret.

    >>> mask("PGPASSWORD=x psql; curl -H 'Authorization: Bearer abcdefgh' amqp://bob:hunter2@mq")
    "PGPASSWORD=*** psql; curl -H 'Authorization: Bearer ***' amqp://bob:***@mq"
    >>> mask("mysql -psecret; curl -b 'COOKIE: id=1' -u maria:x | docker run -u 1000:1000 -p 8:80")
    "mysql -p***; curl -b 'COOKIE: ***' -u maria:*** | docker run -u 1000:1000 -p 8:80"
    """
    text = re.sub(PRIVATE_KEY, BEHIND_START, text)
    return "\n".join(map(_mask_line, text.split("\n")))


def _mask_line(text: str) -> str:
    if not re.search(HINT, text.casefold()):
        return text
    for pattern, replace in FORMS:
        text = re.sub(pattern, replace, text)
    text = _hide_assigned(text)
    for pattern, replace in NAMED_FORMS:
        text = re.sub(pattern, replace, text)
    return text


def masker(values: Iterable[str]) -> Callable[[str], str]:
    """Return a function like ``mask`` that hides ``values``, which are secrets, too."""
    secrets = set[str]()
    for value in filter(None, values):
        is_long = len(value) >= MIN_SECRET_CHARS
        secrets |= {value} if is_long else {f":{value}@", f"password={value}"}
    longest_first = sorted(secrets, key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, HIDDEN)
        return mask(text) if text else text

    return redact


def mask_value(key: str, value: Any) -> Any:
    """Return a JSON value without what looks like a secret; ``key`` is its name.

    >>> mask_value("payload", {"week": 3, "api_key": "k-1", "token_file": "/etc/t"})
    {'week': 3, 'api_key': '***', 'token_file': '/etc/t'}
    """
    if isinstance(value, dict):
        return {name: mask_value(name, item) for name, item in value.items()}
    if isinstance(value, list):
        return [mask_value(key, item) for item in value]
    if value in ("", None) or isinstance(value, bool):
        return value
    if is_secret_name(key) and not is_reference(key, value):
        return HIDDEN
    return mask(value) if isinstance(value, str) else value


def mask_command(words: Sequence[str]) -> list[str]:
    """Return the words of a command without what looks like a secret.

    >>> mask_command(["load", "--api-key", "k-1", "--db-password=x", "--file=a"])
    ['load', '--api-key', '***', '--db-password=***', '--file=a']
    >>> mask_command(["curl", "-u", "maria:x y", "-H", "Cookie: id=1", "--auth", "k"])
    ['curl', '-u', 'maria:***', '-H', 'Cookie: ***', '--auth', '***']
    >>> mask_command(["/usr/bin/redis-cli", "-a", "x y"])
    ['/usr/bin/redis-cli', '-a', '***']
    """
    names = [re.fullmatch(PROGRAM_NAME, word.rpartition("/")[2]) for word in words]
    options = [OPTIONS[match.lastindex - 1] for match in names if match and match.lastindex]
    is_container = any(re.search(CONTAINER, word) for word in words)

    def hide_options(text: str) -> str:
        for option in options:
            text = re.sub(option, BEHIND_START, text)
        return text if is_container else re.sub(USER_AND_PASSWORD, _hide_user, text)

    masked = [hide_options(_mask_word(word)) for word in words]
    for nth, (option, value) in enumerate(pairwise(words), start=1):
        name = option.lstrip("-")
        if name == option:
            continue
        pair = hide_options(f"{option} {re.sub(SPACE_OR_QUOTE, '_', value)}")
        is_named = is_secret_name(name) and not value.startswith("-")
        if is_named and value and not is_reference(name, value):
            masked[nth] = HIDDEN
        elif pair.endswith(HIDDEN):
            masked[nth] = pair.rpartition(" ")[2]
    return masked


def _mask_word(word: str) -> str:
    """Return a word of a command without what looks like a secret.

    It may be an option with its value, or a whole script.
    """
    match = re.fullmatch(WORD_ASSIGNMENT, word)
    if match and (word.startswith("-") or not re.search(SPACE_OR_QUOTE, match[3])):
        start, name, value = match.groups()
        if is_secret_name(name) and not is_reference(name, value):
            return f"{start}{HIDDEN}"
    return mask(word)
