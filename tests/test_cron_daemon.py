"""deploy/crontab in Debian's cron daemon, which mails through a program of the test. Takes a minute."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import yamlsched
from support.project import until
from yamlsched.extras.scaffold import deploy as _deploy

CRON = shutil.which("cron", path=f"{os.environ['PATH']}:/usr/sbin")
JOBS = "def good(): print('done')\n\n\ndef bad(): raise RuntimeError('100% \\\\c of it failed')\n"
SENDMAIL = "#!/bin/sh\ncat > {folder}/$$.part && mv {folder}/$$.part {folder}/$$.mail\n"
SETUP = """\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/spool
mount -t tmpfs tmpfs /etc/cron.d
mkdir -p /var/spool/cron/crontabs /run/sbin/upper /run/sbin/work
install -m 755 {folder}/sendmail /run/sbin/upper/sendmail
mount -t overlay overlay -o lowerdir=/usr/sbin,upperdir=/run/sbin/upper,workdir=/run/sbin/work /usr/sbin
install -m 600 {folder}/crontab /var/spool/cron/crontabs/root
exec env -i PATH=/usr/bin:/bin {cron} -f
"""

pytestmark = [
    pytest.mark.daemon,
    pytest.mark.skipif(CRON is None, reason="Debian's cron is not installed: apt-get install cron"),
    pytest.mark.skipif(
        subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
        reason="a cron daemon of the test's own needs root, and the right to mount",
    ),
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "yamlsched"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m yamlsched "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def cron(tmp_path: Path, program: Path, own_dsn: str) -> Iterator[Any]:
    """Return a function that starts the daemon, in a mount namespace of its own, with the files of several folders."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*folders: Path) -> subprocess.Popen[bytes]:
        lines: list[str] = []
        for folder in folders:
            here = _deploy.Installation((str(program),), folder / "schedules.yaml", "root")
            lines += [
                line
                for line in _deploy.contents("cron", here)["crontab"].splitlines()
                if line not in lines
            ]
        text = "\n".join(lines) + "\n"
        text = text.replace("oncall@example.com", "root").replace(
            "postgresql://app@db.internal/app", own_dsn
        )
        (tmp_path / "crontab").write_text(text)
        (tmp_path / "sendmail").write_text(SENDMAIL.format(folder=tmp_path))
        script = SETUP.format(folder=tmp_path, cron=CRON)
        daemon = subprocess.Popen(["unshare", "--mount", "sh", "-c", script])
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.terminate()
        daemon.wait()


def test_cron_runs_the_ticks_of_two_projects_and_mails_that_of_the_dead_run_only(
    tmp_path: Path, own_dsn: str, cron: Any
) -> None:
    # given two projects, one with a run that succeeds, and one with a run that dies
    folders = [tmp_path / "good", tmp_path / "50% of it's größe"]
    for folder, job in zip(folders, ("good", "bad"), strict=True):
        folder.mkdir()
        (folder / "jobs.py").write_text(JOBS)
        entry = f"{job}: {{handler: jobs.{job}, max_attempts: 1}}"
        (folder / "schedules.yaml").write_text(f"version: 1\nnamespace: {job}\njobs:\n  {entry}\n")
        for words in (("sync",), ("enqueue", job)):
            assert yamlsched(*words, "--dsn", own_dsn, cwd=folder).returncode == 0

    # when cron runs for a minute
    daemon = cron(*folders)
    with psycopg.connect(own_dsn, autocommit=True) as db:
        ended = "select count(*) from yamlsched.job_runs where finished_at is not null"
        until(
            lambda: daemon.poll() is not None or db.execute(ended).fetchone() == (2,),
            "the runs end",
            seconds=100,
        )
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    until(lambda: daemon.poll() is not None or not children.read_text(), "cron has sent its mail")

    # then it mailed the failed tick, complete, and nothing else
    assert daemon.poll() is None
    [mail] = [path.read_text("utf-8") for path in tmp_path.glob("*.mail")]
    assert "\nyamlsched tick: exit code 1\n" in mail
    assert "run.dead job=bad" in mail
    assert r"100% \\c of it failed" in mail
    assert mail.count("\n\n") == 1
