"""What a child does between its fork and its first run: let go of what is the parent's."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import NoReturn

from yamlsched.handling.sessions import ConnectionPermits, sessions
from yamlsched.worker.executors.processes.protocol import Memory
from yamlsched.worker.executors.processes.runner import Runner, standard_streams

PR_SET_PDEATHSIG = 1
GARBAGE = gc.get_threshold()  # as handlers expect it: the worker collects less often
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
HANDLED_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}  # the signals that the worker handles
SETUP_EXIT = 72  # of a child that cannot begin


def run(
    parent: int,
    commands: int,
    results: int,
    output: int,
    memory: Memory,
    dsn: str,
    namespace: str,
    path: Iterable[str],
    zone: str | None,
    permits: ConnectionPermits | None,
) -> NoReturn:
    """Become a child that carries out runs. Leaves by ``os._exit``: nothing of the parent's is cleaned up here.

    ``parent`` is the worker's process id; ``path`` comes first on ``sys.path``; ``zone`` is PGTZ as it was before the
    worker set it; ``permits`` are for the sessions of handlers.
    """
    gc.set_threshold(*GARBAGE)
    try:
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        sys.stdout, sys.stderr = standard_streams()
        shared = () if permits is None else (permits.descriptor,)
        let_go(parent, keep=(0, 1, 2, commands, results, output, *shared))
        sessions.permits = permits
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("500")  # where memory is short, a handler is to be killed, and not the worker
        os.setpgid(0, 0)  # a signal to the group reaches what handlers start, and not the parent
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        if zone is None:
            os.environ.pop("PGTZ", None)
        else:
            os.environ["PGTZ"] = zone
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        sys.path[:0] = [place for place in path if place not in sys.path[:1]]
        child = Runner(commands, results, output, memory, dsn, namespace)
    except BaseException as error:
        os.write(2, f"yamlsched: a child process cannot start: {error}\n".encode())
        os._exit(SETUP_EXIT)
    child.main()


def let_go(parent: int, keep: Iterable[int]) -> None:
    """Undo what a fork of the worker inherited: its signals, and its descriptors but those to ``keep``.

    Signals that may be sent to all processes at once (a shutdown, `pkill`, Ctrl-C) are for the parent, which decides.

    A descriptor is pointed at /dev/null and not closed: the number of one that is free would be given to something of
    the handler's, and whoever still knows it as the parent's session would write into that.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _ignore)  # not SIG_IGN, which the programs that handlers start would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
    die_with(parent)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _open_descriptors():
        if descriptor not in keep and descriptor != null:
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _ignore(signum: int, frame: object) -> None:
    """Do nothing."""


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals that the worker handles while it forks: ``let_go`` unblocks them in the new process.

    One that came before would be written into the pipe by which the parent hears of its own signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_descriptors() -> list[int]:
    found = []
    for descriptor in map(int, os.listdir("/dev/fd")):
        try:
            os.fstat(descriptor)
        except OSError:
            continue  # the one by which the folder was read
        found.append(descriptor)
    return found


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, where it can: nobody would stop its handler else.

    ``parent`` is its process id from before the fork: it may have died since.
    """
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
