"""Handlers that leave something behind in their process, and what sees it: a handler, or this file as a program."""

from __future__ import annotations

import ctypes
import decimal
import gc
import json
import locale
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("fork")
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_SET_SUBREAPER, PR_GET_SUBREAPER, PR_SET_NO_NEW_PRIVS = (
    1,
    2,
    36,
    37,
    38,
)
CLONE_NEWNS, CLONE_NEWUTS = 0x20000, 0x4000000
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
LEFT: list[Any] = []
left: Callable[[Callable[[], object]], Callable[[], object]]
IS_RESET: dict[str, Callable[[], object]] = {}
"""What is undone after the handler, in its process."""
ENDS_PROCESS: dict[str, Callable[[], object]] = {}
"""What only another process undoes."""
IS_KEPT: dict[str, Callable[[], object]] = {}
"""What later handlers of the process see, and programs do not."""


def _kind(
    kinds: dict[str, Callable[[], object]],
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(function: Callable[[], object]) -> Callable[[], object]:
        kinds[function.__name__] = function
        return function

    return add


reset, ends_process, kept = _kind(IS_RESET), _kind(ENDS_PROCESS), _kind(IS_KEPT)


def ignored(signum: int, frame: object) -> None:
    """Handle a signal by nothing."""


# -- signals and timers


@reset
def sigchld_ignored() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@reset
def sigterm_handled() -> None:
    signal.signal(signal.SIGTERM, ignored)


@reset
def sigusr1_handled() -> None:
    signal.signal(signal.SIGUSR1, ignored)


@reset
def sigpipe_default() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@reset
def sigint_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@reset
def signals_blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


@reset
def blocked_signal_pending() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    os.kill(os.getpid(), signal.SIGUSR2)


@reset
def alarm() -> None:
    signal.alarm(1000)


@reset
def timer_real() -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000, 1000)


@reset
def timer_virtual() -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 1000)


@reset
def timer_prof() -> None:
    signal.setitimer(signal.ITIMER_PROF, 1000, 1000)


@ends_process
def sigusr1_ignored_in_c() -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal(signal.SIGUSR1, 1)


# -- the process


@reset
def umask() -> None:
    os.umask(0o777)


@reset
def directory() -> None:
    os.chdir("/")


@reset
def dies_without_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, 0)


@reset
def adopts_orphans() -> None:
    LIBC.prctl(PR_SET_SUBREAPER, 1)


@ends_process
def no_new_privileges() -> None:
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


@ends_process
def priority() -> None:
    os.nice(7)


@ends_process
def scheduling_policy() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@ends_process
def processors() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@ends_process
def oom_score() -> None:
    Path("/proc/self/oom_score_adj").write_text("900")


@ends_process
def process_group() -> None:
    ended = os.fork()
    if not ended:
        os.setpgid(0, 0)
        time.sleep(1000)
    LEFT.append(ended)
    while os.getpgid(ended) != ended:
        time.sleep(0.001)
    os.setpgid(0, ended)


def _limit(name: str, soft: int) -> Callable[[], object]:
    def limit() -> None:
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        lower = soft if hard == resource.RLIM_INFINITY else max(0, min(soft, hard - 1))
        resource.setrlimit(number, (lower, hard))

    limit.__name__ = name.lower()
    return limit


for _name, _soft in {
    "RLIMIT_NOFILE": 30,
    "RLIMIT_FSIZE": 0,
    "RLIMIT_AS": 1 << 33,
    "RLIMIT_CPU": 1000,
    "RLIMIT_CORE": 1,
    "RLIMIT_NPROC": 100_000,
    "RLIMIT_STACK": 1 << 20,
}.items():
    ends_process(_limit(_name, _soft))


# -- what only root may do: as another user, nothing happens


def _as_root(do: Callable[[], object]) -> None:
    if os.getuid() == 0:
        do()


@ends_process
def user() -> None:
    _as_root(lambda: os.setuid(12345))


@ends_process
def effective_user() -> None:
    _as_root(lambda: os.seteuid(12345))


@ends_process
def group() -> None:
    _as_root(lambda: os.setgid(12345))


@ends_process
def groups() -> None:
    _as_root(lambda: os.setgroups([12345]))


@ends_process
def root_directory() -> None:
    _as_root(lambda: os.chroot("/tmp"))


@ends_process
def mount_namespace() -> None:
    _as_root(lambda: LIBC.unshare(CLONE_NEWNS))


@ends_process
def host_name_namespace() -> None:
    _as_root(lambda: LIBC.unshare(CLONE_NEWUTS))


# -- descriptors and streams


@ends_process
def all_descriptors() -> None:
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        pass


@ends_process
def many_descriptors() -> None:
    for _ in range(200):
        os.open(os.devnull, os.O_RDONLY)


@reset
def stdin_closed() -> None:
    os.close(0)


@reset
def stdout_closed() -> None:
    os.close(1)


@reset
def stderr_closed() -> None:
    os.close(2)


@reset
def streams_replaced() -> None:
    sys.stdin = sys.stdout = sys.stderr = None


@reset
def stdout_object_closed() -> None:
    sys.stdout.close()


# -- Python


@kept
def environment() -> None:
    os.environ["LEFT"] = "1"


@kept
def local_conventions() -> None:
    locale.setlocale(locale.LC_ALL, "C")


@kept
def search_path() -> None:
    sys.path.append("/left")


@kept
def modules() -> None:
    sys.modules["left"] = types.ModuleType("left")


@kept
def socket_timeout() -> None:
    socket.setdefaulttimeout(1000)


@kept
def warning_filters() -> None:
    warnings.filterwarnings("ignore", "left")


@kept
def garbage_collection() -> None:
    gc.disable()


@kept
def random_seed() -> None:
    random.seed(1)


