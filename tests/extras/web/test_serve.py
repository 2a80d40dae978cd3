"""``yamlsched web`` as a process: sockets, refused binds, signals."""

from __future__ import annotations

import http.client
import socket
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.command_line import yamlsched
from support.web_server import serving
from yamlsched.cli import cli
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras import embedded
from yamlsched.extras.web.cli import command

pytestmark = pytest.mark.story


def get(address: str, **headers: str) -> http.client.HTTPResponse:
    if address.startswith("unix:"):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(address.removeprefix("unix:").rstrip("/"))
    else:
        connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"))
    connection.request("GET", "/", headers=headers)
    return connection.getresponse()


def test_a_server_answers_and_ends_cleanly_on_sigterm(page_dsn: str) -> None:
    with serving(page_dsn, "--listen", "127.0.0.1:0", "--base-path", "/scheduler") as (
        server,
        address,
    ):
        host, _, path = address.removeprefix("http://").partition("/")
        assert path == "scheduler/"
        answer = get(f"http://{host}")
        assert answer.status == 200
        assert answer.headers["server"] is None

        taken = yamlsched("web", "--dsn", page_dsn, "--listen", host)
        assert taken.returncode == 3
        assert (
            f"cannot listen on {host}: Address already in use; pass another --listen"
            in taken.stderr
        )
    assert server.returncode == 0


def test_a_unix_socket_is_not_for_everyone_and_is_removed_at_the_end(
    page_dsn: str, tmp_path: Path
) -> None:
    path = tmp_path / "web.sock"
    words = ("--listen", f"unix:{path}", "--auth", "header", "--trust-proxy", "unix")
    with serving(page_dsn, *words) as (server, address):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert get(address, **{"X-Forwarded-User": "maria"}).status == 200
        assert get(address).status == 403

        second = yamlsched("web", "--dsn", page_dsn, "--listen", f"unix:{path}")
        assert second.returncode == 3
        assert "another process listens there" in second.stderr
        server.kill()
        server.wait()
    assert path.exists()

    with serving(page_dsn, "--listen", f"unix:{path}") as (
        server,
        address,
    ):  # takes the place of the killed one
        assert get(address).status == 200
    assert server.returncode == 0
    assert not path.exists()


def test_a_file_in_the_place_of_the_socket_is_left_alone(page_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    path.write_text("precious")
    with pytest.raises(EnvironmentFailed, match="it exists, and is not a socket"):
        CliRunner().invoke(
            cli, ["web", "--dsn", page_dsn, "--listen", f"unix:{path}"], catch_exceptions=False
        )
    assert path.read_text() == "precious"


def test_passwords_come_from_the_environment_or_a_file(page_dsn: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("maria:secret\n")
    maria = {"Authorization": "Basic bWFyaWE6c2VjcmV0"}
    with serving(
        page_dsn, "--listen", "127.0.0.1:0", "--auth", "basic", YAMLSCHED_WEB_USERS="maria:secret"
    ) as (_, at):
        assert (get(at).status, get(at, **maria).status) == (401, 200)
    with serving(
        page_dsn, "--listen", "127.0.0.1:0", "--auth", "basic", "--users-file", str(users)
    ) as (_, at):
        assert (get(at).status, get(at, **maria).status) == (401, 200)


def test_the_embedded_database_gets_its_tables(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("version: 1\njobs: {}\n")
    try:
        with serving(None, "--file", str(file), "--listen", "127.0.0.1:0") as (server, address):
            assert get(address).status == 200
        assert server.returncode == 0
        assert not embedded.status(file).running
    finally:
        embedded.discard(file)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--auth none lets everyone in"),
        (["--listen", "8040"], "write HOST:PORT"),
        (["--auth", "basic"], "set YAMLSCHED_WEB_USERS"),
        (["--auth", "header"], "--auth header needs --trust-proxy"),
        (["--base-path", "x"], "write for example /scheduler"),
    ],
)
def test_what_cannot_be_served_safely_is_a_usage_error(words: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["web", "--dsn", "dbname=x", *words])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_a_users_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    words = ["web", "--dsn", "dbname=x", "--auth", "basic", "--users-file", str(tmp_path / "none")]
    with pytest.raises(EnvironmentFailed, match="cannot be read: No such file or directory"):
        CliRunner().invoke(cli, words, catch_exceptions=False)


def test_the_options_are_those_of_the_design() -> None:
    names = {option for parameter in command.params for option in parameter.opts}
    assert names >= {
        *(
            "--listen",
            "--base-path",
            "--external-url",
            "--read-only",
            "--auth",
            "--user-header",
            "--trust-proxy",
        ),
        *("--actions-dsn", "--allow-host", "--users-file", "--namespace"),
    }
