"""The ssh example of docs/started-workers.md, by its text, against a real sshd on this machine."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from support.project import TESTS, Project, a_project, until

pytestmark = pytest.mark.slow
PAGE = (TESTS.parent / "docs" / "started-workers.md").read_text("utf-8").partition("### ssh")[2]
OVERDUE = "run_at = now() - interval '1 minute', created_at = now() - interval '1 minute'"


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[Sequence[str]]:
    """The words of ssh with which a server of this test is reached."""
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host_key", "user_key"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    sshd = shutil.which("sshd", path=f"/usr/sbin{os.pathsep}{os.environ['PATH']}")
    assert sshd, "this test needs openssh-server"
    log = (folder / "log").open("wb")
    server = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        until(lambda: b"Server listening" in (folder / "log").read_bytes())
        yield [
            *("ssh", "-F", "none", "-p", str(port), "-i", f"{folder}/user_key"),
            *("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"),
            *("-o", f"UserKnownHostsFile={folder}/known_hosts", "-o", "LogLevel=ERROR"),
            f"{getpass.getuser()}@127.0.0.1",
        ]
    finally:
        server.terminate()
        server.wait()
        log.close()


def test_the_example_of_ssh_starts_a_worker_and_returns_at_once(
    project: Project, ssh: Sequence[str]
) -> None:
    # given the text of the page, with the paths of this test
    described, script = re.findall(r"```(?:yaml|sh)\n(.*?)```", PAGE, re.S)[:2]
    queues = yaml.safe_load(described)["queues"]
    words = queues["gpu"]["start"]["command"]
    assert words[:2] == ["ssh", "gpu-1"]
    worker, program = project.folder / "worker", project.folder / "bin" / "yamlsched"
    remote = words[2].replace("/srv/app/worker", str(worker))
    remote = remote.replace("/tmp/worker.log", f"{project.folder}/worker.log")
    queues["gpu"]["start"]["command"] = [*ssh, remote]
    environment = project.folder / "yamlsched.env"
    environment.write_text(
        f"export YAMLSCHED_DSN='{project.dsn}' TEST_FOLDER='{project.folder}' PYTHONPATH='{TESTS}'\n"
    )
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m yamlsched "$@"\n')
    script = script.replace("/etc/yamlsched.env", str(environment))
    script = script.replace("/srv/app/.venv/bin/yamlsched", str(program))
    worker.write_text(script.replace("/srv/app/schedules.yaml", str(project.file)))
    for path in (worker, program):
        path.chmod(0o755)
    project.file.write_text(
        json.dumps(
            {
                "version": 1,
                "queues": queues,
                "jobs": {"nothing": {"handler": "support.handlers.nothing", "queue": "gpu"}},
            }
        )
    )
    assert project.start("sync", "--path", str(TESTS)).wait() == 0
    [run] = project.enqueue("nothing")
    project.db.execute(f"update yamlsched.job_runs set {OVERDUE}")  # type: ignore[arg-type]

    # when a tick finds that a worker is missing
    tick = project.start("tick")

    # then its command returns, and the worker executes the run, and goes on without it
    assert tick.wait(60) == 0, tick.text
    done = project.until_status(run, "succeeded")
    [row] = project.db.execute(
        "select * from yamlsched.workers where requested_at is not null"
    ).fetchall()
    assert done.locked_by.startswith(f"{row.id}:")
    assert (row.ended_at, row.error) == (None, None)
    os.kill(int(done.locked_by.split(":")[-2]), signal.SIGTERM)
    until(
        lambda: project.db.execute(
            "select from yamlsched.workers where ended_at is not null and error is null"
        ).fetchall()
    )
