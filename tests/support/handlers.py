"""Handlers that behave badly, each in one way. Each notes when it begins, and when it has come to its end."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from yamlsched import Discard, RetryAfter, Run, Snooze
from yamlsched.store import runs as store

PLACE = Path(os.environ.get("TEST_FOLDER", "."))


def note(what: str, run: Run) -> None:
    with (PLACE / "calls").open("a") as calls:
        calls.write(f"{what} {run.id} {run.attempt} {os.getpid()}\n")


def act(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(run: Run, **payload: Any) -> Any:
        note("started", run)
        value = function(run, **payload)
        note("completed", run)
        return value

    return noted


def wait_for(name: str) -> None:
    """Wait until the test says so, by making a file."""
    while not (PLACE / name).exists():
        time.sleep(0.005)


# -- that are as they should be


@act
def nothing(run: Run) -> None:
    pass


@act
def nap(run: Run, seconds: float = 0.01) -> None:
    time.sleep(seconds)


@act
def waits_for_file(run: Run, name: str = "go") -> None:
    wait_for(name)


@act
def first_attempt_waits(run: Run) -> None:
    """The first attempt waits for what never comes; later ones come through."""
    if run.attempt == 1:
        wait_for("never")


@act
def waits_for_others(run: Run, others: int = 2) -> None:
    """Come through once as many as ``others`` are inside at the same moment."""
    (PLACE / f"inside-{run.id}").touch()
    while len(list(PLACE.glob("inside-*"))) < others:
        time.sleep(0.005)


@act
def returns_json(run: Run) -> dict[str, Any]:
    return {"rows": 3, "text": "é"}


@act
def fan_out(run: Run, job: str = "nothing") -> None:
    run.enqueue(job, {}, key=f"{job}:1")
    run.enqueue(job, {}, key=f"{job}:2")


# -- that die


@act
def segfault(run: Run) -> None:
    ctypes.string_at(0)


@act
def exits(run: Run) -> None:
    os._exit(0)


@act
def calls_exit(run: Run) -> None:
    sys.exit(3)


@act
def is_killed(run: Run) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@act
def exhausts_memory(run: Run) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    try:
        return len(bytearray(1 << 34)) and None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@act
def kills_its_worker(run: Run) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


# -- that stay


@act
def hangs(run: Run) -> None:
    print("about to hang", flush=True)
    time.sleep(600)


async def _hangs() -> None:
    await asyncio.sleep(600)


def hangs_async(run: Run) -> Any:
    note("started", run)
    return _hangs()


@act
def ignores_signals(run: Run) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@act
def swallows_everything(run: Run) -> str:
    try:
        time.sleep(600)
    except BaseException:
        return "nothing can stop me"
    return "never"


@act
def recurses(run: Run) -> None:
    recurses.__wrapped__(run)  # type: ignore[attr-defined]


@act
def ignores_exceptions(run: Run) -> None:
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


def _hold_the_interpreter(run: Run) -> None:
    wait_for(f"hold-{run.id}")
    (PLACE / f"held-{run.id}").touch()
    ctypes.PyDLL(None).sleep(600)


@act
def leaves_a_thread_behind(run: Run) -> int:
    """Return, and leave a thread that takes the interpreter for itself when it is told to."""
    threading.Thread(target=_hold_the_interpreter, args=(run,), daemon=True).start()
    return os.getpid()


# -- that fork


@act
def forks_and_both_return(run: Run) -> None:
    if os.fork() == 0:
        return
    os.wait()


@act
def forks_and_leaves_it(run: Run) -> None:
    if os.fork() == 0:
        wait_for("forked children may go")
        os._exit(0)


@act
def leaves_a_program_and_dies(run: Run) -> None:
    started = subprocess.Popen(["sleep", "600"])
    (PLACE / "left-alone").write_text(str(started.pid))
    os._exit(7)


# -- that spoil their process


@act
def closes_descriptors(run: Run) -> None:
    os.closerange(3, 1000)


@act
def closes_all_descriptors(run: Run) -> None:
    os.closerange(0, 1000)


@act
def reuses_descriptors(run: Run) -> None:
    os.closerange(3, 1000)
    for _ in range(20):
        os.open(PLACE / "opened", os.O_RDWR | os.O_CREAT)


@act
def writes_everywhere(run: Run) -> None:
    for descriptor in range(3, 100):
        try:
            os.write(descriptor, b"garbage, and more garbage")
        except OSError:
            continue
    time.sleep(600)


@act
def closes_stdout(run: Run) -> None:
    sys.stdout.close()


@act
def resets_sigterm(run: Run) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# -- that print


@act
def prints(run: Run) -> None:
    print("a line of", run.id)
    run.log.info("a log line of %s", run.id)


@act
def prints_much(run: Run, megabytes: int = 64) -> None:
    line = "x" * 1023 + "\n"
    for _ in range(megabytes << 10):
        sys.stdout.write(line)


@act
def prints_garbage_and_fails(run: Run) -> None:
    os.write(1, bytes(range(256)) * 1000)
    os.write(1, b"\nthe end\n")
    raise RuntimeError("after garbage")


# -- that raise


@act
def fails(run: Run, text: str = "no route to host") -> None:
    raise OSError(text)


@act
def fails_once(run: Run) -> None:
    if run.attempt == 1:
        raise OSError("not yet")


@act
def raises_invalid_text(run: Run) -> None:
    raise BaseException("even\x00 this \x1b[31m\ud800\n" + "and so on " * 10_000)


@act
def raises_unprintable(run: Run) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    raise Unspeakable


@act
def raises_keyboard_interrupt(run: Run) -> None:
    raise KeyboardInterrupt


@act
def discards(run: Run) -> None:
    raise Discard("the customer is gone")


@act
def asks_to_retry(run: Run) -> None:
    if run.attempt == 1:
        raise RetryAfter(0, "too many requests")


@act
def snoozes(run: Run) -> None:
    if not (PLACE / f"snoozed-{run.id}").exists():
        (PLACE / f"snoozed-{run.id}").touch()
        raise Snooze(0)


# -- that return what cannot be kept


@act
def returns_a_function(run: Run) -> Any:
    return nothing


@act
def returns_nan(run: Run) -> float:
    return float("nan")


@act
def returns_nul(run: Run) -> str:
    return "a\x00b"


@act
def returns_itself(run: Run) -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@act
def returns_too_much(run: Run) -> str:
    return "x" * 100_000


@act
def enqueues_nonsense(run: Run) -> None:
    run.enqueue("no_such_job", {})


# -- of a size


@act
def measures(run: Run, text: str = "") -> int:
    return len(text)


@act
def returns_text(run: Run, size: int) -> str:
    return "r" * size


@act
def raises_text(run: Run, size: int) -> None:
    raise RuntimeError("e" * size)


@act
def prints_text(run: Run, size: int) -> None:
    sys.stdout.write("<" + "p" * (size - 2) + ">" if size > 1 else "p" * size)
    raise RuntimeError("printed")


@act
def fans_out(run: Run, count: int, size: int = 0) -> None:
    run.enqueue_many("nothing", [{"text": "f" * size}] * count, keys=[f"part:{run.id}:{n}" for n in range(count)])


def records_death(run: Run) -> None:
    """For on_dead."""
    note("on_dead", run)


# -- that tell what they see


@act
def descriptors(run: Run) -> list[str]:
    """Return what the descriptors of this process lead to."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue
    return sorted(found)


