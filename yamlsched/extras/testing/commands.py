"""Running the program of a command job in the foreground."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from yamlsched.durations import show
from yamlsched.errors import Refused
from yamlsched.extras.testing.fake_run import FakeRun, claimed
from yamlsched.handler.programs import Program, die_with, not_started, signal_group, with_last_lines
from yamlsched.runs.lifecycle import AttemptEnd, EndKind, error_text
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import load_file


class Called(NamedTuple):
    """How a command that was called in the foreground has ended. ``status`` is None if it could not
    be started.
    """

    end: AttemptEnd
    status: int | None

    @property
    def outcome(self) -> Literal["succeeded", "failed", "dead"]:
        if self.end.is_success:
            return "succeeded"
        return "dead" if self.end.kind is EndKind.DISCARDED else "failed"


def run_command(job: Job, file: Path, run: FakeRun, **options: Any) -> Called:
    """Run the command of ``job`` until it exits, in the foreground and otherwise as a worker does.

    ``file`` is schedules.yaml. ``options`` are those of Popen, for its output.
    """
    program, folder = Program.from_job(job), str(file.resolve().parent)
    environment = program.environment(os.environb, claimed(run))
    own_id = os.getpid()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, exit codes are lost
    # until the program can be stopped: what a signal handler raises while it starts would leave it
    # behind
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        process = program.start(folder, environment, lambda: die_with(own_id), **options)
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return Called(not_started(error), None)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        status = process.wait(job.timeout.total_seconds())
    except subprocess.TimeoutExpired:
        status = _stop(process, job.kill_after.total_seconds())
        return Called(
            AttemptEnd(
                EndKind.RAISED, f"still running after {show(job.timeout)}, killed", "Timeout"
            ),
            status,
        )
    except BaseException:
        _stop(process, job.kill_after.total_seconds())
        raise
    return Called(program.end(status) or AttemptEnd(EndKind.RETURNED), status)


def _stop(process: subprocess.Popen[bytes], kill_after: float) -> int:
    """Stop the process group that ``process`` leads, and return the status of ``process``."""
    signal_group(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(kill_after)
    signal_group(process.pid, signal.SIGKILL)
    return process.wait()


class CommandResult(NamedTuple):
    """How a command has ended.

    ``exit_code`` is minus the signal that killed it, and None if it could not be started.
    ``output`` has what it and its processes had printed by then, stdout and stderr. ``retry_after``
    is the delay that the exit code asks for.
    """

    outcome: Literal["succeeded", "failed", "dead"]
    exit_code: int | None
    output: str
    error: str
    retry_after: timedelta | None


def call_command(
    file: str | Path, job: str, run: FakeRun | None = None, *, env: str | None = None
) -> CommandResult:
    """Run the command of ``job`` in the schedule ``file`` as a worker does, and return how it
    ended.

    Without ``run``, its payload is the job's. ``env`` is the environment of the schedule, as
    ``--env``. Raises Refused if the file has no valid job of this name with a command.
    """
    definition = load_file(Path(file), env).jobs.get(job)
    if definition is None or not definition.command:
        raise Refused(f'no valid job "{job}" with a command in {file}')
    run = replace(
        run or FakeRun(payload=definition.payload),
        job_type=job,
        max_attempts=definition.max_attempts,
    )
    with tempfile.TemporaryFile() as output:
        called = run_command(definition, Path(file), run, stdout=output, stderr=output)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    end = with_last_lines(called.end, text)
    return CommandResult(
        called.outcome, called.status, text, error_text(end.error_type, end.error), end.delay
    )
