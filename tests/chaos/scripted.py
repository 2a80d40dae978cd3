"""The handlers. Each attempt does a random act of its job and logs its events.

This file is copied beside schedules.yaml. Each log line is one write to a file opened for appending, so that lines of
different processes do not mix, and a killed process loses no lines.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from yamlsched import Discard, RetryAfter, Run, Snooze

FOLDER = Path(os.environ.get("CHAOS", "."))
ALIVE_INTERVAL_SECONDS = 0.05  # a waiting handler logs this often that it is alive


def log_event(event: str, run: Run, **more: Any) -> None:
    line = {
        "event": event,
        "run": run.id,
        "attempt": run.attempt,
        "token": run.backend.locked_by,
        "pid": os.getpid(),
        "at": time.monotonic(),
        "wall": time.time(),
        **more,
    }
    log = os.open(FOLDER / "handlers.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, f"{json.dumps(line)}\n".encode())
    os.close(log)


def process_start() -> str:
    """Return the start time of this process, which distinguishes it from a later one with the same id."""
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


def choose(run: Run, seed: int, acts: list[str]) -> tuple[str, random.Random]:
    """Return the act of this attempt; once the faults are over, it is "succeed"."""
    choice = random.Random(f"{seed} {run.id} {run.backend.locked_by}")
    act = "succeed" if (FOLDER / "calm").exists() else choice.choice(acts)
    log_event("start", run, act=act, process_start=process_start())
    return act, choice


def pause(run: Run, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (FOLDER / "calm").exists():
        time.sleep(ALIVE_INTERVAL_SECONDS)
        log_event("alive", run)


def play(run: Run, seed: int, acts: list[str], filler: str = "", at_end: str = "") -> Any:
    act, choice = choose(run, seed, acts)
    try:
        value = ACTS[act](run, choice)
    except BaseException as error:
        log_event("end", run, how=type(error).__name__)
        raise
    log_event("end", run, how="returned")
    return value


play_again = play  # another name, for edits of `handler`


async def play_async(run: Run, seed: int, acts: list[str], filler: str = "") -> Any:
    act, choice = choose(run, seed, acts)
    end = time.monotonic() + choice.uniform(0, 2)
    try:
        while act == "nap" and time.monotonic() < end:
            await asyncio.sleep(ALIVE_INTERVAL_SECONDS)
            log_event("alive", run)
        if act == "raise":
            fail(run, choice)
    except BaseException as error:
        log_event("end", run, how=type(error).__name__)
        raise
    log_event("end", run, how="returned")
    return {"by": run.backend.locked_by}


# -- acts: each result and error contains the claim, so that a write under another claim is detected


def signed(run: Run, text: str) -> str:
    return f"{text} by <{run.backend.locked_by}>"


def succeed(run: Run, choice: random.Random) -> Any:
    return {"by": run.backend.locked_by}


def nothing(run: Run, choice: random.Random) -> None:
    return None


def nap(run: Run, choice: random.Random) -> Any:
    pause(run, choice.uniform(0, 1.5))
    return {"by": run.backend.locked_by}


def work_long(run: Run, choice: random.Random) -> Any:
    pause(run, choice.uniform(3, 9))
    return {"by": run.backend.locked_by}


def work_longer(run: Run, choice: random.Random) -> Any:
    pause(run, choice.uniform(8, 30))
    return {"by": run.backend.locked_by}


def hang(run: Run, choice: random.Random) -> None:
    pause(run, 120)  # ends by the job's timeout


def fail(run: Run, choice: random.Random) -> None:
    raise RuntimeError(signed(run, "raised"))


def fail_late(run: Run, choice: random.Random) -> None:
    pause(run, choice.uniform(0, 1))
    raise RuntimeError(signed(run, "raised"))


def discard(run: Run, choice: random.Random) -> None:
    raise Discard(signed(run, "discarded"))


def retry_after(run: Run, choice: random.Random) -> None:
    raise RetryAfter(choice.choice([0, 1, 2]), signed(run, "later"))


def snooze(run: Run, choice: random.Random) -> None:
    raise Snooze(choice.choice([0, 1, 2]))


def exit_at_once(run: Run, choice: random.Random) -> None:
    os._exit(7)


def segfault(run: Run, choice: random.Random) -> None:
    ctypes.string_at(0)


def kill_itself(run: Run, choice: random.Random) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def print_much(run: Run, choice: random.Random) -> Any:
    for _ in range(choice.choice([1, 200])):
        print("x" * 1000)
    if choice.random() < 0.3:
        fail(run, choice)
    return {"by": run.backend.locked_by}


def return_much(run: Run, choice: random.Random) -> Any:
    return {"by": run.backend.locked_by, "filler": "x" * choice.choice([30_000, 65_000])}


def transaction(run: Run, choice: random.Random) -> None:
    """Write a row together with the run's success; sometimes die before or after the commit."""
    fault = choice.choice(["", "", "", "raise", "exit", "late exit", "late raise"])
    with run.transaction() as connection:
        connection.execute(
            "insert into chaos.ledger (run_id, attempt, token) values (%s, %s, %s)",
            [run.id, run.attempt, run.backend.locked_by],
        )
        pause(run, choice.choice([0, 0, 0.1, 1.0]))
        if fault == "raise":
            fail(run, choice)
        if fault == "exit":
            os._exit(7)
        run.result = {"by": run.backend.locked_by}
    log_event("committed", run)
    if fault == "late exit":
        os._exit(7)
    if fault == "late raise":
        fail(run, choice)


