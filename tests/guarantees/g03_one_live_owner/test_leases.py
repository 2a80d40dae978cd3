"""Leases of running runs: edits of ``lease``, and the report of a loss."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.project import Project, a_project, until
from yamlsched.runs.lifecycle import ClaimedRun
from yamlsched.schedule.job import Job
from yamlsched.worker import clock
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.leases import Leases, margin
from yamlsched.worker.sessions import Unanswered


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


@pytest.mark.parametrize("lease", [2, 3.3, 3.4, 120, 21_600])
def test_a_handler_is_stopped_before_its_lease_ends_and_after_three_renewals_have_failed(
    lease: float,
) -> None:
    assert 0.5 <= margin(lease) <= lease / 4


@pytest.mark.story
def test_shortening_a_lease_in_the_file_does_not_let_another_worker_claim_a_running_run(
    project: Project,
) -> None:
    # given a running run with a long lease, and another worker that claims lost runs
    project.sync(waits_for_file={"lease": "12s"})
    [run] = project.enqueue("waits_for_file")
    worker = project.start("work")
    project.until_started(run)
    other = project.start("work", "--loop", host="b")

    # when the file has a shorter lease, and two heartbeats have passed
    project.sync(waits_for_file={"lease": "2s"})
    ends = {project.row(run).locked_until}
    until(
        lambda: ends.add(project.row(run).locked_until) or len(ends) == 3,
        "its lease is renewed twice",
    )
    project.touch("go")

    # then the first worker has kept the run
    assert worker.wait() == 0
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    other.signal(signal.SIGTERM)
    assert other.wait() == 0


def test_a_lost_run_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = ClaimedRun(7, "purge", None, None, 2, 5, "{}", False, 120.0, "A")
    attempt = Attempt(run, Job(name="purge", handler="h.f"), 0.0, 0.0)

    assert attempt.mark_lost("lost")
    assert not attempt.mark_lost("cancelled")

    assert attempt.is_lost
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("lease.lost job=purge run=7 attempt=2/5 why=lost")


@pytest.mark.parametrize("attempt", [1, 2], ids=["refunded", "counted"])
def test_of_two_claims_of_one_run_by_the_same_worker_the_earlier_one_is_lost(attempt: int) -> None:
    # given an ended attempt whose outcome may not have been written, and a later claim of the same run
    now = clock.now()
    job = Job(name="purge", handler="h.f")
    earlier = Attempt(
        ClaimedRun(7, "purge", None, None, 1, 5, "{}", False, 120.0, "A"), job, now + 20, now - 100
    )
    later = Attempt(
        ClaimedRun(7, "purge", None, None, attempt, 5, "{}", False, 120.0, "B"),
        job,
        now + 70,
        now - 50,
    )
    stopped: list[Attempt] = []

    def stop(attempts: list[Attempt], grace: float) -> None:
        stopped.extend(attempts)

    class Silence:
        """A session whose server does not answer."""

        async def run(self, do: Any, timeout: float) -> Any:
            raise Unanswered(was_asked=True)

    # when the worker renews both leases
    async def renew() -> None:
        silence: Any = Silence()
        leases = Leases(silence, {later, earlier}, stop, str)
        leases.check()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(leases.renew_due(), 0.1)

    asyncio.run(renew())

    assert stopped == [earlier]
    assert (earlier.is_lost, later.is_lost) == (True, False)


def test_a_short_lease_does_not_cost_others_theirs_when_the_server_answers_slowly() -> None:
    # given a server that needs 2 seconds for an answer, and a lease of 2 seconds beside one of 2 minutes
    job = Job(name="purge", handler="h.f")
    now = clock.now()
    attempts = [
        Attempt(
            ClaimedRun(run, "purge", None, None, 1, 5, "{}", False, lease, "A"),
            job,
            now + 60,
            now - 60,
        )
        for run, lease in ((1, 2.0), (2, 120.0))
    ]

    class SlowSession:
        """A session that is cut when an answer takes longer than the timeout."""

        async def run(self, do: Any, timeout: float) -> Any:
            if timeout < 2.0:
                raise Unanswered(was_asked=True)
            return {1, 2}, {}

    # when the worker renews both, then it has waited for the answer
    async def renew() -> None:
        session: Any = SlowSession()
        leases = Leases(session, set(attempts), lambda attempts, grace: None, str)
        renewing = asyncio.create_task(leases.renew_due())
        while attempts[1].lease_ends_at == now + 60:
            leases.check()
            await asyncio.sleep(0)
        renewing.cancel()

    asyncio.run(asyncio.wait_for(renew(), 30))
