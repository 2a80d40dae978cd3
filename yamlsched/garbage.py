"""Python searches all objects for cycles from time to time, which takes long where a large file has been read."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Do without that search: what is created in large numbers has no cycles."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def reduced_garbage_collection() -> Iterator[None]:
    """Let Python look for cycles less often: what a worker creates in large numbers has none.

    Existing objects are never traversed, which also leaves their pages shared with the children.
    """
    before, was_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.freeze()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not was_frozen:
            gc.unfreeze()
