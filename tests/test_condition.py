"""How a job is, as ``why JOB`` and its page say, and which hosts could start it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from starlette.testclient import TestClient

from support.command_line import Cli, command_line
from support.followers import DEAD, HOURLY, World, world
from support.health import a_healthy_job, reasons
from support.rows import a_job, a_place, a_run
from yamlsched.extras import web

__all__ = ["world"]

HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def masked(text: str) -> str:
    """Return a text without what differs from run to run: instants and ages."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z( \([^)]*\))?", "TIME", text)
    return re.sub(r"\b(\d+[dhms])+ ago", "AGE ago", text)


def a_chain(world: World) -> tuple[int, int, int]:
    """Have extract die, with load and report waiting; return the runs."""
    world.apply(extract=HOURLY, load={"after": ["extract"]}, report={"after": ["load"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    world.db.execute(
        "update yamlsched.job_definitions set next_slot_at = now() + interval '1 hour'"
    )
    return world.id("extract 02:00"), world.id("load 02:00"), world.id("report 02:00")


def test_why_says_since_when_a_run_that_its_worker_has_released_is_due(db: Db, cli: Cli) -> None:
    now = datetime.now(UTC)
    a_run(
        db,
        a_job(db),
        run_at=now - 2 * HOUR,
        started_at=now - HOUR,
        begun_at=now - HOUR,
        updated_at=now - HOUR / 2,
    )

    found = cli("why", "purge")

    assert "of purge is queued, due TIME, attempt 0 of" in masked(found.out)


def test_why_of_a_hook_names_the_run_that_it_reports(db: Db, cli: Cli) -> None:
    now = datetime.now(UTC)
    dead = a_run(db, a_job(db, "charge"), status="dead", finished_at=now)
    hook = a_run(db, a_job(db, "page_owner", schedule=None), parent_id=dead, hook="dead")

    found = cli("why", "page_owner")

    assert (
        f"run {hook} of page_owner, which reports the death of run {dead}, is queued" in found.out
    )


def test_why_says_that_the_lease_of_a_run_has_expired_whose_worker_was_killed(
    db: Db, cli: Cli
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    values = {"started_at": now - HOUR, "locked_until": now - HOUR / 2, "locked_by": "alpha:7"}
    run = a_run(db, a_job(db), "running", attempts=1, **values)

    lines = cli("why", "purge").out.splitlines()

    assert (
        f"  run {run} of purge is running on alpha:7, which stopped answering: its lease ended at"
        f" {now - HOUR / 2:%Y-%m-%dT%H:%M:%SZ}, attempt 1 of 5"
    ) in lines


def test_why_names_the_whole_chain_down_to_the_run_that_died_and_what_helps(
    world: World, cli: Cli
) -> None:
    extract, load, report = a_chain(world)

    found = cli("why", "report")

    assert found.code == 0
    head, *lines = masked(found.out).splitlines()
    assert head == "report: held up"
    assert lines[:4] == [
        "  no run has succeeded yet",
        f"  run {report} of report waits for load: run {load} is queued",
        f"  run {load} of load waits for extract: run {extract} is dead",
        f"  run {extract} of extract died AGE ago: no route to host",
    ]
    helps = [line for line in lines if line.startswith("  what to do")]
    assert helps[0] == f"  what to do: yamlsched show {extract}; then yamlsched retry {extract}"


def test_the_dead_runs_at_the_root_are_retried_by_one_command(world: World, cli: Cli) -> None:
    extract, *_ = a_chain(world)
    world.db.execute("update yamlsched.job_definitions set next_slot_at = '2026-01-14 03:00+00'")
    world.tick("2026-01-14 03:00")
    world.claim()
    world.end("extract 03:00", DEAD)
    later = world.id("extract 03:00")

    found = json.loads(cli("why", "report", "--format", "json").out)

    assert found["remedies"][0] == (
        f"yamlsched show {later}; then yamlsched retry {later} {extract}"
    )


def test_who_waits_for_a_limit_learns_how_to_see_and_to_stop_the_run_that_holds_it(
    db: Db, cli: Cli
) -> None:
    holder = a_run(db, a_healthy_job(db, "erp_sync", limit_name="erp"), "running")
    db.execute("insert into yamlsched.permits values ('default', 'limit/erp', 1, %s)", [holder])
    due = datetime.now(UTC) - 2 * HOUR
    job = a_job(db, "erp_orders", limit_name="erp", next_slot_at=due + 3 * HOUR)
    a_run(db, job, blocked_on="limit/erp", run_at=due, scheduled_for=due, created_at=due)

    found = json.loads(cli("why", "erp_orders", "--format", "json").out)

    stop = f"yamlsched cancel {holder}"
    assert found["remedies"] == [f"yamlsched show {holder}; if it hangs: {stop}"]
    assert f"to stop   {stop}\n" in cli("show", holder).out


def test_what_starts_the_worker_of_a_queue_helps_a_job_that_waits_in_it(db: Db, cli: Cli) -> None:
    a_place(db, queues={"default": "open", "long": "dedicated"})
    a_run(db, a_job(db, queue="long"), queue="long")

    found = json.loads(cli("why", "purge", "--format", "json").out)

    start = "yamlsched tick --queue long in a crontab, or yamlsched work --loop --queue long"
    assert found["remedies"] == [start]


def test_a_job_that_was_paused_long_ago_is_resumed_by_one_command(db: Db, cli: Cli) -> None:
    a_healthy_job(db, paused_at=datetime.now(UTC) - 240 * HOUR, next_slot_at=None)

    found = json.loads(cli("why", "purge", "--format", "json").out)

    assert found["remedies"] == ["yamlsched resume purge, or pause it with --until"]


def test_a_job_that_a_dead_run_holds_up_has_that_state_with_the_root_of_the_chain(
    world: World, cli: Cli, dsn: str
) -> None:
    extract, load, report = a_chain(world)

    status = json.loads(cli("status", "--format", "json").out)
    shown = masked(cli("status").out)
    with TestClient(
        web.app(dsn, namespace="default", auth="none"), base_url="http://localhost"
    ) as client:
        page = masked(client.get("/").text)

    jobs = {job["job_type"]: job["state"] for job in status["jobs"]}
    assert jobs == {"extract": "dead", "load": "held_up", "report": "held_up"}
    held_up = [(each["job_type"], each["run_id"]) for each in status["held_up"]]
    assert held_up == [("load", extract), ("report", extract)]
    assert json.loads(cli("report", "--format", "json").out)["held_up"] == status["held_up"]
    assert f"held up    load, report by extract: run {extract} died AGE ago" in shown
    # two jobs, and the problem
    assert shown.count(f"held up by extract: run {extract} died AGE ago") == 3
    assert f"load, report are held up by extract: run {extract} died AGE ago" in masked(
        cli("status", "--check").out
    )
    assert page.count(f"held up by extract: run {extract} died AGE ago") >= 2
    assert load < report


def test_a_job_that_fails_or_is_late_also_names_the_root_of_the_chain(
    world: World, cli: Cli, dsn: str
) -> None:
    # given a chain whose last job has died before, and must have succeeded by now
    extract, load, _ = a_chain(world)
    row = world.db.execute(
        "select id from yamlsched.job_definitions where job_type = 'report'"
    ).fetchone()
    assert row is not None
    a_run(world.db, row[0], "dead", finished_at=datetime.now(UTC) - 5 * HOUR)
    because = f"held up by extract: run {extract} died AGE ago"

    # then its card names what holds it up, beside its last error
    lines = masked(cli("status").out).splitlines()
    assert [line for line in lines if f"{because}; OSError: no route to host" in line]

    world.db.execute(
        "update yamlsched.job_runs set finish_by = now() - interval '1 hour'"
        " where job_type = 'report' and finished_at is null"
    )
    world.db.execute(
        "update yamlsched.job_definitions set finish_within = '1h' where job_type = 'report'"
    )
    check = masked(cli("status", "--check").out)
    with TestClient(
        web.app(dsn, namespace="default", auth="none"), base_url="http://localhost"
    ) as client:
        of_job = masked(client.get("/jobs/report").text)
        graph = masked(client.get("/graph").text)
    assert (
        f"report: late by AGE: not finished: the run of its slot has not succeeded; {because}"
        in re.sub(r"late by \w+", "late by AGE", check)
    )
    assert f"; {because}" in of_job
    assert f"waits for load: run {load} is queued; {because}" in graph


def test_a_death_that_is_reported_names_the_jobs_that_it_holds_up(world: World, cli: Cli) -> None:
    extract, *_ = a_chain(world)
    world.db.execute(
        "update yamlsched.job_runs set dead_at = now(), finished_at = now() where id = %s",
        [extract],
    )

    found = [line for line in cli("status", "--check").out.splitlines() if "extract" in line]

    assert found == ["extract: 1 run died within 1h: no route to host; holds up load, report"]


def test_the_report_puts_first_the_death_that_holds_up_most_jobs(world: World, cli: Cli) -> None:
    extract, *_ = a_chain(world)
    ended = "dead_at = now(), failed_at = now(), finished_at = now()"
    world.db.execute(
        f"update yamlsched.job_runs set {ended} where id = %s",
        [extract],
    )
    alone = a_job(world.db, "alone", next_slot_at=datetime.now(UTC) - HOUR)
    for _ in range(2):
        a_run(world.db, alone, "dead", finished_at=datetime.now(UTC))

    report = json.loads(cli("report", "--format", "json").out)

    dead = [problem["what"] for problem in report["problems"] if problem["kind"] == "dead"]
    assert dead == [
        "extract: 1 run died: no route to host; holds up load, report",
        "alone: 2 runs died: OSError: no route to host",
    ]
    # that of alone is overdue
    assert report["next_slot"]["job_type"] == "extract"


def test_why_says_what_failed_and_names_the_dead_run_long_after_it_died(db: Db, cli: Cli) -> None:
    job = a_healthy_job(db)
    a_run(db, job, "succeeded", finished_at=datetime.now(UTC) - 9 * HOUR)
    run = a_run(db, job, "dead", finished_at=datetime.now(UTC) - 8 * HOUR, error_type="OSError")

    lines = masked(cli("why", "purge").out).splitlines()

    assert lines[0] == "purge: dead"
    assert lines[1] == "  last success: AGE ago, at TIME"
    assert lines[2] == f"  last failure: run {run}, dead, AGE ago: OSError: no route to host"
    assert lines[-1] == f"  what to do: yamlsched show {run}; then yamlsched retry {run}"


def test_why_of_a_job_without_a_cron_says_how_it_is(db: Db, cli: Cli) -> None:
    a_healthy_job(db, schedule=None, next_slot_at=None)

    assert cli("why", "purge").out.splitlines() == [
        "purge: new",
        "  no run has succeeded yet",
        "  it has no cron: it runs when it is enqueued, or as a hook of another job",
    ]
    assert cli("why", "purge", "--at", "now").code == 1


def test_the_page_and_json_say_the_same_as_the_command(db: Db, cli: Cli, dsn: str) -> None:
    run = a_run(db, a_healthy_job(db), "failed", attempts=3, error_type="OSError")

    found = json.loads(cli("why", "purge", "--format", "json").out)
    with TestClient(
        web.app(dsn, namespace="default", auth="none"), base_url="http://localhost"
    ) as client:
        page = client.get("/why?job=purge").text

    assert (found["state"], found["run_ids"], found["remedies"]) == (
        "failing",
        [run],
        [f"yamlsched show {run}"],
    )
    assert f"last failure: run {run}, failed" in page
    assert "OSError: no route to host" in page


def test_a_late_job_whose_run_died_names_that_run_and_retry(db: Db, cli: Cli) -> None:
    slot = datetime.now(UTC).replace(microsecond=0) - 22 * HOUR
    job = a_healthy_job(db, "inventory", finish_within=HOUR)
    run = a_run(
        db, job, "dead", scheduled_for=slot, finished_at=slot + HOUR, created_at=slot, run_at=slot
    )

    [problem] = json.loads(cli("status", "--check", "--format", "json").out)["problems"]

    assert re.fullmatch(
        rf"inventory: late by \S+: not finished: .*: run {run} is dead", problem["what"]
    )
    assert problem["remedy"] == f"yamlsched show {run}; then yamlsched retry {run}"


def cannot_start(db: Db, job: int, host: str) -> None:
    db.execute(
        "update yamlsched.hosts h set cannot_start = jsonb_build_object(d.job_type, jsonb_build_object("
        "'reason', 'the variable IS_WEB2 is not set', 'since', now()))"
        " from yamlsched.job_definitions d where d.id = %s and h.host = %s",
        [job, host],
    )


def test_the_remedy_of_a_missing_variable_names_where_it_has_to_be_set(db: Db, cli: Cli) -> None:
    a_place(db)
    cannot_start(db, a_job(db, "export"), "web-1")

    [problem] = json.loads(cli("status", "--check", "--format", "json").out)["problems"]

    assert "the variable IS_WEB2 is not set, on web-1:/srv/schedules.yaml since" in problem["what"]
    assert problem["remedy"] == (
        "on a host that is to run it, install what is missing, or set the variable in the"
        " crontab, systemd unit or container of yamlsched tick or work; or correct"
        " schedules.yaml"
    )


@pytest.fixture
def a_job_of_web2(db: Db) -> int:
    """A job with a due run that web-2 could start, which ticked last 22 minutes ago; four other hosts cannot."""
    now = datetime.now(UTC)
    a_place(
        db,
        host="web-2",
        seen_at=now - timedelta(minutes=22),
    )
    job = a_job(db, "export", next_slot_at=now + HOUR, created_at=now - 9 * HOUR)
    for nth, host in enumerate(("web-1", "web-3", "web-4", "web-5")):
        a_place(db, host=host, in_use=nth == 0)
        cannot_start(db, job, host)
    a_run(db, job, run_at=now - timedelta(minutes=5))
    return job


WEB2 = "web-2, which can start it, last ticked"


@pytest.mark.usefixtures("a_job_of_web2")
def test_a_host_that_is_down_and_could_start_a_job_is_named(db: Db, dsn: str, cli: Cli) -> None:
    [problem] = json.loads(cli("status", "--check", "--format", "json").out)["problems"]

    assert problem["what"].startswith(f"no host can start job export: {WEB2}")
    assert problem["what"].endswith(" cannot: the variable IS_WEB2 is not set")
    assert problem["remedy"] == "start the ticks of web-2 again"
    places = (
        "web-1:/srv/schedules.yaml, web-3:/srv/schedules.yaml, web-4:/srv/schedules.yaml and 1 more"
    )
    sentence = f"{places} cannot start job export: the variable IS_WEB2 is not set; {WEB2}"
    assert cli("status").out.count(sentence) == 1
    assert sentence in cli("why", "export").out
    assert sentence in cli("show", run_of(db)).out
    with TestClient(
        web.app(dsn, namespace="default", auth="none"), base_url="http://localhost"
    ) as client:
        assert sentence in client.get(f"/runs/{run_of(db)}").text


def run_of(db: Db) -> int:
    [[run]] = db.execute("select id from yamlsched.job_runs").fetchall()
    return int(run)


def test_a_host_that_is_down_and_could_not_start_the_job_either_is_not_named(
    db: Db, cli: Cli, a_job_of_web2: int
) -> None:
    cannot_start(db, a_job_of_web2, "web-2")

    assert not any("web-2" in reason for reason in reasons(db))


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("retry", "purge"), 1, "yamlsched retry --dead --job purge"),
        (("show", "purge"), 1, "yamlsched runs --job purge"),
        (("next", "*/7 * * * *"), 1, "yamlsched next --cron '*/7 * * * *'"),
        (("runs", "--limit", "abc"), 2, "'abc' is not a valid integer."),
    ],
)
def test_a_command_line_that_is_close_gets_the_one_that_works(
    db: Db, cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, hint: str
) -> None:
    a_healthy_job(db)
    (tmp_path / "schedules.yaml").write_text(
        "version: 1\njobs: {purge: {cron: '0 2 * * *', command: [/bin/true]}}\n"
    )

    found = cli(*arguments)

    assert found.code == code
    assert hint in " ".join(found.err.split())


def test_the_views_count_as_failing_what_the_function_says(db: Db) -> None:
    job = a_healthy_job(db, overlap="allow")
    for status in ("failed", "running", "queued"):
        for most in range(1, 7):
            for attempts in range(1, most + 1):
                if attempts == most and status != "running":
                    continue  # what waits has an attempt left
                for prior in range(attempts):
                    given = {"attempts": attempts, "prior_attempts": prior, "max_attempts": most}
                    a_run(db, job, status, failed_at="(now())", **given)
    a_run(db, job, "failed", attempts=3, failed_at=None, max_attempts=6)

    [[of_function]] = db.execute(
        "select count(*) from yamlsched.job_runs r where yamlsched.is_failing(r)"
    ).fetchall()
    [[of_view]] = db.execute("select failing from yamlsched.job_queues").fetchall()

    assert of_view == of_function
    assert 0 < of_view < db.execute("select count(*) from yamlsched.job_runs").fetchall()[0][0]
