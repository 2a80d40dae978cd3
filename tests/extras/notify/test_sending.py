"""Messages that real ticks and loops send to real receivers, and what becomes of them where these answer badly."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from support.monitoring import Service, service
from support.project import Process, Project, a_project, until
from yamlsched.extras.notify import sending

pytestmark = pytest.mark.story

TOKEN = "token-4f1c9a"
PATIENTLY = "import yamlsched.extras.notify.sending as s; s.MAX_SECONDS = s.MAX_LOOP_SECONDS = 60.0"
JOB: dict[str, Any] = {"max_attempts": 1, "notify": ["ops"], "owner": "team-x"}


@pytest.fixture
def receiver() -> Iterator[Service]:
    with service() as found:
        yield found


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        project.notify = {"ops": {"url_env": "OPS_URL"}}
        yield project


def address(receiver: Service, path: str = TOKEN) -> str:
    """Return Apprise's address of the receiver: a POST of JSON."""
    return receiver.url.replace("http:", "json:") + f"/{path}"


def messages(receiver: Service) -> list[dict[str, str]]:
    return [json.loads(request.body) for request in receiver.requests]


def start(project: Project, *words: str, **env: str) -> Process:
    """Start a command with more time for sending: on a busy machine, to import Apprise takes seconds."""
    return project.start(*words, before=PATIENTLY, **env)


def tick(project: Project, **env: str) -> Process:
    process = start(project, "tick", **env)
    assert process.wait() in (0, 1), process.text
    return process


def errors(project: Project) -> list[str | None]:
    return [
        row.error
        for row in project.db.execute("select error from yamlsched.notify_targets order by name")
    ]


def next_minute(project: Project) -> None:
    project.db.execute("update yamlsched.notify_targets set next_at = now()")


def everything_stored(project: Project) -> str:
    """Return all rows of all tables as one string."""
    tables = project.db.execute(
        "select tablename from pg_tables where schemaname = 'yamlsched'"
    ).fetchall()
    rows = (
        project.db.execute(f"select t::text from yamlsched.{table} t".encode())
        for (table,) in tables
    )
    return "\n".join(text for found in rows for (text,) in found)


def test_a_tick_tells_of_a_death_and_a_later_one_of_the_recovery(
    project: Project, receiver: Service
) -> None:
    project.sync(fails_once=JOB | {"cron": "* * * * *"}, nothing={})
    slot = "2026-01-14T02:00Z"
    env = {"OPS_URL": address(receiver), "YAMLSCHED_WEB_URL": "https://jobs.example.com/"}
    project.db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, scheduled_for, "
        "queue, exclusive, idempotency_key) select namespace, id, job_type, now(), 1, %s, queue, true, 'a' "
        "from yamlsched.job_definitions where job_type = 'fails_once'",
        [slot],
    )
    project.db.execute(
        "update yamlsched.job_definitions set next_slot_at = now() + interval '1 day' where schedule <> ''"
    )

    tick(project, **env)

    [message] = messages(receiver)
    assert message["type"] == "failure"
    assert message["title"] == "[default] fails_once: 1 run died"
    lines = message["message"].splitlines()
    assert lines[0] == "job fails_once, owner team-x"
    assert re.fullmatch(r"run 1 on \S+: \w+: .*", lines[1])
    assert lines[2:4] == ["yamlsched show 1", "yamlsched retry 1"]
    assert lines[-2:] == ["namespace default", "https://jobs.example.com/jobs/fails_once"]

    assert project.start("retry", "1").wait() == 0
    next_minute(project)
    tick(project, **env)
    assert messages(receiver)[1]["title"] == "[default] fails_once has recovered"
    assert messages(receiver)[1]["type"] == "success"
    tick(project, **env)
    assert len(receiver.requests) == 2


def test_a_death_is_told_when_it_happens_and_not_when_the_tick_ends(
    project: Project, receiver: Service
) -> None:
    project.sync(fails=JOB, waits_for_file={})
    project.enqueue("waits_for_file")
    project.enqueue("fails")

    process = start(project, "tick", OPS_URL=address(receiver))

    until(lambda: receiver.requests, "a message")
    assert process.is_alive
    project.touch("go")
    assert process.wait() == 1
    assert len(receiver.requests) == 1


def test_the_address_is_in_no_table_log_output_command_line_or_environment_of_a_command(
    project: Project, receiver: Service
) -> None:
    env = {"OPS_URL": address(receiver), "SHOWN": "shown-7d1"}
    project.sync(
        leaks=JOB
        | {
            "command": ["/bin/sh", "-c", "env; echo $OPS_URL; exit 1"],
            "output": {"keep": "always"},
        },
        fails=JOB,
    )
    receiver.may_answer.clear()
    for name in ("leaks", "fails"):
        project.enqueue(name)
    process = start(project, "tick", "-vv", **env)
    until(lambda: receiver.requests, "a message")
    lines = [
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.is_dir()
    ]
    assert TOKEN.encode() not in b"\n".join(lines)
    receiver.may_answer.set()
    process.wait()
    receiver.answers[f"/{TOKEN}"] = (500, "")
    next_minute(project)
    project.enqueue("fails")
    project.db.execute("update yamlsched.notifications set quiet_until = now()")
    failing = tick(project, **env)
    status = project.start("status", "--check", **env)
    assert status.wait() == 1

    assert "HTTP 500" in failing.text
    stored = everything_stored(project)
    assert "shown-7d1" in stored  # what the command printed
    printed = "".join(
        path.read_text("utf-8", "replace")
        for path in project.folder.glob("*-[0-9]*")
        if path.is_file()
    )
    assert "have failed since" in printed
    for text in (stored, printed):
        assert TOKEN not in text
        assert receiver.url.removeprefix("http://") not in text


