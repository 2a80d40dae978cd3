"""The child's side of a command: starts the program, waits for its exit, and dies not before its
process group.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from yamlsched.handler import programs
from yamlsched.handler.programs import (
    POLL_INTERVAL_SECONDS,
    Program,
    describe_exit,
    has_children,
    reap_group,
    signal_group,
)
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, Usage
from yamlsched.worker.local.protocol import Channel
from yamlsched.worker.local.usage import note_program, of_program


class CommandRunner:
    """Executes the commands of one child. ``folder`` has schedules.yaml; ``parent`` is the worker's
    process id.

    Its process never executes a handler, so that nothing that a handler changes in its process
    reaches a program.
    """

    def __init__(self, channel: Channel, parent: int, folder: str) -> None:
        self._channel, self._shared = channel, channel.memory.shared
        self._parent, self._folder = parent, folder
        self.left_processes = False  # the last program did, in the background
        self.usage: Usage | None = None  # of the last program

    def execute(self, target: tuple[Any, ...], run: ClaimedRun) -> AttemptEnd | None:
        """Run the program ``target`` until it exits; return None if it succeeded."""
        program, self.left_processes, self.usage = Program(*target), False, None
        environment = program.environment(os.environb, run)
        programs.survive_parent()  # until the program's process group has been killed
        programs.adopt_orphans(True)
        try:
            process = self._start(program, environment)
        except OSError as error:
            return programs.not_started(error)
        else:
            status = self._wait(process)
            if self._shared.is_stop_requested:  # whatever it made of that
                return AttemptEnd(EndKind.RAISED, "stopped by yamlsched", describe_exit(status))
            return program.end(status)
        finally:
            self._shared.group = 0
            programs.adopt_orphans(False)
            programs.die_with(self._parent)

    def _start(
        self, program: Program, environment: Mapping[bytes, bytes]
    ) -> subprocess.Popen[bytes]:
        own_id, shared = os.getpid(), self._shared

        def prepare() -> None:
            shared.group = os.getpid()
            programs.die_with(own_id)
            note_program(shared)

        output = self._channel.output
        process = program.start(self._folder, environment, prepare, stdout=output, stderr=output)
        if shared.is_stop_requested:
            # the parent's may have come before the program
            signal_group(process.pid, signal.SIGTERM)
        return process

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Return the status of ``process``. If it was stopped, wait for all of its process group.

        Pipes that a background process keeps open are not waited for.
        """
        self._wait_for_exit(process)
        if not self._shared.is_stop_requested:
            self._shared.group = 0  # while its id cannot be that of another group
            status = self._reap(process)
            self.left_processes = reap_group(process.pid) or has_children()
            return status
        status = self._reap(process)
        # the parent kills the group and this process when it takes too long
        while reap_group(process.pid):
            self._pause(process.pid)
        return status

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        """Reap ``process`` and note what it used."""
        if process.returncode is None:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.usage = of_program(self._shared, used)
        return process.returncode

    def _wait_for_exit(self, process: subprocess.Popen[bytes]) -> None:
        # not by poll(), which takes an exit code that was lost for 0
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            self._pause(process.pid)

    def _pause(self, group: int) -> None:
        """Wait for a moment. If the parent has died, kill the program's process group, and exit."""
        poll = select.poll()
        poll.register(self._channel.commands, 0)
        if poll.poll(POLL_INTERVAL_SECONDS * 1000):
            signal_group(group, signal.SIGKILL)
            os._exit(0)
