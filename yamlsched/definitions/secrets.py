"""What looks like a secret: by the name of a key or a variable, and in strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

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
    shown = [_hide_passwords(hide_in_string(word, redact), programs) for word in words]
    for nth, (option, value) in enumerate(pairwise(words), start=1):
        name = option.lstrip("-")
        if name == option:
            continue
        pair = _hide_passwords(f"{option} {SPACE_OR_QUOTE.sub('_', value)}", programs)
        if is_secret_name(name) and not value.startswith("-"):
            shown[nth] = HIDDEN
        elif pair.endswith(HIDDEN):
            shown[nth] = pair.rpartition(" ")[2]
    return shown


def hide_in_string(text: str, redact: Callable[[str], str]) -> str:
    """Return a string without tokens, passwords in URLs and the values of secret assignments and options.

    >>> hide_in_string("PGPASSWORD=x psql -h db; curl -H 'Authorization: Bearer abcdefgh'", str)
    "PGPASSWORD=*** psql -h db; curl -H 'Authorization: Bearer ***'"
    >>> hide_in_string("mysql -psecret db; curl -b 'COOKIE: id=1' -u maria:x | docker run -u 1000:1000 -p 80:80", str)
    "mysql -p*** db; curl -b 'COOKIE: ***' -u maria:*** | docker run -u 1000:1000 -p 80:80"
    """
    text = redact(text)
    if "=" in text:
        text = ASSIGNMENT.sub(lambda found: found[1] + HIDDEN if is_secret_name(found[2]) else found[0], text)
    folded = text.casefold()
    if "bearer" in folded or "basic" in folded or "cookie" in folded:  # a search by pattern takes longer
        text = TOKEN.sub(lambda found: (found[1] or found[2]) + HIDDEN, text)
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
