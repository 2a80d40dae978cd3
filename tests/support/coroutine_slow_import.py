"""A module whose import takes until the test creates a file."""

from __future__ import annotations

from support.coroutine_handlers import hangs, naps
from support.handlers import FOLDER, wait_for_file

__all__ = ["hangs", "naps"]

(FOLDER / "importing").touch()
wait_for_file("go")
