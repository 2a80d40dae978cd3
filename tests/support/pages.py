"""Commands of pages, as a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

from yamlsched.extras.embedded.binaries import find_binaries

ROOT = Path(__file__).resolve().parents[2]
BLOCK = r"^ *<!-- run: {name} -->\n( *)```\w*\n(.*?)^ *```$"


def commands(page: str, name: str) -> str:
    """Return the block of ``docs/<page>`` that is marked ``<!-- run: name -->``."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    [(_, block)] = re.findall(BLOCK.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL)
    return textwrap.dedent(block)


def shell(
    script: str, cwd: Path, *folders: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Execute a script that stops at the first error, with PostgreSQL's programs and those of ``folders``."""
    path = os.pathsep.join([*map(str, folders), str(find_binaries(False)), os.environ["PATH"]])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=cwd,
        env={**variables, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
