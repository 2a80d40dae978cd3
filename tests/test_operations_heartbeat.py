"""Heartbeats that a real HTTP server receives from ticks and jobs."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.command_line import Cli, command_line
from support.project import a_project, until
from yamlsched.operations import heartbeat

HANDLERS = "def well(run): pass\n\n\ndef ill():\n    raise RuntimeError('no route to host')\n"
VALID = """version: 1
jobs:
  well: {handler: jobs.well}
  ill: {handler: jobs.ill, max_attempts: 1, on_dead: jobs.well}
"""


class Monitor:
    """A server that records requested paths and answers /broken with 500."""

    def __init__(self) -> None:
        received = self.received = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                received.append(self.path)
                self.send_response(500 if self.path == "/broken" else 200)
                self.end_headers()

            def log_message(self, format: str, *values: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    monitor = Monitor()
    thread = threading.Thread(target=monitor.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield monitor
    monitor.server.shutdown()
    monitor.server.server_close()
    thread.join()


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    (tmp_path / "jobs.py").write_text(HANDLERS)
    (tmp_path / "schedules.yaml").write_text(VALID)
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_each_heartbeat_goes_to_its_own_url_and_failures_go_to_fail(monitor: Monitor) -> None:
    environ = {
        "YAMLSCHED_HEARTBEAT_URL": f"{monitor.url}/tick",
        "YAMLSCHED_HEARTBEAT_URL_GOOD_JOB": f"{monitor.url}/good",
        "YAMLSCHED_HEARTBEAT_URL_BAD": f"{monitor.url}/bad/",
        "YAMLSCHED_HEARTBEAT_URL_EMPTY": "",
    }

    heartbeat.send(environ, True, {"good-job": True, "bad": False, "empty": True, "without": True})
    assert sorted(monitor.received) == ["/bad/fail", "/good", "/tick"]

    monitor.received.clear()
    heartbeat.send(environ, None, {})
    assert monitor.received == []


@pytest.mark.parametrize(
    "url",
    [
        "{monitor}/broken",
        "http://127.0.0.1:1/secret",
        "nonsense/secret",
        "{monitor}/secret path",
        "{monitor}/secret\npath",
        "http://user:secret@127.0.0.1:1/path",
        "http://[secret/path",
        "http://127.0.0.1:secret/path",
        "http://secret.invalid/path",
        "file:///secret",
        "http://127.0.0.1:1/secret-ü",
    ],
)
def test_a_heartbeat_that_cannot_be_sent_is_one_line_without_its_url(
    monitor: Monitor, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    heartbeat.send({"YAMLSCHED_HEARTBEAT_URL": url.replace("{monitor}", monitor.url)}, True, {})

    [line] = capsys.readouterr().err.splitlines()
    assert "heartbeat.failed" in line
    assert "variable=YAMLSCHED_HEARTBEAT_URL" in line
    assert "secret" not in line


def test_a_url_from_a_file_may_end_with_a_line_break(monitor: Monitor) -> None:
    heartbeat.send({"YAMLSCHED_HEARTBEAT_URL": f"{monitor.url}/tick\n"}, False, {})
    assert monitor.received == ["/tick/fail"]


def test_a_server_that_answers_one_byte_at_a_time_does_not_block_the_tick(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server that sends its header without end
    monkeypatch.setattr(heartbeat, "DEADLINE_SECONDS", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def drip() -> None:
        with listener.accept()[0] as client:
            client.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not is_over.wait(0.05):
                client.sendall(b"x")

    server = threading.Thread(target=drip)
    server.start()

    # when a heartbeat is sent to it
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/secret"
    heartbeat.send({"YAMLSCHED_HEARTBEAT_URL": url}, True, {})

    # then the client has given up while the server still sends
    assert server.is_alive()
    [line] = capsys.readouterr().err.splitlines()
    assert "variable=YAMLSCHED_HEARTBEAT_URL" in line
    assert "no answer within" in line
    is_over.set()
    server.join()
    listener.close()


def test_a_tick_sends_heartbeats_for_itself_and_for_the_jobs_that_it_executed(
    monitor: Monitor, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("", "_WELL", "_ILL"):
        monkeypatch.setenv(f"YAMLSCHED_HEARTBEAT_URL{name}", f"{monitor.url}/{name}")

    # an idle tick
    assert cli("tick").code == 0
    assert monitor.received == ["/"]

    # one with a success
    monitor.received.clear()
    cli("enqueue", "well")
    assert cli("tick").code == 0
    assert sorted(monitor.received) == ["/", "/_WELL"]

    # one with a run that dies, whose on_dead succeeds
    monitor.received.clear()
    cli("enqueue", "ill")
    assert cli("tick").code == 1
    assert sorted(monitor.received) == ["/_ILL/fail", "/fail"]

    # one with an invalid file, and one without a file
    monitor.received.clear()
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs: 3\n")
    assert cli("tick").code == 1
    (tmp_path / "schedules.yaml").unlink()
    assert cli("tick").code == 3
    assert monitor.received == ["/fail", "/fail"]


def test_a_loop_sends_heartbeats_with_each_sync_for_everything_since_the_last_one(
    monitor: Monitor, own_dsn: str, tmp_path: Path
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
        until(lambda: "attempt.succeeded" in loop.text)
        loop.signal(signal.SIGHUP)
        wait_until_received("/")
        wait_until_received("/_NOTHING")

        # after a death
        project.enqueue("fails")
        until(lambda: "run.dead" in loop.text)
        loop.signal(signal.SIGHUP)
        wait_until_received("/fail")
        wait_until_received("/_FAILS/fail")

        # with an invalid file, and without any run
        valid = project.file.read_text()
        project.file.write_text("version: 1\njobs: 3\n")
        monitor.received.clear()
        loop.signal(signal.SIGHUP)
        wait_until_received("/fail")
        project.file.write_text(valid)
        monitor.received.clear()
        loop.signal(signal.SIGHUP)
        wait_until_received("/")

        # at the end, what was not sent before
        project.enqueue("returns_json")
        until(lambda: loop.text.count("attempt.succeeded") == 2)
        loop.signal(signal.SIGTERM)
        assert loop.wait() == 0
        wait_until_received("/_RETURNS_JSON")
        assert [path for path in monitor.received if path.startswith("/_")] == ["/_RETURNS_JSON"]
