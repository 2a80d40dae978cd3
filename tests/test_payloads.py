"""A payload that cannot fit its handler ends the run at once; the error lists the handler's parameters."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from support.command_line import command_line
from support.project import Project, a_project
from yamlsched.cli.enqueue import Payload
from yamlsched.errors import Discard
from yamlsched.handler.calls import payload_mismatch, read_payload
from yamlsched.schedule.file import MAX_FILE_BYTES


def plain(days: int, dry_run: bool = False) -> None: ...
def with_run(run: Any, user_id: int) -> None: ...
def keywords(*, user_id: int) -> None: ...
def anything(**payload: Any) -> None: ...
def nothing() -> None: ...
def positional(user_id: int, /) -> None: ...


def passes_on(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def wrapper(**payload: Any) -> Any:
        return handler(**payload, injected=1)

    return wrapper


class Callable_:
    def __call__(self, user_id: int) -> None: ...


@pytest.mark.parametrize(
    "handler, names, payload_problem",
    [
        (plain, ["days"], ""),
        (plain, ["days", "dry_run"], ""),
        (
            plain,
            ["older"],
            'jobs.run has no parameter "older". It takes: days, dry_run.',
        ),
        (plain, [], 'jobs.run requires "days", which the payload does not contain'),
        (with_run, ["user_id"], ""),
        (with_run, ["user_id", "run"], "run is passed by the worker. Rename the key."),
        (keywords, ["user_id"], ""),
        (keywords, ["user"], 'jobs.run has no parameter "user". Did you mean "user_id"?'),
        (anything, ["whatever"], ""),
        (nothing, [], ""),
        (nothing, ["x"], 'jobs.run has no parameter "x". It takes none.'),
        (
            positional,
            ["user_id"],
            'jobs.run has no parameter "user_id". It takes none.',
        ),
        (Callable_(), ["user_id"], ""),
        (Callable_(), ["x"], 'jobs.run has no parameter "x". It takes: user_id.'),
        (functools.partial(plain, days=1), [], ""),
        (passes_on(plain), ["anything"], ""),  # what it does with **kwargs is not checked
        (dict.update, ["x"], ""),
    ],
)
def test_a_payload_fits_or_the_message_lists_the_parameters(
    handler: Callable[..., Any], names: list[str], payload_problem: str
) -> None:
    result = payload_mismatch(handler, "jobs.run", tuple(names))

    assert result == (f"the payload does not fit: {payload_problem}" if payload_problem else "")


@pytest.mark.parametrize(
    "text, fault",
    [
        (f'{{"a": 1{"0" * 5000}}}', "it contains a number with too many digits"),
        (f'{{"a": {"[" * 100_000}{"]" * 100_000}}}', "it is nested too deeply"),
        ("[1]", "the payload is of type list, not an object"),
        ("null", "the payload is of type NoneType, not an object"),
    ],
)
def test_a_payload_that_python_cannot_read_is_not_retried(text: str, fault: str) -> None:
    with pytest.raises(Discard, match=fault):
        read_payload(text)


# -- with real workers -------------------------------------------------------------------------------------------------


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


@pytest.mark.story
def test_a_run_whose_payload_fits_no_parameter_is_dead_at_once_and_its_handler_is_not_called(
    project: Project,
) -> None:
    project.sync(takes_days={"payload": {"days": 1}, "max_attempts": 5})
    [run] = project.enqueue("takes_days", {"older": 30})

    project.work(code=1)

    assert project.summary(run) == ("dead", 1, 0, 0, 1)
    assert (project.row(run).error_type, project.row(run).last_error) == (
        "PayloadMismatch",
        'the payload does not fit: support.handlers.takes_days has no parameter "older". It takes: days.',
    )


@pytest.mark.story
def test_a_type_error_from_inside_a_handler_is_a_failure_like_any_other(project: Project) -> None:
    project.sync(raises_type_error={"max_attempts": 2})
    [run] = project.enqueue("raises_type_error")

    project.work(code=1)

    assert project.summary(run)[:3] == ("dead", 2, 2)
    assert project.row(run).error_type == "TypeError"


@pytest.mark.story
def test_a_run_whose_payload_cannot_be_read_is_dead_at_once_reported_and_shown(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = "('{\"days\": ' || repeat('[', 3000) || repeat(']', 3000) || '}')::jsonb"
    fault = "it is nested too deeply"
    project.sync(
        takes_days={"payload": {"days": 1}, "on_dead": ["records_death"]}, records_death={}
    )
    [found] = project.db.execute(
        f"select run_id from yamlsched.enqueue('takes_days', {payload})".encode()
    ).fetchall()

    project.work(code=1)

    sql = "select status, attempts, last_error from yamlsched.job_runs where id = %s"
    [row] = project.db.execute(sql, [found.run_id]).fetchall()
    assert (row.status, row.attempts) == ("dead", 1)
    assert (
        row.last_error
        == f"the payload cannot be read: {fault}. Enqueue the run again with another payload"
    )
    assert project.calls("on_dead", found.run_id) == 1
    shown = command_line(project.dsn, monkeypatch, capsys, project.folder)("show", found.run_id)
    assert shown.code == 0
    assert fault in shown.out


def test_a_payload_is_read_from_regular_files_of_limited_size_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, large, pipe = tmp_path / "p.json", tmp_path / "large.json", tmp_path / "pipe"
    file.write_text('{"week": 3}')
    with large.open("wb") as opened:
        opened.truncate(MAX_FILE_BYTES + 1)
    os.mkfifo(pipe)
    digits = tmp_path / "digits.json"
    digits.write_text(f'{{"n": {"1" * 5_000}}}')
    convert = Payload().convert

    assert convert(f"@{file}", None, None) == {"week": 3}
    assert convert(f'{{"n": -{"1" * 3_000}}}', None, None) == {"n": -int("1" * 3_000)}
    for path, says in (
        ("/dev/zero", "is not a regular file"),
        (pipe, "is not a regular file"),
        (tmp_path, "Is a directory"),
        (large, "it is longer than 4,000,000 bytes"),
        (digits, "a number of over 3,000 digits is not a valid JSON value"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(click.BadParameter, match=says):
            convert(f"@{path}", None, None)
    with open("/dev/zero") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(click.BadParameter, match="longer than"):
            convert("-", None, None)
