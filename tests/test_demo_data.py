"""The data for demonstrations shows what the product can show."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from docs import demo_data
from yamlsched import db as store
from yamlsched.ask import attention, health
from yamlsched.ask.problem import Thresholds

pytestmark = pytest.mark.story


def test_the_demonstration_has_jobs_in_every_state_and_gaps_for_most_reasons(own_dsn: str) -> None:
    demo_data.fill(own_dsn)

    with store.connect(own_dsn) as db:
        found = health.read(db, demo_data.NAMESPACE, timedelta(hours=1))
        reasons = {
            row.reason for row in db.execute("select distinct reason from yamlsched.skipped_slots")
        }
    states = {job.state for job in found.jobs}
    assert states == {
        "retired",
        "stuck",
        "late",
        "dead",
        "paused",
        "disabled",
        "running",
        "ok",
        "new",
    }
    assert reasons >= {"paused", "disabled", "key_taken", "late", "superseded", "overlap"}


def test_nothing_comes_due_for_a_while_after_the_history(own_dsn: str) -> None:
    demo_data.fill(own_dsn, is_healthy=True, ended=demo_data.QUIET)

    with store.connect(own_dsn) as db:
        found = health.read(db, demo_data.NAMESPACE, timedelta(hours=1))
    states = {job.state for job in found.jobs}
    assert states == {"retired", "disabled", "running", "ok", "new"}
    [problem] = attention.problems(found, Thresholds())
    # minutes may pass while it is filled
    assert re.match(r"no tick for (4[5-9]|5\d)m", problem.what), problem.what


def test_the_healthy_demonstration_needs_no_attention(own_dsn: str) -> None:
    demo_data.fill(own_dsn, is_healthy=True, more_jobs=3)

    with store.connect(own_dsn) as db:
        found = health.read(db, demo_data.NAMESPACE, timedelta(hours=1))
    assert attention.problems(found, Thresholds()) == []
    assert len(found.jobs) == 24 + 3
