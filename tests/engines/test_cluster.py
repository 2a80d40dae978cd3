"""``make cluster``: jobs on a Dask cluster of this machine, as developers try it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engines import DASK, ROOT, Dask, free_ports
from support.project import until
from yamlsched.extras import embedded

pytestmark = pytest.mark.engines


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if why := Dask.why_not():
        pytest.skip(why)
    ignored = shutil.ignore_patterns("__pycache__", ".yamlsched", ".venv")
    shutil.copytree(DASK, tmp_path / "dask", ignore=ignored)
    (tmp_path / "dask" / ".venv").symlink_to(DASK / ".venv")
    yield tmp_path / "dask"
    embedded.discard(tmp_path / "dask" / "schedules.yaml")


def test_make_cluster_runs_jobs_on_a_dask_worker_and_leaves_no_process(folder: Path) -> None:
    assert "@sh examples/dask/cluster.sh $(BIN)" in (ROOT / "Makefile").read_text()
    environment = {name: value for name, value in os.environ.items() if name != "YAMLSCHED_DSN"}
    environment |= {"EXAMPLE": str(folder), "PORT": str(free_ports(1)[0])}

    done = subprocess.run(
        ["sh", "cluster.sh", str(Path(sys.executable).parent)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.findall(r"(?m)^\d+ +(\w+) +(\w+) +1/", done.stdout)
    assert runs == [("clean_up", "succeeded"), *[("train_model", "succeeded")] * 2], done.stdout
    assert '"place": "Dask worker gpu"' in done.stdout  # of the run that is shown
    processes = Path("/proc").glob
    until(lambda: not any(belongs_to(path, folder) for path in processes("[0-9]*")), "all end")


def belongs_to(process: Path, folder: Path) -> bool:
    """Return whether a process was started by the example in ``folder``."""
    try:
        return f"EXAMPLE={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is not ours
