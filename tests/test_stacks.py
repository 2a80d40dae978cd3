"""Stacks of exceptions are those of the module ``traceback``, also when the same failure occurs again."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

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
def test_a_stack_is_that_of_the_module_traceback_the_first_time_and_later(function: Callable[[], object]) -> None:
    errors = [raised_by(function) for _ in range(3)]

    texts = [calls.format_stack(error) for error in errors]

    limit = -calls.MAX_FRAMES
    assert texts == ["".join(traceback.TracebackException.from_exception(e, limit=limit).format()) for e in errors]


def test_the_same_place_with_another_message_or_another_way_there_has_its_own_stack() -> None:
    def fail(message: str) -> None:
        raise ValueError(message)

    def ways(number: int) -> None:
        if number == 1:
            fail("first")
        elif number == 2:
            fail("second")
        else:
            fail("third")

    texts = [calls.format_stack(raised_by(lambda number=number: ways(number))) for number in (1, 2, 3)]  # type: ignore[misc]

    for word, text in zip(("first", "second", "third"), texts, strict=True):
        assert f'fail("{word}")' in text
        assert text.endswith(f"ValueError: {word}\n")


def test_code_that_is_replaced_has_its_own_stack(tmp_path: Path) -> None:
    for number in range(3 * calls.MAX_CACHED_STACKS):
        file = tmp_path / f"handlers_{number}.py"
        file.write_text(f"def fail():\n    raise ValueError({number})\n")
        names: dict[str, Callable[[], object]] = {}
        exec(compile(file.read_text(), file, "exec"), names)

        text = calls.format_stack(raised_by(names["fail"]))

        assert f'File "{file}", line 2, in fail\n    raise ValueError({number})\n' in text


def test_our_own_frames_before_the_handler_s_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "OWN_FILES", {__file__})

    assert calls.format_stack(raised_by(without_source)) == (
        "Traceback (most recent call last):\n  File \"<nowhere>\", line 3, in <module>\nKeyError: 'k'\n"
    )
