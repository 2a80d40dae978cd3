"""Handlers that show when they were alive, and what they did: files in the folder that all hosts share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from support.handlers import FOLDER, recorded
from yamlsched import Run


def beat(run: Run, is_over: Callable[[], object] = lambda: True) -> None:
    """Write down again and again that this attempt is alive, until ``is_over``. All hosts share the monotonic clock."""
    with (FOLDER / f"beats-{run.id}").open("a", buffering=1) as beats:
        while True:
            beats.write(f"{run.attempt} {time.monotonic()}\n")
            if is_over():
                return
            time.sleep(0.01)


def first_attempt_beats_forever(run: Run) -> None:
    beat(run, lambda: run.attempt > 1)


def beats_of(folder: Path, run: int, attempt: int) -> list[float]:
    """Return when this attempt was alive."""
    path = folder / f"beats-{run}"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [float(line[1]) for line in lines if line[0] == str(attempt) and len(line) == 2]


def happen(run: Run, name: str) -> None:
    """Be an effect that is counted."""
    with (FOLDER / "effects").open("a") as effects:
        effects.write(f"{name} {run.id}\n")


def effects_of(folder: Path, run: int) -> int:
    path = folder / "effects"
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(line.endswith(f" {run}") for line in lines)


@recorded
def beats(run: Run) -> None:
    first_attempt_beats_forever(run)


@recorded
def beats_until_go(run: Run) -> None:
    beat(run, (FOLDER / "go").exists)


@recorded
def inserts(run: Run) -> None:
    """Write a row in a transaction, which the first attempt never commits."""
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
        first_attempt_beats_forever(run)


@recorded
def posts(run: Run) -> None:
    """Have an effect once, after which the first attempt never ends."""
    with run.once("post", in_doubt="raise") as effect:
        if effect.first:
            happen(run, "post")
    first_attempt_beats_forever(run)


@recorded
def posts_forever(run: Run, in_doubt: Literal["raise", "skip", "repeat"]) -> None:
    """The first attempt never ends after its effect has happened and before that is recorded."""
    with run.once("post", in_doubt=in_doubt) as effect:
        if effect.first:
            happen(run, "post")
            first_attempt_beats_forever(run)


@recorded
def inserts_until_go(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
        beat(run, (FOLDER / "go").exists)


@recorded
def works(run: Run) -> None:
    """Have one effect, and write one row in a transaction."""
    with run.once("post", in_doubt="raise") as effect:
        if effect.first:
            happen(run, f"post {effect.key}")
    with run.transaction() as connection:
        connection.execute("insert into public.ledger (run_id) values (%s)", [run.id])
