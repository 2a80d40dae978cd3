"""Whether a plugin may be installed, without importing what reads the metadata of packages: an idle
tick asks.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys

SECTION = re.compile(rb"^\s*\[\s*yamlsched\s*\]", re.MULTILINE)


def may_have_plugins() -> bool:
    """Return whether a plugin may be installed, in 2 ms: reading all entry points takes 30 ms."""
    for folder in sys.path:
        if os.path.isfile(folder):  # an archive
            return True
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                is_package = name.endswith((".dist-info", ".egg-info"))
                if is_package and _has_section(os.path.join(folder, name, "entry_points.txt")):
                    return True
    return False


def _has_section(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return SECTION.search(file.read()) is not None
    return False
