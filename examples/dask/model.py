"""Handlers of the example. They do not know where they run."""

import os
import time
from typing import Any

from yamlsched import Run


def train(run: Run, epochs: int = 3) -> dict[str, Any]:
    for epoch in range(epochs):
        print(f"epoch {epoch + 1} of {epochs}")
        time.sleep(0.3)
    return {"epochs": epochs, **_place()}


def clean_up(run: Run) -> dict[str, Any]:
    return _place()


def _place() -> dict[str, Any]:
    """Return where this is: the environment of a Dask worker says so."""
    return {"process": os.getpid(), "place": os.environ.get("PLACE", "this host")}
