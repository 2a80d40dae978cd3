"""Handlers that misbehave, each in one way. Each records in the file ``calls`` when it starts and when it completes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from yamlsched import Discard, RetryAfter, Run, Snooze
from yamlsched.runs import own_transaction as store

FOLDER = Path(os.environ.get("TEST_FOLDER", "."))


def record(event: str, run: Run, of_run: int | None = None) -> None:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{event} {of_run or run.id} {run.attempt} {os.getpid()}\n")


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(run: Run, **payload: Any) -> Any:
        record("started", run)
        value = function(run, **payload)
        record("completed", run)
        return value

    return call


def wait_for_file(name: str) -> None:
    """Wait until the test creates this file."""
    while not (FOLDER / name).exists():
        time.sleep(0.005)


# -- normal


@recorded
def nothing(run: Run) -> None:
    pass


@recorded
def nap(run: Run, seconds: float = 0.01) -> None:
    time.sleep(seconds)


@recorded
def waits_for_file(run: Run, name: str = "go") -> None:
    wait_for_file(name)


@recorded
def first_attempt_waits(run: Run) -> None:
    """The first attempt waits forever; later attempts succeed."""
    if run.attempt == 1:
        wait_for_file("never")


@recorded
def waits_for_others(run: Run, others: int = 2) -> None:
    """Return once ``others`` runs are inside at the same time."""
    (FOLDER / f"inside-{run.id}").touch()
    while len(list(FOLDER.glob("inside-*"))) < others:
        time.sleep(0.005)


@recorded
def returns_json(run: Run) -> dict[str, Any]:
    return {"rows": 3, "text": "é"}


@recorded
def fan_out(run: Run, job: str = "nothing") -> None:
    run.enqueue(job, {}, key=f"{job}:1")
    run.enqueue(job, {}, key=f"{job}:2")


@recorded
def renews_itself(run: Run) -> None:
    run.enqueue(run.job_type, {})


# -- which end their process


@recorded
def segfault(run: Run) -> None:
    ctypes.string_at(0)


@recorded
def exits(run: Run) -> None:
    os._exit(0)


@recorded
def calls_exit(run: Run) -> None:
    sys.exit(3)


@recorded
def is_killed(run: Run) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@recorded
def exhausts_memory(run: Run) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    try:
        return len(bytearray(1 << 34)) and None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@recorded
def kills_its_worker(run: Run) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


# -- which do not return


@recorded
def hangs(run: Run) -> None:
    print("about to hang", flush=True)
    time.sleep(600)


async def _hangs() -> None:
    await asyncio.sleep(600)


def hangs_async(run: Run) -> Any:
    record("started", run)
    return _hangs()


@recorded
def ignores_signals(run: Run) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@recorded
def swallows_everything(run: Run) -> str:
    try:
        time.sleep(600)
    except BaseException:
        return "nothing can stop me"
    return "never"


@recorded
def recurses(run: Run) -> None:
    recurses.__wrapped__(run)  # type: ignore[attr-defined]


@recorded
def ignores_exceptions(run: Run) -> None:
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


def _hold_the_interpreter(run: Run) -> None:
    wait_for_file(f"hold-{run.id}")
    (FOLDER / f"held-{run.id}").touch()
    ctypes.PyDLL(None).sleep(600)


@recorded
def leaves_a_thread_behind(run: Run) -> int:
    """Return, and leave a thread that takes the interpreter lock and keeps it once the test creates ``hold-RUN``."""
    threading.Thread(target=_hold_the_interpreter, args=(run,), daemon=True).start()
    return os.getpid()


# -- which fork


@recorded
def forks_and_both_return(run: Run) -> None:
    if os.fork() == 0:
        return
    os.wait()


@recorded
def forks_and_leaves_it(run: Run) -> None:
    if os.fork() == 0:
        wait_for_file("forked children may go")
        os._exit(0)


@recorded
def leaves_a_program_and_dies(run: Run) -> None:
    started = subprocess.Popen(["sleep", "600"])
    (FOLDER / "left-alone").write_text(str(started.pid))
    os._exit(7)


# -- which damage their process


@recorded
def closes_descriptors(run: Run) -> None:
    os.closerange(3, 1000)


@recorded
def closes_all_descriptors(run: Run) -> None:
    os.closerange(0, 1000)


@recorded
def reuses_descriptors(run: Run) -> None:
    os.closerange(3, 1000)
    for _ in range(20):
        os.open(FOLDER / "opened", os.O_RDWR | os.O_CREAT)


@recorded
def writes_everywhere(run: Run) -> None:
    for descriptor in range(3, 100):
        try:
            os.write(descriptor, b"garbage, and more garbage")
        except OSError:
            continue
    time.sleep(600)


@recorded
def closes_stdout(run: Run) -> None:
    sys.stdout.close()


@recorded
def resets_sigterm(run: Run) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# -- which report progress


def reports_then(run: Run, then: str) -> None:
    """Report progress, wait for the test, report again, and end in the way that ``then`` names."""
    run.progress(1, 3, f"attempt {run.attempt}")
    if run.attempt == 1:
        wait_for_file("go")
        run.progress(3, 3, "all of it")
    if run.attempt == 1 or then == "die":
        REPORTING_ENDS[then](run)


def _report_and_commit(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("set search_path = ''")
        run.progress(3, 3, "in the transaction")


def _report_in_a_thread(run: Run) -> None:
    thread = threading.Thread(target=run.progress, args=(3, 3, "by a thread"))
    thread.start()
    thread.join()


def _report_in_a_fork(run: Run) -> None:
    if os.fork() == 0:
        run.progress(3, 3, "by a process")
        os._exit(0)
    os.wait()


REPORTING_ENDS: dict[str, Callable[[Run], Any]] = {
    "return": lambda run: None,
    "enqueue": lambda run: run.enqueue("nothing"),
    "commit": _report_and_commit,
    "thread": _report_in_a_thread,
    "fork": _report_in_a_fork,
    "fail": lambda run: _fail(run, False),
    "die": lambda run: os._exit(3),
    "segfault": lambda run: ctypes.string_at(0),
}


async def reports_asynchronously(run: Run) -> None:
    run.progress(1)
    await asyncio.sleep(0)
    run.progress(2, note="without a total")


def reports_nonsense(run: Run) -> None:
    run.progress(-1)


# -- which print


@recorded
def prints(run: Run) -> None:
    print("a line of", run.id)
    run.log.info("a log line of %s", run.id)


@recorded
def prints_much(run: Run, megabytes: int = 64) -> None:
    line = "x" * 1023 + "\n"
    for _ in range(megabytes << 10):
        sys.stdout.write(line)


@recorded
def prints_garbage_and_fails(run: Run) -> None:
    os.write(1, bytes(range(256)) * 1000)
    os.write(1, b"\nthe end\n")
    raise RuntimeError("after garbage")


def prints_then(run: Run, then: str, text: str = "printed\n", times: int = 1) -> None:
    """Print in the first call, and end in the way that ``then`` names."""
    is_first = not (FOLDER / f"printed-{run.id}").exists()
    if is_first:
        (FOLDER / f"printed-{run.id}").touch()
        sys.stdout.write(text.replace("<euro>", "€") * times)
    ENDS[then](run, is_first)


def _snooze_at_first(run: Run, is_first: bool) -> None:
    if is_first:
        raise Snooze(0)


def _commit(run: Run, is_first: bool) -> None:
    with run.transaction() as connection:
        connection.execute("select 1")
        print("inside")
    print("after the commit")


def _start_others(run: Run, is_first: bool) -> None:
    sys.stdout.flush()
    subprocess.run(["/bin/sh", "-c", "echo by a program; echo its error >&2"], check=True)
    thread = threading.Thread(target=lambda: print("by a thread"))
    thread.start()
    thread.join()


def _fail(run: Run, is_first: bool) -> None:
    raise OSError("no route to host")


def _pause(run: Run, is_first: bool) -> None:
    sys.stdout.flush()
    time.sleep(0.3)  # so that the output is read before the handler returns


def fill_large_pipe() -> None:
    """Let the pipe to the worker hold more than the worker reads at once, and fill it."""
    fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(1, b"x" * 900_000 + b"\nthe end\n")


ENDS: dict[str, Callable[[Run, bool], Any]] = {
    "return": lambda run, is_first: None,
    "pause": _pause,
    "return_json": lambda run, is_first: 7,
    "enqueue": lambda run, is_first: run.enqueue("nothing"),
    "commit": _commit,
    "start_others": _start_others,
    "snooze": _snooze_at_first,
    "fail": _fail,
    "die": lambda run, is_first: (sys.stdout.flush(), os.kill(os.getpid(), signal.SIGKILL)),
    "fill_large_pipe": lambda run, is_first: fill_large_pipe(),
    "close_stdout": lambda run, is_first: (sys.stdout.flush(), os.close(1), os.close(2), 7)[-1],
    "redirect_stdout": lambda run, is_first: (sys.stdout.flush(), os.dup2(0, 1), os.dup2(0, 2), 7)[
        -1
    ],
    "wait": lambda run, is_first: (sys.stdout.flush(), record("started", run), wait_for_file("go")),
}


def prints_mixed(run: Run, number: int) -> None:
    """Print what ``mixed_output`` returns, in the way that the number stands for, and fail if it is odd."""
    text, way = mixed_output(number), number // 2 % 5
    if way == 0:
        sys.stdout.write(text)
    elif way == 1:
        os.write(2, text.encode())
    elif way == 2:
        thread = threading.Thread(target=sys.stderr.write, args=(text,))
        thread.start()
        thread.join()
    elif way == 3 and text:
        for start in range(0, len(text), 1_000):
            sys.stdout.write(text[start : start + 1_000])
            sys.stdout.flush()
    elif text and (pid := os.fork()):
        os.waitpid(pid, 0)
    elif text:
        with contextlib.suppress(OSError):
            os.write(1, text.encode())
        os._exit(0)
    if number % 3 == 0:  # so that it is read before the handler returns
        deadline = time.monotonic() + 30
        while unread_bytes(1) and time.monotonic() < deadline:
            time.sleep(0)
    if number % 2:
        raise OSError("no route to host")


def unread_bytes(descriptor: int) -> int:
    """Return how many bytes a pipe holds."""
    count = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def mixed_output(number: int) -> str:
    """Return what the attempt with this number prints: mostly a line, sometimes nothing, no line, or much."""
    sizes = {3: 0, 4: 0, 5: 1, 17: 9_000, 29: 65_535 - len(f"<{number}>"), 30: 70_000}
    size = sizes.get(number % 31, 30)
    return f"<{number}>" + "x" * size + ("\n" if number % 3 else "") if size else ""


# -- which raise


@recorded
def fails(run: Run, text: str = "no route to host") -> None:
    raise OSError(text)


@recorded
def fails_once(run: Run) -> None:
    if run.attempt == 1:
        raise OSError("not yet")


@recorded
def raises_invalid_text(run: Run) -> None:
    raise BaseException("even\x00 this \x1b[31m\ud800\n" + "and so on " * 10_000)


@recorded
def raises_unprintable(run: Run) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    raise Unspeakable


@recorded
def raises_keyboard_interrupt(run: Run) -> None:
    raise KeyboardInterrupt


@recorded
def discards(run: Run) -> None:
    raise Discard("the customer is gone")


@recorded
def asks_to_retry(run: Run) -> None:
    if run.attempt == 1:
        raise RetryAfter(0, "too many requests")


@recorded
def snoozes(run: Run) -> None:
    if not (FOLDER / f"snoozed-{run.id}").exists():
        (FOLDER / f"snoozed-{run.id}").touch()
        raise Snooze(0)


def commits_slowly(run: Run) -> None:
    """Commit after the lease was renewed at least once."""
    with run.transaction() as connection:
        connection.execute("select 1")
        with psycopg.connect(run.backend.dsn, autocommit=True) as other:
            first = _lease(other, run)
            while _lease(other, run) == first:
                time.sleep(0.05)


def _lease(connection: psycopg.Connection[Any], run: Run) -> Any:
    return connection.execute(
        "select locked_until from yamlsched.job_runs where id = %s", [run.id]
    ).fetchone()


# -- which return what cannot be stored


@recorded
def returns_a_function(run: Run) -> Any:
    return nothing


@recorded
def returns_nan(run: Run) -> float:
    return float("nan")


@recorded
def returns_nul(run: Run) -> str:
    return "a\x00b"


@recorded
def returns_itself(run: Run) -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@recorded
def returns_too_much(run: Run) -> str:
    return "x" * 100_000


@recorded
def enqueues_nonsense(run: Run) -> None:
    run.enqueue("no_such_job", {})


# -- whose payload, result, error or output has a given size


@recorded
def measures(run: Run, text: str = "") -> int:
    return len(text)


@recorded
def returns_text(run: Run, size: int) -> str:
    return "r" * size


@recorded
def raises_text(run: Run, size: int) -> None:
    raise RuntimeError("e" * size)


@recorded
def prints_text(run: Run, size: int) -> None:
    sys.stdout.write("<" + "p" * (size - 2) + ">" if size > 1 else "p" * size)
    raise RuntimeError("printed")


@recorded
def fans_out(run: Run, count: int, size: int = 0) -> None:
    run.enqueue_many(
        "nothing", [{"text": "f" * size}] * count, keys=[f"part:{run.id}:{n}" for n in range(count)]
    )


def records_death(run: Run) -> None:
    """A hook."""
    assert run.trigger is not None
    record("on_dead", run, run.trigger.run_id)


# -- which return what they see


@recorded
def descriptors(run: Run) -> list[str]:
    """Return the targets of the file descriptors of this process."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue
    return sorted(found)


