"""Leases of runs at work: what an edit of ``lease`` does, and that a loss is reported once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from working import Project, a_project, until

from yamlsched.definitions.job import Job
from yamlsched.runs import Claimed
from yamlsched.worker.children import Held
from yamlsched.worker.leases import lose


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


@pytest.mark.slow
def test_a_lease_that_is_shortened_in_the_file_lets_nobody_else_take_a_run_at_work(project: Project) -> None:
    # given a run at work under a long lease, and a worker that waits for others to lose theirs
    project.sync(until_told={"lease": "12s"})
    [run] = project.enqueue("until_told")
    worker = project.start("work")
    project.until_begun(run)
    other = project.start("work", "--loop", host="b")

    # when the file has a shorter one, and two heartbeats have passed
    project.sync(until_told={"lease": "2s"})
    ends = {project.row(run).locked_until}
    until(lambda: ends.add(project.row(run).locked_until) or len(ends) == 3, "its lease is renewed twice")
    project.say("go")

    # then it was the first worker's all the time
    assert worker.wait() == 0
    assert project.became(run) == ("succeeded", 1, 1, 1, 0)
    other.signal(signal.SIGTERM)
    assert other.wait() == 0


def test_a_run_that_is_lost_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = Claimed(7, "purge", None, None, 2, 5, "{}", False, 120.0, "A")
    held = Held(run, Job(name="purge", handler="h.f"), 0.0, 0.0)

    assert lose(held, "lost")
    assert not lose(held, "cancelled")

    assert held.is_lost
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("lease.lost job=purge run=7 attempt=2/5 why=lost")
