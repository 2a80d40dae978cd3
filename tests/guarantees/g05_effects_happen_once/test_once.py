"""Which errors prove that nothing happened, and the arguments of run.once()."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

import yamlsched
from yamlsched import DEFAULT_RELEASE_ON, Discard, Refused, RetryAfter, Snooze
from yamlsched.handler.once import MAX_CAUSES, effect_key, proves_nothing_happened
from yamlsched.handler.run import Run
from yamlsched.testing import FakeRun

REFUSED = ConnectionRefusedError(111, "Connection refused")


def proves(error: BaseException) -> bool:
    return proves_nothing_happened(error, DEFAULT_RELEASE_ON)


def caused(error: BaseException, cause: BaseException | None) -> BaseException:
    """Return ``error`` as after ``raise error from cause``."""
    error.__cause__ = cause
    return error


@pytest.fixture
def closed_port() -> Any:
    """The address of a bound socket that does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


# -- errors of libraries


def test_urllib_wraps_a_refused_connection_and_a_name_that_is_not_resolved(closed_port: int):
    for url, cause in (
        (f"http://127.0.0.1:{closed_port}/", ConnectionRefusedError),
        ("http://no-such-host.invalid/", socket.gaierror),
    ):
        with pytest.raises(urllib.error.URLError) as raised:
            urllib.request.urlopen(url, data=b"x", timeout=10)
        assert isinstance(raised.value.reason, cause)
        assert proves(raised.value)


def test_a_timeout_of_a_server_that_accepted_the_connection_proves_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError) as raised:
        urllib.request.urlopen(
            f"http://127.0.0.1:{silent.getsockname()[1]}/", data=b"x", timeout=0.05
        )

    assert not proves(raised.value)


def test_a_cause_is_found_where_libraries_put_it():
    # httpx, aiohttp: raise ... from error, over several layers
    assert proves(caused(OSError("httpx"), caused(OSError("httpcore"), REFUSED)))
    # requests: ConnectionError(MaxRetryError(...)), raised in an except block without "from"
    assert proves(
        OSError(
            caused(RuntimeError("max retries"), caused(RuntimeError("new connection"), REFUSED))
        )
    )
    # anyio: one error for each address of a name
    group = ExceptionGroup(
        "all addresses", [REFUSED, ConnectionRefusedError(111, "the other address")]
    )
    assert proves(caused(OSError("all connection attempts failed"), group))


@pytest.mark.parametrize(
    "error", [REFUSED, socket.gaierror(-2, "unknown"), Discard(""), RetryAfter(1), Snooze(1)]
)
def test_these_prove_it_by_themselves(error: Exception):
    assert proves(error)
    assert proves(caused(RuntimeError(), error))


# -- errors that prove nothing


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        ConnectionAbortedError(),
        BrokenPipeError(),
        OSError(111, "a message"),
        RuntimeError("Connection refused"),
        KeyboardInterrupt(),
        SystemExit(1),
        GeneratorExit(),
    ],
)
def test_other_errors_prove_nothing(error: BaseException):
    assert proves(error) is isinstance(error, ConnectionRefusedError)


def test_an_error_raised_while_another_is_handled_is_not_caused_by_it():
    with pytest.raises(ValueError) as raised:  # noqa: PT012
        try:
            raise REFUSED
        except OSError:
            raise ValueError("of the code that handles it")  # noqa: B904

    assert raised.value.__context__ is REFUSED
    assert not proves(raised.value)


def test_exceptions_that_stop_the_process_prove_nothing_whatever_their_cause():
    assert not proves(caused(KeyboardInterrupt(), REFUSED))
    assert not proves(BaseExceptionGroup("", [REFUSED, KeyboardInterrupt()]))


def test_an_exception_group_proves_it_only_if_all_of_its_errors_do():
    assert proves(ExceptionGroup("", [REFUSED, Discard("")]))
    assert not proves(ExceptionGroup("", [REFUSED, TimeoutError()]))


def test_circular_and_very_long_chains_of_causes_end():
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
    while (cause := chain.__cause__) is not None:  # or releasing the chain would recurse as deeply
        chain.__cause__, chain = None, cause


# -- the arguments of once


def once(**options: Any) -> Any:
    return FakeRun().once("mail", **options)


@pytest.mark.parametrize("kind", [Run, FakeRun])
def test_in_doubt_is_required(kind: Any):
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'in_doubt'"):
        kind.once(FakeRun(), "mail")


def test_in_doubt_is_keyword_only_and_on_error_does_not_exist():
    with pytest.raises(TypeError, match="positional arguments"):
        FakeRun().once("mail", "skip")  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError, match="on_error"):
        once(in_doubt="skip", on_error="release").__enter__()


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"in_doubt": "retry"},
            'in_doubt of an effect must be one of "raise", "skip", "repeat", not \'retry\'',
        ),
        ({"in_doubt": None}, "not None"),
        (
            {"in_doubt": "skip", "scope": "global"},
            'scope of an effect must be one of "run", "namespace", not \'global\'',
        ),
        (
            {"in_doubt": "skip", "release_on": OSError},
            "release_on must be a tuple of exception classes",
        ),
        (
            {"in_doubt": "skip", "release_on": [OSError]},
            "release_on must be a tuple of exception classes",
        ),
        (
            {"in_doubt": "skip", "release_on": (OSError(),)},
            "release_on must be a tuple of exception classes",
        ),
        (
            {"in_doubt": "skip", "release_on": (BaseException,)},
            "release_on must be a tuple of exception classes",
        ),
    ],
)
def test_other_values_are_refused_before_anything_is_claimed(options: dict[str, Any], message: str):
    with pytest.raises(Refused) as raised:
        once(**options).__enter__()

    assert message in str(raised.value)


def test_release_on_may_be_empty_or_name_other_exceptions():
    assert not proves_nothing_happened(REFUSED, ())
    assert proves_nothing_happened(TimeoutError(), (*yamlsched.DEFAULT_RELEASE_ON, TimeoutError))


def test_a_key_belongs_to_a_run_or_to_the_namespace():
    assert effect_key(118, "mail", "run") == "run:118:mail"
    assert effect_key(118, "mail", "namespace") == "mail"
