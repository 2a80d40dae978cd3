"""Executors of ``type: command``: agents in processes of their own, begin tickets, and every fault in between.

The engine is a shell script that starts the agent on this host. Processes, signals and PostgreSQL are real. Leases last
20 seconds, also for a busy machine, unless a test waits for their end.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.database import temporary_database
from support.project import TESTS, Process, Project, a_project, agent_exports, is_alive, until
from support.proxy import a_proxy
from yamlsched.cli import cli
from yamlsched.errors import Refused
from yamlsched.extras.remote import spec
from yamlsched.runs.lifecycle import ClaimedRun, Keep
from yamlsched.schedule.job import ExitCodes, Job, Output
from yamlsched.worker.attempt import Attempt

pytestmark = pytest.mark.story

EXEC = 'exec "$@"'  # the launcher becomes the agent, as with srun or docker run without a daemon
APART = 'setsid "$@" & wait $!'  # no signal of the launcher's reaches the agent, as with ssh
# the program exits with 0 before the attempt has begun, as sbatch does
HANDED_OVER = 'setsid "$@" &'
LOST_AFTERWARDS = '"$@"; exit 9'  # the result is lost after success


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project
        for agent in agents(project):
            os.kill(agent, signal.SIGKILL)


def engine(project: Project, script: str = EXEC, **keys: Any) -> None:
    """Give the project the executor ``engine``, whose launcher runs ``script``: its "$@" starts the agent."""
    (project.folder / "launch").write_text(
        f'{agent_exports(project.folder, project.dsn)}echo "$$ $1" >> launchers\nshift\n{script}\n'
    )
    project.executors = {
        "engine": {"type": "command", "command": ["/bin/sh", "launch", "{id}"], **keys}
    }


def launchers(project: Project) -> list[int]:
    """Return the process ids of all launchers so far."""
    path = project.folder / "launchers"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def on_engine(**job: Any) -> dict[str, Any]:
    return {"executor": "engine", "max_attempts": 2, "lease": "20s", **job}


def tickets(project: Project, run: int) -> list[Any]:
    return project.db.execute(
        "select * from yamlsched.attempt_begins where run_id = %s order by begun_at", [run]
    ).fetchall()


def agents(project: Project) -> list[int]:
    """Return the process ids of living agents that have begun an attempt."""
    rows = project.db.execute(
        "select agent from yamlsched.attempt_begins where agent is not null"
    ).fetchall()
    return [pid for pid in (int(row.agent.split(":")[-2]) for row in rows) if is_alive(pid)]


def run_to_end(project: Project, *words: str, **env: str) -> Process:
    """Have a worker execute what is there until each run has ended."""
    worker = project.start("work", "--loop", *words, **env)
    until(
        lambda: not set(project.statuses()) & {"queued", "failed", "running"}, "all runs have ended"
    )
    worker.signal(signal.SIGTERM)
    assert worker.wait() in (0, -signal.SIGTERM), worker.text  # it may have just started
    return worker


def apply_outcome(project: Project, run: int) -> None:
    """Have the next workers apply the outcome of a run as soon as its agent has written it."""
    until(lambda: project.start("work").wait() in (0, 1) and project.row(run).status != "running")


def test_an_agent_gets_the_job_as_its_worker_knows_it_and_no_payload() -> None:
    codes = ExitCodes((0, 3), (64,), {75: timedelta(minutes=5)})
    job = Job(
        "train",
        command=("/bin/sh", "-c", "echo é | sort"),
        env={"A": "'b' \"c\" $d"},
        cwd="data",
        stdin="x\n",
        exit_codes=codes,
        timeout=timedelta(hours=6),
        kill_after=timedelta(seconds=1.5),
        output=Output(Keep.NEVER),
        on_dead="alerts.dead",
        paths=("src",),
        requires_env=("SHOP_TOKEN",),
    )
    run = ClaimedRun(
        118, "train", "k:1", None, 2, 5, '{"password": "hunter2"}', False, 120.0, "host:1:abc"
    )

    argument = spec.encode(Attempt(run, job, 0.0, 0.0), "shop")

    assert re.fullmatch("[A-Za-z0-9_-]+", argument)
    assert spec.decode(argument) == (run._replace(payload=""), job, "shop")


@pytest.mark.parametrize("argument", ["", "x", "--", "eJwDAAAAAAE", "é"])
def test_what_no_worker_has_written_is_refused_by_the_agent(argument: str) -> None:
    with pytest.raises(Refused, match="not the description of an attempt"):
        spec.decode(argument)


def test_an_agent_of_another_format_says_to_install_the_same_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = ClaimedRun(118, "train", None, None, 1, 5, "{}", False, 120.0, "host:1:abc")
    argument = spec.encode(Attempt(run, Job("train", handler="ml.train"), 0.0, 0.0), "shop")
    monkeypatch.setattr(spec, "FORMAT", spec.FORMAT + 1)

    with pytest.raises(Refused, match="install the same version on both"):
        spec.decode(argument)


def test_a_run_is_executed_by_an_agent_and_its_outcome_is_read_from_the_ticket(
    project: Project,
) -> None:
    engine(project)
    project.sync(nothing=on_engine())
    [run] = project.enqueue("nothing")

    worker = run_to_end(project)

    assert project.summary(run) == ("succeeded", 1, 1, 1, 0), worker.text
    [ticket] = tickets(project, run)
    assert ticket.ended_at is not None
    assert '"returned"' in ticket.outcome


def test_an_agent_without_a_variable_that_the_job_requires_returns_the_run_at_no_cost_and_later_each_time(
    project: Project,
) -> None:
    engine(project)
    project.sync(nothing=on_engine(requires_env=["ON_THE_CLUSTER"]))
    [run] = project.enqueue("nothing")
    delays = []

    for _ in range(2):
        project.work()
        until(lambda: project.row(run).status == "queued" or not project.work())
        assert project.summary(run) == ("queued", 0, 0, 0, 0)
        row = project.row(run)
        delays.append((row.run_at - row.updated_at).total_seconds())
        project.db.execute("update yamlsched.job_runs set run_at = now()")
    assert delays == pytest.approx([10, 20], abs=0.01)

    engine(project, "export ON_THE_CLUSTER=1\n" + EXEC)
    run_to_end(project)
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def test_progress_is_written_by_the_agent_while_the_handler_runs_and_last_with_the_outcome(
    project: Project,
) -> None:
    engine(project)
    project.sync(reports_then=on_engine(lease="1m"))
    [run] = project.enqueue("reports_then", {"then": "return"})
    worker = project.start("work")

    def reported() -> list[tuple[float, str]]:
        rows = project.db.execute(
            "select done, note from yamlsched.attempt_progress where run_id = %s", [run]
        )
        return [tuple(row) for row in rows.fetchall()]

    until(reported, "the agent writes progress")
    assert reported() == [(1.0, "attempt 1")]
    project.touch("go")

    assert worker.wait() == 0, worker.text
    apply_outcome(project, run)
    assert reported() == [(3.0, "all of it")]


@pytest.mark.slow
def test_what_handlers_do_is_the_same_on_an_executor(project: Project) -> None:
    engine(project)
    project.db.execute("create table public.ledger (run_id bigint)")
    command = ["/bin/sh", "-c", "echo $YAMLSCHED_PAYLOAD; exit 3"]
    jobs = {
        name: on_engine()
        for name in ("returns_json", "records_and_transacts", "fan_out", "fails", "discards")
    }
    jobs["discards"]["on_dead"] = "support.handlers.records_death"
    project.sync(nothing={}, backup=on_engine(command=command, max_attempts=1), **jobs)
    runs = {name: project.enqueue(name)[0] for name in jobs}
    [backup] = project.enqueue("backup", {"colour": "blue"})

    worker = run_to_end(project)

    assert project.summary(runs["returns_json"]) == ("succeeded", 1, 1, 1, 0), worker.text
    assert project.row(runs["returns_json"]).result is not None
    assert project.summary(runs["records_and_transacts"]) == ("succeeded", 1, 1, 1, 0), worker.text
    assert [row.run_id for row in project.db.execute("select run_id from public.ledger")] == [
        runs["records_and_transacts"]
    ]
    assert [row.state for row in project.db.execute("select state from yamlsched.effects")] == [
        "done"
    ]
    children = project.db.execute(
        "select status from yamlsched.job_runs where parent_id = %s", [runs["fan_out"]]
    ).fetchall()
    assert children
    assert {child.status for child in children} == {"succeeded"}
    assert project.summary(runs["fails"]) == ("dead", 2, 2, 0, 2)
    assert project.row(runs["fails"]).last_error == "no route to host"
    assert project.summary(runs["discards"]) == ("dead", 1, 1, 0, 1)
    assert project.calls("on_dead") == 1
    row = project.row(backup)
    assert (row.status, row.error_type, row.last_error) == (
        "dead",
        "exit code 3",
        '{"colour": "blue"}',
    )
    assert [output.output for output in project.outputs(backup)] == ['{"colour": "blue"}\n']
    assert f"[backup {backup}] " in worker.text
    assert f"[backup {backup}] [backup {backup}]" not in worker.text


def test_no_secret_of_yamlsched_and_no_payload_reaches_the_launcher(project: Project) -> None:
    engine(project, 'echo "$@" > "launcher arguments"; ' + EXEC)
    launch = (
        (project.folder / "launch")
        .read_text()
        .replace("export YAMLSCHED_DSN", "env > before\nexport YAMLSCHED_DSN")
    )
    (project.folder / "launch").write_text(launch)
    project.sync(measures=on_engine())
    schedule = json.loads(project.file.read_text())
    project.file.write_text(json.dumps(schedule | {"notify": {"team": {"url_env": "TEAM_URL"}}}))
    project.enqueue("measures", {"text": "hunter2"})
    own = {
        "YAMLSCHED_DSN": "postgresql://hunter3",
        "PGPASSWORD": "hunter3",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=hunter3",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/hunter3",
        "YAMLSCHED_SENTRY_DSN": "http://hunter3@127.0.0.1:1/1",
        "YAMLSCHED_HEARTBEAT_URL": "http://127.0.0.1:1/hunter3",
        "TEAM_URL": "json://127.0.0.1:1/hunter3",
    }

    run_to_end(project, **own, OTHER="passed on")

    seen = (project.folder / "before").read_text()
    assert "OTHER=passed on" in seen
    assert "hunter3" not in seen
    assert not {line.partition("=")[0] for line in seen.splitlines()} & own.keys()
    assert "hunter2" not in (project.folder / "launcher arguments").read_text()


def test_the_handler_runs_once_if_the_engine_starts_the_agent_twice(project: Project) -> None:
    engine(project, '"$@" & one=$!; "$@" & wait $one; wait')
    project.sync(nap=on_engine())
    [run] = project.enqueue("nap", {"seconds": 0.5})

    worker = run_to_end(project)

    assert project.summary(run) == ("succeeded", 1, 1, 1, 0), worker.text
    assert "attempt.not_begun" in worker.text


def test_a_result_that_the_engine_loses_after_success_is_read_from_the_ticket(
    project: Project,
) -> None:
    engine(project, LOST_AFTERWARDS)
    project.sync(nothing=on_engine())
    [run] = project.enqueue("nothing")

    run_to_end(project)

    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def test_an_agent_that_starts_after_its_claim_has_ended_does_not_call_the_handler(
    project: Project,
) -> None:
    engine(project, 'echo "$@" > command; ' + EXEC)
    project.sync(nothing=on_engine())
    [run] = project.enqueue("nothing")
    run_to_end(project)
    words = (project.folder / "command").read_text().split()

    again = project.start("attempt", words[2])

    assert again.wait() == 1
    assert project.calls("started", run) == 1
    assert len(tickets(project, run)) == 1


# fault: the script of the launcher, what is killed, part of the last error
KILLS = [
    ("handler", EXEC, "killed by signal 9 (SIGKILL)"),
    ("agent", EXEC, "lost its worker"),
    ("agent", APART, "lost its worker"),
    ("agent handed over", HANDED_OVER, "lost its worker"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "what, script, error", KILLS, ids=["handler", "agent", "agent apart", "handed over"]
)
def test_what_is_killed_on_the_engine_costs_one_attempt_and_leaves_no_handler(
    project: Project, what: str, script: str, error: str
) -> None:
    engine(project, script)
    project.sync(first_attempt_waits=on_engine(lease="5s"))
    [run] = project.enqueue("first_attempt_waits")
    project.work()
    project.until_started(run)
    handler = int((project.folder / "calls").read_text().split()[3])
    [agent] = agents(project)

    os.kill(handler if what == "handler" else agent, signal.SIGKILL)

    run_to_end(project)
    assert project.summary(run) == ("succeeded", 2, 2, 1, 1)
    assert error in project.failures(run)[0].error
    assert not is_alive(handler)


@pytest.mark.slow
def test_a_run_that_its_own_transaction_finished_stays_finished_when_the_agent_is_killed(
    project: Project,
) -> None:
    engine(project)
    project.db.execute("create table public.ledger (run_id bigint)")
    project.sync(commits_and_waits=on_engine())
    [run] = project.enqueue("commits_and_waits")
    project.work()
    until(lambda: project.calls("committed", run))

    os.kill(agents(project)[0], signal.SIGKILL)

    run_to_end(project)
    assert project.summary(run) == ("succeeded", 1, 1, 0, 0)
    assert [row.run_id for row in project.db.execute("select run_id from public.ledger")] == [run]


@pytest.mark.slow
def test_a_launcher_that_dies_alone_does_not_end_an_attempt_whose_agent_lives(
    project: Project,
) -> None:
    engine(project, APART)
    project.sync(waits_for_file=on_engine(lease="8s"))
    [run] = project.enqueue("waits_for_file")
    worker = project.start("work")
    project.until_started(run)

    os.kill(launchers(project)[0], signal.SIGKILL)
    seen = tickets(project, run)[0].seen_at
    until(
        lambda: (tickets(project, run)[0].seen_at - seen).total_seconds() > 4,
        "the agent checks its lease",
    )
    project.touch("go")

    assert worker.wait() == 0
    apply_outcome(project, run)
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def gateway_of(worker: Any) -> int:
    """Return the process id of the only child of a worker that executes nothing itself."""
    [gateway] = until(lambda: worker.children(), "the worker has a gateway")
    return int(gateway)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_gateway_that_dies_or_hangs_while_the_engine_has_not_begun_costs_nothing(
    project: Project, how: signal.Signals
) -> None:
    engine(project, 'while ! [ -e go ]; do sleep 0.01; done; exec "$@"')
    project.sync(nothing=on_engine(lease="1m"))
    [run] = project.enqueue("nothing")
    soon = "import yamlsched.extras.remote.executor as executor; executor.SILENCE_SECONDS = 2.0"
    worker = project.start("work", before=soon)
    until(lambda: launchers(project))

    gateway = gateway_of(worker)
    os.kill(gateway, how)
    until(lambda: "gateway.died" in worker.text)
    until(lambda: worker.children() not in ([], [gateway]), "another gateway")
    project.touch("go")

    assert worker.wait() == 0
    apply_outcome(project, run)
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    assert len(launchers(project)) == 1


@pytest.mark.slow
def test_a_failure_in_a_ticket_is_applied_with_the_backoff_and_the_output_that_the_database_has(
    project: Project,
) -> None:
    # given an agent whose worker and gateway are gone when its handler fails
    engine(project, 'while ! [ -e go ]; do sleep 0.01; done; exec "$@"')
    project.sync(
        nothing={},
        fails=on_engine(output={"keep": "failed"}, backoff={"policy": "fixed", "delay": "1h"}),
    )
    [run] = project.enqueue("fails")
    worker = project.start("work")
    until(lambda: launchers(project))
    gateway = gateway_of(worker)
    os.kill(worker.pid, signal.SIGSTOP)  # or it would start another gateway
    for pid in (gateway, worker.pid):
        os.kill(pid, signal.SIGKILL)
    project.touch("go")
    until(lambda: tickets(project, run) and tickets(project, run)[0].outcome)

    # when a worker finds the outcome whose file does not have the job
    project.executors = {}
    (project.folder / "schedules.yaml").write_text('{"version": 1, "jobs": {}}')
    apply_outcome(project, run)

    row = project.row(run)
    assert (row.attempts, row.last_error) == (1, "no route to host")
    assert 50 * 60 < (row.run_at - row.failed_at).total_seconds() <= 3600


def test_a_metric_counts_what_is_due_what_waits_in_the_engine_and_what_has_begun(
    project: Project,
) -> None:
    engine(project, 'while ! [ -e go ]; do sleep 0.01; done; "$@"', concurrency=2)
    project.sync(waits_for_file=on_engine(), nap={})

    def counted() -> dict[str, float]:
        lines = (
            CliRunner()
            .invoke(cli, ["metrics", "--dsn", project.dsn, "--namespace", "default"])
            .output.splitlines()
        )
        found = [line for line in lines if line.startswith("yamlsched_executor_runs{")]
        assert all('executor="engine"' in line for line in found)
        return {line.split('state="')[1].split('"')[0]: float(line.split()[-1]) for line in found}

    assert counted() == {"due": 0, "queued": 0, "begun": 0}
    project.enqueue("waits_for_file", {"name": "end"}, count=3)
    project.enqueue("nap", count=2)
    worker = project.start("work", "--loop")
    until(lambda: counted() == {"due": 1, "queued": 2, "begun": 0})
    project.touch("go")
    until(lambda: counted() == {"due": 1, "queued": 0, "begun": 2})
    project.touch("end")
    until(lambda: counted() == {"due": 0, "queued": 0, "begun": 0})
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_runs_that_wait_in_the_engine_when_their_worker_is_killed_cost_nothing_and_do_not_begin(
    project: Project,
) -> None:
    engine(project, 'while ! [ -e go ]; do sleep 0.01; done; "$@"; touch "gone $$"', concurrency=10)
    project.sync(nothing=on_engine(max_attempts=1, lease="5s"))
    runs = project.enqueue("nothing", count=4)
    worker = project.start("work")
    until(lambda: len(launchers(project)) == 4)

    for pid in (gateway_of(worker), worker.pid):
        os.kill(pid, signal.SIGKILL)
    (project.folder / "schedules.yaml").write_text('{"version": 1, "jobs": {}}')
    until(lambda: project.work() and project.statuses() == {"queued": 4})
    project.touch("go")
    until(lambda: len(list(project.folder.glob("gone *"))) == 4, "the agents have exited")

    assert {project.summary(run) for run in runs} == {("queued", 0, 0, 0, 0)}
    project.sync(nothing=on_engine(max_attempts=1))
    run_to_end(project)
    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}


@pytest.mark.slow
@pytest.mark.parametrize("script", [EXEC, APART], ids=["exec", "apart"])
def test_a_cancelled_run_is_stopped_on_the_engine_and_its_agent_hands_on_its_turn(
    project: Project, script: str
) -> None:
    engine(project, script)
    project.sync(hangs=on_engine(cron="0 2 * * *", lease="20s", output={"keep": "always"}))
    words = ("backfill", "hangs", "--from", "2026-01-14T02:00Z", "--before-first", "--yes")
    assert project.start(*words).wait() == 0
    run = project.db.execute("select id from yamlsched.job_runs").fetchone().id
    project.work()
    project.until_started(run)
    handler = int((project.folder / "calls").read_text().split()[3])

    project.start("cancel", str(run)).wait()

    until(lambda: not is_alive(handler), "the handler was stopped")
    until(lambda: project.row(run).held_until is None, "the agent has let go its turn")
    assert project.row(run).status == "cancelled"


@pytest.mark.slow
def test_the_agent_enforces_the_timeout(project: Project) -> None:
    engine(project)
    project.sync(ignores_signals=on_engine(timeout="1s", max_attempts=1))
    [run] = project.enqueue("ignores_signals")

    run_to_end(project)

    assert project.summary(run) == ("dead", 1, 1, 0, 1)
    assert project.row(run).last_error == "still running after 1s, killed"


def test_what_the_engine_has_not_begun_is_withdrawn_at_a_shutdown_and_cannot_begin_later(
    project: Project,
) -> None:
    engine(project, 'trap "" TERM; while ! [ -e go ]; do sleep 0.01; done; "$@"; touch gone')
    project.sync(nothing=on_engine())
    [run] = project.enqueue("nothing")
    worker = project.start("work")
    until(lambda: launchers(project))

    worker.signal(signal.SIGTERM)

    until(lambda: tickets(project, run))
    project.touch("go")
    assert worker.wait() == 0
    assert project.summary(run) == ("queued", 0, 0, 0, 0)


@pytest.mark.parametrize("script", [EXEC, APART, HANDED_OVER], ids=["exec", "apart", "handed over"])
@pytest.mark.parametrize("verb", ["work", "tick"])
def test_a_tick_or_a_worker_without_loop_ends_as_soon_as_the_attempt_has_begun_and_signals_nothing(
    project: Project, script: str, verb: str
) -> None:
    # given a program that prints after the worker has gone
    engine(
        project,
        script
        if script == HANDED_OVER
        else f"(while ! [ -e go ]; do sleep 0.01; done; echo a; echo b) &\n{script}",
    )
    project.sync(waits_for_file=on_engine(lease="1m"))
    [run] = project.enqueue("waits_for_file")

    worker = project.start(verb)

    assert worker.wait() == 0, worker.text
    assert f"attempt.begun job=waits_for_file run={run} executor=engine" in worker.text
    assert project.row(run).status == "running"
    assert len(agents(project)) == 1
    project.touch("go")
    apply_outcome(project, run)
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    assert len(launchers(project)) == 1


def test_a_tick_stays_until_what_it_submitted_has_begun_or_was_withdrawn(project: Project) -> None:
    engine(
        project,
        'test "$3" = ... || while ! [ -e go ]; do sleep 0.01; done; exec "$@"',
        begin_within="1h",
    )
    project.sync(nothing=on_engine(), nap={})
    [remote], [local] = project.enqueue("nothing"), project.enqueue("nap")
    worker = project.start("tick")
    project.until_status(local, "succeeded")
    assert worker.is_alive
    assert project.row(remote).status == "running"

    project.touch("go")

    assert worker.wait() == 0, worker.text
    apply_outcome(project, remote)
    assert project.summary(remote) == ("succeeded", 1, 1, 1, 0)


def test_concurrency_counts_what_has_been_claimed_and_what_has_begun_over_all_hosts_and_ticks(
    project: Project,
) -> None:
    engine(project, concurrency=3)
    project.sync(waits_for_file=on_engine(lease="1m"))
    runs = project.enqueue("waits_for_file", count=9)

    # given many ticks of several hosts at once, and one after the other
    for process in [project.start("tick", host=f"h{nth % 3}") for nth in range(6)]:
        assert process.wait() == 0, process.text
    for nth in range(3):
        assert project.start("tick", host=f"h{nth}").wait() == 0
    assert project.statuses() == {"running": 3, "queued": 6}
    assert len(launchers(project)) == 3

    # when the file is applied with a lower and with a higher number: that of the file in force counts on each host
    project.executors["engine"]["concurrency"] = 4
    project.sync(waits_for_file=on_engine(lease="1m"))
    project.work(host="h1")
    assert project.statuses() == {"running": 4, "queued": 5}
    project.executors["engine"]["concurrency"] = 1
    project.sync(waits_for_file=on_engine(lease="1m"))
    project.work(host="h2")
    assert project.statuses() == {"running": 4, "queued": 5}

    # then what has ended makes room
    project.touch("go")
    run_to_end(project)
    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}


def test_an_attempt_that_has_not_begun_in_time_is_withdrawn_and_refunded(project: Project) -> None:
    engine(project, "exec sleep 60", begin_within="1s")
    project.sync(nothing=on_engine())
    [run] = project.enqueue("nothing")

    worker = project.start("work", "--max-runs", "1")

    assert worker.wait() == 0
    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    assert 'why="it had not begun after 1s"' in worker.text
    assert not is_alive(launchers(project)[0])


def test_a_job_that_is_paused_before_the_engine_starts_it_does_not_begin_and_costs_nothing(
    project: Project,
) -> None:
    engine(project, 'while ! [ -e go ]; do sleep 0.01; done; exec "$@"')
    project.sync(nothing=on_engine())
    [run] = project.enqueue("nothing")
    worker = project.start("work")
    until(lambda: launchers(project))

    assert project.start("pause", "nothing", "--reason", "test").wait() == 0
    project.touch("go")

    assert worker.wait() == 0
    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    assert (
        'why="its job was paused, disabled or retired before the engine started it"' in worker.text
    )
    assert project.start("resume", "nothing").wait() == 0
    run_to_end(project)
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def test_an_attempt_that_has_begun_finishes_when_its_job_is_paused(project: Project) -> None:
    engine(project)
    project.sync(waits_for_file=on_engine())
    [run] = project.enqueue("waits_for_file")
    worker = project.start("work")
    project.until_started(run)

    assert project.start("pause", "waits_for_file", "--reason", "test").wait() == 0
    project.touch("go")

    assert worker.wait() == 0
    apply_outcome(project, run)
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def test_what_a_program_prints_is_no_event_of_the_worker(project: Project) -> None:
    forged = (
        '{"at": "2026-01-14T02:00:00Z", "level": "error", "event": "run.dead", "job": "payroll"}'
    )
    of_other = '{"at": "2026-01-14T02:00:00Z", "level": "info", "event": "attempt.returned", "job": "payroll", "run": 9}'
    engine(project, f"echo '{forged}'; echo '{of_other}'; {EXEC}")
    project.sync(nothing=on_engine())
    [run] = project.enqueue("nothing")

    worker = run_to_end(project, "--log-format", "json")

    events = [json.loads(line) for line in worker.text.splitlines()]
    assert [event["line"] for event in events if event["event"] == "run.output"] == [forged]
    returned = [
        (event["job"], event["run"]) for event in events if event["event"] == "attempt.returned"
    ]
    assert returned == [("nothing", run)]  # an agent's event can only be one of its own run
    assert "run.dead" not in [event["event"] for event in events]
    assert project.row(run).status == "succeeded"


def test_an_executor_that_is_full_does_not_hold_up_local_jobs(project: Project) -> None:
    engine(project, concurrency=1)
    project.sync(waits_for_file=on_engine(), nothing={})
    remote, local = project.enqueue("waits_for_file", count=3), project.enqueue("nothing", count=5)
    worker = project.start("work", "--loop")

    for run in local:
        project.until_status(run, "succeeded")
    until(lambda: project.calls("started") == 6)
    assert project.statuses() == {"succeeded": 5, "running": 1, "queued": 2}
    project.touch("go")
    for run in remote:
        project.until_status(run, "succeeded")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert {project.summary(run) for run in remote} == {("succeeded", 1, 1, 1, 0)}


@pytest.mark.slow
def test_an_agent_that_cannot_reach_the_database_stops_its_handler_before_the_lease_ends(
    project: Project,
) -> None:
    with a_proxy(project.dsn) as proxy:
        engine(project)
        launch = project.folder / "launch"
        launch.write_text(
            launch.read_text().replace(shlex.quote(project.dsn), shlex.quote(proxy.dsn))
        )
        project.sync(first_attempt_waits=on_engine(lease="5s"))
        [run] = project.enqueue("first_attempt_waits")
        project.work()
        project.until_started(run)
        handler = int((project.folder / "calls").read_text().split()[3])

        proxy.is_silent = True
        until(lambda: not is_alive(handler), "the handler was stopped")
        proxy.is_silent = False

        run_to_end(project)
        assert project.summary(run) == ("succeeded", 2, 2, 1, 1)
        error = project.failures(run)[0].error
        assert "could not check its lease" in error or "lost its worker" in error


def test_a_loop_follows_executors_that_are_added_to_the_file(project: Project) -> None:
    project.sync(nothing={})
    worker = project.start("work", "--loop")
    project.until_status(project.enqueue("nothing")[0], "succeeded")

    engine(project)
    project.sync(nothing=on_engine())
    worker.signal(signal.SIGHUP)
    until(lambda: "worker.reloading" in worker.text)
    [run] = project.enqueue("nothing")
    row = until(lambda: project.row(run).status == "succeeded" and project.row(run))

    assert row.attempts == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "gateway.died" not in worker.text


@pytest.mark.slow
def test_doctor_starts_an_agent_on_each_executor_and_reports_what_it_finds(
    project: Project,
) -> None:
    engine(project)
    broken = {"type": "command", "command": ["/bin/sh", "-c", "echo no route to host; exit 255"]}
    project.executors["broken"] = broken
    project.sync(nothing=on_engine(), missing=on_engine(handler="support.handlers.missing"))

    def reported() -> dict[str, str]:
        process = project.start("doctor", "--path", str(TESTS))
        assert process.wait() == 1
        lines = (project.folder / f"out-{project.number}").read_text().splitlines()
        return {
            line[6:].split("  ")[0]: line
            for line in lines
            if line.startswith(("ok", "warn", "fail"))
        }

    found = reported()
    assert "1 of 2 handlers cannot be imported" in found["executor engine"]
    assert found["executor broken"].endswith("no answer, exit code 255: no route to host")

    project.sync(nothing=on_engine())
    assert found["executor engine"].startswith("fail")
    assert reported()["executor engine"].startswith("ok")


@pytest.mark.slow
def test_doctor_reports_code_that_differs_on_the_engine(project: Project) -> None:
    engine(project, 'cd there && exec "$@"')
    (project.folder / "there").mkdir()
    (project.folder / "tasks.py").write_text("def run(): pass")
    (project.folder / "there" / "tasks.py").write_text("def run(): return 1")
    project.sync(task=on_engine(handler="tasks.run"))

    def reported() -> str:
        project.start("doctor").wait()
        lines = (project.folder / f"out-{project.number}").read_text().splitlines()
        return next(line for line in lines if "executor engine" in line)

    found = reported()
    assert found.startswith("warn")
    assert "the code of 1 of 1 handler differs from that of this host: tasks is " in found
    shutil.copy(project.folder / "tasks.py", project.folder / "there")
    assert reported().startswith("ok")
