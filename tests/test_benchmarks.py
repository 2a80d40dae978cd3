"""CI does not run the benchmarks, but checks that they can run."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import LONG, PARTS
from benchmarks.harness import Bench, Row, Sizes
from benchmarks.report import table, write

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("part", [*PARTS, *LONG])
def test_every_part_of_the_benchmarks_has_a_run_function(part: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{part}").run)


@pytest.mark.slow
def test_a_quick_drain_prints_yamlsched_and_the_bare_loop(server: str) -> None:
    words = ["drain", "--quick", "--only", "yamlsched,bare loop", "--dsn", server]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for contender in ("yamlsched", "bare loop"):
        assert f"| drain | 200 runs, 1 worker  | {contender} " in done.stdout


def test_a_table_has_the_ratio_to_yamlsched_in_either_direction() -> None:
    rows = [
        Row("a", "more", "yamlsched", "jobs/s", (200.0, 100.0, 300.0)),
        Row("a", "more", "peer", "jobs/s", (100.0,)),
        Row("a", "less", "yamlsched", "ms", (30.0,), more_is_better=False),
        Row("a", "less", "peer", "ms", (15.0,), more_is_better=False),
    ]

    shown = table(rows).splitlines()[2:]

    assert "200 jobs/s" in shown[0]
    assert "2.00 x as good" in shown[1]
    assert "0.50 x as good" in shown[3]


def test_a_missing_contender_is_not_measured_and_has_no_ratio() -> None:
    rows = [
        Row("a", "b", "yamlsched", "ms", (1.0,)),
        Row("a", "b", "peer", "", None, "not measured: no node"),
    ]

    shown = table(rows).splitlines()[-1]

    assert "not measured: no node" in shown
    assert "as good" not in shown


def test_measuring_one_part_keeps_the_results_of_the_others(tmp_path: Path) -> None:
    for part, value in (("drain", 100.0), ("idle", 7.0), ("drain", 200.0)):
        bench = Bench("", 1, Sizes(), [], tmp_path, server={"server_version": "18.6"})
        bench.add(part, "all", "yamlsched", "jobs/s", value)
        write(bench, tmp_path)

    shown = (tmp_path / "results.md").read_text()

    assert [line for line in shown.splitlines() if line.startswith("## ")] == [
        "## drain",
        "## idle",
    ]
    assert "200 jobs/s" in shown
    assert "100 jobs/s" not in shown
    assert "7 jobs/s" in shown