@act
def environment(run: Run) -> dict[str, Any]:
    return {"zone": os.environ.get("PGTZ"), "pid": os.getpid(), "path": sys.path[0]}


@act
def ignored_signals(run: Run) -> str:
    """Return the mask of signals that a program started from here ignores."""
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))


@act
def leaks_secret(run: Run, secret: str) -> None:
    print("printed", secret)
    raise RuntimeError(f"cannot log in with {secret}")


@act
def prints_until_file(run: Run) -> None:
    while not (PLACE / "go").exists():
        print("x" * 500)
        time.sleep(0.0001)


# -- that use the database


@act
def transacts(run: Run, wait: str = "", times: int = 0, own_error: bool = False) -> None:
    """Write a row in a transaction, whose session breaks the first ``times`` calls."""
    if wait:
        wait_for(wait)
    calls = (PLACE / "calls").read_text().splitlines()
    is_broken = sum(line.startswith(f"started {run.id} ") for line in calls) <= times
    try:
        with run.transaction() as connection:
            connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
            if is_broken:
                connection.execute("select pg_terminate_backend(pg_backend_pid())")
    except OSError as error:
        raise AssertionError("not an error of the database") from error
    except Exception as error:
        if not own_error:
            raise
        raise RuntimeError("no ledger") from error


@act
def loses_the_answer_to_its_commit(run: Run) -> None:
    """The commit reaches the server, and its answer does not reach us."""
    real = store.succeed_in

    def succeed_in(connection: Any, *given: Any) -> bool:
        answer = real(connection, *given)
        with socket.socket(fileno=os.dup(connection.fileno())) as handle:
            handle.shutdown(socket.SHUT_RD)
        return answer

    store.succeed_in = succeed_in
    try:
        with run.transaction() as connection:
            connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
    finally:
        store.succeed_in = real


@act
def keeps_a_transaction_open(run: Run) -> None:
    """The first attempt never ends; later ones wait for what it has locked."""
    with run.transaction() as connection:
        connection.execute("update public.ledger set run_id = %s", [run.id])
        if run.attempt == 1:
            note("locked", run)
            wait_for("never")


@act
def fans_out_in_a_transaction(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (1)")
        run.enqueue("nap", {"seconds": 0})


@act
def records_and_transacts(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
        with run.once("beside", in_doubt="skip") as effect:
            effect.result = 1


@act
def holds_a_transaction(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
        note("inside", run)
        wait_for("go")


@act
def pays_in_euro(run: Run) -> None:
    print("paying 5 €")
    raise OSError("cannot pay 5 €")


def takes_days(run: Run, days: int) -> None:
    note("started", run)


def raises_type_error(run: Run, days: int = 1) -> None:
    note("started", run)
    raise TypeError("takes_days() got an unexpected keyword argument 'older'")