@pytest.mark.parametrize(
    ("status", "error"),
    [(204, None), (307, "HTTP 307"), (500, "HTTP 500")],
)
def test_what_a_receiver_answers_decides_whether_the_message_was_sent(
    project: Project, receiver: Service, status: int, error: str | None
) -> None:
    project.sync(fails=JOB)
    project.enqueue("fails")
    with service() as other:
        receiver.answers[f"/{TOKEN}"] = (
            status,
            f"{other.url}/elsewhere" if status // 100 == 3 else "",
        )

        tick(project, OPS_URL=address(receiver))

        assert errors(project) == [error]
        assert len(receiver.requests) == 1
        assert not other.requests


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("nonsense", "it is not an address that Apprise knows"),
        ("json://127.0.0.1:1/secret", "the service has not accepted the message"),
        (
            "mailto://127.0.0.1:1?from=a@example.com&to=b@example.com",
            "the service has not accepted the message",
        ),
    ],
)
def test_an_address_that_leads_nowhere_is_an_error_of_the_target_alone(
    project: Project, url: str, error: str
) -> None:
    project.notify["other"] = {"url_env": "OPS_URL"}
    project.sync(fails=JOB, nothing={})
    project.enqueue("fails")
    [run] = project.enqueue("nothing")

    process = tick(project, OPS_URL=url)

    assert errors(project) == [error, None] or errors(project) == [None, error]
    assert project.row(run).status == "succeeded"
    assert "Traceback" not in process.text


def test_a_receiver_that_hangs_does_not_hold_up_the_tick_or_other_targets(
    project: Project, receiver: Service
) -> None:
    project.notify["other"] = {"url_env": "OTHER_URL"}
    project.sync(fails=JOB | {"notify": ["ops", "other"]})
    project.enqueue("fails")
    receiver.may_answer.clear()
    with service() as other:
        env = {"OPS_URL": address(receiver), "OTHER_URL": address(other)}
        process = project.start("tick", before=PATIENTLY.replace("60", "20"), **env)

        assert process.wait() == 1  # while the receiver still hangs
        receiver.may_answer.set()

        assert len(other.requests) == 1
        [error, none] = errors(project)
        assert none is None
        assert error is not None
        assert error.startswith(("no answer within", "the service has not accepted"))


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(envelope.content.decode("utf-8", "replace"))
        return "250 OK"


def test_a_message_is_a_mail_with_its_title_as_subject(project: Project) -> None:
    project.sync(fails=JOB)
    project.enqueue("fails", {"text": "<b>no route</b> to <!channel> @everyone\nsecond line"})
    mailbox = Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        tick(
            project,
            OPS_URL=f"mailto://127.0.0.1:{port}?from=jobs@example.com&to=ops@example.com&format=text",
        )
    finally:
        controller.stop()

    [mail] = mailbox.mails
    assert "Subject: [default] fails: 1 run died" in mail
    assert errors(project) == [None]


def test_what_jobs_print_and_raise_calls_nobody_and_adds_no_lines(
    project: Project, receiver: Service
) -> None:
    project.sync(fails=JOB)
    text = "<!channel> @everyone @here \x1b[31mred\nforged line\u202e " + "x" * 5000
    project.enqueue("fails", {"text": text})

    tick(project, OPS_URL=address(receiver))

    [message] = messages(receiver)
    assert len(message["title"]) + len(message["message"]) <= 1000
    assert "<!channel>" not in message["message"]
    assert "@everyone" not in message["message"]
    assert all(line.isprintable() for line in message["message"].splitlines())
    assert not any(line.startswith("forged") for line in message["message"].splitlines())


def test_forty_jobs_that_die_on_three_hosts_are_two_messages(
    project: Project, receiver: Service
) -> None:
    names = [f"job_{nth:02d}" for nth in range(40)]
    project.sync(**{name: JOB | {"handler": "support.handlers.fails"} for name in names})
    env = {"OPS_URL": address(receiver)}
    hosts = [start(project, "work", "--loop", host=host, **env) for host in "abc"]
    for name in names:
        project.enqueue(name)

    until(lambda: project.statuses() == {"dead": 40}, "all are dead")
    until(lambda: receiver.requests, "a message")
    for host in hosts:
        host.signal(signal.SIGTERM)
    for host in hosts:
        assert host.wait() == 0
    assert len(receiver.requests) == 1
    first = messages(receiver)[0]
    next_minute(project)
    tick(project, **env)

    told = "\n".join(f"{one['title']}\n{one['message']}" for one in messages(receiver))
    assert len(receiver.requests) == 2 if "40 dead" not in first["title"] else 1
    counted = [int(found) for found in re.findall(r"\] (\d+) dead", told)]
    singles = len(re.findall(r"\] job_\d\d: 1 run died", told))
    assert sum(counted) + singles == 40


