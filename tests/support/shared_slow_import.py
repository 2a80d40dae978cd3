"""A module whose import takes until the test creates a file."""

from __future__ import annotations

from support.handlers import FOLDER, wait_for_file
from support.shared_handlers import hangs, naps

__all__ = ["hangs", "naps"]

(FOLDER / "importing").touch()
wait_for_file("go")
