"""The tutorial and the guides are carried out as they are written: see support/guides.py."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import psycopg
import pytest

from support import guides
from support.database import temporary_database
from yamlsched.extras import embedded

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""With the Python of this test first, for which the installed packages are."""
BY_HAND = {
    f"GIT_{who}_{what}": "you@example.com"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that every user can enter: as root, the embedded database runs as another user."""
    path = Path(tempfile.mkdtemp(prefix="guide-"))
    path.chmod(0o755)
    yield path
    if (path / "schedules.yaml").exists():
        embedded.discard(path / "schedules.yaml")
    shutil.rmtree(path)


def test_the_tutorial_works_as_shown(folder: Path, server: str) -> None:
    now = datetime.now(ZoneInfo("Europe/Berlin"))
    if now.hour == 6 and now.minute < 20:
        pytest.skip("the job has its slot at 06:15, so there would be one more run than shown")
    environment = {
        "PATH": PATH,
        "HOME": str(folder),
        # packages come from the environment of this test, and no index is asked
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the value of --build-isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **BY_HAND,
    }
    with temporary_database(server, "template0") as dsn:
        replaced = {"/path/to/yamlsched": str(ROOT), "postgresql://app@db.internal/app": f'"{dsn}"'}
        wrong = guides.problems("tutorial.md", folder, environment, replaced)

    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize(
    "page",
    [
        "from-crontab.md",
        "two-servers.md",
        "several-files.md",
        "from-celery.md",
        "customers.md",
        "docker.md",
        "managed.md",
        "systemd.md",
        "kubernetes.md",
        "pause-after.md",
        "hooks.md",
    ],
)
def test_a_guide_works_as_shown(page: str, folder: Path, own_dsn: str) -> None:
    environment = {"PATH": PATH, "HOME": str(folder), "YAMLSCHED_DSN": own_dsn, **BY_HAND}

    wrong = guides.problems(page, folder, environment, {"/path/to/yamlsched": str(ROOT)})

    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize(
    "page, project",
    [
        ("django", "django"),
        ("fastapi", "fastapi"),
        ("sqlalchemy", "sqlalchemy"),
        ("sqlalchemy", "flask"),
    ],
)
def test_the_commands_of_a_guide_work_in_its_project(
    page: str, project: str, folder: Path, server: str, own_dsn: str
) -> None:
    environment = {
        "PATH": PATH,
        "HOME": str(folder),
        "PIP_NO_INDEX": "1",
        "TMPDIR": tempfile.gettempdir(),
        **BY_HAND,
    }
    shutil.copytree(
        ROOT / "examples" / project,
        folder,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    branch = "git init -q && git add . && git commit -qm start && git update-ref refs/remotes/origin/main HEAD"
    subprocess.run(["sh", "-c", branch], cwd=folder, env=environment, check=True)

    names = ("shop", "bank")
    replaced = {f"postgresql://{name}@db.internal/{name}": shlex.quote(own_dsn) for name in names}
    wrong = guides.problems(f"{page}.md", folder, environment, replaced, "sh")

    assert not wrong, "\n\n".join(wrong)
    # tests enqueue nothing in the database of the shell
    with psycopg.connect(own_dsn) as connection:
        assert connection.execute("select job_type from yamlsched.job_runs").fetchall() == []


def test_the_chain_of_the_guide_runs_in_its_order(folder: Path, own_dsn: str) -> None:
    environment = {"PATH": PATH, "HOME": str(folder), "YAMLSCHED_DSN": own_dsn}
    shutil.copytree(ROOT / "examples" / "etl", folder, dirs_exist_ok=True)

    wrong = guides.problems("follow.md", folder, environment, {}, "sh")

    assert not wrong, "\n\n".join(wrong)
    with psycopg.connect(own_dsn) as connection:
        rows = connection.execute(
            "select job_type, status from yamlsched.job_runs order by started_at, id"
        ).fetchall()
    order = [name for name, status in rows if status == "succeeded"]
    assert sorted(order[:2]) == ["extract_orders", "fetch_rates"]
    assert order[2:] == ["load_orders", "daily_report", "announce_report"]
