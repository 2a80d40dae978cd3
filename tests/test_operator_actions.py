"""retry, cancel, pause, resume and enqueue: the actions of operators, and their records."""

from __future__ import annotations

import io
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support.command_line import Cli, command_line
from support.database import while_waiting
from support.rows import a_job, a_run, row, value
from yamlsched import db as store
from yamlsched.act import pause as pausing
from yamlsched.act import runs as actions
from yamlsched.errors import Refused
from yamlsched.timetable import times

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def trail(db: Db) -> list[tuple[str, str, str]]:
    rows = db.execute(
        "select who, verb, target from yamlsched.operator_actions order by id"
    ).fetchall()
    return [(r.who, r.verb, r.target) for r in rows]


def test_a_retried_dead_run_gets_max_attempts_more_attempts(db: Db) -> None:
    # given a run that died in its fifth attempt
    job = a_job(db, max_attempts=3)
    run = a_run(db, job, "dead", result="(to_jsonb(1))")

    # when it is retried
    [answer] = actions.retry(db, [run], "ann", now=NOON)

    # then it is queued and due, and keeps its attempts, its last owner and its last error
    after = row(db, run)
    assert answer == actions.ActionResult(f"run {run}", True, "is queued again")
    assert (after.status, after.attempts, after.max_attempts, after.run_at) == (
        "queued",
        5,
        8,
        NOON,
    )
    assert (after.finished_at, after.dead_at, after.result) == (None, None, None)
    assert (after.locked_by, after.last_error) == ("web-1:4711:c0ffee", "no route to host")
    assert trail(db) == [("ann", "retry", f"run:{run}")]


def test_a_waiting_run_becomes_due_and_keeps_its_status_and_attempts(db: Db) -> None:
    job = a_job(db)
    failed = a_run(db, job, "failed", run_at=NOON + timedelta(hours=1))
    queued = a_run(db, job, "queued", run_at=NOON + timedelta(hours=1))
    due = a_run(db, job, "queued", run_at=NOON - timedelta(hours=1))

    answers = actions.retry(db, [failed, queued, due], "ann", now=NOON)

    assert [a.what for a in answers] == ["is due now"] * 3
    assert [
        (row(db, r).status, row(db, r).run_at, row(db, r).max_attempts)
        for r in (failed, queued, due)
    ] == [
        ("failed", NOON, 5),
        ("queued", NOON, 5),
        ("queued", NOON - timedelta(hours=1), 5),  # a run that is already due keeps its position
    ]


@pytest.mark.parametrize(
    ("status", "values", "job_values", "why"),
    [
        (
            "running",
            {"locked_until": "(now() + interval '1 minute')"},
            {},
            "is running: cancel it first",
        ),
        (
            "running",
            {"locked_until": "(now() - interval '1 minute')"},
            {},
            "has lost its worker web-1:4711:c0ffee: the next tick handles it automatically",
        ),
        (
            "succeeded",
            {},
            {},
            "has succeeded: --force runs it again (effects done by run.once() are not repeated)",
        ),
        (
            "dead",
            {},
            {"enabled": False},
            "belongs to purge, which is not enabled in schedules.yaml: no worker would claim it",
        ),
        (
            "dead",
            {},
            {"retired_at": NOON},
            "belongs to purge, which was removed from schedules.yaml: no worker would claim it",
        ),
    ],
)
def test_a_run_that_may_not_be_retried_does_not_change_and_the_result_has_the_reason(
    db: Db, status: str, values: dict[str, Any], job_values: dict[str, Any], why: str
) -> None:
    run = a_run(db, a_job(db, **job_values), status, **values)
    before = row(db, run)

    [answer] = actions.retry(db, [run], "ann")

    assert answer == actions.ActionResult(f"run {run}", False, why)
    assert row(db, run) == before
    assert trail(db) == []


def test_a_succeeded_run_is_run_again_only_with_force(db: Db) -> None:
    run = a_run(db, a_job(db), "succeeded")

    [answer] = actions.retry(db, [run], "ann", force=True)

    assert answer.changed
    assert (row(db, run).status, row(db, run).attempts, row(db, run).max_attempts) == (
        "queued",
        1,
        6,
    )


