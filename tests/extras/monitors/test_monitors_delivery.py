"""Sending requests to monitoring services that answer badly, late, or not at all."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from support.monitoring import Service, service
from yamlsched.extras.monitors import delivery
from yamlsched.extras.monitors.delivery import Request, deliver

BAD = f'"{delivery.BAD_URL}"'


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RETRY_PAUSES_SECONDS", (0.0, 0.0))


@pytest.fixture
def monitor() -> Iterator[Service]:
    with service() as found:
        yield found


@pytest.fixture
def other() -> Iterator[Service]:
    with service() as found:
        yield found


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    found = capsys.readouterr().err.splitlines()
    assert "secret" not in " ".join(found)
    assert "127.0.0.1" not in " ".join(found)
    return [line.partition("monitor.failed ")[2] for line in found]


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("{monitor}/secret-500", '"HTTP 500"'),
        ("{monitor}/secret-404", '"HTTP 404"'),
        ("{monitor}/secret-429", '"HTTP 429"'),
        ("http://127.0.0.1:1/secret", '"Connection refused"'),
        ("nonsense/secret", BAD),
        ("{monitor}/secret path", BAD),
        ("{monitor}/secret\npath", BAD),
        (
            "http://user:secret@127.0.0.1:1/path",
            BAD,
        ),
        ("file:///secret", BAD),
        ("http://[secret/path", BAD),
        (
            "http://127.0.0.1:secret/path",
            BAD,
        ),
        (
            "http://127.0.0.1:1/secret-ü",
            BAD,
        ),
        ("http://secret.invalid/path", None),
    ],
)
def test_a_request_that_cannot_be_sent_is_one_line_without_its_url(
    monitor: Service, capsys: pytest.CaptureFixture[str], url: str, error: str | None
) -> None:
    for status in (500, 404, 429):
        monitor.answers[f"/secret-{status}"] = (status, "")

    deliver([Request("YAMLSCHED_X", url.replace("{monitor}", monitor.url), "a")])

    [line] = lines(capsys)
    assert line.startswith("variable=YAMLSCHED_X error=")
    if error is not None:
        assert line == f"variable=YAMLSCHED_X error={error} requests=1"


def test_an_error_of_the_server_is_retried_and_a_refusal_is_not(monitor: Service) -> None:
    monitor.answers.update({"/500": (500, ""), "/429": (429, ""), "/404": (404, "")})

    deliver([Request("X", f"{monitor.url}/{path}", path) for path in ("500", "429", "404")])

    assert sorted(monitor.received) == ["/404", "/429", "/500", "/500", "/500"]


def test_requests_of_one_stream_arrive_in_their_order(monitor: Service) -> None:
    deliver([Request("X", f"{monitor.url}/{number}", f"{number % 3}") for number in range(60)])

    received = [int(path[1:]) for path in monitor.received]
    assert len(received) == 60
    for stream in range(3):
        assert [number for number in received if number % 3 == stream] == list(range(stream, 60, 3))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_to_the_same_server_only(
    monitor: Service, other: Service, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    monitor.answers["/here"] = (status, "/there")
    monitor.answers["/away"] = (status, f"{other.url}/secret")
    monitor.answers["/local"] = (status, "file:///etc/passwd")

    deliver(
        [Request("HERE", f"{monitor.url}/here", "a"), Request("AWAY", f"{monitor.url}/away", "b")]
    )
    deliver([Request("LOCAL", f"{monitor.url}/local", "a")])

    assert sorted(monitor.received) == ["/away", "/here", "/local", "/there"]
    assert other.received == []
    away, local = lines(capsys)
    assert away == 'variable=AWAY error="it redirects to another server" requests=1'
    assert local.startswith("variable=LOCAL error=")


def test_a_redirect_of_a_post_is_not_followed(
    monitor: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor.answers["/here"] = (302, "/there")

    deliver([Request("X", f"{monitor.url}/here", "a", b"{}")])

    assert monitor.received == ["/here"]
    assert lines(capsys) == ['variable=X error="HTTP 302" requests=1']


def test_an_error_of_tls_is_told_without_the_name_of_the_host(
    monitor: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a server that does not speak TLS
    deliver([Request("X", f"{monitor.url.replace('http:', 'https:')}/secret", "a")])

    [line] = lines(capsys)
    assert line.startswith('variable=X error="TLS: ')

    # and a certificate of another host
    error = ssl.SSLCertVerificationError(
        1, "Hostname mismatch, certificate is not valid for 'secret'"
    )
    error.reason = "CERTIFICATE_VERIFY_FAILED"
    assert delivery._describe(error) == "TLS: certificate verify failed"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nX: "], ids=["silent", "drips"])
def test_a_server_that_never_completes_its_answer_delays_nothing_beyond_the_deadline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    # given a server that accepts, and sends nothing or a byte now and then
    monkeypatch.setattr(delivery, "DEADLINE_SECONDS", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def drip() -> None:
        with listener.accept()[0] as client:
            client.sendall(answer)
            while not is_over.wait(0.05):
                client.sendall(b"x" if answer else b"")

    server = threading.Thread(target=drip)
    server.start()

    # when several requests of a stream are for it
    deliver(
        [
            Request("X", f"http://127.0.0.1:{listener.getsockname()[1]}/secret", "a")
            for _ in range(3)
        ]
    )

    # then the client has given up while the server still sends, and none of them is forgotten
    assert server.is_alive()
    assert sum(int(line.partition("requests=")[2]) for line in lines(capsys)) == 3
    is_over.set()
    server.join()
    listener.close()


def test_a_failed_request_is_reported_once_for_each_variable_and_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    deliver(
        [
            Request(f"X{number % 2}", "http://127.0.0.1:1/secret", str(number))
            for number in range(40)
        ]
    )

    assert sorted(lines(capsys)) == [
        f'variable=X{number} error="Connection refused" requests=20' for number in range(2)
    ]


def test_nothing_to_send_starts_no_thread(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    deliver([])
    assert threading.active_count() == before
    assert lines(capsys) == []


def test_a_proxy_of_the_environment_is_used(
    monitor: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", monitor.url)

    deliver([Request("X", "http://secret.invalid/path", "a")])

    assert monitor.received == ["http://secret.invalid/path"]
    assert os.environ["http_proxy"] == monitor.url
