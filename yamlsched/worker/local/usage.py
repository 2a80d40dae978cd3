"""What attempts use: CPU seconds, and the peak of their memory. Where the system cannot say, there
is no figure.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage, struct_rusage

from yamlsched.runs.lifecycle import Usage
from yamlsched.worker.local.protocol import Shared

UNKNOWN = math.inf
RSS_UNIT = 1024  # of ru_maxrss on Linux
INEXACT_BYTES = 1 << 20  # by which the kernel's numbers may be off, and a sixteenth


def start(shared: Shared) -> None:
    """Child: count from now on. The peak of this process's memory becomes its present size."""
    shared.largest_program = UNKNOWN
    with contextlib.suppress(OSError):  # not Linux, or not permitted
        descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY)
        try:
            os.write(descriptor, b"5")
            shared.largest_program = _peak(getrusage(RUSAGE_CHILDREN))
        finally:
            os.close(descriptor)
    shared.cpu_seconds = _cpu_seconds()


def read(shared: Shared) -> Usage:
    """Child: return what was used since the start: CPU also of programs that have ended, memory of
    this process.
    """
    peak = None if shared.largest_program == UNKNOWN else _peak(getrusage(RUSAGE_SELF))
    return max(0.0, _cpu_seconds() - shared.cpu_seconds), peak


def of_killed(shared: Shared, used: struct_rusage) -> Usage:
    """Parent: return what the last attempt of a child used that has ended; ``used`` is all that
    ``wait4`` says of it.

    A program that an earlier attempt had started may have been larger: then the peak is not known.
    """
    peak = _peak(used) if _peak(used) > shared.largest_program else None
    return max(0.0, used.ru_utime + used.ru_stime - shared.cpu_seconds), peak


def note_program(shared: Shared) -> None:
    """In the process that is about to become a program: note its size, which Linux counts as the
    program's own.
    """
    shared.program = _peak(getrusage(RUSAGE_SELF))


def of_program(shared: Shared, used: struct_rusage) -> Usage:
    """Child: return what a program used, and those that it has waited for: the peak is that of the
    largest.

    If that is not larger than the process that started the program, it is a bound.
    """
    cpu_seconds, peak = used.ru_utime + used.ru_stime, _peak(used)
    if sys.platform != "linux":
        return cpu_seconds, None
    return cpu_seconds, peak if peak > shared.program * 17 / 16 + INEXACT_BYTES else -peak


def _cpu_seconds() -> float:
    own, programs = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + programs.ru_utime + programs.ru_stime


def _peak(used: struct_rusage) -> int:
    return used.ru_maxrss * RSS_UNIT