@pytest.mark.parametrize("status, left", [("succeeded", 0), ("dead", 0), ("queued", 2)])
def test_a_retry_of_a_finished_run_resets_its_releases(db: Db, status: str, left: int) -> None:
    run = a_run(db, a_job(db), status, releases=2)

    actions.retry(db, [run], "ann", force=True)

    assert row(db, run).releases == left


def test_a_run_that_changed_after_it_was_chosen_is_not_retried(db: Db) -> None:
    run = a_run(db, a_job(db), "queued", run_at=NOON)

    [answer] = actions.retry(db, [run], "ann", expected=["dead"])

    assert answer == actions.ActionResult(f"run {run}", False, "is now queued")


def test_a_run_that_changed_after_it_was_chosen_is_not_cancelled(db: Db) -> None:
    run = a_run(db, a_job(db), "running")

    [answer] = actions.cancel(db, [run], "ann", expected=["queued"])

    assert (answer.changed, row(db, run).status) == (False, "running")


def test_a_retired_job_is_not_paused(db: Db) -> None:
    job = a_job(db, retired_at=NOON)

    [answer] = pausing.pause(db, "default", [job], "ann")

    assert (answer.changed, answer.what) == (
        False,
        "was removed from schedules.yaml: there is nothing to pause",
    )
    assert value(db, "select paused_at from yamlsched.job_definitions") is None


def test_other_runs_do_not_change(db: Db) -> None:
    job = a_job(db)
    named, others = (
        a_run(db, job, "queued"),
        [a_run(db, job, status) for status in ("queued", "failed", "running")],
    )
    before = [row(db, run) for run in others]

    actions.retry(db, [named], "ann")
    actions.cancel(db, [named], "ann")

    assert row(db, named).status == "cancelled"
    assert [row(db, run) for run in others] == before


def test_a_retry_of_a_paused_job_reports_that_the_run_waits(db: Db) -> None:
    run = a_run(db, a_job(db, paused_at=NOON), "dead")

    [answer] = actions.retry(db, [run], "ann")

    assert (
        answer.what == "is queued again; it waits until the job is resumed: yamlsched resume purge"
    )


def test_a_retry_of_a_run_with_an_effect_in_doubt_names_the_command_that_settles_it(db: Db) -> None:
    run = a_run(db, a_job(db, "purge"), status="dead", attempts=1)
    db.execute(
        """
        insert into yamlsched.effects
            (namespace, key, run_id, attempt, locked_by, entry, provider_key, state, doubted_at)
        values ('default', %s, %s, 1, 'gone', gen_random_uuid(), gen_random_uuid(), 'in_doubt', now())
        """,
        [f"run:{run}:mail", run],
    )

    [answer] = actions.retry(db, [run], "ann")
    assert answer.what == (
        f'is queued again; effect "run:{run}:mail" is in doubt, and with in_doubt="raise" the run will be dead again: '
        f"find out whether it happened, then run: yamlsched settle --done run:{run}:mail (or --not-done)"
    )

    # the queued run's next attempt applies in_doubt: nothing is left for a person to do
    [answer] = actions.retry(db, [run], "ann")
    assert answer.what == "is due now"


def test_a_retry_waits_for_a_worker_that_is_finishing_the_run(db: Db, dsn: str) -> None:
    # given a worker whose uncommitted transaction has finished the run
    run = a_run(db, a_job(db), "running")
    with (
        store.connect(dsn) as worker,
        store.connect(dsn) as operator,
        psycopg.connect(dsn, autocommit=True) as watcher,
    ):
        worker.execute("begin")
        worker.execute(
            "update yamlsched.job_runs set status = 'dead', locked_until = null, finished_at = now(), dead_at = now() "
            "where id = %s",
            [run],
        )

        # when an operator retries it, and the worker commits while the operator waits
        answers = while_waiting(
            watcher,
            operator,
            lambda: actions.retry(operator, [run], "ann"),
            lambda: worker.execute("commit"),
        )

    # then the result describes the run after the worker's commit
    assert [a.what for a in answers] == ["is queued again"]


