"""The programs of ``command:`` jobs: what they are started with, and what their exit means."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import IO, Any, NamedTuple

from yamlsched import jsonb, plugin_manager
from yamlsched.db.dsn import OWN_VARIABLES
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind
from yamlsched.schedule.job import Job

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies: nothing else would stop what it
    executes.

    ``parent`` is its process id from before the fork: it may have died since.
    """
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def survive_parent() -> None:
    """Undo ``die_with``: this process has something to do when its parent has died."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, 0)


def adopt_orphans(does_adopt: bool) -> None:
    """Let processes whose parents die become children of this one, so that it reaps them."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, int(does_adopt))


MAX_VARIABLE_BYTES = 96 * 1024  # Linux refuses a variable of 128 KiB
MAX_LAST_LINES = 3  # of the output, which an error shows
MAX_LAST_LINE_CHARS = 300
POLL_INTERVAL_SECONDS = 0.01
TEMPORARY = {
    errno.EAGAIN,
    errno.ENOMEM,
    errno.ETXTBSY,
    errno.EMFILE,
    errno.ENFILE,
    errno.EIO,
    errno.EINTR,
    errno.ESTALE,
}
"""The errors of starting a program that a retry may not meet again."""
SECRETS = (
    b"PG",
    *(name.encode() for name in OWN_VARIABLES),
    *(name.replace("HEADERS", "ENDPOINT").encode() for name in OWN_VARIABLES if "OTLP" in name),
)
"""How the names of variables begin that are for yamlsched itself, and not for programs."""


def _trace(run: ClaimedRun) -> dict[str, str]:
    """Return the variables that name the trace of a program: that of the current span, else that of
    the run.
    """
    parent, _, state = (plugin_manager.trace_context() or run.trace_context or "").partition(" ")
    variables = {"TRACEPARENT": parent, "TRACESTATE": state}
    return {name: value for name, value in variables.items() if value}


def bounded_upstream(text: str) -> str:
    """Return what a run has waited for, without the largest results if they do not fit into a
    variable.
    """
    runs: dict[str, dict[str, Any]] = json.loads(text)
    sizes = {name: len(jsonb.encode(run["result"])) for name, run in runs.items()}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if len(text.encode()) <= MAX_VARIABLE_BYTES:
            break
        runs[name] |= {"result": None, "omitted": True}
        text = json.dumps(runs, ensure_ascii=False)
    return text


def bounded_trigger(text: str) -> str:
    """Return what a hook reports, without payload and result if they do not fit into a variable, or
    cannot be read.
    """
    run: dict[str, Any] = json.loads(text)
    with contextlib.suppress(ValueError, RecursionError):
        values = {name: run[name] and json.loads(run[name]) for name in ("payload", "result")}
        shown = json.dumps(run | values, ensure_ascii=False)
        if len(shown.encode()) <= MAX_VARIABLE_BYTES:
            return shown
    return json.dumps(run | {"payload": {}, "result": None, "omitted": True}, ensure_ascii=False)


