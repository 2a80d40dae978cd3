"""What a Dask worker executes for an attempt: it starts the agent, and waits for it. Only the
standard library is used.

Dask may execute it twice, go on with what was cancelled, or lose the result: the agent's begin
ticket makes this harmless.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import IO

# of what the agent printed last, for the error of an attempt that did not begin
MAX_TAIL_CHARS = 300
READ_TIMEOUT_SECONDS = 5.0  # for output that is left when the agent has exited


def call(function: str, *arguments: str) -> str:
    """Return the expression that calls a ``function`` of this module on a Dask worker.

    The scheduler unpickles what is submitted. With an expression, yamlsched need not be importable
    there.
    """
    listed = ", ".join(map(repr, arguments))
    return f"__import__('importlib').import_module({__name__!r}).{function}({listed})"


def execute(*words: str) -> None:
    """Run ``yamlsched attempt`` with ``words`` in a session of its own. Raises CalledProcessError
    if it fails.

    The agent stops when its stdin is closed: it must not survive the Dask worker, which has the
    resources for it.
    """
    process = _start("--stop-with-stdin", *words)
    tail: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(process.stdout, tail), daemon=True)
    reader.start()
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    reader.join(READ_TIMEOUT_SECONDS)
    if status != 0:
        raise subprocess.CalledProcessError(
            status, "yamlsched attempt", " / ".join(tail)[-MAX_TAIL_CHARS:]
        )


def ask(*words: str) -> tuple[int, str]:
    """Run ``yamlsched attempt`` with ``words``, and return its exit code and what it printed."""
    process = _start(*words)
    output, _ = process.communicate()
    return process.returncode, output.decode("utf-8", "replace")


def _start(*words: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "yamlsched", "attempt", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
    )


def _pass_on(output: IO[bytes], tail: list[str]) -> None:
    """Copy what the agent prints into the log of the Dask worker, and keep the last lines."""
    for line in output:
        text = line.decode("utf-8", "backslashreplace").rstrip()
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
        if text:
            tail[:] = [*tail[-9:], text.strip()[:MAX_TAIL_CHARS]]