def test_a_cancelled_run_is_final_and_its_worker_can_write_nothing_but_it_keeps_its_turn(
    db: Db,
) -> None:
    # given a running slot run of a job with overlap wait
    job = a_job(db)
    run = a_run(db, job, "running", exclusive=True, scheduled_for=NOON)

    # when it is cancelled
    [answer] = actions.cancel(db, [run], "ann", reason="wrong day")

    # then it is final, its turn is taken until the handler has ended, and the worker's fence matches no row
    after = row(db, run)
    assert answer.what == "is cancelled; it is stopped at its worker's next heartbeat"
    assert (after.status, after.locked_until is None) == ("cancelled", False)
    held = db.execute("select name from yamlsched.permits where run_id = %s order by name", [run])
    assert {permit.name for permit in held} == {f"after/{job}", f"job/{job}"}
    assert after.finished_at is not None
    fenced = db.execute(
        "update yamlsched.job_runs set last_error = 'zombie' where id = %s and status = 'running' and locked_by = %s",
        [run, after.locked_by],
    )
    assert fenced.rowcount == 0
    detail = value(db, "select detail from yamlsched.operator_actions")
    assert detail == {"was": "running", "reason": "wrong day"}


@pytest.mark.parametrize("status", ["succeeded", "dead", "cancelled"])
def test_a_finished_run_cannot_be_cancelled(db: Db, status: str) -> None:
    run = a_run(db, a_job(db), status)
    before = row(db, run)

    [answer] = actions.cancel(db, [run], "ann")

    assert answer == actions.ActionResult(f"run {run}", False, f"is already {status}")
    assert row(db, run) == before


def test_a_retry_notifies_listening_workers(db: Db, dsn: str) -> None:
    run = a_run(db, a_job(db), "dead")
    with store.connect(dsn) as listener:
        listener.execute("listen yamlsched")

        actions.retry(db, [run], "ann")

        [notice] = list(listener.notifies(timeout=10, stop_after=1))
    assert notice.payload == "default"


def test_a_filter_chooses_runs_asks_for_confirmation_and_reports_each_run(db: Db, cli: Cli) -> None:
    # given two dead runs of one job, and one of another
    purge, mail = a_job(db, "purge"), a_job(db, "mail")
    first, second, other = (
        a_run(db, purge, "dead"),
        a_run(db, purge, "dead"),
        a_run(db, mail, "dead"),
    )

    # when all dead runs of the first job are retried without a terminal
    refused = cli("retry", "--job", "purge", "--dead")

    # then nothing happens without --yes
    assert refused.code == 2
    assert "this would retry 2 runs: pass --yes" in refused.err
    assert (
        cli("retry", "--job", "purge", "--dead", "--dry-run").out
        == f"would retry 2 runs: {first} {second}\n"
    )
    assert row(db, first).status == "dead"
    done = cli("retry", "--job", "purge", "--dead", "--yes", "--by", "ann")
    assert done == (0, f"run {first} is queued again\nrun {second} is queued again\n", "")
    assert row(db, other).status == "dead"
    assert trail(db) == [("ann", "retry", f"run:{first}"), ("ann", "retry", f"run:{second}")]


