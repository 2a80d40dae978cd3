"""The server of the page limits connections before anybody has logged in."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial

import pytest

from support.project import until
from yamlsched.extras.web import connections

pytestmark = pytest.mark.story


@pytest.fixture
def port(page_dsn: str) -> Iterator[int]:
    """The port of a page with a soft limit of 256 open files."""
    program = (
        "import resource, sys; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "from yamlsched.extras.web import connections; connections.REQUEST_SECONDS = 2.0\n"
        "from yamlsched.__main__ import main; main()"
    )
    command = [
        sys.executable,
        "-c",
        program,
        "--namespace",
        "default",
        "web",
        "--listen",
        "127.0.0.1:0",
    ]
    environment = {**os.environ, "YAMLSCHED_DSN": page_dsn, "YAMLSCHED_WEB_USERS": "maria:secret"}
    with subprocess.Popen(
        [*command, "--auth", "basic"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        found = re.search(r":([0-9]+)/", process.stderr.readline())
        assert found is not None
        yield int(found[1])
        process.send_signal(signal.SIGTERM)
        logged = process.stderr.read()
    assert process.returncode == 0
    assert "Traceback" not in logged
    assert len(logged) < 10_000


def status(port: int, host: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, source_address=(host, 0), timeout=30)
    connection.request("GET", "/", headers={"Authorization": "Basic bWFyaWE6c2VjcmV0"})
    with connection.getresponse() as response:
        return response.status


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_connections_without_a_complete_header_are_limited_and_closed_while_others_are_answered(
    port: int,
) -> None:
    with ExitStack() as stack:
        # given more idle connections of one peer than the page has files at first
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(400)
        ]
        for number, connection in enumerate(idle):
            with suppress(OSError):  # refused by the limit of the peer
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" if number % 2 else b"")
        until(lambda: sum(map(is_closed, idle)) >= len(idle) - connections.MAX_PER_PEER)

        # then another peer is answered
        assert status(port, "127.0.0.2") == 200

        # and in the end all are closed, and the first peer is answered too
        until(lambda: all(map(is_closed, idle)))
    assert status(port) == 200


def test_a_connection_that_is_kept_answers_more_than_once_and_is_closed_in_the_middle_of_a_header(
    port: int,
) -> None:
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic bWFyaWE6c2VjcmV0\r\n\r\n"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.connect()
    assert connection.sock is not None
    for _ in range(2):
        connection.sock.sendall(request)
        with http.client.HTTPResponse(connection.sock) as response:
            response.begin()
            assert response.status == 200
            response.read()
    connection.sock.sendall(request[:20])
    until(lambda: connection.sock is not None and is_closed(connection.sock))


def test_a_stranger_keeps_no_connection_after_the_answer(port: int) -> None:
    for sent in (
        b"POST /actions/enqueue HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\na",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"not http\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            # the second is not answered
            connection.sendall(sent + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answered = b"".join(iter(partial(connection.recv, 4096), b""))

        assert answered.count(b"HTTP/1.1 4") == 1, sent
        assert b"connection: close" in answered.lower(), sent


def test_a_body_that_does_not_end_is_closed_even_after_a_login(port: int) -> None:
    header = b"POST /actions/enqueue HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic bWFyaWE6c2VjcmV0\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(header + b"Sec-Fetch-Site: same-origin\r\nContent-Length: 2000\r\n\r\na")
        until(lambda: is_closed(connection))


def test_when_all_connections_are_taken_the_oldest_stranger_makes_room(port: int) -> None:
    with ExitStack() as stack:
        # given a user with an open connection, and strangers of five addresses that take all others
        user = stack.enter_context(
            closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30))
        )
        headers = {"Authorization": "Basic bWFyaWE6c2VjcmV0"}

        def answered() -> int:
            user.request("GET", "/static/none.css", headers=headers)
            with user.getresponse() as response:
                response.read()
                return response.status

        assert answered() == 404
        for number in range(connections.MAX_CONNECTIONS + 50):
            address = (f"127.0.1.{number % 5 + 1}", 0)
            with suppress(OSError):
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", port), source_address=address)
                )

        # then the user's connection is kept, and another user gets one
        assert answered() == 404
        assert status(port, "127.0.0.2") == 200
