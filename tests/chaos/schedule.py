"""Writes and randomly edits schedules.yaml: always the whole file, and never the same content twice."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

ENVIRONMENT = "chaos"
QUICK = ["succeed", "nothing", "nap", "raise", "snooze", "transaction", "exit"]
ALL = [
    "succeed", "nothing", "nap", "nap", "long", "hang", "raise", "raise late", "discard", "retry after", "snooze",
    "exit", "segfault", "kill", "print", "return",
]  # fmt: skip

LIMITS: dict[str, dict[str, Any]] = {
    "pool": {"max": 2},
    "fillers": {"max": 2, "by": ["filler"]},  # the payloads of applications have few values
}
# The cron expressions restrict only minutes, which slots_check relies on.
SCHEDULED: dict[str, dict[str, Any]] = {
    "wait_all": {"cron": "* * * * *", "overlap": "wait", "catchup": "all", "acts": QUICK},
    "wait_latest": {
        "cron": "* * * * *",
        "overlap": "wait",
        "catchup": "latest",
        "acts": ALL,
        "limit": "pool",
    },
    "wait_none": {"cron": "*/2 * * * *", "overlap": "wait", "catchup": "none", "acts": QUICK},
    "skip_latest": {"cron": "* * * * *", "overlap": "skip", "catchup": "latest", "acts": ALL},
    "skip_often": {
        "cron": "* * * * *",
        "overlap": "skip",
        "catchup": "latest",
        "acts": ["nap", "raise late"],
    },
    "allow_all": {"cron": "*/3 * * * *", "overlap": "allow", "catchup": "all", "acts": ALL},
    "flapping": {
        "cron": "* * * * *",
        "overlap": "allow",
        "catchup": "all",
        "acts": ["raise", "nothing"],
        "max_attempts": 1,
    },
    "allow_latest": {
        "cron": "1-59/2 * * * *",
        "overlap": "allow",
        "catchup": "latest",
        "acts": QUICK,
    },
}
# They wait for no retry of a dead run: at the end, all runs have to end.
FOLLOWERS: dict[str, dict[str, Any]] = {
    "second": {"after": ["wait_all"], "overlap": "wait", "catchup": "all", "acts": QUICK, "on_upstream_failure": "run"},
    "third": {"after": ["second"], "overlap": "allow", "catchup": "all", "acts": QUICK, "on_upstream_failure": "skip"},
    "fan_in": {
        "cron": "* * * * *", "after": ["third", "skip_often"], "overlap": "skip", "catchup": "latest", "acts": QUICK,
        "on_upstream_failure": "run",
    },
}  # fmt: skip
FOLLOWED = ("wait_all", "skip_often")
ENQUEUED: dict[str, dict[str, Any]] = {
    "anything": {"acts": ALL, "max_attempts": 4, "limit": "fillers"},
    "ledger": {"acts": ["transaction"], "max_attempts": 10, "limit": "fillers"},
    "effects": {"acts": ["effect", "business effect"], "max_attempts": 10, "limit": "pool"},
    "fans": {"acts": ["fan out"], "max_attempts": 10},
    "leaf": {"acts": ["nothing"]},
    "coroutine": {"acts": ["nap", "nap", "raise"], "handler": "scripted.play_async"},
    "mortal": {
        "acts": ["raise", "exit", "kill", "discard"],
        "max_attempts": 2,
        "on_dead": ["page"],
    },
    "page": {"acts": ["nothing"]},
    "patient": {"acts": ["long"], "lease": "3s", "max_attempts": 20, "limit": "pool"},
    "long_lived": {"acts": ["long", "longer"], "lease": "40s", "timeout": "1m", "max_attempts": 20},
}
TARGETS = ("ops", *(f"of_{name}" for name in (*SCHEDULED, *FOLLOWERS, *ENQUEUED)))
"""Of notifications: one for all jobs, and one for each."""
# how often an application enqueues each job; long attempts must not use all permits
SHARES = {
    "anything": 3, "ledger": 4, "effects": 4, "fans": 1, "leaf": 1, "coroutine": 2, "mortal": 1, "patient": 1.5,
    "long_lived": 0.4,
}  # fmt: skip
CRONS = ["* * * * *", "*/2 * * * *", "*/3 * * * *", "1-59/2 * * * *"]
LEASES = ["3s", "5s", "10s", "40s"]
INVALID_FILES = [
    "version: 1\njobs: {wait_all: {cron: 61 * * * *, hanlder: a.b}}\n",
    "jobs: [",
    "version: 1\njobs: {}\nx: 1\n",
]


def variable(target: str) -> str:
    """Return the variable with the address of a target."""
    return f"NOTIFY_{target.upper()}"


class Schedule:
    """The file and its ``jobs`` by name; those in ``removed`` are currently not in it."""

    def __init__(self, file: Path, seed: int, choice: random.Random) -> None:
        self.file, self.seed, self._choice = file, seed, choice
        self.jobs = copy.deepcopy({**SCHEDULED, **FOLLOWERS, **ENQUEUED})
        self.removed: set[str] = set()
        self.edits = 0

    def write(self) -> None:
        self._put(self._text())

    def _text(self) -> str:
        self.edits += 1
        entries = {
            name: self._entry(name, job)
            for name, job in self.jobs.items()
            if name not in self.removed
        }
        return json.dumps(
            {
                "version": 1,
                "x-edit": f"{self.seed} {self.edits}",
                "environments": {ENVIRONMENT: {}, "elsewhere": {}},
                "defaults": {
                    "lease": "4s",
                    "timeout": "12s",
                    "backoff": {"policy": "fixed", "delay": "1s", "max_delay": "1s"},
                },
                "limits": LIMITS,
                "notify": {target: {"url_env": variable(target)} for target in TARGETS},
                "retention": {"succeeded": "10s", "dead": "20s", "cancelled": "10s"},
                "jobs": entries,
            }
        )

    def _entry(self, name: str, job: dict[str, Any]) -> dict[str, Any]:
        entry = {"handler": "scripted.play", "notify": ["ops", f"of_{name}"], **job}
        return entry | {"payload": {"seed": self.seed, "acts": entry.pop("acts")}}

    def _put(self, text: str) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.file)

    def edit(self) -> str:
        """Make a random edit; return its description."""
        if self._choice.random() < 0.2:
            name, what = "long_lived", "lease"  # while its runs are running
        else:
            name = self._choice.choice([*SCHEDULED, *SCHEDULED, *ENQUEUED])
            what = self._choice.choice(EDITS_OF_SCHEDULED if name in SCHEDULED else EDITS)
        job = self.jobs[name]
        if name in FOLLOWED and what in ("remove or restore", "environments"):
            what = "overlap"  # else the file would be invalid: others follow it
        if what == "remove or restore":
            self.removed ^= {name}
        elif what == "lease":
            job["lease"] = self._choice.choice(LEASES)
        elif what == "overlap":
            job["overlap"] = self._choice.choice(["wait", "skip", "allow"])
            if job["overlap"] == "skip" and job["catchup"] == "all":
                job["catchup"] = "latest"
        elif what == "cron":
            job["cron"] = self._choice.choice(CRONS)
        elif what == "max_attempts" and name != "mortal":
            job["max_attempts"] = self._choice.choice([1, 3, 10])
        elif what == "priority":  # of runs that wait, too
            job["priority"] = self._choice.choice(["low", "normal", "high"])
        elif what == "handler" and name != "coroutine":
            job["handler"] = self._choice.choice(["scripted.play", "scripted:play_again"])
        elif what == "environments":
            job["environments"] = self._choice.choice(
                [[ENVIRONMENT], ["elsewhere"], ["elsewhere", ENVIRONMENT]]
            )
        self.write()
        return (
            f"{what} of {name}: {job.get(what, 'removed' if name in self.removed else 'as before')}"
        )

    def break_file(self) -> None:
        """Write an invalid file; the next edit fixes it."""
        self._put(f"# {self.seed} {self.edits}\n{self._choice.choice(INVALID_FILES)}")

    def complete(self) -> None:
        """Write the final file, with all jobs, enabled."""
        self.removed = set()
        for job in self.jobs.values():
            job.pop("environments", None)
        self.write()


EDITS = ["lease", "max_attempts", "priority", "handler", "environments", "remove or restore"]
EDITS_OF_SCHEDULED = [*EDITS, "overlap", "overlap", "cron", "lease"]
