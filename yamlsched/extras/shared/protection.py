"""What a coroutine must not change of the process that it shares, and what is restored when one has
ended.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from yamlsched.errors import YamlschedError

OWN_PROCESS = "or use a queue with mode: process for this job"
INSTEAD = {
    "signal": f"catch asyncio.CancelledError, which stops a coroutine, {OWN_PROCESS}",
    "siginterrupt": "use a queue with mode: process for this job",
    "set_wakeup_fd": "use a queue with mode: process for this job",
    "alarm": f"use asyncio.timeout(), {OWN_PROCESS}",
    "setitimer": f"use asyncio.timeout(), {OWN_PROCESS}",
}
"""The functions of the module ``signal`` that are refused, and what to use instead."""
SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
LIMITS = tuple({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})


def refuse_signals() -> None:
    """Have functions that change signals and timers raise, for the rest of this process; not in
    forks of it.
    """
    originals = {name: getattr(signal, name) for name in INSTEAD}
    for name, instead in INSTEAD.items():
        setattr(
            signal,
            name,
            _refusal(f"signal.{name}() changes a process that other runs share: {instead}"),
        )
    os.register_at_fork(after_in_child=lambda: vars(signal).update(originals))


def _refusal(message: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise YamlschedError(message)

    return refuse


class ProcessState:
    """Signal handlers, the signal mask and limits as they are to stay; timers are never to run.

    The module ``_signal`` is not refused, and returns numbers, which takes a fraction of the time
    of enums.
    """

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Keep the state of now, also what the import of a module has changed."""
        self._handlers = {number: _signal.getsignal(number) for number in SIGNALS}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._limits = {number: resource.getrlimit(number) for number in LIMITS}

    def restore(self) -> bool:
        """Undo what coroutines have changed; return False if that is impossible, so that the
        process must end.
        """
        for timer in TIMERS:
            _signal.setitimer(timer, 0.0)
        for number, handler in self._handlers.items():
            if handler is not None and _signal.getsignal(number) != handler:
                _signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        is_restored = True
        for number, limits in self._limits.items():
            if resource.getrlimit(number) != limits:
                try:
                    resource.setrlimit(number, limits)
                except (OSError, ValueError):  # only root may raise a hard limit again
                    is_restored = False
        return is_restored


def exit_fork(error: BaseException | None) -> NoReturn:
    """End a process that a handler has forked as Python does: after an exception with its traceback
    and status 1.
    """
    status: object = 0
    try:
        if isinstance(error, SystemExit):
            status = error.code or 0
            if not isinstance(status, int):
                print(status, file=sys.stderr)
        elif error is not None:
            status = 1
            traceback.print_exception(error)
        sys.stdout.flush()
    finally:
        os._exit(status & 0xFF if isinstance(status, int) else 1)
