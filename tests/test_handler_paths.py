"""``paths`` of schedules.yaml: the directories from which handlers are checked and imported."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from support.command_line import yamlsched
from yamlsched.extras.doctor import doctor
from yamlsched.schedule import handlers, paths
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.load import load
from yamlsched.schedule.lookup import Sources

FILE = "version: 1\npaths: [src]\njobs:\n  where: {handler: layout.where, payload: {who: worker}}\n"


def a_module(folder: Path, answer: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "layout.py").write_text(f"def where(who): return {answer!r}\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A src layout, with a module of the same name next to the file that must not be found."""
    (tmp_path / "schedules.yaml").write_text(FILE)
    (tmp_path / "layout.py").write_text("raise ImportError('the module next to the file')\n")
    a_module(tmp_path / "src", "src")
    return tmp_path


def test_the_search_path_is_that_of_the_command_line_then_that_of_the_file_then_its_folder(
    project: Path,
) -> None:
    found = paths.search_path(project / "schedules.yaml", ["src", "../lib"], [project / "given"])

    assert found == (project / "given", project / "src", project.parent / "lib", project)


def test_validate_searches_paths_and_reports_the_position_of_a_missing_directory(
    project: Path,
) -> None:
    assert yamlsched("validate", "--import", cwd=project).returncode == 0

    (project / "schedules.yaml").write_text(FILE.replace("[src]", "[src, lib]"))
    done = yamlsched("validate", "--format", "concise", cwd=project)

    assert done.returncode == 1
    assert (
        'schedules.yaml:2:14: error[YS118]: item 2 of paths: the directory "lib" does not exist'
        in done.stdout
    )


def test_the_remedy_for_a_module_in_a_folder_src_that_is_not_in_paths_is_to_add_it(
    project: Path,
) -> None:
    (project / "layout.py").unlink()
    (project / "schedules.yaml").write_text(FILE.replace("paths: [src]\n", ""))

    done = yamlsched("validate", cwd=project)

    assert done.returncode == 1
    assert "   = It is in the folder src: write paths: [src] at the top level.\n" in done.stdout


def test_doctor_searches_paths(project: Path) -> None:
    file = project / "schedules.yaml"
    assert [one.level for one in doctor.schedule(file, None)[1]] == ["ok", "ok"]

    file.write_text(FILE.replace("[src]", "[source]"))
    [_, finding] = doctor.schedule(file, None)[1]

    assert (finding.level, 'the directory "source" does not exist' in finding.what) == (
        "fail",
        True,
    )


def test_a_path_from_the_command_line_comes_before_those_of_the_file(
    project: Path, own_dsn: str
) -> None:
    a_module(project / "given", "given")

    answers = [
        yamlsched("invoke", "where", *options, "--dsn", own_dsn, cwd=project).stdout
        for options in ([], ["--path", "given"])
    ]

    assert answers == ['"src"\n', '"given"\n']


@pytest.mark.parametrize("given, answer", [([], "src"), (["--path", "given"], "given")])
def test_workers_import_handlers_from_paths(
    project: Path, own_dsn: str, given: list[str], answer: str
) -> None:
    a_module(project / "given", "given")
    assert yamlsched("tick", *given, "--dsn", own_dsn, cwd=project).returncode == 0
    assert yamlsched("enqueue", "where", "--dsn", own_dsn, cwd=project).returncode == 0

    done = yamlsched("tick", *given, "--dsn", own_dsn, cwd=project)

    with psycopg.connect(own_dsn) as connection:
        [[result, error]] = connection.execute(
            "select result, last_error from yamlsched.job_runs"
        ).fetchall()
    assert (done.returncode, result, error) == (0, answer, None)


def test_valid_items_of_paths_are_used_if_another_is_invalid(project: Path) -> None:
    file = project / "schedules.yaml"
    loaded = load(FILE.replace("[src]", "[/opt, src, 1, *no]").encode(), str(file), None)

    assert [one.code for one in loaded.diagnostics] == ["YS118", "YS101", "YS014"]
    assert loaded.paths == ("src",)
    findings = Findings(loaded.source)
    paths.check(loaded, file, findings)
    handlers.check(loaded, Sources(paths.search_path(file, loaded.paths)), findings)
    assert findings.diagnostics() == []