@recorded
def environment(run: Run) -> dict[str, Any]:
    return {"zone": os.environ.get("PGTZ"), "pid": os.getpid(), "path": sys.path[0]}


@recorded
def ignored_signals(run: Run) -> str:
    """Return the mask of ignored signals of a program that this process starts."""
    status = subprocess.run(
        ["cat", "/proc/self/status"], capture_output=True, text=True, check=True
    ).stdout
    return next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))


@recorded
def leaks_secret(run: Run, secret: str) -> None:
    print("printed", secret)
    raise RuntimeError(f"cannot log in with {secret}")


@recorded
def prints_until_file(run: Run) -> None:
    while not (FOLDER / "go").exists():
        print("x" * 500)
        time.sleep(0.0001)


# -- which use the database


@recorded
def transacts(run: Run, wait: str = "", times: int = 0) -> None:
    """Write a row in a transaction. The session breaks in the first ``times`` calls."""
    if wait:
        wait_for_file(wait)
    calls = (FOLDER / "calls").read_text().splitlines()
    is_broken = sum(line.startswith(f"started {run.id} ") for line in calls) <= times
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
        if is_broken:
            connection.execute("select pg_terminate_backend(pg_backend_pid())")


@recorded
def loses_the_answer_to_its_commit(run: Run) -> None:
    """The commit reaches the server, but its answer does not reach the child."""
    real = store.succeed_in

    async def succeed_in(session: Any, *arguments: Any) -> bool:
        answer = await real(session, *arguments)
        with socket.socket(fileno=os.dup(session.connection.fileno())) as handle:
            handle.shutdown(socket.SHUT_RD)
        return answer

    store.succeed_in = succeed_in
    try:
        with run.transaction() as connection:
            connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
    finally:
        store.succeed_in = real


