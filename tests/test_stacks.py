"""Stacks of exceptions are those of the module ``traceback``."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from yamlsched.handler import calls


def plain() -> None:
    raise ValueError("no route to host")


def with_notes() -> None:
    error = ValueError("two\nlines")
    error.add_note("a note")
    raise error


def with_cause() -> None:
    try:
        {"a": 1}["week"]
    except KeyError as error:
        raise ValueError("caused") from error


def with_context() -> None:
    try:
        with_cause()
    finally:
        int("x") + {"a": 1}["b"]


def with_suppressed_context() -> None:
    try:
        plain()
    except ValueError:
        raise OSError(2, "gone") from None


def with_cause_that_was_not_raised() -> None:
    raise ValueError("caused") from KeyError("never raised")


def in_a_circle() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def in_groups() -> None:
    errors: list[Exception] = []
    for function in (plain, with_cause, with_notes):
        try:
            function()
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("several", [errors[0], ExceptionGroup("inner", errors[1:])])


def recursive(depth: int = 200) -> None:
    recursive(depth - 1) if depth else plain()


def misspelled() -> None:
    value = "x"
    value.uper()  # type: ignore[attr-defined]


def invalid_syntax() -> None:
    compile("x = (1,\ny z\n", "<job>", "exec")


def without_source() -> None:
    exec(compile("\n\n{}['k']", "<nowhere>", "exec"))


KINDS = [
    plain, with_notes, with_cause, with_context, with_suppressed_context, with_cause_that_was_not_raised, in_a_circle,
    in_groups, recursive, misspelled, invalid_syntax, without_source,
]  # fmt: skip


def raised_by(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("function", KINDS)
def test_a_stack_is_that_of_the_module_traceback(function: Callable[[], object]) -> None:
    error = raised_by(function)

    whole = traceback.TracebackException.from_exception(error, limit=-calls.MAX_FRAMES)
    assert calls.raised(error, None).stack == "".join(whole.format())


def test_our_own_frames_before_the_handler_s_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "OWN_FILES", {__file__})

    assert calls.raised(raised_by(without_source), None).stack == (
        "Traceback (most recent call last):\n  File \"<nowhere>\", line 3, in <module>\nKeyError: 'k'\n"
    )
