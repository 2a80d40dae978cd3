"""Heartbeats that a real HTTP server receives from ticks and jobs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Cli, command_line
from support.monitoring import Service, service
from support.project import a_project, until
from yamlsched.extras.monitors import targets

HANDLERS = "def well(run): pass\n\n\ndef ill():\n    raise RuntimeError('no route to host')\n"
VALID = """version: 1
jobs:
  well: {handler: jobs.well}
  ill: {handler: jobs.ill, max_attempts: 1, on_dead: [page]}
  page: {handler: jobs.well}
  exits: {command: [/bin/sh, -c, exit 3], max_attempts: 1}
"""


@pytest.fixture
def monitor() -> Iterator[Service]:
    with service() as found:
        yield found


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    (tmp_path / "jobs.py").write_text(HANDLERS)
    (tmp_path / "schedules.yaml").write_text(VALID)
    return command_line(dsn, monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize(
    ("url", "start", "success", "fail", "exit_code"),
    [
        (
            "https://hc/id",
            "https://hc/id/start",
            "https://hc/id",
            "https://hc/id/fail",
            "https://hc/id/3",
        ),
        (
            "https://hc/id/",
            "https://hc/id/start",
            "https://hc/id/",
            "https://hc/id/fail",
            "https://hc/id/3",
        ),
        (
            "http://hc/a?rid=1",
            "http://hc/a/start?rid=1",
            "http://hc/a?rid=1",
            "http://hc/a/fail?rid=1",
            "http://hc/a/3?rid=1",
        ),
        (
            "https://cronitor.link/p/key/job",
            "https://cronitor.link/p/key/job?state=run",
            "https://cronitor.link/p/key/job?state=complete",
            "https://cronitor.link/p/key/job?state=fail",
            "https://cronitor.link/p/key/job?state=fail&status_code=3",
        ),
        (
            "https://cronitor.link/p/key/job?env=prod",
            "https://cronitor.link/p/key/job?env=prod&state=run",
            "https://cronitor.link/p/key/job?env=prod&state=complete",
            "https://cronitor.link/p/key/job?env=prod&state=fail",
            "https://cronitor.link/p/key/job?env=prod&state=fail&status_code=3",
        ),
        (
            "https://uptime.betterstack.com/api/v1/heartbeat/x",
            None,
            "https://uptime.betterstack.com/api/v1/heartbeat/x",
            "https://uptime.betterstack.com/api/v1/heartbeat/x/fail",
            "https://uptime.betterstack.com/api/v1/heartbeat/x/3",
        ),
        (
            "https://notcronitor.link/x",
            "https://notcronitor.link/x/start",
            *["https://notcronitor.link/x" + end for end in ("", "/fail", "/3")],
        ),
    ],
)
def test_each_service_gets_its_states_in_its_own_way(
    url: str, start: str | None, success: str, fail: str, exit_code: str
) -> None:
    requests = [
        targets.request("X", url, state)
        for state in (targets.START, targets.SUCCESS, targets.FAIL, "3")
    ]

    assert [request and request.url for request in requests] == [start, success, fail, exit_code]


def test_variables_without_a_url_are_ignored_and_white_space_around_one_too() -> None:
    environ = {
        "YAMLSCHED_HEARTBEAT_URL": " http://a/b\n",
        "YAMLSCHED_HEARTBEAT_URL_EMPTY": " ",
        "OTHER": "http://c",
    }

    assert targets.urls(environ) == {"YAMLSCHED_HEARTBEAT_URL": "http://a/b"}


def test_a_tick_sends_heartbeats_for_itself_and_for_the_jobs_that_it_executed(
    monitor: Service, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("", "_WELL", "_ILL", "_EXITS"):
        monkeypatch.setenv(f"YAMLSCHED_HEARTBEAT_URL{name}", f"{monitor.url}/{name}")

    # an idle tick
    assert cli("tick").code == 0
    assert monitor.received == ["/"]

    # one with a success
    monitor.requests.clear()
    cli("enqueue", "well")
    assert cli("tick").code == 0
    assert monitor.received.count("/") == 1
    assert list(dict.fromkeys(path for path in monitor.received if path != "/")) == [
        "/_WELL/start",
        "/_WELL",
    ]

    # one with a run that dies, whose hook succeeds
    monitor.requests.clear()
    cli("enqueue", "ill")
    assert cli("tick").code == 1
    assert list(dict.fromkeys(path for path in monitor.received if path != "/fail")) == [
        "/_ILL/start",
        "/_ILL/fail",
    ]
    assert "/fail" in monitor.received

    # one with a command that dies
    monitor.requests.clear()
    cli("enqueue", "exits")
    assert cli("tick").code == 1
    assert list(dict.fromkeys(path for path in monitor.received if path != "/fail")) == [
        "/_EXITS/start",
        "/_EXITS/3",
    ]

    # one with many runs of a job: few requests
    monitor.requests.clear()
    for _ in range(5):
        cli("enqueue", "well")
    assert cli("tick").code == 0
    assert len([path for path in monitor.received if path != "/"]) < 8
    assert "/_WELL" in monitor.received

    # one with an invalid file, and one without a file
    monitor.requests.clear()
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs: 3\n")
    assert cli("tick").code == 1
    (tmp_path / "schedules.yaml").unlink()
    assert cli("tick").code == 3
    assert monitor.received == ["/fail", "/fail"]


@pytest.mark.story
def test_a_loop_sends_heartbeats_of_jobs_at_once_and_its_own_with_each_sync(
    monitor: Service, own_dsn: str, tmp_path: Path
) -> None:
    urls = {
        f"YAMLSCHED_HEARTBEAT_URL{name}": f"{monitor.url}/{name}"
        for name in ("", "_NOTHING", "_FAILS", "_RETURNS_JSON")
    }

    def wait_until_received(path: str) -> None:
        """Wait until the monitor receives this path. The loop may send others at the turn of a minute."""
        until(lambda: path in monitor.received, f"{path}, and received {monitor.received}")

    with a_project(tmp_path, own_dsn) as project:
        project.sync(nothing={}, fails={"max_attempts": 1}, returns_json={})
        loop = project.start("work", "--loop", **urls)

        # after a success
        project.enqueue("nothing")
        wait_until_received("/_NOTHING/start")
        wait_until_received("/_NOTHING")

        # after a death, also with the next sync
        project.enqueue("fails")
        wait_until_received("/_FAILS/start")
        wait_until_received("/_FAILS/fail")
        loop.signal(signal.SIGHUP)
        wait_until_received("/fail")

        # with an invalid file, and without any run
        loop.signal(signal.SIGHUP)
        wait_until_received("/")
        valid = project.file.read_text()
        project.file.write_text("version: 1\njobs: 3\n")
        monitor.requests.clear()
        loop.signal(signal.SIGHUP)
        wait_until_received("/fail")
        project.file.write_text(valid)
        monitor.requests.clear()
        loop.signal(signal.SIGHUP)
        wait_until_received("/")

        # at the end, what was not sent before: the second report of a job waits for its turn
        project.enqueue("returns_json")
        wait_until_received("/_RETURNS_JSON")
        project.enqueue("returns_json")
        until(lambda: loop.text.count("attempt.succeeded") == 3)
        loop.signal(signal.SIGTERM)
        assert loop.wait() == 0
        assert [path for path in monitor.received if path.startswith("/_")][-2:] == [
            "/_RETURNS_JSON/start",
            "/_RETURNS_JSON",
        ]
        assert monitor.received.count("/_RETURNS_JSON") >= 2