@pytest.mark.parametrize(("answer", "code", "status"), [("n", 1, "dead"), ("y", 0, "queued")])
def test_on_a_terminal_the_verb_asks_for_confirmation(
    db: Db, cli: Cli, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, status: str
) -> None:
    run = a_run(db, a_job(db), "dead")
    monkeypatch.setattr(sys, "stdin", Terminal(answer + "\n"))

    result = cli("retry", "--dead")

    assert (result.code, row(db, run).status) == (code, status)
    assert result.err.startswith("retry 1 run? [y/N]: ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_refused_run_makes_exit_code_1_and_the_others_are_changed(db: Db, cli: Cli) -> None:
    job = a_job(db)
    dead, running = a_run(db, job, "dead"), a_run(db, job, "running")

    result = cli("retry", dead, running, 99999999)

    assert result.code == 1
    assert result.out == f"run {dead} is queued again\n"
    assert result.err.splitlines() == [
        f"run {running} is running: cancel it first",
        "run 99999999 does not exist, or was pruned",
    ]


def test_runs_can_be_named_by_their_keys(db: Db, cli: Cli) -> None:
    run = a_run(db, a_job(db), "queued", idempotency_key="purge:2026-01-14")

    assert cli("cancel", "purge:2026-01-14").out == f"run {run} is cancelled\n"
    unknown = cli("cancel", "purge:2026-01-15")
    assert (unknown.code, unknown.out) == (1, "")
    assert 'no run has the key "purge:2026-01-15"' in unknown.err


def test_each_run_gets_its_own_result_also_an_unknown_key(db: Db, cli: Cli) -> None:
    run = a_run(db, a_job(db), "dead")
    unknown = 'nokey cannot be found: no run has the key "nokey" in namespace "default". Search: yamlsched runs --key'

    dry = cli("retry", run, "nokey", "--dry-run")
    done = cli("retry", run, "nokey")

    assert dry == (1, f"would retry 1 run: {run}\n", f"{unknown} 'no*'\n")
    assert done == (1, f"run {run} is queued again\n", f"{unknown} 'no*'\n")


def test_of_many_runs_only_the_number_and_the_failures_are_reported(db: Db, cli: Cli) -> None:
    job = a_job(db, overlap="allow")
    runs = [a_run(db, job, "dead") for _ in range(21)]
    running = a_run(db, job, "running")

    assert cli("retry", *runs).out == "retry: 21 changed\n"
    assert cli("cancel", *runs).out == "cancel: 21 changed\n"
    result = cli("retry", *runs, running)
    assert result == (
        1,
        "retry: 21 of 22 changed\n",
        f"run {running} is running: cancel it first\n",
    )


def test_runs_together_with_filters_or_neither_is_a_usage_error(cli: Cli) -> None:
    assert cli("retry").code == 2
    assert cli("retry", "--job", "purge").code == 2
    assert cli("cancel").code == 2
    assert cli("cancel", "12", "--job", "purge").code == 2


def test_cancelling_a_job_without_unfinished_runs_reports_this(db: Db, cli: Cli) -> None:
    a_run(db, a_job(db), "dead")

    assert cli("cancel", "--job", "purge", "--yes") == (0, "", "no unfinished runs match\n")
    assert cli("cancel", "--job", "purge", "--status", "cancelled", "--yes") == (
        0,
        "",
        "no runs match\n",
    )


def test_a_pause_first_accounts_for_owed_slots_and_stores_who_why_and_until(db: Db) -> None:
    # given a job with an owed slot at 02:00
    job = a_job(db, next_slot_at=datetime(2026, 1, 14, 2, tzinfo=UTC))
    db.execute("update yamlsched.job_definitions set effective_from = '2026-01-13T12:00Z'")

    # when it is paused at noon for two hours
    [answer] = pausing.pause(
        db, "default", [job], "ann", reason="upgrade", until=timedelta(hours=2), now=NOON
    )

    # then the slot before the pause has its run, and the pause has its operator, reason and end
    definition = db.execute("select * from yamlsched.job_definitions").fetchone()
    assert answer == actions.ActionResult(
        "purge", True, "is paused, until 2026-01-14T14:00Z (Wed 2026-01-14 14:00 UTC)"
    )
    assert definition is not None
    assert (definition.paused_at, definition.paused_until) == (NOON, NOON + timedelta(hours=2))
    assert (definition.paused_by, definition.paused_reason) == ("ann", "upgrade")
    assert value(db, "select idempotency_key from yamlsched.job_runs") == "purge:2026-01-14"
    assert trail(db) == [("ann", "pause", "job:purge")]


@pytest.mark.parametrize(
    "given, until, reason",
    [
        ({}, "2026-01-14T16:00Z", "upgrade"),
        ({"reason": "longer"}, "2026-01-14T16:00Z", "longer"),
        ({"until": timedelta(hours=5)}, "2026-01-14T18:00Z", "upgrade"),
    ],
)
def test_pausing_again_changes_only_the_given_options_and_reports_the_result(
    db: Db, given: dict[str, Any], until: str, reason: str
) -> None:
    # given a nightly job that is paused for four hours
    job = a_job(db, schedule="0 17 * * *", next_slot_at=NOON + timedelta(hours=5))
    pausing.pause(db, "default", [job], "ann", reason="upgrade", until=timedelta(hours=4), now=NOON)

    # when it is paused again an hour later
    [answer] = pausing.pause(db, "default", [job], "bob", **given, now=NOON + timedelta(hours=1))

    # then everything else is unchanged, also the slots during and after the pause
    assert (
        answer.what
        == f"remains paused, until {times.show(datetime.fromisoformat(until), ZoneInfo('UTC'))}; reason: {reason}"
    )
    definition = db.execute("select * from yamlsched.job_definitions").fetchone()
    assert definition is not None
    assert (definition.paused_at, definition.paused_by, definition.paused_reason) == (
        NOON,
        "bob",
        reason,
    )
    assert definition.paused_until == datetime.fromisoformat(until)
    pausing.pause(db, "default", [job], "ann", now=definition.paused_until)
    assert (
        value(db, "select (paused_until, paused_reason)::text from yamlsched.job_definitions")
        == "(,)"
    )


def test_pausing_after_the_end_of_a_pause_starts_a_new_one(db: Db) -> None:
    job = a_job(
        db, schedule=None, paused_at=NOON - timedelta(days=2), paused_until=NOON - timedelta(days=1)
    )

    [answer] = pausing.pause(db, "default", [job], "ann", now=NOON)

    assert answer.what == "is paused, until resumed: yamlsched resume purge"
    assert value(db, "select paused_at from yamlsched.job_definitions") == NOON


def test_a_pause_with_an_end_in_the_past_is_refused(db: Db) -> None:
    job = a_job(db, schedule=None)

    with pytest.raises(Refused, match="already: pass a later --until"):
        pausing.pause(db, "default", [job], "ann", until=NOON - timedelta(hours=1), now=NOON)

    assert value(db, "select paused_at is null from yamlsched.job_definitions")


def test_resume_records_the_slots_of_the_pause_and_does_not_run_them(db: Db) -> None:
    # given a job that was paused two days ago at noon
    job = a_job(
        db, next_slot_at=datetime(2026, 1, 13, 2, tzinfo=UTC), paused_at=NOON - timedelta(days=2)
    )
    db.execute("update yamlsched.job_definitions set effective_from = '2026-01-12T12:00Z'")

    # when it is resumed
    [answer] = pausing.resume(db, "default", [job], "ann", now=NOON)

    # then its two slots are recorded as paused, and the next one is tomorrow
    assert answer == actions.ActionResult("purge", True, "resumed")
    gap = db.execute("select slots, reason from yamlsched.skipped_slots").fetchone()
    assert gap == (2, "paused")
    assert value(db, "select count(*) from yamlsched.job_runs") == 0
    assert value(db, "select next_slot_at from yamlsched.job_definitions") == datetime(
        2026, 1, 15, 2, tzinfo=UTC
    )
    assert value(
        db, "select paused_at is null and paused_by is null from yamlsched.job_definitions"
    )


def test_pause_and_resume_on_the_command_line(db: Db, cli: Cli) -> None:
    a_job(db, "purge", schedule=None, tags=["nightly"])
    a_job(db, "mail", schedule=None)

    paused = cli("pause", "purge", "--until", "2h", "--reason", "upgrade").out
    assert re.fullmatch(
        r"purge is paused, until 2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(\w{3} [\d-]+ \d\d:\d\d UTC\)\n",
        paused,
    )
    assert cli("resume", "mail") == (1, "", "mail is not paused\n")
    assert cli("pause", "--all").code == 2
    again = cli("pause", "--tag", "nightly", "--yes").out
    assert again == f"{paused.strip().replace('is paused', 'remains paused')}; reason: upgrade\n"
    assert cli("resume", "--all", "--yes").out == "purge resumed\n"
    assert cli("resume", "--all") == (0, "", "no jobs to resume\n")
    wrong = cli("pause", "purgee")
    assert (wrong.code, wrong.err) == (
        1,
        'yamlsched: no job "purgee" in namespace "default". Did you mean "purge"?\n',
    )


def test_enqueue_reports_whether_the_run_was_created_or_existed(db: Db, cli: Cli) -> None:
    a_job(db)

    made = cli(
        "enqueue",
        "purge",
        "--payload",
        '{"days": 3}',
        "--key",
        "purge:by-hand",
        "--by",
        "ann",
        "--format",
        "json",
    )
    again = cli("enqueue", "purge", "--key", "purge:by-hand")

    run = json.loads(made.out)
    assert (made.code, run["created"], run["status"]) == (0, True, "queued")
    assert value(db, "select payload from yamlsched.job_runs") == {"days": 3}
    assert (
        again.out
        == f'nothing created: run {run["run_id"]} has the key "purge:by-hand" and is queued\n'
    )
    assert trail(db) == [("ann", "enqueue", f"run:{run['run_id']}")]


def a_schedule_with_a_handler(folder: Path) -> None:
    (folder / "jobs.py").write_text("def purge(days, dry=False): pass\n")
    (folder / "schedules.yaml").write_text(
        "version: 1\njobs:\n  purge: {handler: jobs.purge}\n  other: {handler: jobs.missing}\n"
    )


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ('{"dyas": 3}', 'job "purge": jobs.purge has no parameter "dyas". Did you mean "days"?'),
        ("{}", 'job "purge": jobs.purge requires "days", which the payload does not contain'),
        ('{"days": 3, "run": 1}', 'jobs.purge has no parameter "run". It takes: days, dry.'),
    ],
)
def test_a_payload_that_does_not_fit_the_handler_of_the_file_is_refused(
    db: Db, cli: Cli, tmp_path: Path, payload: str, message: str
) -> None:
    a_schedule_with_a_handler(tmp_path)
    job = a_job(db)
    dead = a_run(db, job, "dead")

    for arguments in (["enqueue", "purge"], ["retry", dead]):
        refused = cli(*arguments, "--payload", payload)
        assert (refused.code, refused.out) == (1, "")
        assert message in refused.err

    assert value(db, "select array_agg(status) from yamlsched.job_runs") == ["dead"]
    a_job(db, "other")
    # the parameters of this handler are unknown
    assert cli("enqueue", "other", "--payload", payload).code == 0