def effect(run: Run, choice: random.Random) -> Any:
    """Cause an effect at most once, or with "repeat" until it is done."""
    in_doubt = ["skip", "raise", "repeat"][run.id % 3]
    once(run, choice, "mail", in_doubt, "run")
    return {"by": run.backend.locked_by}


def business_effect(run: Run, choice: random.Random) -> Any:
    """Cause an effect under a key that several runs share."""
    number = run.id % 10
    once(run, choice, f"invoice {number}", ["skip", "raise", "repeat"][number % 3], "namespace")
    return {"by": run.backend.locked_by}


def once(run: Run, choice: random.Random, name: str, in_doubt: str, scope: str) -> None:
    fault = choice.choice(["", "", "", "before", "exit", "raise", "wait"])
    with run.once(name, in_doubt=in_doubt, scope=scope) as block:  # type: ignore[arg-type]
        if block.first:
            if fault == "before":
                raise ConnectionRefusedError(signed(run, "refused"))
            log_event("effect", run, key=block.key, in_doubt=in_doubt)
            if fault == "exit":
                os._exit(7)
            if fault == "raise":
                fail(run, choice)
            if fault == "wait":
                pause(run, choice.uniform(0, 4))
            block.result = {"by": run.backend.locked_by}
    if block.first:
        log_event("effect done", run, key=block.key, in_doubt=in_doubt)


def fan_out(run: Run, choice: random.Random) -> Any:
    number = choice.choice([1, 5, 300])
    log_event("fan out", run, number=number)
    run.enqueue_many("leaf", [{"filler": f"{run.id} {n}"} for n in range(number)])
    return {"by": run.backend.locked_by}


ACTS = {
    "succeed": succeed,
    "nothing": nothing,
    "nap": nap,
    "long": work_long,
    "longer": work_longer,
    "hang": hang,
    "raise": fail,
    "raise late": fail_late,
    "discard": discard,
    "retry after": retry_after,
    "snooze": snooze,
    "exit": exit_at_once,
    "segfault": segfault,
    "kill": kill_itself,
    "print": print_much,
    "return": return_much,
    "transaction": transaction,
    "effect": effect,
    "business effect": business_effect,
    "fan out": fan_out,
}
