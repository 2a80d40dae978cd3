"""How a child has died, and which of its attempts is to blame."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from resource import struct_rusage

from yamlsched.runs.lifecycle import BLOCKED, WORKER_DIED, AttemptEnd, EndKind
from yamlsched.worker.attempt import Attempt, Kind
from yamlsched.worker.local import protocol
from yamlsched.worker.local.child import ChildHandle
from yamlsched.worker.local.protocol import BLOCKED_FOR
from yamlsched.worker.local.usage import of_killed

# children that died with an attempt that they had not started: then it has failed
MAX_FAILED_STARTS = 3


def exit_cause(status: int, when: str = " during the run") -> str:
    """Describe how a process ended, from its wait status; ``when`` is appended if it exited by
    itself.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "unknown"
        hint = ", possibly out of memory" if number == signal.SIGKILL else ""
        return f"killed by signal {number} ({name}){hint}"
    code = os.waitstatus_to_exitcode(status)
    if code == protocol.CLOSED_PIPES:
        return (
            "the handler closed file descriptors that it did not open, including its connection to"
            " yamlsched"
        )
    return f"the process exited with status {code}{when}"


def failed_start(attempt: Attempt, status: int) -> AttemptEnd | None:
    """Count the death of a child that had not started ``attempt``; after a few, return its end.

    It is handed over alone after the first time: only a run that kills its child each time gets as
    far as its end.
    """
    attempt.failed_starts += 1
    if attempt.failed_starts < MAX_FAILED_STARTS or attempt.stopped is not None:
        return None
    why = (
        f"{MAX_FAILED_STARTS} child processes died before they could start it:"
        f" {exit_cause(status, '')}"
    )
    return AttemptEnd(EndKind.RAISED, why, WORKER_DIED)


def ends_by_death(
    child: ChildHandle,
    started: Mapping[int, Attempt],
    executed_count: int,
    status: int,
    used: struct_rusage | None,
) -> Iterator[tuple[Attempt, AttemptEnd]]:
    """Yield how attempts end that a child had ``started`` when it died: the one that was the
    reason, if that is known, and its neighbours.

    ``executed_count`` is the number of runs that it has executed, and ``used`` what ``wait4`` says
    of it.
    """
    culprit, why, stack = _cause(child, started, status)
    for attempt in started.values():
        end = AttemptEnd(EndKind.RAISED, why, WORKER_DIED)
        if attempt is not culprit:
            end = end._replace(error=_of_neighbour(culprit, why, executed_count))
        elif stack or why == BLOCKED_FOR:
            end = end._replace(error_type=BLOCKED, stack=stack)
        elif used is not None and child.kind is Kind.HANDLER:
            end = end._replace(usage=of_killed(child.memory, used))
        yield attempt, end


def _cause(
    child: ChildHandle, started: Mapping[int, Attempt], status: int
) -> tuple[Attempt | None, str, str]:
    """Return which attempt ended the process, if that is known, what it did, and a stack."""
    if note := child.memory.note():
        where, _, stack = note.partition("\n")
        return child.running(), f"{BLOCKED_FOR} at {where}", stack
    if child.killed_for is not None:
        return *child.killed_for, ""
    if child.is_loop:
        # SIGKILL is sent from outside, possibly because memory is short: what was executing need
        # not be the reason
        is_by_signal = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return None if is_by_signal else child.running(), exit_cause(status), ""
    why = exit_cause(status)
    for index, attempt in started.items():
        if child.memory.state(index) == protocol.ENDED:
            how = "hung, and was killed," if child.is_hung else f"died ({exit_cause(status, '')})"
            why = f"its process {how} before it could report how the handler ended"
        return attempt, why, ""
    return None, why, ""


def _of_neighbour(culprit: Attempt | None, why: str, count: int) -> str:
    others = (
        f"its process executed {count} runs" if count > 1 else "its process executed no other run"
    )
    if culprit is None:
        return f"{why} ({others})"
    run = culprit.run
    return f"its process ended because of run {run.id} ({run.job_type}), which shared it: {why}"