def test_a_payload_is_not_checked_against_a_handler_of_another_namespace(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
    # given a job of this name in another namespace, with a handler that has other parameters
    a_schedule_with_a_handler(tmp_path)
    dead = a_run(db, a_job(db, namespace="billing"), "dead")

    assert cli("retry", dead, "--payload", '{"weeks": 3}').code == 0
    assert cli("enqueue", "purge", "--namespace", "billing", "--payload", '{"weeks": 3}').code == 0


def test_a_retry_of_one_run_can_replace_its_payload(db: Db, cli: Cli, tmp_path: Path) -> None:
    a_schedule_with_a_handler(tmp_path)
    job = a_job(db, payload=Jsonb({"days": 30, "dry": True}))
    run, other = (a_run(db, job, "dead", payload="('{\"dyas\": 3}'::jsonb)") for _ in range(2))

    assert cli("retry", run, "--payload", '{"days": 3}').code == 0
    assert value(db, "select payload from yamlsched.job_runs where status = 'queued'") == {
        "days": 3,
        "dry": True,
    }
    assert "with another payload" in str(value(db, "select detail from yamlsched.operator_actions"))

    several = cli("retry", run, other, "--payload", '{"days": 3}')
    assert (several.code, "--payload is for one run" in several.err) == (2, True)
    assert cli("retry", other).code == 0
    assert value(db, f"select payload from yamlsched.job_runs where id = {other}") == {"dyas": 3}


def test_a_key_of_a_pruned_run_creates_nothing_and_is_reported(db: Db, cli: Cli) -> None:
    a_job(db)
    db.execute(
        "insert into yamlsched.used_keys (namespace, idempotency_key, run_id, job_type, pruned_at) "
        "values ('default', 'invoice:812', 7, 'purge', '2026-01-14T02:00Z')"
    )

    result = cli("enqueue", "purge", "--key", "invoice:812")

    assert result.out == (
        'nothing created: key "invoice:812" was used by run 7, which was pruned on 2026-01-14T02:00:00Z; '
        "use another key to do it again\n"
    )
    assert value(db, "select count(*) from yamlsched.job_runs") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["purgee"], 1, 'no job "purgee" in namespace "default". Did you mean "purge"?'),
        (
            ["gone"],
            1,
            'job "gone" was removed from schedules.yaml on 2026-01-14: restore it to enqueue it',
        ),
        (["off"], 1, 'job "off" is not enabled in schedules.yaml'),
        (["purge", "--key", "purge:2026-01-14"], 1, 'key "purge:2026-01-14" has a reserved form'),
        (
            ["purge", "--key", "taken"],
            1,
            'key "taken" is held by a run of another job. Start keys with the name of their job.',
        ),
        (["purge", "--payload", '{"a": nul}'], 2, "line 1, column 7: invalid JSON at 'nul}'"),
        (["purge", "--payload", '{"a": NaN}'], 2, "NaN is not a valid JSON value"),
        (["purge", "--payload", "[1]"], 2, "not a JSON object"),
        (["purge", "--payload", "{"], 2, "invalid JSON where it ends"),
        (
            ["purge", "--payload", "@missing.json"],
            2,
            "missing.json cannot be read: No such file or directory",
        ),
        (
            ["purge", "--payload", '{"a": "\\u0000"}'],
            1,
            'payload.a of job "purge" contains a NUL character',
        ),
        (["purge", "--at", "25:00"], 2, '"25:00" is not a valid time of day: write 00:00 to 23:59'),
        (
            ["purge", "--at", "soon"],
            2,
            '"soon" is not a valid time: write a date such as 2026-01-14',
        ),
    ],
)
def test_each_error_of_enqueue_is_one_line(
    db: Db, cli: Cli, arguments: list[str], code: int, message: str
) -> None:
    a_job(db)
    a_job(db, "gone", retired_at=NOON)
    a_job(db, "off", enabled=False)
    a_run(db, a_job(db, "mail"), idempotency_key="taken")

    result = cli("enqueue", *arguments)

    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert "Traceback" not in result.err
    assert value(db, "select count(*) from yamlsched.job_runs where job_type <> 'mail'") == 0


