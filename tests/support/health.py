"""Jobs and effects in the states that status, metrics and doctor report, and what they report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from prometheus_client.parser import text_string_to_metric_families

from support.rows import a_job, a_place
from yamlsched.ask import attention, health
from yamlsched.ask.problem import Thresholds
from yamlsched.extras.metrics import metrics

HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]
PROVIDER_KEY = "2f1b0c5e-0000-8000-8000-000000000001"


def the_job(db: Db) -> health.JobHealth:
    [job] = health.read(db, "default", HOUR).jobs
    return job


def reasons(db: Db, thresholds: Thresholds | None = None) -> list[str]:
    return [
        problem.what
        for problem in attention.problems(
            health.read(db, "default", HOUR), thresholds or Thresholds()
        )
    ]


def of_metrics(db: Db, name: str) -> float:
    return of(families(metrics.text(db, "default"))[name])


def a_healthy_job(db: Db, job_type: str = "purge", **values: Any) -> int:
    a_place(db)
    return a_job(db, job_type, **{"next_slot_at": datetime.now(UTC) + HOUR, **values})


def an_effect(db: Db, run: int, state: str, name: str = "mail", **values: Any) -> str:
    """Insert an effect of ``run``, claimed by the attempt that ``a_run`` makes; return its key."""
    given = {
        "namespace": "default", "key": f"run:{run}:{name}", "run_id": run, "attempt": 1,
        "locked_by": "web-1:4711:c0ffee", "state": state, "claimed_at": datetime.now(UTC) - HOUR, **values,
    }  # fmt: skip
    at = {"in_doubt": "doubted_at", "done": "done_at"}.get(state)
    columns = [*given, "entry", "provider_key", *([at] if at else [])]
    holes = [
        *(f"%({name})s" for name in given),
        "gen_random_uuid()",
        f"'{PROVIDER_KEY}'",
        *(["now()"] if at else []),
    ]
    db.execute(
        f"insert into yamlsched.effects ({', '.join(columns)}) values ({', '.join(holes)})".encode(),
        given,
    )
    return str(given["key"])


def in_doubt(db: Db) -> list[Any]:
    return db.execute(
        "select key, waits_for from yamlsched.effects_in_doubt order by key"
    ).fetchall()


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def of(family: Any, **labels: str) -> float:
    [sample] = [s for s in family.samples if labels.items() <= s.labels.items()]
    return float(sample.value)


def a_failed_attempt(
    db: Db, run: int, attempt: int, error_type: str | None, minutes_ago: int = 1
) -> None:
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, error_type)"
        " values (%s, %s, 'web-1:1:ff', now() - %s * interval '1 minute', 'no route to host', %s)",
        [run, attempt, minutes_ago, error_type],
    )
