"""Which claim statement a worker uses, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_run
from yamlsched.runs.statements import Scope
from yamlsched.worker import claims
from yamlsched.worker.claims import Claims
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, Session


async def claims_of(dsn: str, *limits: int) -> list[tuple[int, int]]:
    """Make one claim per limit, as one worker; return how many slot runs and other runs each claim took."""
    session = Session(Database(dsn), WORKER_SETTINGS)
    claims = Claims(session, "default", "web-1:1")
    taken = []
    for limit in limits:
        answer = await claims.claim(limit, Scope())
        assert answer is not None
        kinds = [run.job_type.startswith("nightly") for run in answer[0].runs]
        taken.append((kinds.count(True), kinds.count(False)))
    assert claims.is_exhausted == (taken[-1] == (0, 0))
    await session.drop()
    return taken


def due(db: psycopg.Connection[Any], slot_runs: int, others: int) -> None:
    ad_hoc = a_job(db, "ad_hoc")
    for _ in range(others):
        a_run(db, ad_hoc)
    for number in range(slot_runs):
        a_run(db, a_job(db, f"nightly_{number}"), exclusive=True)


def test_the_first_claim_is_complete_because_it_may_be_the_only_one(db: psycopg.Connection[Any], dsn: str) -> None:
    due(db, slot_runs=5, others=5)

    assert asyncio.run(claims_of(dsn, 4)) == [(2, 2)]


def test_while_other_runs_are_due_only_one_claim_per_interval_includes_slot_runs(
    db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "POLL_INTERVAL_SECONDS", 0.0)  # the interval ends
    due(db, slot_runs=20, others=20)

    assert asyncio.run(claims_of(dsn, 4, 4, 4, 4)) == [(2, 2), (0, 4), (2, 2), (0, 4)]


def test_when_the_fast_path_finds_too_few_runs_claims_are_complete_until_nothing_is_due(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    due(db, slot_runs=5, others=5)

    assert asyncio.run(claims_of(dsn, 2, 2, 4, 4, 4, 4, 4, 4)) == [
        (1, 1), (0, 2), (0, 2), (4, 0), (0, 0), (0, 0), (0, 0), (0, 0),
    ]  # fmt: skip


def test_while_claims_find_runs_that_lost_their_worker_every_other_claim_includes_them(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    # given a backlog, and runs of a dead worker for three claims
    ad_hoc = a_job(db, "ad_hoc")
    for _ in range(20):
        a_run(db, ad_hoc)
    lost = "(now() - interval '1 hour')"
    for _ in range(6):
        a_run(db, a_job(db, f"nightly_{_}"), status="running", run_at=lost, locked_until=lost, attempts=1)

    assert asyncio.run(claims_of(dsn, 2, 2, 2, 2, 2, 2)) == [(2, 0), (0, 2), (2, 0), (0, 2), (2, 0), (0, 2)]


@pytest.mark.parametrize("is_exclusive", [True, False])
def test_runs_that_somebody_has_locked_for_long_are_asked_for_twice_and_then_at_the_next_poll(
    db: psycopg.Connection[Any], dsn: str, is_exclusive: bool
) -> None:
    jobs = [a_job(db, f"nightly_{number}") for number in range(100)]
    for job in jobs:
        a_run(db, job, exclusive=is_exclusive)

    async def count_claims(polls: int) -> list[int]:
        session, counts = Session(Database(dsn), WORKER_SETTINGS), []
        claims = Claims(session, "default", "web-1:1", polls=True)
        for _ in range(polls):
            claims.look_now()
            asked = 0
            while not claims.is_exhausted and asked < 10:
                answer = await claims.claim(1, Scope(newest=jobs[-1]))
                assert answer is not None
                assert answer[0].runs == []
                asked += 1
            counts.append(asked)
        await session.drop()
        return counts

    with psycopg.connect(dsn) as other:
        other.execute("select from yamlsched.job_runs for no key update")
        assert max(asyncio.run(count_claims(polls=4))) <= 2


async def claims_when_notified(dsn: str, limit: int, count: int) -> list[list[str]]:
    """Return the jobs of the runs that an idle worker claims after a notification, claim by claim."""
    session = Session(Database(dsn), WORKER_SETTINGS)
    claims = Claims(session, "default", "web-1:1")
    for level in claims._levels:
        level.owed = 0.0  # else lower levels get their share by chance, one claim in eight
    claims.set_exhausted()
    claims.look_soon()
    taken = []
    for _ in range(count):
        answer = await claims.claim(limit, Scope())
        assert answer is not None
        taken.append([run.job_type for run in answer[0].runs])
    await session.drop()
    return taken


def test_an_idle_worker_that_is_notified_claims_the_highest_level_by_one_statement(
    db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job, priority in (("clean_up", 3), ("send_mail", 2), ("answer_click", 1)):
        a_run(db, a_job(db, job), priority=priority)
    looks: list[str] = []
    look = claims.statements.due_levels

    async def counted(*given: Any) -> Any:
        looks.append("look")
        return await look(*given)

    monkeypatch.setattr(claims.statements, "due_levels", counted)

    assert asyncio.run(claims_when_notified(dsn, limit=5, count=1)) == [["answer_click"]]
    assert looks == []


@pytest.mark.parametrize("high_is_exclusive", [False, True])
def test_what_is_due_at_lower_levels_follows_after_the_claim_of_a_notified_worker(
    db: psycopg.Connection[Any], dsn: str, high_is_exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LOOK_INTERVAL_SECONDS", 0.0)
    a_run(db, a_job(db, "clean_up"), priority=3)
    a_run(db, a_job(db, "answer_click"), priority=1, exclusive=high_is_exclusive)

    taken = asyncio.run(claims_when_notified(dsn, limit=1, count=3))

    assert taken[0] == ["answer_click"]
    assert [*taken[1], *taken[2]] == ["clean_up"]


def test_a_notified_worker_claims_less_after_the_server_has_cancelled_a_long_statement(
    db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_RUNS", 2)  # as the limit is lowered then
    ad_hoc = a_job(db, "ad_hoc")
    for _ in range(5):
        a_run(db, ad_hoc)

    assert asyncio.run(claims_when_notified(dsn, limit=5, count=1)) == [["ad_hoc"] * 2]


async def claims_beside_withheld_runs(dsn: str, enqueue: Callable[[], None]) -> list[list[str]]:
    """Return the jobs of the runs that an idle worker claims beside runs that it may not claim, before and after."""
    session = Session(Database(dsn), WORKER_SETTINGS)
    claims = Claims(session, "default", "web-1:1")
    taken = []
    for wake in (lambda: None, enqueue):
        wake()
        claims.look_soon()
        answer = await claims.claim(1, Scope())
        assert answer is not None
        taken.append([run.job_type for run in answer[0].runs])
    await session.drop()
    return taken


def test_a_worker_that_is_woken_beside_many_withheld_runs_reads_only_those_that_became_due_since(
    db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, job = a_job(db, "paused", paused_at="now"), a_job(db, "send_mail")
    for _ in range(50):
        a_run(db, paused)
    asked: list[tuple[str, int]] = []
    claim_waiting = claims.statements.claim_waiting

    async def noted(*given: Any, **more: Any) -> Any:
        asked.append(given[5])
        return await claim_waiting(*given, **more)

    monkeypatch.setattr(claims.statements, "claim_waiting", noted)
    before: Any = db.execute("select clock_timestamp()::text").fetchone()

    taken = asyncio.run(claims_beside_withheld_runs(dsn, lambda: a_run(db, job, run_at="(clock_timestamp())") and None))

    assert taken == [[], ["send_mail"]]
    assert [past > (before[0], 0) for past in asked] == [True]


def test_a_worker_that_is_woken_by_runs_that_became_due_before_it_read_the_others_claims_them_too(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    # given runs that are committed, or resumed, after their time
    paused, job = a_job(db, "paused", paused_at="now"), a_job(db, "send_mail")
    for _ in range(50):
        a_run(db, paused)

    taken = asyncio.run(
        claims_beside_withheld_runs(dsn, lambda: a_run(db, job, run_at="(now() - interval '1 hour')") and None)
    )

    assert taken == [[], ["send_mail"]]


class Polling:
    """A worker that polls, beside runs of a paused job. ``asked`` are the statements of its last claims."""

    def __init__(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = Session(Database(dsn), WORKER_SETTINGS)
        self.claims = Claims(self.session, "default", "web-1:1", polls=True)
        self.asked: list[str] = []
        for name in ("due_levels", "claim", "claim_waiting"):
            monkeypatch.setattr(claims.statements, name, self.noted(name, getattr(claims.statements, name)))

    def noted(self, name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        async def ask_and_note(*given: Any, **more: Any) -> Any:
            self.asked.append(name)
            return await ask(*given, **more)

        return ask_and_note

    async def claim_all(self) -> list[str]:
        """Claim until nothing can be claimed; return the jobs of the runs."""
        self.asked.clear()
        taken = []
        while not self.claims.is_exhausted:
            answer = await self.claims.claim(10, Scope())
            assert answer is not None
            taken += [run.job_type for run in answer[0].runs]
        return taken


@pytest.fixture
def polling(db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch) -> Polling:
    paused = a_job(db, "paused", paused_at="now")
    for _ in range(50):
        a_run(db, paused, run_at="(now() - interval '1 minute')")
        a_run(db, paused, run_at="(now() - interval '1 minute')", exclusive=True)
    monkeypatch.setattr(claims, "POLL_INTERVAL_SECONDS", 3600.0)  # no poll unless a test says so
    monkeypatch.setattr(claims, "LOOK_INTERVAL_SECONDS", 0.0)  # nor is it busy
    return Polling(dsn, monkeypatch)


def poll(polling: Polling) -> None:
    """Let the interval end."""
    polling.claims._look_at = polling.claims._complete_at = claims.clock.now()
    polling.claims.check_clock()


def test_a_continuous_worker_has_its_statements_planned_before_anything_is_due(
    db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        idle = Polling(dsn, monkeypatch)
        assert await idle.claim_all() == []
        assert idle.asked == ["due_levels", "claim_waiting", "claim"]
        poll(idle)
        assert await idle.claim_all() == []
        assert idle.asked == ["due_levels"]
        await idle.session.drop()

    asyncio.run(story())


def test_a_worker_that_polls_reads_what_it_may_not_claim_once_in_each_interval(
    db: psycopg.Connection[Any], polling: Polling
) -> None:
    job = a_job(db, "send_mail")

    async def story() -> None:
        assert await polling.claim_all() == []
        for _ in range(3):
            a_run(db, job, run_at="(clock_timestamp())")
            polling.claims.look_soon()
            assert await polling.claim_all() == ["send_mail"]
            assert polling.asked == ["claim_waiting", "due_levels"]
            polling.claims.look_for_new()  # when the run has succeeded
            assert await polling.claim_all() == []
            assert polling.asked == ["due_levels"]
        poll(polling)
        assert await polling.claim_all() == []
        assert polling.asked == ["due_levels", "claim"]
        await polling.session.drop()

    asyncio.run(story())


def test_a_busy_worker_that_is_notified_looks_for_other_runs_once_in_each_interval(
    db: psycopg.Connection[Any], polling: Polling, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = a_job(db, "send_mail"), a_job(db, "other")

    async def story() -> None:
        assert await polling.claim_all() == []
        monkeypatch.setattr(claims, "LOOK_INTERVAL_SECONDS", 600.0)
        for _ in range(3):
            a_run(db, job, run_at="(clock_timestamp())")
            a_run(db, other, run_at="(clock_timestamp())", exclusive=True)
            polling.claims.look_soon()
            assert await polling.claim_all() == ["send_mail"]
            assert polling.asked == ["claim_waiting"]
            polling.claims.look_for_new()  # when the run has succeeded
            assert polling.claims.is_exhausted
        assert 0 < polling.claims.idle_seconds <= 600
        polling.claims._look_at = claims.clock.now()  # the interval ends
        polling.claims.check_clock()
        assert await polling.claim_all() == ["other"]  # the others wait for its end
        await polling.session.drop()

    asyncio.run(story())


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("priority", [1, 2, 3])
def test_what_becomes_due_between_two_polls_is_claimed_with_what_it_came_with(
    db: psycopg.Connection[Any], polling: Polling, exclusive: bool, priority: int
) -> None:
    mail, other = a_job(db, "send_mail"), a_job(db, "other")

    async def story() -> None:
        assert await polling.claim_all() == []
        a_run(db, mail, run_at="(clock_timestamp())")
        a_run(db, other, run_at="(clock_timestamp())", exclusive=exclusive, priority=priority)
        polling.claims.look_soon()
        assert sorted(await polling.claim_all()) == ["other", "send_mail"]
        await polling.session.drop()

    asyncio.run(story())


@pytest.mark.parametrize("noticed", ["look_soon", "look_now", "note_released", "poll"])
def test_an_old_run_that_becomes_claimable_is_claimed_when_it_is_noticed_and_at_the_next_poll(
    db: psycopg.Connection[Any], polling: Polling, noticed: str
) -> None:
    # given a run that came due before the others were read: it was released, or waited for the end of another
    job = a_job(db, "send_mail")

    async def story() -> None:
        assert await polling.claim_all() == []
        a_run(db, job, run_at="(now() - interval '1 hour')")
        polling.claims.look_for_new()
        assert await polling.claim_all() == []  # nobody has said so
        if noticed == "poll":
            poll(polling)
        else:
            getattr(polling.claims, noticed)()
        assert await polling.claim_all() == ["send_mail"]
        await polling.session.drop()

    asyncio.run(story())


def test_a_worker_that_does_not_poll_claims_an_old_run_before_it_ends(db: psycopg.Connection[Any], dsn: str) -> None:
    job = a_job(db, "send_mail")

    async def story() -> None:
        session = Session(Database(dsn), WORKER_SETTINGS)
        claims = Claims(session, "default", "web-1:1")
        for expected in ([], ["send_mail"]):
            claims.look_for_new()
            answer = await claims.claim(10, Scope())
            assert answer is not None
            assert [run.job_type for run in answer[0].runs] == expected
            a_run(db, job, run_at="(now() - interval '1 hour')")
        await session.drop()

    asyncio.run(story())


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("withheld", [100, 101, 160])  # up to a hundred are read as a list
def test_beside_many_withheld_jobs_exactly_the_runs_of_the_others_are_claimed(
    db: psycopg.Connection[Any], dsn: str, withheld: int, exclusive: bool
) -> None:
    # given due runs of withheld jobs, and later ones of jobs between them that are not, or are of another file
    reasons = ({"paused_at": "now"}, {"paused_at": "now", "paused_until": "tomorrow"}, {"enabled": False})
    claimable: list[str] = []
    others: list[int] = []
    for number in range(withheld):
        job = a_job(db, f"withheld_{number}", **reasons[number % 3])
        a_run(db, job, run_at="(now() - interval '1 day')", exclusive=exclusive)
        if number % 20 in (0, 19):
            names = [f"own_{number}", f"resumed_{number}", f"other_{number}"]
            own = a_job(db, names[0])
            resumed = a_job(db, names[1], paused_at="yesterday", paused_until="yesterday")
            others.append(a_job(db, names[2]))
            for later in (own, resumed, others[-1]):
                a_run(db, later, exclusive=exclusive)
            claimable += names[:2]
    last = a_job(db, "last")
    a_run(db, last, exclusive=exclusive)
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive) "
        "select r.namespace, r.definition_id, r.job_type, r.run_at, r.max_attempts, r.exclusive "
        "from yamlsched.job_runs r, generate_series(1, 6) where r.job_type like 'withheld%'"
    )

    async def claimed() -> list[str]:
        session = Session(Database(dsn), WORKER_SETTINGS)
        claims = Claims(session, "default", "web-1:1")
        taken = []
        while not claims.is_exhausted:
            answer = await claims.claim(5, Scope(last, tuple(others)))
            assert answer is not None
            taken += [run.job_type for run in answer[0].runs]
        await session.drop()
        return taken

    assert sorted(asyncio.run(claimed())) == sorted([*claimable, "last"])


@pytest.mark.parametrize("dead", [False, True])
def test_what_is_resumed_behind_withheld_runs_is_claimed_in_two_steps_and_not_a_few_at_a_time(
    db: psycopg.Connection[Any], polling: Polling, dead: bool
) -> None:
    resumed = a_job(db, "resumed", paused_at="now")

    async def story() -> list[int]:
        assert await polling.claim_all() == []
        for _ in range(70):
            a_run(db, resumed, run_at="(now() - interval '1 second')")
        if dead:
            db.execute(
                "update yamlsched.job_runs set status = 'running', attempts = max_attempts, locked_by = 'gone', "
                "locked_until = now() - interval '1 s', started_at = now() where job_type = 'resumed'"
            )
        db.execute("update yamlsched.job_definitions set paused_at = null where job_type = 'resumed'")
        polling.claims.look_soon()
        taken = []
        while not polling.claims.is_exhausted:
            answer = await polling.claims.claim(60, Scope())
            assert answer is not None
            taken.append(len(answer[0].dead if dead else answer[0].runs))
        await polling.session.drop()
        return taken

    assert asyncio.run(story())[:2] == [4, 60]
