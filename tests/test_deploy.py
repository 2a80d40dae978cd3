"""The files of deploy/ and the README's crontab line, run as cron would run them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
README_LINE = re.search(r"```cron\n(.*?)\n```", (ROOT / "README.md").read_text("utf-8"))
JOBS = "def succeed(): print('done')\n\n\ndef fail(): raise RuntimeError('no route to host')\n"
SCHEDULE = "version: 1\njobs:\n  good: {handler: jobs.succeed}\n  bad: {handler: jobs.fail, max_attempts: 1}\n"


def commands() -> list[str]:
    """Return the commands of deploy/crontab: the tick and the daily check."""
    return [line.split(None, 5)[5] for line in (DEPLOY / "crontab").read_text("utf-8").splitlines() if "* *" in line]


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A folder as the files expect it: schedules.yaml, handlers, and a virtual environment with yamlsched."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "schedules.yaml").write_text(SCHEDULE)
    program = tmp_path / ".venv" / "bin" / "yamlsched"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m yamlsched "$@"\n')
    program.chmod(0o755)
    return tmp_path


def as_cron(command: str, application: Path, dsn: str) -> str:
    """Run a command with cron's shell and environment; return what cron would mail."""
    there = command.replace("/srv/APP", str(application)).replace("/srv/app", str(application)).replace(r"\%", "%")
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/", "SHELL": "/bin/sh", "YAMLSCHED_DSN": dsn}
    words = ["/bin/sh", "-c", there]
    done = subprocess.run(words, cwd="/", env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_the_crontab_line_of_the_readme_runs_in_the_environment_of_cron(application: Path, dsn: str) -> None:
    assert README_LINE
    command = README_LINE[1].split(None, 5)[5]
    assert "sync.applied" in as_cron(command, application, dsn)
    assert as_cron(command, application, dsn) == ""


def test_the_crontab_logs_every_tick_and_mails_only_if_it_does_not_exit_0(application: Path, dsn: str) -> None:
    tick, morning = commands()

    # a tick that applies the file, and one with a run that succeeds
    assert as_cron(tick, application, dsn) == ""
    as_cron("cd /srv/APP && .venv/bin/yamlsched enqueue good", application, dsn)
    assert as_cron(tick, application, dsn) == ""
    assert "attempt.succeeded" in (application / "tick.log").read_text()
    assert as_cron(morning, application, dsn) == ""

    # one with a run that dies
    as_cron("cd /srv/APP && .venv/bin/yamlsched enqueue bad", application, dsn)
    mail = as_cron(tick, application, dsn)
    assert mail.startswith("yamlsched tick: exit 1\n")
    assert "run.dead" in mail
    assert "bad" in as_cron(morning, application, dsn)

    # one whose program is missing
    (application / ".venv/bin/yamlsched").unlink()
    assert "yamlsched tick: exit 127" in as_cron(tick, application, dsn)


def test_the_grace_period_of_the_kubernetes_manifest_ends_before_that_of_its_pod() -> None:
    manifest = yaml.safe_load((DEPLOY / "kubernetes-cronjob.yaml").read_text("utf-8"))
    pod = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]

    assert (manifest["apiVersion"], manifest["kind"], manifest["spec"]["schedule"]) == (
        "batch/v1",
        "CronJob",
        "* * * * *",
    )
    assert container["command"] == ["yamlsched", "tick", "--grace", "30s"]
    assert pod["terminationGracePeriodSeconds"] > 30
    assert pod["restartPolicy"] == "Never"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed here")
@pytest.mark.parametrize("unit", ["yamlsched.service", "yamlsched-tick.service", "yamlsched-tick.timer"])
def test_systemd_accepts_the_units(unit: str, tmp_path: Path) -> None:
    for file in DEPLOY.glob("yamlsched*"):
        text = (
            file.read_text("utf-8")
            .replace("User=APP", "User=daemon")
            .replace("/srv/APP/.venv/bin/yamlsched", "/bin/true")
        )
        (tmp_path / file.name).write_text(text.replace("/srv/APP", "/tmp"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or unit in line]
    assert (done.returncode, complaints) == (0, [])