@recorded
def keeps_a_transaction_open(run: Run) -> None:
    """The first attempt never ends; later attempts wait for the rows that it has locked."""
    with run.transaction() as connection:
        connection.execute("update public.ledger set run_id = %s", [run.id])
        if run.attempt == 1:
            record("locked", run)
            wait_for_file("never")


@recorded
def fans_out_in_a_transaction(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (1)")
        run.enqueue("nap", {"seconds": 0})


@recorded
def records_and_transacts(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
        with run.once("beside", in_doubt="skip") as effect:
            effect.result = 1


@recorded
def holds_a_transaction(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
        record("inside", run)
        wait_for_file("go")


@recorded
def commits_and_waits(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
    record("committed", run)
    wait_for_file("never")


@recorded
def pays_in_euro(run: Run) -> None:
    print("paying 5 €")
    raise OSError("cannot pay 5 €")


def takes_days(run: Run, days: int) -> None:
    record("started", run)


def raises_type_error(run: Run, days: int = 1) -> None:
    record("started", run)
    raise TypeError("takes_days() got an unexpected keyword argument 'older'")


def tells(run: Run) -> None:
    """Be told of a dead run."""
    assert run.trigger is not None
    dead = run.trigger
    (FOLDER / "told").write_text(f"{dead.run_id} {dead.error_type}: {dead.error}")


@recorded
def uses(run: Run, megabytes: int = 0, cpu_seconds: float = 0.0, then: str = "") -> None:
    """Take memory and CPU, free the memory, and return, or end in another way."""
    content = bytearray(megabytes << 20)
    started = time.process_time()
    while time.process_time() - started < cpu_seconds:
        pass
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    del content
    if then == "fail":
        raise OSError("no route to host")
    if then == "commit":
        with run.transaction():
            pass


@recorded
def prints_and_waits(run: Run, text: str = "first\n", then: str = "") -> None:
    """Print, wait for the file "go", print once more, and end in the way that ``then`` names."""
    sys.stdout.write(text)
    sys.stdout.flush()
    wait_for_file("go")
    print("last")
    if then == "fail":
        raise OSError("no route to host")
    if then == "commit":
        with run.transaction():
            pass