@kept
def recursion_limit() -> None:
    sys.setrecursionlimit(5_000)


@kept
def thread() -> None:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


@kept
def child_process() -> None:
    pid = os.fork()
    if not pid:
        time.sleep(1000)
    LEFT.append(pid)


@reset
def decimal_context() -> None:
    decimal.getcontext().prec = 3


# -- what is seen of it


def state() -> dict[str, Any]:
    """Return what programs inherit."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = ("Uid", "Gid", "Groups", "SigBlk", "SigIgn", "NoNewPrivs", "CapEff", "Cpus_allowed")
    root = os.stat("/")
    death_signal, is_subreaper = ctypes.c_int(), ctypes.c_int()
    LIBC.prctl(PR_GET_PDEATHSIG, ctypes.byref(death_signal))
    LIBC.prctl(PR_GET_SUBREAPER, ctypes.byref(is_subreaper))
    mask = os.umask(0)
    os.umask(mask)
    limits = {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }
    return {
        **{name: status[name].strip() for name in names},
        "root": [root.st_dev, root.st_ino],
        "death signal": death_signal.value,
        "subreaper": is_subreaper.value,
        "umask": mask,
        "directory": os.getcwd(),
        "limits": limits,
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "uts")},
        "timers": [signal.getitimer(timer) for timer in TIMERS],
        "is many": len(os.listdir("/proc/self/fd")) > 100,
        "streams": [
            os.readlink(f"/proc/self/fd/{number}").partition(":")[0] for number in range(3)
        ],
    }


def python_state() -> dict[str, Any]:
    """Return what other handlers of the process may see besides."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "signal handlers": {
            number: repr(signal.getsignal(number)) for number in signal.valid_signals()
        },
        "leads its group": os.getpgrp() == os.getpid(),
        "stdin": sys.stdin.read(),
        "decimal": decimal.getcontext().prec,
        "kept": {
            "environment": os.environ.get("LEFT"),
            "local_conventions": locale.setlocale(locale.LC_ALL),
            "search_path": "/left" in sys.path,
            "modules": "left" in sys.modules,
            "socket_timeout": socket.getdefaulttimeout(),
            "warning_filters": str(warnings.filters[0]),
            "garbage_collection": gc.isenabled(),
            "random_seed": random.getstate() == random.Random(1).getstate(),
            "recursion_limit": sys.getrecursionlimit(),
            "thread": threading.active_count(),
            "child_process": len(children),
        },
    }


FORK_ENDS: dict[str, BaseException | None] = {
    "returns": None,
    "raises": ValueError("the copy failed"),
    "exits": SystemExit(),
    "exits with 7": SystemExit(7),
    "exits with -1": SystemExit(-1),
    "exits with a message": SystemExit("no disk"),
}


def fork(how: str) -> int | None:
    """Return the exit code of a process that ends in this way."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if (error := FORK_ENDS[how]) is not None:
        raise error
    return None


async def fork_async(how: str) -> int | None:
    return fork(how)


def fork_deaf(end: str) -> None:
    """Fork a process that ignores SIGTERM, and note its id; then return, raise, or wait."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        path = Path(os.environ["TEST_FOLDER"], "deaf")
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
        while True:
            time.sleep(1000)
    while not Path(os.environ["TEST_FOLDER"], "deaf").exists():
        time.sleep(0.001)
    if end == "raises":
        raise ValueError("failed")
    if end == "waits":
        time.sleep(1000)


def terminate_processes() -> list[int | None]:
    """Return the exit codes of processes of multiprocessing that are terminated as soon as they exist."""
    return [exit_code(signal.SIGTERM) for _ in range(20)]


def signal_process(number: int) -> int | None:
    """Return the exit code of a process of multiprocessing that gets this signal when it executes its function."""
    return exit_code(number, FORKS.Event())


def exit_code(number: int, is_executing: Event | None = None) -> int | None:
    process = FORKS.Process(target=wait_forever, args=[is_executing])
    process.start()
    assert process.pid is not None
    if is_executing is not None:
        is_executing.wait()
    os.kill(process.pid, number)
    process.join()
    return process.exitcode


def wait_forever(is_executing: Event | None = None) -> None:
    if is_executing is not None:
        is_executing.set()
    while True:
        time.sleep(0.01)


def terminate_processes_from_thread() -> list[int | None]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(terminate_processes).result()


def terminate_handled() -> list[int | None]:
    """Return the exit codes of processes that inherit a signal handler that this handler has set."""
    signal.signal(signal.SIGTERM, lambda signum, frame: os._exit(7))
    return terminate_processes()


def terminate_pool() -> list[int | None]:
    """Return the exit codes of the processes of a pool; they are terminated after each has worked."""
    with ProcessPoolExecutor(2, mp_context=FORKS) as pool:
        assert list(pool.map(abs, range(-4, 0))) == [4, 3, 2, 1]
        processes = list(pool._processes.values())
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
    return [process.exitcode for process in processes]


def stop_pool() -> None:
    """Wait for a pool whose processes never end."""
    with ProcessPoolExecutor(2, mp_context=FORKS) as pool:
        list(pool.map(wait, range(2)))


def wait(index: int) -> None:
    """Note the id of this process, and wait for a signal."""
    path = Path(os.environ["TEST_FOLDER"], f"worker{index}")
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    wait_forever()


def leave(kind: str, prints: bool = False) -> int:
    if prints:
        print("left")
    {**IS_RESET, **ENDS_PROCESS, **IS_KEPT}[kind]()
    return os.getpid()


def observe() -> dict[str, Any]:
    print("printed")
    found = {"pid": os.getpid(), "state": state(), "python": python_state()}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


if __name__ == "__main__":
    print(json.dumps({"parent": os.getppid(), "state": state()}))
