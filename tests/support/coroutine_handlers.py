"""Handlers of shared jobs, coroutines of one process. Each records when it starts and when it completes."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import contextlib
import contextvars
import logging
import os
import resource
import signal
import sys
import time
from contextvars import ContextVar
from typing import Any

import yamlsched
from support.handlers import FOLDER, record, wait_for_file
from yamlsched import Discard, RetryAfter, Run, Snooze


async def until_file(name: str) -> None:
    """Wait until the test creates this file, without blocking the event loop."""
    while not (FOLDER / name).exists():
        await asyncio.sleep(0.005)


async def nothing() -> None:
    pass


async def naps(run: Run, seconds: float = 0.1) -> None:
    record("started", run)
    await asyncio.sleep(seconds)
    record("completed", run)


async def waits(run: Run, file: str = "go") -> int:
    record("started", run)
    await until_file(file)
    record("completed", run)
    return os.getpid()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


_TENANT: ContextVar[str] = ContextVar("tenant", default="none")
_IMPORTED: ContextVar[str] = ContextVar("imported", default="none")
_IMPORTED.set("imported")


async def tenant(run: Run) -> list[str]:
    before = _TENANT.get()
    _TENANT.set(f"of run {run.id}")
    await asyncio.sleep(0.01)
    return [before, _IMPORTED.get()]


def tenant_in_process(run: Run) -> list[str]:
    before = _TENANT.get()
    _TENANT.set(f"of run {run.id}")
    return [before, "imported"]


async def hangs_in_thread(run: Run) -> None:
    await asyncio.to_thread(wait_for_file, "never")


async def uses_thread(run: Run) -> int:
    await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
    return await asyncio.to_thread(os.getpid)


async def takes_threads(run: Run, how: str) -> None:
    loop: Any = asyncio.get_running_loop()
    await (
        loop.shutdown_default_executor()
        if how == "shutdown_default_executor"
        else loop.set_default_executor(None)
    )


_client: list[asyncio.Task[str]] = []


async def uses_client(run: Run) -> list[Any]:
    """Return the tenant that the client's task saw, and whether that task has ended."""
    _TENANT.set(f"of run {run.id}")
    if not _client:

        async def serve(started: asyncio.Future[str]) -> str:
            started.set_result(_TENANT.get())
            await asyncio.sleep(600)
            return ""

        async def connect() -> None:
            started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            _client.append(asyncio.create_task(serve(started)))
            _seen.append(await started)

        await yamlsched.detached(connect)
    return [_seen[0], _client[0].done()]


_seen: list[str] = []


async def ends(run: Run, how: str) -> Any:
    """End as ``how`` says."""
    record("started", run)
    await asyncio.sleep(0)
    match how:
        case "result":
            return {"pid": os.getpid()}
        case "raise":
            raise ValueError("no such customer")
        case "discard":
            raise Discard("never")
        case "retry_after":
            raise RetryAfter(3600)
        case "snooze":
            raise Snooze(3600)
        case "exit":
            sys.exit(7)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancel":
            raise asyncio.CancelledError
        case "function":
            return ends
        case "stop":
            asyncio.get_running_loop().stop()
        case "unprintable":
            raise Unprintable
        case "signal":
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)
    raise AssertionError(how)


async def prints(run: Run, times: int = 3) -> None:
    for number in range(times):
        print(f"run {run.id} line {number}")
        await asyncio.sleep(0.01)
        logging.getLogger("shop").warning("warning %s of run %s", number, run.id)
    print("from a thread, run", run.id) if times else None
    await asyncio.to_thread(print, f"thread of run {run.id}")
    task = asyncio.create_task(_prints(run))
    await task
    raise ValueError("so that the output is kept")


async def _prints(run: Run) -> None:
    print(f"task of run {run.id}", file=sys.stderr)


async def hangs(run: Run) -> None:
    record("started", run)
    await asyncio.sleep(600)


