"""sync and validate make the same checks, and a job is left out only if its own entry is invalid."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from yamlsched.schedule.checks import Checked, check, check_all
from yamlsched.schedule.load import load_file

MISTAKES = Path(__file__).parents[2] / "mistakes"


def checked(file: Path, given: tuple[str, ...] | None = ()) -> Checked:
    return check(load_file(file, None), file, given)


@pytest.mark.parametrize("file", sorted(MISTAKES.glob("*.yaml")), ids=lambda file: file.stem)
def test_sync_finds_the_errors_that_validate_finds(file: Path) -> None:
    loaded = load_file(file, None)

    expected = sorted(
        (one.line, one.column, one.code)
        for one in check_all(loaded, file, (), datetime.now(UTC))
        # a sync does not check the environments of others
        if one.severity == "error" and "(in environment" not in one.message
    )

    found = check(loaded, file, ()).errors
    assert sorted((one.line, one.column, one.code) for one in found) == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "takes.py").write_text(
        "def it(older): ...\ndef nothing(): ...\ndef death(run): ...\n"
    )
    return tmp_path


def written(folder: Path, text: str) -> Path:
    file = folder / "schedules.yaml"
    file.write_text(text)
    return file


def test_only_jobs_with_an_invalid_handler_or_payload_are_left_out(folder: Path) -> None:
    file = written(
        folder,
        """version: 1
jobs:
  good: {handler: takes.it, cron: "@daily", payload: {older: 30}}
  missing: {handler: takes.ti}
  payload: {handler: takes.nothing, payload: {older: 30}}
  dead: {handler: takes.nothing, on_dead: [page]}
  also_good: {handler: takes.nothing, on_dead: [missing]}
""",
    )

    assert list(checked(file).jobs) == ["good", "also_good"]
    assert len(checked(file).errors) == 3


@pytest.mark.parametrize(
    "keys, code",
    [("handler: takes.absent", "YS302"), ('handler: takes.nothing, cron: "*/7 * * * *"', "YS403")],
    ids=["errors", "warnings"],
)
def test_any_number_of_suppressed_diagnostics_hides_no_other(
    folder: Path, keys: str, code: str
) -> None:
    suppressed = "".join(f"  j{n}: {{{keys}}}  # yamlsched: ignore[{code}]\n" for n in range(1_500))
    file = written(
        folder,
        f"version: 1\njobs:\n{suppressed}  wrong: {{handler: takes.nothing, payload: {{a: 1}}}}\n",
    )

    found = check_all(load_file(file, None), file, (), datetime(2026, 1, 14, tzinfo=UTC))

    assert [(one.line, one.code) for one in found] == [(1_503, "YS304")]
    assert list(checked(file).jobs) == [f"j{n}" for n in range(1_500)]


def test_a_program_that_was_installed_since_the_last_check_is_found(folder: Path) -> None:
    file = written(folder, "version: 1\njobs:\n  report: {command: [bin/report], cwd: made}\n")
    before = [one.code for one in checked(file).errors]

    (folder / "made" / "bin").mkdir(parents=True)
    without = [one.code for one in checked(file).errors]
    (folder / "made" / "bin" / "report").symlink_to("/bin/true")

    assert (before, without, checked(file).errors) == (["YS311"], ["YS310"], [])
    assert list(checked(file).jobs) == ["report"]


def test_an_invalid_anchor_leaves_out_the_jobs_that_use_it(folder: Path) -> None:
    file = written(
        folder,
        """version: 1
x-payload: &rows {older: 30}
jobs:
  wrong: {handler: takes.nothing, payload: *rows}
  right: {handler: takes.it, payload: *rows}
  none: {handler: takes.nothing}
""",
    )

    assert len(checked(file).errors) == 1
    assert list(checked(file).jobs) == ["right", "none"]


def test_more_errors_than_are_reported_leave_out_every_job_that_has_one(folder: Path) -> None:
    jobs = "".join(f"  job_{n}: {{handler: takes.missing_{n}}}\n" for n in range(1200))
    file = written(folder, f"version: 1\njobs:\n{jobs}  good: {{handler: takes.nothing}}\n")

    assert list(checked(file).jobs) == ["good"]


def test_handlers_are_not_read_if_their_checks_are_skipped(folder: Path) -> None:
    file = written(folder, "version: 1\njobs:\n  x: {handler: elsewhere.run}\n")

    assert [len(checked(file).errors), len(checked(file, None).errors)] == [1, 0]