def test_a_run_that_lost_its_worker_is_told_by_who_finds_it(
    project: Project, receiver: Service
) -> None:
    project.sync(hangs=JOB)
    [run] = project.enqueue("hangs")
    worker = project.start("work")
    project.until_started(run)
    worker.signal(signal.SIGKILL)
    worker.wait()
    project.end_leases()

    tick(project, OPS_URL=address(receiver))

    [message] = messages(receiver)
    assert "LostWorker" in message["message"]


FAILS_AGAIN = JOB | {"max_attempts": 2, "backoff": {"policy": "fixed", "delay": "1h"}}


def test_a_run_with_one_attempt_left_is_failing_when_its_attempt_fails(
    project: Project, receiver: Service
) -> None:
    project.sync(fails=FAILS_AGAIN)
    project.enqueue("fails")

    tick(project, OPS_URL=address(receiver))

    [message] = messages(receiver)
    assert message["title"] == "[default] fails: is failing"
    assert "yamlsched show 1" in message["message"].splitlines()


def test_a_run_with_one_attempt_left_is_failing_when_its_worker_is_lost(
    project: Project, receiver: Service
) -> None:
    project.sync(hangs=FAILS_AGAIN)
    [run] = project.enqueue("hangs")
    worker = project.start("work")
    project.until_started(run)
    worker.signal(signal.SIGKILL)
    worker.wait()
    project.end_leases()

    loop = start(project, "work", "--loop", OPS_URL=address(receiver))

    until(lambda: receiver.requests, "a message")
    assert messages(receiver)[0]["title"] == "[default] hangs: is failing"
    assert "LostWorker" in messages(receiver)[0]["message"]
    assert loop.is_alive


def test_a_message_goes_where_the_file_says_and_not_where_the_database_does(
    project: Project, receiver: Service
) -> None:
    project.sync(fails=JOB)
    project.enqueue("fails")
    project.db.execute("update yamlsched.notify_targets set url_env = 'STRANGE_URL'")
    with service() as other:
        tick(project, OPS_URL=address(receiver), STRANGE_URL=address(other))

        assert not other.requests
    assert len(receiver.requests) == 1


def test_two_workers_that_see_the_same_death_send_one_message(
    project: Project, receiver: Service
) -> None:
    # given two hosts that look for lost workers, and may both send
    project.sync(hangs=JOB)
    [run] = project.enqueue("hangs")
    worker = project.start("work")
    project.until_started(run)
    hosts = [
        start(project, "work", "--loop", host=host, OPS_URL=address(receiver)) for host in "ab"
    ]

    # when the worker of a run dies
    worker.signal(signal.SIGKILL)
    worker.wait()
    project.end_leases()
    project.until_status(run, "dead")
    until(lambda: receiver.requests, "a message")

    # then one of them has sent, and nothing is left to send
    for host in hosts:
        host.signal(signal.SIGTERM)
    for host in hosts:
        assert host.wait() == 0, host.text
    next_minute(project)
    tick(project, OPS_URL=address(receiver))
    assert [message["title"] for message in messages(receiver)] == ["[default] hangs: 1 run died"]


def test_a_host_without_the_variable_notes_what_another_host_sends(
    project: Project, receiver: Service
) -> None:
    project.sync(fails=JOB)
    project.enqueue("fails")
    tick(project)
    assert not receiver.requests

    tick(project, OPS_URL=address(receiver))  # nothing else is due: a message makes the tick busy

    assert len(receiver.requests) == 1


def test_a_loop_goes_on_telling_after_all_its_sessions_were_cut(
    project: Project, receiver: Service
) -> None:
    project.sync(fails=JOB, nothing={})
    loop = start(project, "work", "--loop", OPS_URL=address(receiver))
    [run] = project.enqueue("nothing")
    project.until_status(run, "succeeded")

    project.db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    project.enqueue("fails")

    until(lambda: receiver.requests, "a message")
    assert loop.is_alive


def test_a_worker_that_ends_in_the_moment_in_which_a_message_was_sent_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> bool:
        # given a helper that ends just before the worker does
        async def sent(*_: object) -> float:
            asyncio.get_running_loop().call_soon(task.cancel)
            return 0.1

        monkeypatch.setattr(sending, "_send_in_helper", sent)
        monkeypatch.setattr(sending, "own_variables", lambda jobs: {"OPS_URL": "ops"})
        workload = SimpleNamespace(jobs={}, dsn="", namespace="default")
        worker: Any = SimpleNamespace(
            report=SimpleNamespace(dead_count=0), is_continuous=True, workload=workload
        )

        # when it waits for its companion
        task = asyncio.create_task(sending.send_continually(worker))
        await asyncio.wait([task], timeout=10)
        return task.cancelled()

    assert asyncio.run(story())
