"""A host claims only what it can start, whichever host applied the file."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.project import ForkServer, Project, until
from yamlsched.cli import cli

pytestmark = pytest.mark.story

LATER = "interval '11 minutes'"


@pytest.fixture
def hosts(own_dsn: str, tmp_path: Path) -> Iterator[tuple[Project, Project]]:
    """Yield two hosts, each with a host name and a folder of its own, and one database."""
    projects, servers = [], []
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        servers.append(ForkServer(["unshare", "--uts"], [f"host-{name}"]))
        projects.append(Project(servers[-1], folder, own_dsn))
    try:
        yield projects[0], projects[1]
    finally:
        for project, server in zip(projects, servers, strict=True):
            server.kill(project.pids)
            project.close()
            server.close()


def write(*hosts: Project, **jobs: dict[str, Any]) -> None:
    for host in hosts:
        host.file.write_text(json.dumps({"version": 1, "jobs": jobs}))


def install(host: Project, name: str = "program") -> None:
    program = host.folder / name
    program.write_text("#!/bin/sh\nhostname\n")
    program.chmod(0o755)


def tick(host: Project, code: int = 0, **env: str) -> str:
    process = host.start("tick", **env)
    assert process.wait() == code, process.text
    return process.text


def verb(host: Project, *words: str) -> str:
    result = CliRunner().invoke(cli, [*words, "--dsn", host.dsn, "--namespace", "default"])
    return result.output


def missing(host: Project) -> list[tuple[str, str]]:
    rows = host.db.execute(
        "select distinct s.host, j.job, j.why ->> 'reason' as reason"
        " from yamlsched.queue_servers s, jsonb_each(s.cannot_start) j (job, why) order by 1, 3"
    ).fetchall()
    return [(row.host, row.reason) for row in rows]


MISSING = {
    "program": ({"command": ["./program"]}, '"./program" does not exist or cannot be reached'),
    "program in PATH": ({"command": ["program"]}, 'there is no program "program" in PATH'),
    "directory": (
        {"command": ["/bin/hostname"], "cwd": "place"},
        '"place" is not a directory that this user can enter',
    ),
    "module": (
        {"handler": "shop.run"},
        'no module "shop" in paths, next to this file or installed',
    ),
}


def give(host: Project, what: str) -> dict[str, str]:
    """Give a host what is missing on the other one; return the variables of its ticks."""
    install(host)
    (host.folder / "place").mkdir()
    (host.folder / "shop.py").write_text("def run(): ...\n")
    return {"PATH": f"{host.folder}:/usr/bin:/bin"} if what == "program in PATH" else {}


def test_a_host_that_can_start_none_of_many_jobs_logs_some_names_and_how_many_more(
    hosts: tuple[Project, Project],
) -> None:
    one, two = hosts
    names = [f"job_{number:02}" for number in range(12)]
    write(one, two, **{name: {"command": ["./program"]} for name in names})
    install(one)
    tick(one)
    one.enqueue(names[0])

    text = tick(two)

    assert f"jobs={','.join(names[:10])},+2 " in text


@pytest.mark.parametrize("what", MISSING)
def test_a_job_is_left_to_the_host_that_can_start_it_whichever_ticks_first(
    hosts: tuple[Project, Project], what: str
) -> None:
    # given a file that a host has applied which can start its job, and one that cannot, with the same file
    one, two = hosts
    job, reason = MISSING[what]
    write(one, two, job={**job, "max_attempts": 5})
    env = give(one, what)
    tick(one, **env)

    # when the host that cannot start it ticks first
    [first] = one.enqueue("job")
    text = tick(two)

    # then the run waits, the host says why, and no attempt is charged
    assert one.summary(first)[:2] == ("queued", 0)
    [(host, stored)] = missing(one)
    assert (host, stored) == ("host-two", reason)
    assert "jobs.not_startable" in text
    found = f"host-two:{two.file} cannot start job job: {reason}"
    assert found in verb(one, "status")
    assert verb(one, "status", "--check").startswith("ok")  # for another host can

    # and the other host executes it
    tick(one, **env)
    assert one.summary(first)[:2] == ("succeeded", 1)

    # in the other order, too, and what is known is not logged again
    [second] = one.enqueue("job")
    tick(one, **env)
    [third] = one.enqueue("job")
    assert "jobs.not_startable" not in tick(two)
    tick(one, **env)
    assert [one.summary(run)[:2] for run in (second, third)] == [("succeeded", 1)] * 2
    assert one.failures(first) == []


def test_a_host_whose_own_file_was_refused_leaves_the_job_once_another_host_has_applied_it(
    hosts: tuple[Project, Project],
) -> None:
    one, two = hosts
    write(one, two, job={"command": ["./program"]})
    install(one)
    tick(one)
    tick(two)
    write(one, two, job={"command": ["./program"], "description": "edited"})

    [run] = one.enqueue("job")
    assert "sync.refused" in tick(two, code=1)
    tick(one)
    assert one.summary(run)[:2] == ("succeeded", 1)
    [run] = one.enqueue("job")
    tick(two)
    assert one.summary(run)[:2] == ("queued", 0)
    tick(one)
    assert one.summary(run)[:2] == ("succeeded", 1)


def test_a_run_that_no_host_can_start_waits_and_the_reason_is_shown(
    hosts: tuple[Project, Project],
) -> None:
    one, two = hosts
    write(one, two, job={"command": ["./program"]})
    install(one)
    tick(one)
    tick(two)
    (one.folder / "program").unlink()
    [run] = one.enqueue("job")

    tick(one)
    tick(two)

    assert one.summary(run)[:2] == ("queued", 0)
    assert "no host can start job" in verb(one, "status", "--check")
    assert "no host can start job" in verb(one, "report")

    # and the host that gets it executes the run
    install(two)
    tick(two)
    assert one.summary(run)[:2] == ("succeeded", 1)
    assert missing(one) == [("host-one", '"./program" does not exist or cannot be reached')]


def test_a_reason_that_stays_keeps_the_time_since_when_it_is_known(
    hosts: tuple[Project, Project],
) -> None:
    one, _ = hosts
    write(one, job={"command": ["./program"]})
    install(one)
    tick(one)
    (one.folder / "program").unlink()
    one.enqueue("job")
    since = "select s.cannot_start from yamlsched.queue_servers s where s.cannot_start <> '{}'"

    assert "jobs.not_startable" in tick(one)
    first = one.db.execute(since.encode()).fetchone()
    assert "jobs.not_startable" not in tick(one)

    assert one.db.execute(since.encode()).fetchone() == first


def test_a_host_that_has_stopped_ticking_or_whose_file_is_refused_is_no_host_that_can(
    hosts: tuple[Project, Project],
) -> None:
    one, two = hosts
    write(one, two, job={"command": ["./program"]})
    install(one)
    tick(one)
    tick(two)
    one.enqueue("job")
    tick(two)
    assert verb(one, "status", "--check").startswith("ok")

    # given the one that can has stopped
    until = (
        "queues = jsonb_set(queues, '{*,until}', to_jsonb(now() + %s)), expected_until = now() + %s"
    )
    stopped = f"update yamlsched.hosts set {until}%s where host = 'host-one'"
    one.db.execute((stopped % ("'0'::interval", "'0'::interval", "")).encode())
    assert "host-one, which can start it, last ticked" in verb(one, "status", "--check")

    # or has an invalid file
    hour, refused = "interval '1 hour'", ", refused_at = now(), errors = '{x}'"
    one.db.execute((stopped % (hour, hour, refused)).encode())
    assert "no host can start job" in verb(one, "status", "--check")


def test_a_run_waits_for_a_host_with_the_variables_that_its_job_requires_and_never_dies(
    hosts: tuple[Project, Project],
) -> None:
    one, two = hosts
    write(
        one,
        two,
        job={
            "command": ["/bin/hostname"],
            "requires_env": ["SHOP_TOKEN", "SHOP_URL"],
            "max_attempts": 1,
        },
    )
    tick(one)
    [run] = one.enqueue("job")
    tick(one, SHOP_URL="x")
    tick(two)
    assert missing(one) == [
        ("host-one", "the variable SHOP_TOKEN is not set"),
        ("host-two", "the variables SHOP_TOKEN, SHOP_URL are not set"),
    ]
    tick(one, SHOP_URL="x")
    tick(two)
    assert one.summary(run)[:2] == ("queued", 0)

    tick(two, SHOP_TOKEN="t", SHOP_URL="x")

    assert one.summary(run)[:2] == ("succeeded", 1)
    assert [host for host, _ in missing(one)] == ["host-one"]


def test_a_worker_that_waits_starts_a_job_once_its_program_is_installed(
    hosts: tuple[Project, Project],
) -> None:
    one, two = hosts
    write(one, two, job={"command": ["./program"]}, other={"command": ["/bin/true"]})
    install(one)
    tick(one)
    worker = two.start("work", "--loop")
    [run] = one.enqueue("job")
    [other] = one.enqueue("other")
    two.until_status(other, "succeeded")
    assert one.summary(run)[:2] == ("queued", 0)

    install(two)
    worker.signal(signal.SIGHUP)  # what it does each minute, now

    two.until_status(run, "succeeded")
    until(lambda: missing(one) == [], "nothing is missing")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


WEB2 = {"web2": {"dedicated": True}}


def write_queues(*hosts: Project, **jobs: dict[str, Any]) -> None:
    for host in hosts:
        host.file.write_text(json.dumps({"version": 1, "queues": WEB2, "jobs": jobs}))


def test_two_lines_of_a_crontab_report_what_they_cannot_start_side_by_side(
    hosts: tuple[Project, Project],
) -> None:
    one, _ = hosts
    install(one)
    web2 = {"command": ["./program"], "queue": "web2"}
    write_queues(one, plain={"command": ["./program"]}, web2=web2)
    tick(one)
    (one.folder / "program").unlink()
    one.enqueue("plain")
    one.enqueue("web2")

    for _ in range(2):
        for queue in ("default", "web2"):
            process = one.start("tick", "--queue", queue)
            assert process.wait() == 0, process.text

    reason = '"./program" does not exist or cannot be reached'
    assert missing(one) == [("host-one", reason)] * 2
    problems = verb(one, "status", "--check")
    assert f"no host can start job plain: {reason}" in problems
    assert f"no host can start job web2: {reason}" in problems
    assert "jobs.not_startable" not in process.text  # said once


def test_a_place_that_does_not_serve_a_queue_is_none_that_can_start_its_jobs(
    hosts: tuple[Project, Project],
) -> None:
    one, two = hosts
    install(one)
    write_queues(one, two, web2={"command": ["./program"], "queue": "web2"})
    tick(one)
    [run] = one.enqueue("web2")

    assert two.start("tick", "--queue", "web2").wait() == 0

    assert "no host can start job web2" in verb(one, "status", "--check")
    sentence = f'host-two:{two.file} cannot start job web2: "./program" does not exist or cannot be reached'
    assert sentence in verb(one, "why", "web2")
    assert sentence in verb(one, "show", str(run))


def test_what_a_started_worker_cannot_start_is_in_its_row_and_reported(
    hosts: tuple[Project, Project],
) -> None:
    one, two = hosts
    install(one)
    write_queues(one, two, web2={"command": ["./program"], "queue": "web2"})
    tick(one)
    [run] = one.enqueue("web2")

    worker = two.start("work", "--queue", "web2", "--worker", "node-1", "--idle-exit", "1h")
    until(lambda: missing(one), "the worker has come")

    reason = '"./program" does not exist or cannot be reached'
    assert missing(one) == [("host-two", reason)]
    assert "no host can start job web2" in verb(one, "status", "--check")
    sentence = f"host-two:{two.file} cannot start job web2: {reason}"
    for words in (("status",), ("why", "web2"), ("show", str(run))):
        assert sentence in verb(one, *words)
    assert one.db.execute("select count(*) from yamlsched.hosts").fetchone() == (1,)

    # and once it can, it executes the run, and its row is empty with its next report
    install(two)
    worker.signal(signal.SIGHUP)
    two.until_status(run, "succeeded")
    until(lambda: missing(one) == [], "nothing is missing")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
