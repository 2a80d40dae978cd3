"""The rule of which file is in use: what it promises, and that sync follows it in every history."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.database import delete_rows
from support.hosts_rule import File, Rule
from support.schedules import DAY, HOUR, MINUTE, a_bad_file, a_file, at, sync_by_hand, tick
from yamlsched.sync import hosts
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.in_use import Verdict

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
SECOND = timedelta(seconds=1)
PATH = "/app/schedules.yaml"
OLD = File("old", frozenset("xy"))
NEW = File("new", frozenset("xy"))
HALF = File("half", frozenset("x"))
OTHER = File("other", frozenset("z"))
INVALID = File("invalid", frozenset(), is_valid=False)
STAGING = File("staging", frozenset("xy"), environment="staging")
FILES = [OLD, NEW, HALF, OTHER, INVALID, STAGING]


# -- what the rule promises --------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from([OLD, NEW, HALF, OTHER]), st.integers(0, 10_000))))
def test_on_one_host_the_file_of_its_tick_is_in_use_at_the_latest_after_the_second(
    edits: list[tuple[File, int]],
) -> None:
    rule, now = Rule(), NOON

    for file, seconds in edits:
        now += seconds * SECOND
        retires = rule.in_use is not None and bool(rule.in_use.jobs - file.jobs)
        verdict = rule.tick("web-1", PATH, file, now)
        assert verdict is not Verdict.SUPERSEDED
        assert rule.in_use == file or retires
        rule.tick("web-1", PATH, file, now + MINUTE)
        assert rule.in_use == file


@st.composite
def ticks(draw: st.DrawFn, hosts: int) -> list[tuple[int, int]]:
    """Draw minutes and hosts of ticks: each host has its own interval, and its own first minute."""
    intervals = [draw(st.sampled_from([1, 2, 5, 7, 10, 30, 60])) for _ in range(hosts)]
    offsets = [draw(st.integers(0, interval - 1)) for interval in intervals]
    return sorted(
        (minute, host)
        for host in range(hosts)
        for minute in range(offsets[host], 8 * 60, intervals[host])
    )


@given(ticks(3), st.lists(st.integers(180, 480), min_size=3, max_size=3))
@example([(m, h) for m in range(0, 480, 60) for h in range(3)], [240, 480, 480])
def test_while_a_host_that_a_deploy_reached_ticks_no_other_host_takes_it_back(
    ticks: list[tuple[int, int]], reached_at: list[int]
) -> None:
    # given hosts with one file, and a deploy that reaches each of them at some time, or never
    rule = Rule()

    for minute, host in ticks:
        file = NEW if minute >= reached_at[host] else OLD
        rule.tick(f"web-{host}", PATH, file, NOON + minute * MINUTE)

    assert [file.name for file in rule.applied] in (["old"], ["old", "new"])


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 7))
def test_containers_with_new_names_do_not_take_back_the_file_of_a_deploy(
    interval: int, before: int, after: int
) -> None:
    # given a container for each tick, on two sites, of which a deploy reaches the second later
    rule, interval_ = Rule(), interval * MINUTE
    for n in range(before + after + 4):
        rule.tick(f"a-{n}", PATH, OLD if n < before else NEW, NOON + n * interval_)
        late = OLD if n < before + after else NEW
        rule.tick(f"b-{n}", PATH, late, NOON + n * interval_ + 10 * SECOND)

    assert rule.applied == [OLD, NEW]


@given(ticks(3), st.integers(60, 480))
def test_a_revert_on_all_hosts_counts_at_the_latest_two_hours_after_it(
    ticks: list[tuple[int, int]], reverted_at: int
) -> None:
    rule = Rule()
    for minute, host in ticks:
        is_deployed = 30 <= minute < reverted_at
        rule.tick(f"web-{host}", PATH, NEW if is_deployed else OLD, NOON + minute * MINUTE)
        if minute >= reverted_at + 121:
            assert rule.in_use == OLD


@given(ticks(2))
def test_two_services_in_one_namespace_retire_each_others_jobs_at_most_once(
    ticks: list[tuple[int, int]],
) -> None:
    rule = Rule()

    for minute, service in ticks:
        rule.tick("web-1", f"/{service}.yaml", (OLD, OTHER)[service], NOON + minute * MINUTE)

    assert len(rule.applied) <= 2


@given(st.lists(st.sampled_from([OLD, HALF, INVALID]), max_size=20))
def test_what_is_half_copied_for_one_tick_retires_nothing(files: list[File]) -> None:
    rule = Rule()
    rule.tick("web-1", PATH, OLD, NOON)

    for n, (before, file) in enumerate(pairwise([OLD, *files]), 1):
        if before == HALF:
            file = OLD  # the copy is complete
        rule.tick("web-1", PATH, file, NOON + n * MINUTE)
        assert rule.applied == [OLD]


# -- sync follows it ---------------------------------------------------------------------------------------------------

PLACES = st.sampled_from(
    [("web-1", PATH), ("web-2", PATH), ("web-3", PATH), ("web-1", "/b.yaml"), ("pod", PATH)]
)
"""Of a pod each tick has another name."""
USUAL = st.sampled_from([20 * SECOND, MINUTE, 2 * MINUTE])
EDGES = [SECOND, 5 * MINUTE - SECOND, 5 * MINUTE, HOUR, 2 * HOUR, 5 * HOUR, 8 * DAY]
PAUSES = USUAL | USUAL | st.sampled_from(EDGES)
EVENTS = st.lists(
    st.tuples(
        PAUSES,
        PLACES,
        st.sampled_from([*[OLD, NEW] * 3, *FILES]),
        st.sampled_from([*["tick"] * 12, "sync", "prune"]),
    ),
    min_size=12,
    max_size=25,
)


def as_stored(file: File, host: str, path: str) -> ScheduleFile:
    if not file.is_valid:
        return a_bad_file(host, path)
    jobs = {name: {"cron": "0 5 * * *", "description": file.name} for name in sorted(file.jobs)}
    top = "environments: {staging: {}}" if file.environment else ""
    return a_file(host, path, file.environment, top, **jobs)


NAMES = {as_stored(file, "", "").sha256: file.name for file in FILES}


@settings(max_examples=12)
@given(EVENTS)
def test_sync_and_the_rows_of_places_follow_the_rule_in_every_history(db: Db, events: Any) -> None:
    delete_rows(db)
    rule, now = Rule(), NOON

    for n, (pause, (host, path), file, verb) in enumerate(events):
        now += pause
        name = f"{host}-{n}" if host == "pod" else host
        if verb == "prune":
            hosts.prune(db, "default", now)
            rule.prune(now)
            continue
        stored, by_hand = as_stored(file, name, path), verb == "sync"
        if by_hand and file.environment and rule.in_use is not None:
            continue  # it would change the environment of the namespace
        if file.environment and rule.in_use is None:
            continue  # likewise
        result = (sync_by_hand if by_hand else tick)(db, stored, now)

        assert result.verdict is rule.tick(name, path, file, now, by_hand)
        assert in_use(db) == (rule.in_use and rule.in_use.name)
        assert rows(db) == {
            place: (row.file, row.since, row.first_seen, row.seen, row.until, row.is_refused)
            for place, row in rule.places.items()
        }


def in_use(db: Db) -> str | None:
    row = db.execute("select hash from yamlsched.namespaces").fetchone()
    return None if row is None or row[0] is None else NAMES[row[0]]


def rows(db: Db) -> dict[tuple[str, str], tuple[Any, ...]]:
    found = db.execute(
        "select host, path, hash, since, first_seen_at, seen_at, expected_until,"
        " refused_at is not null as is_refused from yamlsched.hosts"
    )
    return {
        (row.host, row.path): (row.hash and NAMES[row.hash], *row[3:]) for row in found.fetchall()
    }
