"""Static files. Their URLs contain a hash of their content, so that browsers may keep them for ever."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
HASH_CHARS = 12


@dataclass(frozen=True)
class Asset:
    """A static file; ``name`` contains the hash."""

    name: str
    content: bytes
    media_type: str


@cache
def load() -> dict[str, Asset]:
    """Return the static files of the package by their names without a hash."""
    found = {}
    for file in files("yamlsched.extras.web").joinpath("static").iterdir():
        stem, _, extension = file.name.rpartition(".")
        if extension in TYPES:
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:HASH_CHARS]
            found[file.name] = Asset(f"{stem}.{digest}.{extension}", content, TYPES[extension])
    return found
