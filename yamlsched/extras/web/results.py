"""What an action has led to, shown on the page that follows it: in the URL, signed, for a minute.

Without the signature a link could put words into the page's mouth. The key is the identity of the database, which all
processes that serve the page know.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from datetime import datetime
from typing import NamedTuple

import psycopg

from yamlsched.runs import effects

MAX_CHARS = 1_000
MAX_AGE_SECONDS = 60
PARAMETER = "result"


class Result(NamedTuple):
    """A sentence for the operator. ``is_partial``: not everything was done."""

    text: str
    is_partial: bool = False


def sign(connection: psycopg.Connection[object], path: str, result: Result, now: datetime) -> str:
    """Return the parameter that shows ``result`` on the page ``path``."""
    text = result.text if len(result.text) <= MAX_CHARS else result.text[: MAX_CHARS - 2] + " …"
    content = json.dumps([text, result.is_partial, int(now.timestamp())], ensure_ascii=False).encode()
    encoded = base64.urlsafe_b64encode(content).decode().rstrip("=")
    return f"{encoded}.{_signature(connection, path, encoded)}"


def read(connection: psycopg.Connection[object], path: str, parameter: str, now: datetime) -> Result | None:
    """Return the result that a parameter shows on the page ``path``; None if it is not ours, or old."""
    encoded, _, signature = parameter.partition(".")
    if len(parameter) > MAX_CHARS * 9 or not encoded.isascii() or not signature.isascii():
        return None
    if not hmac.compare_digest(signature, _signature(connection, path, encoded)):
        return None
    try:
        text, is_partial, at = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, binascii.Error):
        return None
    return Result(text, is_partial) if abs(now.timestamp() - at) < MAX_AGE_SECONDS else None


def _signature(connection: psycopg.Connection[object], path: str, encoded: str) -> str:
    found = effects.read(connection)
    key = f"result of {found.identity if found else ''}".encode()
    return hmac.new(key, f"{path} {encoded}".encode(), hashlib.sha256).hexdigest()[:32]
