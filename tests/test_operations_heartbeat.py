"""Heartbeats: what a real HTTP server hears of ticks and jobs."""

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
SOUND = """version: 1
jobs:
  well: {handler: jobs.well}
  ill: {handler: jobs.ill, max_attempts: 1, on_dead: jobs.well}
"""


class Monitor:
    """A server that notes the paths it is asked for, and answers /broken with 500."""

    def __init__(self) -> None:
        heard = self.heard = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append(self.path)
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
    (tmp_path / "schedules.yaml").write_text(SOUND)
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_each_is_told_at_its_own_url_and_trouble_at_fail(monitor: Monitor) -> None:
    environ = {
        "YAMLSCHED_HEARTBEAT_URL": f"{monitor.url}/tick",
        "YAMLSCHED_HEARTBEAT_URL_GOOD_JOB": f"{monitor.url}/good",
        "YAMLSCHED_HEARTBEAT_URL_BAD": f"{monitor.url}/bad/",
        "YAMLSCHED_HEARTBEAT_URL_EMPTY": "",
    }

    heartbeat.send(environ, True, {"good-job": True, "bad": False, "empty": True, "without": True})
    assert sorted(monitor.heard) == ["/bad/fail", "/good", "/tick"]

    monitor.heard.clear()
    heartbeat.send(environ, None, {})
    assert monitor.heard == []


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


def test_a_url_that_was_read_from_a_file_may_end_with_a_line_break(monitor: Monitor) -> None:
    heartbeat.send({"YAMLSCHED_HEARTBEAT_URL": f"{monitor.url}/tick\n"}, False, {})
    assert monitor.heard == ["/tick/fail"]


def test_a_server_that_answers_a_byte_at_a_time_does_not_hold_the_tick_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server that goes on with its header for as long as anybody listens
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

    # then sending has ended while the server still sends
    assert server.is_alive()
    [line] = capsys.readouterr().err.splitlines()
    assert "variable=YAMLSCHED_HEARTBEAT_URL" in line
    assert "no answer within" in line
    is_over.set()
    server.join()
    listener.close()


def test_a_tick_tells_of_itself_and_of_the_jobs_that_it_carried_out(
    monitor: Monitor, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("", "_WELL", "_ILL"):
        monkeypatch.setenv(f"YAMLSCHED_HEARTBEAT_URL{name}", f"{monitor.url}/{name}")

    # an idle tick
    assert cli("tick").code == 0
    assert monitor.heard == ["/"]

    # one with a success
    monitor.heard.clear()
    cli("enqueue", "well")
    assert cli("tick").code == 0
    assert sorted(monitor.heard) == ["/", "/_WELL"]

    # one with a death, whose on_dead succeeds
    monitor.heard.clear()
    cli("enqueue", "ill")
    assert cli("tick").code == 1
    assert sorted(monitor.heard) == ["/_ILL/fail", "/fail"]

    # one that finds mistakes, and one that finds no file
    monitor.heard.clear()
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs: 3\n")
    assert cli("tick").code == 1
    (tmp_path / "schedules.yaml").unlink()
    assert cli("tick").code == 3
    assert monitor.heard == ["/fail", "/fail"]


def test_a_loop_tells_with_each_sync_what_has_come_about_since_the_last_one(
    monitor: Monitor, own_dsn: str, tmp_path: Path
) -> None:
    urls = {
        f"YAMLSCHED_HEARTBEAT_URL{name}": f"{monitor.url}/{name}" for name in ("", "_NOTHING", "_FAILS", "_ANSWERS")
    }

    def hears(path: str) -> None:
        """Wait until the monitor hears this, beside what a minute that just ends may bring."""
        until(lambda: path in monitor.heard, f"{path}, and heard {monitor.heard}")

    with a_project(tmp_path, own_dsn) as project:
        project.sync(nothing={}, fails={"max_attempts": 1}, returns_json={})
        loop = project.start("work", "--loop", **urls)

        # after a success
        project.enqueue("nothing")
        until(lambda: "attempt.succeeded" in loop.text)
        loop.signal(signal.SIGHUP)
        hears("/")
        hears("/_NOTHING")

        # after a death
        project.enqueue("fails")
        until(lambda: "run.dead" in loop.text)
        loop.signal(signal.SIGHUP)
        hears("/fail")
        hears("/_FAILS/fail")

        # with mistakes in the file, and after nothing
        sound = project.file.read_text()
        project.file.write_text("version: 1\njobs: 3\n")
        monitor.heard.clear()
        loop.signal(signal.SIGHUP)
        hears("/fail")
        project.file.write_text(sound)
        monitor.heard.clear()
        loop.signal(signal.SIGHUP)
        hears("/")

        # and at the end what has not been told
        project.enqueue("returns_json")
        until(lambda: loop.text.count("attempt.succeeded") == 2)
        loop.signal(signal.SIGTERM)
        assert loop.wait() == 0
        hears("/_ANSWERS")
        assert [path for path in monitor.heard if path.startswith("/_")] == ["/_ANSWERS"]
