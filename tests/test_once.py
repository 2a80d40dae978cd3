"""What of an error proves that nothing happened, and the arguments of run.once()."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

import yamlsched
from yamlsched import DEFAULT_RELEASE_ON, Discard, Refused, RetryAfter, Snooze
from yamlsched.handling.once import MAX_CAUSES, effect_key, proves_nothing_happened
from yamlsched.handling.run import Run
from yamlsched.testing import FakeRun

REFUSED = ConnectionRefusedError(111, "Connection refused")


def proves(error: BaseException) -> bool:
    return proves_nothing_happened(error, DEFAULT_RELEASE_ON)


def caused(error: BaseException, cause: BaseException | None) -> BaseException:
    """Return ``error`` as ``raise error from cause`` leaves it."""
    error.__cause__ = cause
    return error


@pytest.fixture
def closed_port() -> Any:
    """An address at which nobody listens, nor can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


# what a library makes of it


def test_urllib_wraps_a_refused_connection_and_a_name_that_is_not_resolved(closed_port: int):
    for url, cause in (
        (f"http://127.0.0.1:{closed_port}/", ConnectionRefusedError),
        ("http://no-such-host.invalid/", socket.gaierror),
    ):
        with pytest.raises(urllib.error.URLError) as raised:
            urllib.request.urlopen(url, data=b"x", timeout=10)
        assert isinstance(raised.value.reason, cause)
        assert proves(raised.value)


def test_a_server_that_accepts_and_is_silent_proves_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError) as raised:
        urllib.request.urlopen(f"http://127.0.0.1:{silent.getsockname()[1]}/", data=b"x", timeout=0.05)

    assert not proves(raised.value)


def test_a_cause_is_found_where_libraries_put_it():
    # httpx, aiohttp: raise ... from error, over several layers
    assert proves(caused(OSError("httpx"), caused(OSError("httpcore"), REFUSED)))
    # requests: ConnectionError(MaxRetryError(...)), raised in an except block without "from"
    assert proves(OSError(caused(RuntimeError("max retries"), caused(RuntimeError("new connection"), REFUSED))))
    # anyio: one error for each address of a name
    group = ExceptionGroup("all addresses", [REFUSED, ConnectionRefusedError(111, "the other address")])
    assert proves(caused(OSError("all connection attempts failed"), group))


@pytest.mark.parametrize("error", [REFUSED, socket.gaierror(-2, "unknown"), Discard(""), RetryAfter(1), Snooze(1)])
def test_these_prove_it_by_themselves(error: Exception):
    assert proves(error)
    assert proves(caused(RuntimeError(), error))


# what proves nothing


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        ConnectionAbortedError(),
        BrokenPipeError(),
        OSError(111, "a text"),
        RuntimeError("Connection refused"),
        KeyboardInterrupt(),
        SystemExit(1),
        GeneratorExit(),
    ],
)
def test_what_is_not_known_to_prove_it_does_not(error: BaseException):
    assert proves(error) is isinstance(error, ConnectionRefusedError)


def test_what_happened_while_another_error_was_handled_is_not_its_cause():
    with pytest.raises(ValueError) as raised:  # noqa: PT012
        try:
            raise REFUSED
        except OSError:
            raise ValueError("of the code that handles it")  # noqa: B904

    assert raised.value.__context__ is REFUSED
    assert not proves(raised.value)


def test_what_stops_the_process_proves_nothing_whatever_caused_it():
    assert not proves(caused(KeyboardInterrupt(), REFUSED))
    assert not proves(BaseExceptionGroup("", [REFUSED, KeyboardInterrupt()]))


def test_a_group_proves_it_only_if_all_of_its_errors_do():
    assert proves(ExceptionGroup("", [REFUSED, Discard("")]))
    assert not proves(ExceptionGroup("", [REFUSED, TimeoutError()]))


def test_causes_in_a_circle_and_endless_ones_come_to_an_end():
    one, other = RuntimeError(), RuntimeError()
    caused(one, caused(other, one))
    other.args = (one, other)
    assert not proves(one)

    chain: BaseException = REFUSED
    for _ in range(MAX_CAUSES):
        chain = caused(RuntimeError(), chain)
    assert proves(chain)
    for _ in range(100_000):
        chain = caused(RuntimeError(), chain)
    assert not proves(chain)
    while (cause := chain.__cause__) is not None:  # or freeing it would be as deep a recursion
        chain.__cause__, chain = None, cause


# the arguments of once


def once(**options: Any) -> Any:
    return FakeRun().once("mail", **options)


@pytest.mark.parametrize("kind", [Run, FakeRun])
def test_in_doubt_must_be_said_and_the_error_explains_the_choice(kind: Any):
    with pytest.raises(TypeError) as raised:
        kind.once(FakeRun(), "mail")

    assert str(raised.value) == (
        "run.once() needs the argument in_doubt, which says what the next attempt does if nobody knows whether the "
        'effect happened. in_doubt="raise": the run is dead at once, and a person looks it up; in_doubt="skip": it '
        'counts as done: at most once; in_doubt="repeat": it is done again with the same effect.key: for a receiver '
        "that knows idempotency keys"
    )


def test_in_doubt_is_a_keyword_and_on_error_is_gone():
    with pytest.raises(TypeError, match="in_doubt"):
        FakeRun().once("mail", "skip")  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError, match="on_error"):
        once(in_doubt="skip", on_error="release").__enter__()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"in_doubt": "retry"}, 'in_doubt must be one of "raise", "skip", "repeat", not \'retry\''),
        ({"in_doubt": None}, "not None"),
        ({"in_doubt": "skip", "scope": "global"}, 'scope must be "run" or "namespace", not \'global\''),
        ({"in_doubt": "skip", "release_on": OSError}, "release_on must be a tuple of exception classes"),
        ({"in_doubt": "skip", "release_on": [OSError]}, "release_on must be a tuple of exception classes"),
        ({"in_doubt": "skip", "release_on": (OSError(),)}, "release_on must be a tuple of exception classes"),
        ({"in_doubt": "skip", "release_on": (BaseException,)}, "release_on must be a tuple of exception classes"),
    ],
)
def test_other_values_are_refused_before_anything_is_claimed(options: dict[str, Any], message: str):
    with pytest.raises(Refused) as raised:
        once(**options).__enter__()

    assert message in str(raised.value)


def test_nothing_may_be_trusted_or_more_than_the_usual():
    assert not proves_nothing_happened(REFUSED, ())
    assert proves_nothing_happened(TimeoutError(), (*yamlsched.DEFAULT_RELEASE_ON, TimeoutError))


def test_a_key_is_of_a_run_or_of_the_business():
    assert effect_key(118, "mail", "run") == "run:118:mail"
    assert effect_key(118, "mail", "namespace") == "mail"
