"""What looks like a secret: by the name of a key or a variable, and in strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

SECRET = re.compile(
    r"(^|_)(password|passwd|passphrase|pwd|secret|token|credentials?|api_?key|access_?key|private_?key|dsn)($|_)",
    re.I,
)
SECRET_VARIABLE = re.compile(f"{SECRET.pattern}|PASSWORD$|(^|_)PASS$", re.I)
REFERENCE_KEY = re.compile(
    r"_(name|file|path|dir|env|env_?var|var|variable|id|arn|ref|reference|key_name|field|header|param|parameter"
    r"|type|kind|version|ttl|length|policy|expiry|store|manager|url|uri)$",
    re.I,
)
REFERENCE = re.compile(r"/run/secrets/|\$\{|\$[A-Z_]+$|(arn|aws-sm|env|file|gsm|op|secrets?|sm|ssm|vault):", re.I)
"""Keys and values that say where a secret is, which is fine."""
ASSIGNMENT = re.compile(r"(?<![\w-])(-{0,2}([A-Za-z_][\w-]*)=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)")
"""``NAME=value`` in a command. The search is linear: it starts only where a word starts."""
TOKEN = re.compile(r"\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.I)
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
    """
    shown = [hide_in_string(word, redact) for word in words]
    for nth, word in enumerate(words[:-1]):
        name = word.lstrip("-")
        if word != name and is_secret_name(name) and not words[nth + 1].startswith("-"):
            shown[nth + 1] = HIDDEN
    return shown


def hide_in_string(text: str, redact: Callable[[str], str]) -> str:
    """Return a string without the values of assignments that look like secrets, tokens and passwords in URLs.

    >>> hide_in_string("PGPASSWORD=x psql -h db; curl -H 'Authorization: Bearer abcdefgh'", str)
    "PGPASSWORD=*** psql -h db; curl -H 'Authorization: Bearer ***'"
    """
    text = redact(text)
    if "=" in text:
        text = ASSIGNMENT.sub(lambda found: found[1] + HIDDEN if is_secret_name(found[2]) else found[0], text)
    folded = text.casefold()
    if "bearer" in folded or "basic" in folded:  # a search by pattern takes longer
        text = TOKEN.sub(rf"\g<1>{HIDDEN}", text)
    return text


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a key, a variable or an option looks like the name of a secret.

    >>> [is_secret_name(name) for name in ("DB_PASS", "PASSPHRASE", "pass_count", "compass")]
    [True, True, False, False]
    """
    name = name.replace("-", "_")
    return bool(SECRET_VARIABLE.search(name) and not REFERENCE_KEY.search(name))