class Program(NamedTuple):
    """What a command job starts. Plain values: it crosses a pipe as a tuple."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str  # relative to the directory of schedules.yaml, or absolute
    stdin: str | None
    success: tuple[int, ...]
    discard: tuple[int, ...]
    retry_after: dict[int, float]  # seconds
    secrets: tuple[str, ...] = ()  # more variables that are for yamlsched itself

    @classmethod
    def from_job(cls, job: Job) -> Program:
        codes = job.exit_codes
        delays = {code: delay.total_seconds() for code, delay in codes.retry_after.items()}
        limits = codes.success, codes.discard, delays
        return cls(job.command, job.env, job.cwd or "", job.stdin, *limits, job.secret_env)

    def environment(self, inherited: Mapping[bytes, bytes], run: ClaimedRun) -> dict[bytes, bytes]:
        """Return the environment of the program: ``inherited`` without ``SECRETS``, ``env``, the
        run and its trace.

        Everything is UTF-8, whatever the locale of the worker is.
        """
        own = {name.encode() for name in self.secrets}
        kept = {
            name: value
            for name, value in inherited.items()
            if not name.startswith(SECRETS) and name not in own
        }
        slot = run.scheduled_for and datetime.fromisoformat(run.scheduled_for).astimezone(UTC)
        run_variables = {
            "YAMLSCHED_RUN_ID": str(run.id),
            "YAMLSCHED_JOB": run.job_type,
            "YAMLSCHED_KEY": run.key or "",
            "YAMLSCHED_SCHEDULED_FOR": f"{slot:%Y-%m-%dT%H:%M:%SZ}" if slot else "",
            "YAMLSCHED_ATTEMPT": str(run.attempt),
            "YAMLSCHED_MAX_ATTEMPTS": str(run.max_attempts),
            "YAMLSCHED_PAYLOAD": run.payload,
        }
        if run.upstream:
            run_variables["YAMLSCHED_UPSTREAM"] = bounded_upstream(run.upstream)
        if run.trigger:
            run_variables["YAMLSCHED_TRIGGER"] = bounded_trigger(run.trigger)
        variables = {**self.env, **run_variables, **_trace(run)}
        encoded = {name.encode(): value.encode() for name, value in variables.items()}
        return {**kept, **encoded}

    def start(
        self,
        folder: str,
        environment: Mapping[bytes, bytes],
        prepare: Callable[[], object],
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, with no signal ignored or blocked. Raises OSError.

        ``folder`` has schedules.yaml. ``prepare`` is called in the new process, before the program
        takes its place. ``options`` are those of Popen.
        """

        def before_exec() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for number in signal.valid_signals():
                if signal.getsignal(number) is signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            prepare()

        with self._open_stdin() as stdin:
            return subprocess.Popen(
                [argument.encode() for argument in self.argv],
                stdin=stdin,
                env=environment,
                cwd=os.path.join(os.fsencode(folder), self.cwd.encode()),
                start_new_session=True,
                preexec_fn=before_exec,
                **options,
            )

    def _open_stdin(self) -> IO[bytes]:
        """Return a file and not a pipe: a program may exit without reading it, and a pipe would
        then break.
        """
        if not self.stdin:
            return open(os.devnull, "rb")
        if hasattr(os, "memfd_create"):  # Linux: no disk can be full
            file: IO[bytes] = os.fdopen(os.memfd_create("stdin"), "w+b")
        else:
            file = tempfile.TemporaryFile()  # noqa: SIM115
        file.write(self.stdin.encode())
        file.seek(0)
        return file

    def end(self, status: int) -> AttemptEnd | None:
        """Return how the attempt ended, by the exit code, or minus the signal that killed it; None:
        it succeeded.
        """
        if status in self.success:
            return None
        if status in self.discard:
            return AttemptEnd(EndKind.DISCARDED, "", describe_exit(status))
        if status in self.retry_after:
            delay = timedelta(seconds=self.retry_after[status])
            return AttemptEnd(EndKind.RETRY_AFTER, "", describe_exit(status), delay=delay)
        return AttemptEnd(EndKind.RAISED, "", describe_exit(status))


def not_started(error: OSError) -> AttemptEnd:
    """Return the end of an attempt whose program could not be started: the run is dead if no retry
    can help.
    """
    kind = EndKind.RAISED if error.errno in TEMPORARY else EndKind.DISCARDED
    text = f"cannot be started: {error.strerror}: {os.fsdecode(error.filename or '')}"
    return AttemptEnd(kind, text, type(error).__name__)


def was_terminated(end: AttemptEnd) -> bool:
    """Return whether SIGTERM ended a program; a shell that it ended may exit with 143."""
    return end.error_type in (describe_exit(-signal.SIGTERM), describe_exit(128 + signal.SIGTERM))


def describe_exit(status: int) -> str:
    """Describe an exit code, or minus the number of a signal.

    >>> describe_exit(3), describe_exit(-9)
    ('exit code 3', 'killed by SIGKILL (signal 9)')
    """
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name} (signal {-status})"
    except ValueError:
        return f"killed by signal {-status}"


def with_last_lines(end: AttemptEnd, output: str) -> AttemptEnd:
    """Return the end of an attempt with the last lines of its output as the error, if
    it has none.
    """
    if end.error or end.is_success:
        return end
    last_lines = ""
    for line in [line.strip() for line in output.splitlines() if line.strip()][
        : -MAX_LAST_LINES - 1 : -1
    ]:
        longer = f"{line} / {last_lines}" if last_lines else line[-MAX_LAST_LINE_CHARS:]
        if len(longer) > MAX_LAST_LINE_CHARS:
            break
        last_lines = longer
    return end._replace(error=last_lines or "no output")


def reap_group(group: int) -> bool:
    """Reap the children of this process that are in a process group, and return whether the group
    has members left.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # members that run as another user
    return True


def has_children() -> bool:
    """Return whether this process has children, without reaping any."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def signal_group(group: int, number: int) -> None:
    """Signal all members of a process group; those of other users are left out."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
