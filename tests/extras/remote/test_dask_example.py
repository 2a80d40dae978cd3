"""Runs the example of ``make cluster``: a schedule on a Dask cluster of this machine."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from yamlsched.extras import embedded

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a copy of the example, with a port that is free."""
    shutil.copytree(
        ROOT / "examples/dask",
        tmp_path / "dask",
        ignore=shutil.ignore_patterns("__pycache__", ".yamlsched"),
    )
    schedule = tmp_path / "dask" / "schedules.yaml"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        schedule.write_text(schedule.read_text().replace("8786", str(found.getsockname()[1])))
    yield tmp_path / "dask"
    embedded.discard(schedule)


@pytest.mark.slow
def test_make_cluster_runs_the_schedule_on_two_dask_workers_and_leaves_no_process(
    folder: Path,
) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "@sh examples/dask/cluster.sh $(BIN)" in makefile
    environment = {name: value for name, value in os.environ.items() if name != "YAMLSCHED_DSN"}

    done = subprocess.run(
        ["sh", "cluster.sh", str(Path(sys.executable).parent)],
        cwd=folder,
        env={**environment, "EXAMPLE": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.findall(r"^\d+ +(\w+) +(\w+) +1/3", done.stdout, re.MULTILINE)
    jobs = ["clean_up", *["train_model"] * 2, *["score_customers"] * 4]
    assert runs == [(job, "succeeded") for job in jobs]
    assert re.search(r"^ok +executor cluster ", done.stdout, re.MULTILINE)
    assert '"place": "Dask worker gpu"' in done.stdout  # of the run that is shown
    assert not [path for path in Path("/proc").glob("[0-9]*") if belongs_to(path, folder)]


def belongs_to(process: Path, folder: Path) -> bool:
    """Return whether a process was started by the example in ``folder``."""
    try:
        return f"EXAMPLE={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is not ours