async def hangs_deaf(run: Run, times: int = 1_000_000) -> None:
    """Catch that many cancellations."""
    record("started", run)
    for _ in range(times):
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            record("caught", run)


async def returns_when_stopped(run: Run) -> str:
    record("started", run)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        record("caught", run)
    return "done after all"


def sleeps_long() -> None:
    time.sleep(60)


async def blocks(run: Run, how: str = "sleep", seconds: float = 0.0) -> None:
    """Do not let other coroutines execute."""
    record("started", run)
    await until_file("go")
    if how == "sleep":
        sleeps_long()
    elif how == "lock":
        import ctypes

        reading, _ = os.pipe()
        buffer = ctypes.create_string_buffer(1)
        ctypes.PyDLL(None).read(reading, buffer, 1)  # holds the interpreter lock
    elif how == "task":
        await asyncio.create_task(_blocks())
    elif how == "callback":
        asyncio.get_running_loop().call_soon(sleeps_long)
        await asyncio.sleep(600)
    else:
        time.sleep(seconds)
    record("completed", run)


async def _blocks() -> None:
    sleeps_long()


async def dies(run: Run, how: str) -> None:
    record("started", run)
    await until_file("go")
    match how:
        case "_exit":
            os._exit(0)
        case "abort":
            os.abort()
        case "close":
            os.closerange(3, 100)
            await asyncio.sleep(600)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


async def leaves_tasks(run: Run, how: str = "waits") -> None:
    record("started", run)
    actions = {"fails": _fails, "deaf": _deaf, "exits": _exits, "spawns": _spawns}
    context = contextvars.Context() if how == "own_context" else None
    task = asyncio.create_task(actions.get(how, _waits)(run), context=context)
    await asyncio.sleep(0.01)
    del task
    record("completed", run)


async def _waits(run: Run) -> None:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        record("cancelled", run)
        raise


async def _fails(run: Run) -> None:
    raise LookupError("in a task that nobody awaits")


async def _exits(run: Run) -> None:
    sys.exit(3)


async def _spawns(run: Run) -> None:
    try:
        await asyncio.sleep(600)
    finally:
        asyncio.create_task(_waits(run))  # noqa: RUF006


async def _deaf(run: Run) -> None:
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            record("caught", run)


async def writes(run: Run, how: str = "async") -> None:
    """Write a row in the run's transaction."""
    record("started", run)
    if how == "sync":
        with run.transaction():
            pass
    if how == "sync once":
        with run.once("mail", in_doubt="skip"):
            pass
    await run.enqueue("nothing")
    async with run.transaction() as connection:
        await connection.execute("insert into shop values (%s)", [run.id])
        run.result = {"rows": 1}
        if how == "rollback":
            raise ValueError("rolled back")
        if how == "hangs":
            record("inside", run)
            await asyncio.sleep(600)
        await asyncio.sleep(0.01)
    record("completed", run)


async def mails(run: Run, fails_at: int = 0, hangs: bool = False) -> Any:
    record("started", run)
    async with run.once("mail", in_doubt="skip") as effect:
        if effect.first:
            record("mailed", run)
            if hangs:
                await asyncio.sleep(600)
            effect.result = run.attempt
    if run.attempt <= fails_at:
        raise ValueError("after the mail")
    return effect.result


def not_async(run: Run) -> None:
    record("started", run)


async def told(run: Run) -> None:
    """A hook."""
    assert run.trigger is not None
    record("told", run, run.trigger.run_id)


wait_for_file = wait_for_file  # of support.handlers: blocks


async def reports_then(run: Run, then: str) -> None:
    """As ``support.handlers.reports_then``."""
    run.progress(1, 3, f"attempt {run.attempt}")
    if run.attempt == 1:
        await until_file("go")
        run.progress(3, 3, "all of it")
        if then == "commit":
            async with run.transaction() as connection:
                await connection.execute("set search_path = ''")
                run.progress(3, 3, "in the transaction")
        elif then == "fail":
            raise OSError("no route to host")


