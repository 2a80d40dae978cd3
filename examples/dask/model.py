"""Handlers of the example. They do not know where they run."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from yamlsched import Run


def score(run: Run, part: int = 0) -> dict[str, Any]:
    print(f"scoring part {part}")
    time.sleep(0.5)
    return {"part": part, **_place()}


def train(run: Run, epochs: int = 3) -> dict[str, Any]:
    for epoch in range(epochs):
        print(f"epoch {epoch + 1} of {epochs}")
        time.sleep(0.3)
    return {"epochs": epochs, **_place()}


def clean_up(run: Run) -> dict[str, Any]:
    return _place()


def _place() -> dict[str, Any]:
    """Return where this is: the environment of a Dask worker says which one it is."""
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "place": os.environ.get("PLACE", "local"),
    }
