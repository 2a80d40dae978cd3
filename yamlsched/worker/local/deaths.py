"""How a child has died, and which of its attempts is to blame."""

from __future__ import annotations

import os
import re
import signal
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from resource import struct_rusage

from yamlsched.handler.programs import describe_exit
from yamlsched.runs.lifecycle import BLOCKED, WORKER_DIED, AttemptEnd, EndKind
from yamlsched.worker.attempt import Attempt, Kind
from yamlsched.worker.local import protocol
from yamlsched.worker.local.child import BLOCKED_FOR, ChildHandle
from yamlsched.worker.local.usage import of_killed

LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DUMPED = re.compile(r'File "(.+)", line (\d+) in (.+)')  # a line of faulthandler


def exit_cause(status: int) -> str:
    """Describe how a process ended, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code == protocol.CLOSED_PIPES:
        return (
            "the handler closed file descriptors that it did not open, including its connection to"
            " yamlsched"
        )
    if code < 0:
        hint = ", possibly out of memory" if code == -signal.SIGKILL else ""
        return f"{describe_exit(code)}{hint}"
    return f"the process exited with status {code}"


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
    culprit, why = _cause(child, started, status)
    stack, is_blocked = "", why == BLOCKED_FOR
    if is_blocked:
        where, stack = _position(child.read_stack())
        why += where
    for attempt in started.values():
        end = AttemptEnd(EndKind.RAISED, why, WORKER_DIED)
        if attempt is not culprit:
            end = end._replace(error=_of_neighbour(culprit, why, executed_count))
        elif is_blocked:
            end = end._replace(error_type=BLOCKED, stack=stack)
        elif used is not None and child.kind is Kind.HANDLER:
            end = end._replace(usage=of_killed(child.memory.shared, used))
        yield attempt, end


def _cause(
    child: ChildHandle, started: Mapping[int, Attempt], status: int
) -> tuple[Attempt | None, str]:
    """Return which attempt ended the process, if that is known, and what it did."""
    if child.killed_for is not None:
        return child.killed_for
    if child.is_loop:
        # SIGKILL is sent from outside, possibly because memory is short: what was executing need
        # not be the reason
        is_by_signal = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return None if is_by_signal else child.current(), exit_cause(status)
    why = exit_cause(status)
    for index, attempt in started.items():
        if child.memory.state(index) == protocol.ENDED:
            died = f"its process died ({exit_cause(status)})"
            why = f"{died} before it could report how the handler ended"
        return attempt, why
    return None, why


def _position(dump: str) -> tuple[str, str]:
    """Return the innermost line of the project in a stack that faulthandler wrote, and the stack,
    without our own frames and those of the event loop before the handler's.
    """
    lines = [(file, int(line), name) for file, line, name in DUMPED.findall(dump)]
    own = [place for place, (file, *_) in enumerate(lines) if file.startswith(OWN_FOLDER)]
    handlers = lines[: own[0]] if own else lines
    where = next((each for each in handlers if not each[0].startswith((*LIBRARIES, "<"))), None)
    stack = "".join(traceback.format_list([(*each, None) for each in reversed(handlers)]))
    return f" at {where[0]}:{where[1]}" if where else "", stack


def _of_neighbour(culprit: Attempt | None, why: str, count: int) -> str:
    others = (
        f"its process executed {count} runs" if count > 1 else "its process executed no other run"
    )
    if culprit is None:
        return f"{why} ({others})"
    run = culprit.run
    return f"its process ended because of run {run.id} ({run.job_type}), which shared it: {why}"
