"""Launchers: each starts one agent somewhere, and ends when it ends. Here those of ``type:
command``, programs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from yamlsched import log
from yamlsched.handler.programs import SECRETS, describe_exit, signal_group
from yamlsched.schedule.job import NotifyTarget
from yamlsched.worker.local.output import UNSAFE, escaped

MAX_TAIL_CHARS = 300  # of its output, for the error of an attempt that did not begin
MAX_PASSED_ON_BYTES = 2 << 20  # of its output: the agent itself passes on less
MAX_LINE_BYTES = 16_384
EVENTS_OF_AGENTS = (
    *("run.output", "attempt.not_begun", "attempt.returned", "database.away", "database.back"),
)
TERMINATED = (
    -signal.SIGTERM,
    128 + signal.SIGTERM,
)  # it was told to end: that is no fault of the engine


def launcher_environment(targets: Iterable[NotifyTarget] = ()) -> dict[bytes, bytes]:
    """Return the environment of launchers: ours, without the secrets of yamlsched: engines may show
    them.
    """
    own = {target.url_env.encode() for target in targets}
    return {
        name: value
        for name, value in os.environb.items()
        if not name.startswith(SECRETS) and name not in own
    }


class Launcher(Protocol):
    """What the gateway needs of a launcher, of whatever kind. No method blocks."""

    @property
    def title(self) -> str:
        """What error messages call it."""

    @property
    def status(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it has not ended."""

    def describe(self) -> str:
        """Say how it ended."""

    def terminate(self) -> None:
        """Ask it to exit."""

    def leave(self) -> None:
        """Let the agent, which has begun, go on without this process."""

    def close(self, kills: bool = True) -> None:
        """Free everything, killing what is left unless the agent has begun."""


class ProgramLauncher:
    """One program: started, read, signalled."""

    def __init__(self, argv: Sequence[str], folder: str, name: str) -> None:
        """Start it in a session of its own, without our DSN and PG*. Raises OSError.

        ``name`` is printed before each line of its output that the agent has not named already.
        """
        self.title = f'"{argv[0]}"'
        self._name, self._line, self._tail, self._allowance = name, b"", "", MAX_PASSED_ON_BYTES
        # a pipe would end with this process
        self._output, path = tempfile.mkstemp(prefix="yamlsched-")
        self._read_bytes = 0
        try:
            os.unlink(path)
            fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)
            self._process = subprocess.Popen(
                [argument.encode() for argument in argv],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                cwd=folder,
                env=launcher_environment(),
                start_new_session=True,
            )
        except (OSError, ValueError):
            os.close(self._output)
            raise
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """Its exit code, or minus the signal that killed it; None while it is alive.

        It is not reaped before ``close``, so that the id of its process group stays its own.
        """
        if self._status is None:
            self._read()
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._status = (
                    ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                )
        return self._status

    def describe(self) -> str:
        """Say how it ended, and what it printed last."""
        self._read()
        if self._line.strip():
            self._pass_on([self._line])
            self._line = b""
        how = describe_exit(self.status or 0)
        return f"{how}: {self._tail}" if self._tail else how

    def terminate(self) -> None:
        """Signal its process group, in which something may be alive when it has exited itself."""
        signal_group(self._process.pid, signal.SIGTERM)

    def leave(self) -> None:
        """Do nothing: it has a session of its own, and writes to a file."""

    def close(self, kills: bool = True) -> None:
        """Wait for it; ``kills``: kill what is left of its group first."""
        if kills:
            signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._read()
        self._pass_on([self._line] if self._line else [])
        os.close(self._output)

    def _read(self) -> None:
        while piece := os.pread(self._output, 1 << 16, self._read_bytes):
            self._read_bytes += len(piece)
            *lines, self._line = (self._line + piece).split(b"\n")
            if len(self._line) > MAX_LINE_BYTES:
                lines, self._line = [*lines, self._line], b""
            self._pass_on(lines)
        # nothing is passed on any more, and it shall not fill the disk
        if self._read_bytes > MAX_PASSED_ON_BYTES:
            os.ftruncate(self._output, 0)
            self._read_bytes = 0

    def _pass_on(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            text = UNSAFE.sub(escaped, line.rstrip(b"\r").decode("utf-8", "replace"))
            if text.strip():
                self._tail = (
                    f"{self._tail} / {text.strip()}"[-MAX_TAIL_CHARS:]
                    if self._tail
                    else text.strip()
                )
                self._tail = self._tail[-MAX_TAIL_CHARS:]
            self._allowance -= len(line)
            if self._allowance > 0:
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(f"{self._named(text)}\n")

    def _named(self, text: str) -> str:
        """Return a line with the job and the run that it belongs to."""
        if not log.is_json():
            return text if text.startswith(self._name) else f"{self._name}{text}"
        job, _, run = self._name.strip("[] ").rpartition(" ")
        names = {"job": job, "run": int(run)} if run.isdigit() else {}
        if (event := _event_of_agent(text)) is not None:
            # what a program prints must look neither like a worker's event nor like one of another
            # run
            return log.printable_json(json.dumps({**event, **names}, ensure_ascii=False))
        line = text.removeprefix(self._name)
        return log.format_line(
            "info", "run.output", {**names, "line": line}, datetime.now(UTC), as_json=True
        )


def _event_of_agent(line: str) -> dict[str, Any] | None:
    """Return the event if an agent that logs JSON itself has written ``line``."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(event, dict) and list(event)[:3] == ["at", "level", "event"]
    return event if is_event and event["event"] in EVENTS_OF_AGENTS else None
