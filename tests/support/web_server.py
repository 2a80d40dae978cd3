"""``yamlsched web`` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(
    dsn: str | None, *words: str, cwd: Path | None = None, **env: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a server and the address that it announces; end it with SIGTERM."""
    argv = [sys.executable, "-m", "yamlsched", "web", *(("--dsn", dsn) if dsn else ()), *words]
    with subprocess.Popen(
        argv, stderr=subprocess.PIPE, text=True, cwd=cwd, env={**os.environ, **env}
    ) as server:
        assert server.stderr is not None
        try:
            # the embedded database may write lines of its own first
            lines = iter(server.stderr.readline, "")
            line = next((line for line in lines if line.startswith("yamlsched web: ")), None)
            assert line is not None, "it ended without an address"
            yield server, line.removeprefix("yamlsched web: ").strip()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