@pytest.mark.parametrize("option", ["enqueue", "pause", "since"])
def test_a_time_without_an_offset_is_read_in_the_jobs_time_zone_and_printed(
    db: Db, cli: Cli, option: str
) -> None:
    a_job(db, timezone="Asia/Kolkata")

    result = {
        "enqueue": lambda: cli("enqueue", "purge", "--at", "2036-01-14T02:00"),
        "pause": lambda: cli("pause", "purge", "--until", "2036-01-14T02:00"),
        "since": lambda: cli("runs", "--job", "purge", "--since", "2036-01-14T02:00"),
    }[option]()

    assert result.code == 0
    assert "2036-01-13T20:30" in result.out + result.err


def test_without_a_job_it_is_read_in_the_time_zone_of_the_file(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
    a_job(db, timezone="Asia/Kolkata")
    a_job(db, "mail", timezone="Europe/Berlin")
    (tmp_path / "schedules.yaml").write_text("version: 1\ntimezone: America/New_York\njobs: {}\n")

    read = cli("runs", "--since", "2026-01-14T02:00").err
    paused = cli("pause", "--all", "--yes", "--until", "2036-01-14").out

    assert (
        "--since is read in America/New_York: 2026-01-14T07:00Z (Wed 2026-01-14 02:00 EST)" in read
    )
    assert paused.count("until 2036-01-14T05:00Z (Mon 2036-01-14 00:00 EST)") == 2


def test_enqueue_takes_plain_words_ahead_of_now_and_shows_how_they_were_read(
    db: Db, cli: Cli
) -> None:
    a_job(db, timezone="Asia/Kolkata")

    weekday = cli("enqueue", "purge", "--at", "mon 08:00").out
    local = cli("enqueue", "purge", "--run-at", "2036-01-14T08:00").out
    document = json.loads(
        cli("enqueue", "purge", "--run-at", "2036-01-14T08:00", "--format", "json").out
    )

    assert re.fullmatch(r"run \d+ created, due 2[\d-]+T02:30Z \(Mon 2[\d-]+ 08:00 IST\)\n", weekday)
    assert re.fullmatch(
        r"run \d+ created, due 2036-01-14T02:30Z \(Mon 2036-01-14 08:00 IST\)\n", local
    )
    assert document["run_at"] == "2036-01-14T02:30:00Z"


def test_the_time_of_a_job_without_cron_is_read_in_the_time_zone_of_the_file(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
    a_job(db, schedule=None)
    (tmp_path / "schedules.yaml").write_text(
        "version: 1\ntimezone: America/New_York\njobs: {purge: {handler: handlers.cleanup.run}}\n"
    )

    out = cli("enqueue", "purge", "--at", "2036-01-14T08:00").out

    assert out.endswith(" created, due 2036-01-14T13:00Z (Mon 2036-01-14 08:00 EST)\n")


def test_enqueue_says_how_it_read_a_time_that_clocks_skip_or_show_twice(db: Db, cli: Cli) -> None:
    a_job(db, timezone="Europe/Berlin")

    skipped = cli("enqueue", "purge", "--at", "2036-03-30T02:30").out
    twice = cli("enqueue", "purge", "--at", "2036-10-26T02:30").out

    assert skipped.endswith("(Sun 2036-03-30 03:00 CEST)\n")
    assert twice.endswith("2036-10-26T00:30Z (Sun 2036-10-26 02:30 CEST)\n")


def test_enqueue_refuses_a_named_day_that_has_passed(db: Db, cli: Cli) -> None:
    a_job(db)

    result = cli("enqueue", "purge", "--at", "yesterday 08:00")

    assert (result.code, result.out) == (1, "")
    assert "08:00 UTC) has passed: pass a later --at, or none" in result.err


def test_at_of_enqueue_is_a_time_or_a_duration_from_now(db: Db, cli: Cli) -> None:
    a_job(db)

    cli("enqueue", "purge", "--at", "2126-01-14T02:00:00+01:00", "--key", "a")
    cli("enqueue", "purge", "--at", "90m", "--key", "b")

    assert value(
        db, "select run_at from yamlsched.job_runs where idempotency_key = 'a'"
    ) == datetime(2126, 1, 14, 1, tzinfo=UTC)
    assert value(
        db,
        "select run_at - now() between '89m' and '90m' from yamlsched.job_runs where idempotency_key = 'b'",
    )


def test_a_retry_waits_for_a_sync_that_edits_the_job(db, dsn):
    # given an edit that is not committed: it has changed the unfinished runs that it saw
    job = a_job(db)
    run = a_run(db, job, "dead")
    with store.connect(dsn) as editor, store.connect(dsn) as operator:
        editor.execute("begin")
        editor.execute(
            "select from yamlsched.job_definitions where id = %s for no key update", [job]
        )
        editor.execute("update yamlsched.job_definitions set max_attempts = 7 where id = %s", [job])

        # when a run is retried, then it is with the edited job
        while_waiting(
            db,
            operator,
            lambda: actions.retry(operator, [run], "ann"),
            lambda: editor.execute("commit"),
        )

    assert row(db, run).max_attempts == row(db, run).attempts + 7
