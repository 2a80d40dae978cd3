"""The support matrix covers what the package claims, and its page keeps the results."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.matrix import (
    COMBINATIONS,
    CORE,
    HEADER,
    PAGE,
    POSTGRES_RELEASES,
    ROOT,
    SMOKE,
    Result,
    file_of,
    record,
    rows_of,
)
from yamlsched.db.migrations import MAX_MAJOR, MIN_MAJOR


def test_every_supported_version_has_a_combination() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))

    minors = [
        each.python for each in COMBINATIONS if each.python and each.name == f"python{each.python}"
    ]
    assert minors == classified
    assert f">={classified[0]}" == project["requires-python"]
    assert list(POSTGRES_RELEASES) == list(range(MIN_MAJOR, MAX_MAJOR))
    assert f">={MAX_MAJOR}" in project["optional-dependencies"]["embedded"][0]


def test_every_set_of_tests_names_existing_files() -> None:
    assert [name for name in (*CORE, *SMOKE) if not (ROOT / file_of(name)).is_file()] == []


def test_a_new_result_replaces_that_of_its_combination_and_keeps_the_others(tmp_path: Path) -> None:
    def result(index: int, passed: str) -> Result:
        what = COMBINATIONS[index].what
        return Result(
            COMBINATIONS[index].name,
            (what, "13.23", "3.12.1", "core", passed, "0", "1", "abc", "day"),
            True,
        )

    page = tmp_path / "support.md"
    page.write_text("before\n<!-- results -->\n<!-- end of results -->\nafter\n")
    record([result(2, "5")], page)
    record([result(0, "6")], page)
    record([result(2, "7")], page)

    text = page.read_text()
    assert text.startswith("before\n<!-- results -->\n| combination |")
    assert text.endswith("<!-- end of results -->\nafter\n")
    assert [cells for _, cells in rows_of(text)] == [result(0, "6").cells, result(2, "7").cells]


def test_the_page_names_no_combination_that_does_not_exist() -> None:
    known = {each.what for each in COMBINATIONS}
    for what, cells in rows_of(PAGE.read_text("utf-8")):
        assert what in known
        assert len(cells) == len(HEADER)


def test_the_page_says_whether_its_rows_are_older_than_the_tables() -> None:
    log = ["git", "log", "-1", "--format=%as", "--", "sql/schema.sql"]
    changed = subprocess.run(
        log, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    if not changed:
        pytest.skip("this is not a clone")
    page = PAGE.read_text("utf-8")
    dates = [cells[-1] for _, cells in rows_of(page)]

    is_stale = min(dates) < changed
    assert ("Rows here are older than the tables" in page) == is_stale, (min(dates), changed)
