"""Limits with ``by``: each combination of values of the payload is counted by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support.gates import MINUTE, NOW, SECOND, Worker, due, ids, is_at_rest, limit
from support.gates import worker as worker
from support.project import Project, a_project, until
from support.rows import a_job, value
from support.schedules import a_file
from yamlsched.act.backfill import definition_for
from yamlsched.ask import edits, health, history, why
from yamlsched.ask import runs as records
from yamlsched.sync.flow import sync
from yamlsched.worker import claiming

Db = psycopg.Connection[Any]
TENANT = {"limit_name": "provider", "limit_by": ["tenant_id"]}


def of(tenant: Any) -> dict[str, Any]:
    return {"payload": Jsonb({"tenant_id": tenant})}


def gates(db: Db) -> list[str]:
    """Return the gates of the values of limits."""
    rows = db.execute(
        "select name from yamlsched.gates where name like 'limit/%%/%%' order by name"
    )
    return [row.name for row in rows]


def gate(db: Db, payload: Any, *keys: str) -> str:
    return str(
        value(db, "select yamlsched.limit_value(%s, %s)", Jsonb(payload), list(keys or ["a"]))
    )


# -- what is counted together


def test_each_value_has_a_limit_of_its_own_and_the_oldest_run_with_room_goes_first(
    db: Db, worker: Worker
) -> None:
    limit(db, 2, "provider")
    job, other = a_job(db, **TENANT), a_job(db, "other", **TENANT)
    big = [due(db, (job, other)[number % 2], number, **of(1)) for number in range(5)]
    small = [due(db, job, 10 + number, **of(2)) for number in range(3)]

    first = worker.claim()
    assert ids(first) == [*big[:2], *small[:2]]
    assert worker.claim() == []

    worker.finish(first[-1])
    assert ids(worker.claim()) == [small[2]]
    worker.finish(first[0])
    assert ids(worker.claim()) == [big[2]]
    assert gates(db) == ["limit/provider/[1]", "limit/provider/[2]"]
    assert is_at_rest(db)


SAME = {
    "a missing key and null": ({}, {"a": None}),
    "mappings in another order": ({"a": {"x": 1, "y": [2]}}, {"a": {"y": [2], "x": 1}}),
    "what another key says": ({"a": 1, "b": 1}, {"a": 1, "b": 2}),
}
DIFFERENT = {
    "a number and a string": ({"a": 1}, {"a": "1"}),
    "a whole number and a float": ({"a": 1}, {"a": 1.0}),
    "a number and a boolean": ({"a": 1}, {"a": True}),
    "zero, false and an empty string": ({"a": 0}, {"a": False}, {"a": ""}, {"a": None}, {"a": []}),
    "null and the string": ({"a": None}, {"a": "null"}),
    "upper case": ({"a": "x"}, {"a": "X"}),
    "a space": ({"a": "x"}, {"a": "x "}, {"a": " x"}),
    "composed and decomposed": ({"a": "\u00e9"}, {"a": "e\u0301"}),
    "long strings that end differently": ({"a": "x" * 9_000}, {"a": "x" * 8_999 + "y"}),
    "numbers that a float cannot tell apart": ({"a": 2**63}, {"a": 2**63 + 1}),
    "lists": ({"a": [1, 2]}, {"a": [[1, 2]]}, {"a": [2, 1]}),
    "one that looks like the name of another": ({"a": "x/y"}, {"a": "x", "b": "y"}),
    "one that looks like a shortened one": (
        {"a": "x" * 99},
        {"a": "x" * 62 + "#0123456789abcdef"},
    ),
}


@pytest.mark.parametrize("payloads", SAME.values(), ids=SAME)
def test_values_that_are_counted_together(db: Db, payloads: tuple[dict[str, Any], ...]) -> None:
    assert len({gate(db, payload) for payload in payloads}) == 1


@pytest.mark.parametrize("payloads", DIFFERENT.values(), ids=DIFFERENT)
def test_values_that_are_counted_apart(db: Db, payloads: tuple[dict[str, Any], ...]) -> None:
    assert len({gate(db, payload) for payload in payloads}) == len(payloads)


def test_the_order_of_keys_is_that_of_the_file(db: Db) -> None:
    assert gate(db, {"a": 1, "b": 2}, "a", "b") != gate(db, {"a": 2, "b": 1}, "a", "b")
    assert gate(db, {"a": 1, "b": 2}, "b", "a") == "[2, 1]"


HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1.0, 1e308, 10**400, "", " ", "x" * 60_000, "é" * 5_000, "\U0001f600", "/", "a/b", "%", "_",
    "'; drop table yamlsched.job_runs; --", '"', "\\", "\n", "\x7f", "\u202e", "{}", "null",
    [], {}, [[[]]], {"a": {"b": [None]}}, "limit/provider/[1]", "$1", "{1,2}",
]  # fmt: skip


def test_every_value_that_a_payload_can_have_is_claimed_and_finished_one_at_a_time(
    db: Db, worker: Worker
) -> None:
    limit(db, 1, "provider")
    job = a_job(db, **TENANT)
    first = [due(db, job, number, **of(tenant)) for number, tenant in enumerate(HOSTILE)]
    second = [due(db, job, 100 + number, **of(tenant)) for number, tenant in enumerate(HOSTILE)]

    claimed = worker.claim(limit=1_000, now=NOW + 5 * MINUTE)
    assert ids(claimed) == first
    assert worker.claim(limit=1_000, now=NOW + 5 * MINUTE) == []
    for run in claimed:
        worker.finish(run, now=NOW + 6 * MINUTE)
    assert ids(worker.claim(limit=1_000, now=NOW + 6 * MINUTE)) == second
    assert len(gates(db)) == len(HOSTILE)
    assert max(len(name) for name in gates(db)) <= len("limit/provider/") + 64 + 17


def test_of_a_key_that_looks_like_a_secret_only_a_hash_is_stored(db: Db) -> None:
    shown = gate(db, {"api_token": "s3cret", "region": "eu"}, "region", "api_token")

    assert shown.startswith("#")
    assert not {"s3cret", "eu"} & set(shown.split('"'))
    assert shown != gate(db, {"api_token": "s3cret2", "region": "eu"}, "region", "api_token")


# -- gates come and go


def test_gates_of_values_that_nobody_uses_any_more_go(db: Db, worker: Worker) -> None:
    limit(db, 1, "provider")
    job = a_job(db, **TENANT)
    for number, tenant in enumerate(("executes", "executes", "ended", "waits later")):
        due(db, job, number, **of(tenant))
    executes, ended, later = worker.claim()
    worker.finish(ended)
    worker.finish(later)
    assert len(gates(db)) == 3

    worker.call(claiming.sweep, "default", NOW + 2 * MINUTE)
    repaired = value(db, "select yamlsched.repair('default', %s)", NOW + 2 * MINUTE)

    assert repaired == 0
    assert gates(db) == ['limit/provider/["executes"]']
    worker.finish(executes)
    [second] = worker.claim()
    worker.finish(second)
    db.execute("select yamlsched.repair('default', %s)", [NOW + 4 * MINUTE])
    assert gates(db) == []


def test_thousands_of_values_of_which_hundreds_are_busy(db: Db, worker: Worker) -> None:
    # given a run of each of 3,000 tenants, and 2 more of each of the first 300
    limit(db, 1, "provider")
    job = a_job(db, **TENANT)
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, payload, run_at, max_attempts) "
        "select 'default', %s, 'purge', jsonb_build_object('tenant_id', n %% 3000), "
        "       %s::timestamptz - interval '1 hour' + n * interval '1 ms', 5 "
        "from generate_series(0, 2999) as i (n) union all "
        "select 'default', %s, 'purge', jsonb_build_object('tenant_id', n %% 300), "
        "       %s::timestamptz - interval '1 hour' + n * interval '1 ms', 5 "
        "from generate_series(3000, 3599) as i (n)",
        [job, NOW, job, NOW],
    )

    # when they are claimed and finished by batches, the first 300 after all others
    busy = worker.claim(limit=300)
    assert len(busy) == 300
    executed = 0
    while claimed := worker.claim(limit=300):
        assert len({run.payload for run in claimed}) == len(claimed)
        for start in range(0, len(claimed), 150):
            worker.finish_all(claimed[start : start + 150])
        executed += len(claimed)

    # then nothing but what waits for the busy ones is left
    assert executed == 2_700
    assert worker.claim(limit=300) == []
    waiting = "select count(*) from yamlsched.job_runs where blocked_on is not null"
    assert value(db, waiting) == 600
    db.execute("select yamlsched.repair('default', %s)", [NOW])
    assert len(gates(db)) == 300
    for expected in (300, 300):
        worker.finish_all(busy)
        busy = worker.claim(limit=300)
        assert len(busy) == expected
    worker.finish_all(busy)
    db.execute("select yamlsched.repair('default', %s)", [NOW])
    assert gates(db) == []
    assert value(db, "select repairs from yamlsched.namespaces") == 0


def test_a_claim_looks_at_no_more_numbers_of_a_high_limit_than_are_held_and_wanted(
    db: Db, worker: Worker
) -> None:
    limit(db, 1_000, "provider")
    job = a_job(db, **TENANT)
    for tenant in range(100):
        for number in range(3):
            due(db, job, number, **of(tenant))
    assert len(worker.claim(limit=100)) == 100
    read = (
        "select idx_scan from pg_stat_xact_user_tables where relid = 'yamlsched.permits'::regclass"
    )

    with db.transaction():
        runs = db.execute("select id from yamlsched.job_runs where status = 'queued'").fetchall()
        before = value(db, read)
        claimed = db.execute(
            "select from yamlsched.claim_gated('default', %s, '{1,2,3}', 'token', %s)",
            [[run.id for run in runs], NOW],
        ).fetchall()
        probes = value(db, read) - before

    assert len(claimed) == 200
    assert value(db, "select count(*) from yamlsched.permits where n > 3") == 0
    assert probes < 1_000


# -- edits


def file(limits: str, **jobs: Any) -> Any:
    return a_file(top=f"limits: {{provider: {limits}}}", **jobs)


SYNC_TENANT: dict[str, Any] = {"limit": "provider"}


def stored(db: Db) -> list[str]:
    return list(value(db, "select limit_by from yamlsched.job_definitions"))


def test_an_edit_of_by_changes_the_jobs_of_the_limit_and_is_recorded(db: Db) -> None:
    sync(db, file("{max: 4}", tenants=SYNC_TENANT), NOW)
    result = sync(db, file("{max: 4, by: [tenant_id]}", tenants=SYNC_TENANT), NOW + MINUTE)

    assert result.changes is not None
    assert result.changes.changed == ("tenants",)
    assert stored(db) == ["tenant_id"]
    edit = edits.edits(db, "default", limit=1)[0]
    assert edit.before == {"limits.provider.by": None}
    assert edit.after == {"limits.provider.by": ["tenant_id"]}
    [change] = edits.changes(db, [edit])[edit.id]
    assert (change.before, change.after) == ({"limit.by": None}, {"limit.by": ["tenant_id"]})

    same = sync(db, file("{by: [tenant_id], max: 4}", tenants=SYNC_TENANT), NOW + 2 * MINUTE)
    assert same.changes is not None
    assert same.changes.changed == ()


def test_an_edit_from_one_limit_to_one_for_each_value_and_back_while_runs_execute(
    db: Db, worker: Worker
) -> None:
    # given three that execute under a limit of 3, and six that wait
    sync(db, file("{max: 3}", tenants=SYNC_TENANT), NOW - MINUTE)
    job = int(value(db, "select id from yamlsched.job_definitions"))
    runs = [due(db, job, number, **of(number % 2)) for number in range(12)]
    plain = worker.claim()
    assert ids(plain) == runs[:3]
    assert worker.claim() == []

    # when the limit counts by tenant, three of each tenant start beside them
    sync(db, file("{max: 3, by: [tenant_id]}", tenants=SYNC_TENANT), NOW)
    keyed = worker.claim()
    assert ids(keyed) == runs[3:9]
    assert worker.claim() == []
    for run in plain:  # their permits are of the former limit
        worker.finish(run)
    assert worker.claim() == []

    # and back: a new limit again, of three
    sync(db, file("{max: 3 }", tenants=SYNC_TENANT), NOW + SECOND)
    last = worker.claim()
    assert ids(last) == runs[9:]
    for run in (*keyed, *last):
        worker.finish(run)
    assert value(db, "select count(*) from yamlsched.permits") == 0
    assert is_at_rest(db)


def test_a_higher_and_a_removed_limit_free_what_waits_of_every_value(
    db: Db, worker: Worker
) -> None:
    sync(db, file("{max: 1, by: [tenant_id]}", tenants=SYNC_TENANT), NOW - MINUTE)
    job = int(value(db, "select id from yamlsched.job_definitions"))
    runs = [due(db, job, number, **of(number % 2)) for number in range(8)]
    assert ids(worker.claim()) == runs[:2]
    assert worker.claim() == []

    sync(db, file("{max: 2, by: [tenant_id]}", tenants=SYNC_TENANT), NOW)
    assert ids(worker.claim()) == runs[2:4]
    sync(db, a_file(tenants={}), NOW + SECOND)
    assert ids(worker.claim()) == runs[4:]


def test_a_limit_whose_row_is_lost_is_restored_and_a_value_has_no_room_until_then(
    db: Db, worker: Worker
) -> None:
    schedule = file("{max: 1, by: [tenant_id]}", tenants=SYNC_TENANT)
    sync(db, schedule, NOW - MINUTE)
    job = int(value(db, "select id from yamlsched.job_definitions"))
    run = due(db, job, **of(1))
    db.execute("delete from yamlsched.gates where name = 'limit/provider'")
    assert worker.claim() == []

    sync(db, schedule, NOW)

    assert ids(worker.claim(now=NOW + SECOND)) == [run]


# -- real handlers


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


@pytest.mark.story
def test_never_more_handlers_of_a_value_than_the_limit_execute_at_once(project: Project) -> None:
    project.limits = {"provider": {"max": 2, "by": ["seconds"]}}
    project.sync(nap={"limit": "provider"})
    for seconds in (0.05, 0.051, 0.052, 0.053):
        project.enqueue("nap", {"seconds": seconds}, count=8)
    project.enqueue("nap", count=8)

    workers = [project.start("work", host=host) for host in ("a", "b")]

    assert {worker.wait() for worker in workers} == {0}
    project.work()
    assert project.statuses() == {"succeeded": 40}
    runs = project.db.execute(
        "select payload ->> 'seconds' as value, started_at, finished_at from yamlsched.job_runs"
    ).fetchall()
    for run in runs:
        alike = [one for one in runs if one.value == run.value]
        assert sum(o.started_at <= run.started_at < o.finished_at for o in alike) <= 2


@pytest.mark.story
def test_an_edit_to_a_limit_for_each_value_and_back_beside_a_worker_leaves_nothing_waiting(
    project: Project,
) -> None:
    job = {"nap": {"limit": "provider"}}
    plain: dict[str, Any] = {"provider": {"max": 3}}
    keyed: dict[str, Any] = {"provider": {"max": 1, "by": ["seconds"]}}
    project.limits = plain
    project.sync(**job)
    for number in range(5):
        project.enqueue("nap", {"seconds": 0.02 + number / 1_000}, count=20)
    worker = project.start("work", "--loop")

    for limits in (keyed, plain, keyed, plain, keyed):
        done = project.statuses().get("succeeded", 0)
        until(lambda done=done: project.statuses().get("succeeded", 0) > done, "some end")  # type: ignore[misc]
        project.limits = limits
        project.sync(**job)

    until(lambda: project.statuses() == {"succeeded": 100}, "all of them end", 60)
    assert worker.is_alive
    assert value(project.db, "select count(*) from yamlsched.permits") == 0


# -- to see


def test_show_why_and_status_name_the_value(db: Db, worker: Worker) -> None:
    limit(db, 1, "provider")
    job = a_job(db, **TENANT, schedule="* * * * *")
    slot = {"scheduled_for": NOW - MINUTE, "idempotency_key": "purge:2026-01-14T11:59Z"}
    holder, waits = due(db, job, -1, **of("ACME/é")), due(db, job, **slot, **of("ACME/é"))
    worker.claim()
    words = (
        f'waits for limit provider for ["ACME/é"], held by run {holder}; '
        "the first in line since 2026-01-14T11:59:00Z"
    )

    run = records.run(db, waits)
    assert run is not None
    assert history.waits_for(run, NOW) == f", {words}"
    report = why.explain(db, "default", definition_for(db, "default", "purge"), NOW - MINUTE)
    assert report.lines[1] == f"it {words}"
    [seen] = health.read_all(db, ["default"], MINUTE)
    assert seen.limits == [words]


def test_status_names_one_value_of_a_limit_and_how_many_more_there_are(
    db: Db, worker: Worker
) -> None:
    limit(db, 1, "provider")
    limit(db, 1)
    job, load = a_job(db, **TENANT), a_job(db, "load", limit_name="warehouse")
    for tenant in range(240):
        due(db, job, tenant % 2, **of(tenant // 2))
    due(db, load)
    due(db, load, 1)
    assert len(worker.claim(limit=300)) == 121
    worker.claim(limit=300)

    [seen] = health.read_all(db, ["default"], MINUTE)

    values, cubes = seen.limits
    assert values.startswith("waits for limit provider for [")
    assert values.endswith("; so do runs for 119 more values")
    assert cubes.startswith("waits for limit warehouse, held by run ")