async def prints_much(run: Run, megabytes: int = 40) -> None:
    record("started", run)
    line = "x" * 1023
    for _ in range(megabytes * 1024):
        print(line)
    record("completed", run)


async def transacts(run: Run) -> None:
    """Use both kinds of sessions at once."""
    async with run.transaction() as connection:
        await connection.execute("select pg_sleep(0.05)")
        async with run.once("mail", in_doubt="skip"):
            pass


async def fans_out(run: Run, count: int) -> None:
    for number in range(count):
        await run.enqueue("nothing", key=f"{run.id}:{number}")


async def sleeps_in_server(run: Run) -> None:
    record("started", run)
    async with run.transaction() as connection:
        await connection.execute("insert into shop values (%s)", [run.id])
        await connection.execute(
            "select pg_sleep(case when %s = 1 then 600 else 0 end)", [run.attempt]
        )
    record("completed", run)


async def session_breaks(run: Run) -> None:
    """The first time, the server ends the session of the transaction."""
    record("started", run)
    is_first = not (FOLDER / "broken").exists()
    (FOLDER / "broken").touch()
    async with run.transaction() as connection:
        if is_first:
            await connection.execute("select pg_terminate_backend(pg_backend_pid())")
    record("completed", run)


async def doubts(run: Run) -> None:
    """Leave an effect in doubt, and look it up."""
    record("started", run)
    async with run.once("charge", in_doubt="raise"):
        raise ValueError("perhaps charged")


async def prints_and_waits() -> None:
    print("first")
    await until_file("go")
    print("last")


# -- what they do to their process


async def state(run: Run) -> dict[str, Any]:
    """Return what handlers must not change of their process."""
    record("started", run)
    return {
        "pid": os.getpid(),
        "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "timers": [
            signal.getitimer(timer)
            for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "limits": [
            resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        ],
        "debug": asyncio.get_running_loop().get_debug(),
    }


async def changes(run: Run, what: str) -> None:
    """Change the process by means that are not refused."""
    record("started", run)
    kind, _, name = what.partition(" ")
    if kind == "handler":
        _signal.signal(
            getattr(signal, name), _signal.SIG_IGN if name == "SIGCHLD" else lambda *_: None
        )
    elif kind == "default":
        _signal.signal(getattr(signal, name), _signal.SIG_DFL)
    elif kind == "timer":
        _signal.setitimer(getattr(signal, name), 1000.0, 1000.0)
    elif kind == "alarm":
        _signal.alarm(1000)
    elif kind == "mask":
        signal.pthread_sigmask(signal.SIG_BLOCK, {getattr(signal, name)})
    elif kind == "limit":
        number = getattr(resource, name)
        resource.setrlimit(number, (64, resource.getrlimit(number)[1]))
    elif kind == "hard_limit":
        resource.setrlimit(resource.RLIMIT_NPROC, (50_000, 50_000))
        with contextlib.suppress(PermissionError):
            os.seteuid(65_534)  # root might raise it again
    await asyncio.sleep(0)


async def calls_refused(run: Run, what: str) -> None:
    """Call a function that changes the process or the loop."""
    record("started", run)
    loop: Any = asyncio.get_running_loop()
    match what:
        case "set_debug":
            loop.set_debug(True)
        case "shutdown_asyncgens":
            await loop.shutdown_asyncgens()
        case "signal":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        case "alarm":
            signal.alarm(1)
        case "setitimer":
            signal.setitimer(signal.ITIMER_REAL, 1)
        case "siginterrupt":
            signal.siginterrupt(signal.SIGTERM, True)
        case "set_wakeup_fd":
            signal.set_wakeup_fd(-1)
        case "fork":
            os.fork()


async def closes_descriptors(run: Run) -> None:
    record("started", run)
    await until_file("go")
    os.closerange(3, 256)
    await asyncio.sleep(600)


async def idles(run: Run) -> None:
    """Execute no step, the first time."""
    record("started", run)
    if run.attempt == 1:
        await asyncio.sleep(600)
