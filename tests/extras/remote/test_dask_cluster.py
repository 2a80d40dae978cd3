"""The connection to a Dask scheduler: what users read if there is none."""

from __future__ import annotations

import importlib.metadata

import pytest

from yamlsched.extras.remote import dask_cluster, dask_task

VERSION = importlib.metadata.version("distributed")
REASONS = [
    (ConnectionRefusedError(111, "Connection refused"), "[Errno 111] Connection refused"),
    (TimeoutError("Timed out\nafter 10 s"), "no answer within 10 s: is it a Dask scheduler?"),
    (OSError(), "OSError"),
    (
        ImportError("Mismatched versions"),
        f"Mismatched versions: the scheduler needs Dask {VERSION}, as here",
    ),
    (
        TypeError("got an unexpected keyword"),
        f"what answers there is not a Dask scheduler of version {VERSION}, as here, or tls:// lacks certificates (Type",
    ),
]


@pytest.mark.parametrize(
    "error, start", REASONS, ids=[type(error).__name__ for error, _ in REASONS]
)
def test_why_a_scheduler_cannot_be_reached_is_one_line(error: BaseException, start: str) -> None:
    reason = dask_cluster.why_not_connected(error)

    assert reason.startswith(start)
    assert "\n" not in reason


@pytest.mark.parametrize("argument", ["eJw-_9", "it's", 'a "b"', "\\", "é\n"])
def test_what_is_submitted_calls_the_function_with_its_arguments(
    argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(dask_task, "execute", lambda *words: calls.append(words))

    eval(dask_task.call("execute", argument))

    assert calls == [(argument,)]
