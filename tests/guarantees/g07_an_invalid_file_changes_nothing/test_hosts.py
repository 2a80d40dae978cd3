"""Which file is in use when places have different ones: several hosts and one database."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.schedules import (
    DAY,
    HOUR,
    MINUTE,
    a_bad_file,
    a_file,
    at,
    definition,
    gaps,
    runs,
    slots,
    sync_by_hand,
    tick,
)
from yamlsched.sync import hosts
from yamlsched.sync.apply import claimable_jobs
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.in_use import FileVersion, Verdict, is_newer
from yamlsched.timetable import zones

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
OLD_JOB = {"cron": "0 * * * *", "description": "old"}
NEW_JOB = {"cron": "0 * * * *", "description": "new"}
OLD_1, NEW_1 = a_file("web-1", x=OLD_JOB), a_file("web-1", x=NEW_JOB)
OLD_2, NEW_2 = a_file("web-2", x=OLD_JOB), a_file("web-2", x=NEW_JOB)


def minutes(db: Db, start: datetime, number: int, *files: ScheduleFile) -> list[SyncResult]:
    """Tick every minute from the places of all files; return the results of the last minute."""
    results: list[SyncResult] = []
    for minute in range(number):
        results = [tick(db, file, start + minute * MINUTE) for file in files]
    return results


def in_use(db: Db) -> str:
    return str(definition(db).description)


def place(db: Db, host: str = "web-1") -> Any:
    return db.execute("select * from yamlsched.hosts where host = %s", [host]).fetchone()


# -- one host ----------------------------------------------------------------------------------------------------------


def test_an_edit_and_its_revert_on_one_host_count_in_the_next_tick(db: Db) -> None:
    minutes(db, NOON, 3, OLD_1)

    assert tick(db, NEW_1, NOON + 3 * MINUTE).verdict is Verdict.APPLY
    assert tick(db, OLD_1, NOON + 4 * MINUTE).verdict is Verdict.APPLY
    assert in_use(db) == "old"
    assert tick(db, NEW_1, NOON + 5 * MINUTE).verdict is Verdict.APPLY
    assert in_use(db) == "new"


def test_a_tick_that_would_retire_a_job_waits_for_the_next_one_with_the_same_file(db: Db) -> None:
    # given a file of which a tick sees the first half, and then the whole
    whole, half = a_file(x=OLD_JOB, y=NEW_JOB), a_file(x=OLD_JOB)
    minutes(db, NOON, 2, whole)

    result = tick(db, half, NOON + 2 * MINUTE)

    # then no job is retired, and what is the same in both files runs here
    assert (result.verdict, result.has_findings, result.messages) == (
        Verdict.UNCONFIRMED,
        False,
        [],
    )
    assert definition(db, "y").retired_at is None
    assert set(claimable_jobs(db, half, result)) == {"x"}
    assert tick(db, whole, NOON + 3 * MINUTE).verdict is Verdict.CURRENT

    # and if the job was removed, the second tick retires it
    assert tick(db, half, NOON + 4 * MINUTE).verdict is Verdict.UNCONFIRMED
    assert tick(db, half, NOON + 5 * MINUTE).verdict is Verdict.APPLY
    assert definition(db, "y").retired_at == NOON + 5 * MINUTE


def test_hosts_that_see_half_of_a_file_in_one_second_retire_nothing(db: Db) -> None:
    whole, half = [
        [a_file(host, **jobs) for host in ("web-1", "web-2")]
        for jobs in ({"x": OLD_JOB, "y": OLD_JOB}, {"x": OLD_JOB})
    ]
    minutes(db, NOON, 2, *whole)

    minutes(db, NOON + 2 * MINUTE, 1, *half)

    assert definition(db, "y").retired_at is None
    assert [result.verdict for result in minutes(db, NOON + 3 * MINUTE, 1, *whole)] == [
        Verdict.CURRENT
    ] * 2


def test_containers_with_new_names_confirm_a_retired_job_for_each_other(db: Db) -> None:
    tick(db, a_file("pod-1", x=OLD_JOB, y=OLD_JOB), NOON)

    first = tick(db, a_file("pod-2", x=OLD_JOB), NOON + MINUTE)
    second = tick(db, a_file("pod-3", x=OLD_JOB), NOON + 2 * MINUTE)

    assert (first.verdict, second.verdict) == (Verdict.UNCONFIRMED, Verdict.APPLY)


def test_a_place_that_ticks_no_more_confirms_no_retired_job(db: Db) -> None:
    tick(db, a_file("web-1", x=OLD_JOB, y=OLD_JOB), NOON)
    assert tick(db, OLD_2, NOON + MINUTE).verdict is Verdict.UNCONFIRMED

    result = tick(db, OLD_1, NOON + 3 * HOUR)

    assert result.verdict is Verdict.UNCONFIRMED
    assert definition(db, "y").retired_at is None


def test_sync_by_hand_retires_a_job_at_once(db: Db) -> None:
    tick(db, a_file(x=OLD_JOB, y=OLD_JOB), NOON)

    assert sync_by_hand(db, a_file(x=OLD_JOB), NOON + MINUTE).verdict is Verdict.APPLY
    assert definition(db, "y").retired_at == NOON + MINUTE


# -- several hosts -----------------------------------------------------------------------------------------------------


def test_a_new_file_is_applied_by_the_first_host_that_has_it_and_no_host_takes_it_back(
    db: Db,
) -> None:
    # given two hosts with the old file
    minutes(db, NOON, 3, OLD_1, OLD_2)

    # when a rolling deploy reaches one, and the other two minutes later
    [first, second] = minutes(db, NOON + 3 * MINUTE, 2, NEW_1, OLD_2)
    assert in_use(db) == "new"
    assert (first.has_findings, second.has_findings) == (False, False)
    assert second.verdict is Verdict.SUPERSEDED
    assert "the file in use is /app/schedules.yaml of host web-1" in second.messages[0]
    assert "2026-01-14T12:03:00Z" in second.messages[0]

    # then there is no message after the deploy
    [first, second] = minutes(db, NOON + 5 * MINUTE, 2, NEW_1, NEW_2)
    assert (first.verdict, second.verdict) == (Verdict.CURRENT, Verdict.CURRENT)
    assert second.messages == []
    assert in_use(db) == "new"


@pytest.mark.parametrize("every", [1, 5, 10, 30, 60])
def test_a_host_that_a_deploy_has_forgotten_changes_nothing_and_exits_1_after_ten_minutes(
    db: Db, every: int
) -> None:
    # given ticks of both hosts, not in the same minute
    step = every * MINUTE
    for n in range(3):
        tick(db, OLD_1, NOON + n * step)
        tick(db, OLD_2, NOON + n * step + MINUTE / 2)

    deployed = NOON + 3 * step
    for n in range(20):
        tick(db, NEW_1, deployed + n * step)
        now = deployed + n * step + MINUTE / 2
        forgotten = tick(db, OLD_2, now)
        assert in_use(db) == "new"
        assert forgotten.has_findings == (now - deployed >= 10 * MINUTE)


SERVICE = """\
version: 1
jobs:
  same: {handler: app.same, payload: {a: 1}}
  handler: {handler: app.OLD}
  program: {command: [bin/a], env: {A: OLD}}
  folder: {command: [bin/a], cwd: OLD}
  input: {command: [bin/a], stdin: OLD}
  codes: {command: [bin/a], exit_codes: {success: [OLD]}}
  gone: {handler: app.same}
"""


def test_a_forgotten_host_runs_the_jobs_that_are_the_same_in_both_files(db: Db) -> None:
    # given a file in use with other programs, and one job less
    old = replace(OLD_2, data=SERVICE.replace("[OLD]", "[1]").encode())
    edited = SERVICE.replace("[OLD]", "[2]").replace("OLD", "NEW").replace("{a: 1}", "{a: 2}")
    new = replace(OLD_1, data=edited.replace("  gone: {handler: app.same}\n", "").encode())
    tick(db, old, NOON)
    minutes(db, NOON + MINUTE, 2, new)

    result = tick(db, old, NOON + 3 * MINUTE)

    assert result.verdict is Verdict.SUPERSEDED
    assert set(claimable_jobs(db, old, result)) == {"same"}


def test_a_forgotten_host_creates_the_slots_of_the_file_in_use(db: Db) -> None:
    minutes(db, NOON, 1, OLD_1, OLD_2)
    minutes(db, NOON + 56 * MINUTE, 1, NEW_1)

    tick(db, OLD_2, NOON + HOUR)

    assert in_use(db) == "new"
    assert len(runs(db)) == 1


def test_a_revert_on_several_hosts_counts_when_the_last_of_them_has_it(db: Db) -> None:
    minutes(db, NOON, 3, OLD_1, OLD_2)
    minutes(db, NOON + 3 * MINUTE, 3, NEW_1, NEW_2)

    [first, second] = minutes(db, NOON + 6 * MINUTE, 3, OLD_1, NEW_2)
    assert (first.verdict, second.verdict) == (Verdict.SUPERSEDED, Verdict.CURRENT)
    assert in_use(db) == "new"

    assert tick(db, OLD_2, NOON + 9 * MINUTE).verdict is Verdict.APPLY
    assert in_use(db) == "old"
    assert tick(db, OLD_1, NOON + 9 * MINUTE).verdict is Verdict.CURRENT


@pytest.mark.parametrize(("every", "counts_for"), [(1, 5), (10, 20), (45, 90), (180, 120)])
def test_a_place_counts_for_five_minutes_or_twice_the_time_between_its_ticks(
    db: Db, every: int, counts_for: int
) -> None:
    for n in range(2):
        tick(db, OLD_1, NOON + n * every * MINUTE)
    minutes(db, NOON + every * MINUTE, 1, OLD_2)
    tick(db, NEW_1, NOON + 2 * every * MINUTE)

    stopped = NOON + 2 * every * MINUTE
    assert place(db).expected_until == stopped + counts_for * MINUTE
    assert tick(db, OLD_2, stopped + (counts_for - 1) * MINUTE).verdict is Verdict.SUPERSEDED
    assert tick(db, OLD_2, stopped + counts_for * MINUTE).verdict is Verdict.APPLY


def test_sync_by_hand_goes_back_at_once(db: Db) -> None:
    minutes(db, NOON, 2, OLD_1, OLD_2)
    minutes(db, NOON + 2 * MINUTE, 2, NEW_1, NEW_2)

    assert sync_by_hand(db, OLD_1, NOON + 4 * MINUTE).verdict is Verdict.APPLY
    assert in_use(db) == "old"
    assert tick(db, NEW_2, NOON + 5 * MINUTE).verdict is Verdict.SUPERSEDED


def test_sync_by_hand_counts_for_five_minutes_however_rare_it_is(db: Db) -> None:
    minutes(db, NOON, 3, OLD_1)
    sync_by_hand(db, NEW_2, NOON + 3 * MINUTE)
    sync_by_hand(db, NEW_2, NOON + 50 * MINUTE)

    assert tick(db, OLD_1, NOON + 54 * MINUTE).verdict is Verdict.SUPERSEDED
    assert tick(db, OLD_1, NOON + 55 * MINUTE).verdict is Verdict.APPLY


def test_two_services_in_one_namespace_are_reported_and_retire_each_others_jobs_once(
    db: Db,
) -> None:
    one = a_file("web-1", path="/one/schedules.yaml", x=OLD_JOB)
    two = a_file("web-1", path="/two/schedules.yaml", y=OLD_JOB)

    results = minutes(db, NOON, 30, one, two)

    # the second one is in use: x was retired once, when its file had been there for two ticks
    assert definition(db, "x").retired_at == NOON + MINUTE
    assert definition(db, "y").retired_at is None
    assert [result.has_findings for result in results] == [True, False]
    assert "/two/schedules.yaml" in results[0].messages[0]
    assert "give each its own namespace" in results[0].messages[0]


def test_services_in_different_namespaces_do_not_affect_each_other(db: Db) -> None:
    one = a_file("web-1", path="/one/schedules.yaml", top="namespace: one", x=OLD_JOB)
    two = a_file("web-1", path="/two/schedules.yaml", top="namespace: two", x=NEW_JOB)

    results = minutes(db, NOON, 15, one, two)

    assert [result.has_findings for result in results] == [False, False]
    names = db.execute("select namespace from yamlsched.job_definitions order by 1").fetchall()
    assert [row.namespace for row in names] == ["one", "two"]


def test_the_environment_of_one_namespace_does_not_refuse_the_files_of_another(db: Db) -> None:
    def files(job: dict[str, str]) -> tuple[ScheduleFile, ScheduleFile]:
        top = "environments: {production: {}}\nnamespace: one"
        return (
            a_file("web-1", path="/one.yaml", environment="production", top=top, x=job),
            a_file("web-2", path="/two.yaml", top="namespace: two", x=job),
        )

    minutes(db, NOON, 2, *files(OLD_JOB))

    verdicts = [tick(db, file, NOON + 2 * MINUTE).verdict for file in files(NEW_JOB)]

    assert verdicts == [Verdict.APPLY, Verdict.APPLY]
    assert [place(db, host).refused_hash for host in ("web-1", "web-2")] == [None, None]


def test_a_namespace_goes_the_same_way_beside_others_on_the_same_hosts_and_paths(db: Db) -> None:
    def files(name: str, job: dict[str, str]) -> list[ScheduleFile]:
        return [a_file(host, top=f"namespace: {name}", x=job) for host in ("web-1", "web-2")]

    def way(name: str, *others: str) -> list[Any]:
        """Return what ticks say and write: an edit that one host has first, its revert, and a new
        place whose file is invalid.
        """
        said: list[Any] = []
        old, new = files(name, OLD_JOB), files(name, NEW_JOB)
        ticks = [old, old, [new[0], old[1]], new, [new[0], old[1]], old, old, old, old, old, old]
        for minute, there in enumerate(ticks):
            now = NOON + minute * MINUTE
            for other in others if minute in (0, 7) else ():
                [tick(db, one, now) for one in files(other, NEW_JOB)]
            for one in there:
                result = tick(db, one, now)
                said.append((result.verdict, result.has_findings, result.may_claim))
        invalid = f"version: 1\nnamespace: {name}\njobs: {{x: {{hanlder: a.b}}}}\n".encode()
        for other in others:
            tick(db, files(other, NEW_JOB)[0], NOON + HOUR / 2)
        db.execute("cluster yamlsched.namespaces using namespaces_pkey")  # its own row is the last
        tick(db, replace(old[0], data=invalid, host=f"pod-{name}"), NOON + HOUR)
        place = (
            "select split_part(h.host, '-', 1), h.hash is not distinct from n.hash, h.since,"
            " h.refused_at, h.seen_at, h.expected_until, h.first_seen_at"
            " from yamlsched.hosts h join yamlsched.namespaces n on n.namespace = h.namespace"
            " where h.namespace = %s order by h.host"
        )
        return [said, *map(tuple, db.execute(place.encode(), [name]).fetchall())]

    alone = way("one")

    assert [row[:2] for row in alone[1:]] == [("pod", True), ("web", True), ("web", True)]
    assert way("two", "another", "others") == alone


# -- containers --------------------------------------------------------------------------------------------------------


def pod(minute: int, job: dict[str, str]) -> ScheduleFile:
    return a_file(f"pod-{minute}", x=job)


def test_containers_with_a_new_name_each_minute_go_back_once_the_last_one_is_old(db: Db) -> None:
    for minute in range(3):
        tick(db, pod(minute, OLD_JOB), NOON + minute * MINUTE)
    for minute in range(3, 6):
        tick(db, pod(minute, NEW_JOB), NOON + minute * MINUTE)
    assert in_use(db) == "new"

    applied = [
        tick(db, pod(minute, OLD_JOB), NOON + minute * MINUTE).verdict is Verdict.APPLY
        for minute in range(6, 12)
    ]

    assert applied == [
        False,
        False,
        False,
        False,
        True,
        False,
    ]  # the last new one counts until then


def test_a_superseded_file_of_containers_is_a_finding_after_ten_minutes(db: Db) -> None:
    tick(db, pod(0, OLD_JOB), NOON)
    found = []
    for minute in range(1, 20):
        tick(db, NEW_1, NOON + minute * MINUTE)
        found.append(tick(db, pod(minute, OLD_JOB), NOON + minute * MINUTE).has_findings)

    assert found == [minute >= 11 for minute in range(1, 20)]


def test_hourly_containers_count_until_the_next_one(db: Db) -> None:
    for hour in range(3):
        tick(db, pod(hour, NEW_JOB if hour else OLD_JOB), NOON + hour * HOUR)

    assert tick(db, OLD_1, NOON + 3 * HOUR - MINUTE).verdict is Verdict.SUPERSEDED
    assert in_use(db) == "new"


def test_a_new_name_counts_as_long_as_the_ticks_of_its_own_path_are_apart(db: Db) -> None:
    tick(db, pod(0, OLD_JOB), NOON)
    tick(db, a_file("web-1", path="/other/schedules.yaml", x=OLD_JOB), NOON + 59 * MINUTE)

    tick(db, pod(60, OLD_JOB), NOON + HOUR)

    assert place(db, "pod-60").expected_until == NOON + 3 * HOUR


def test_names_that_ticked_once_are_forgotten_after_two_hours_and_others_after_a_week(
    db: Db,
) -> None:
    for minute in range(5):
        tick(db, a_file(f"pod-{minute}", x=OLD_JOB), NOON + minute * MINUTE)
        tick(db, OLD_1, NOON + minute * MINUTE)

    assert hosts.prune(db, "default", NOON + 2 * HOUR) == 0
    assert hosts.prune(db, "default", NOON + 2 * HOUR + 4 * MINUTE) == 4
    assert hosts.prune(db, "default", NOON + 7 * DAY) == 1
    assert hosts.prune(db, "default", NOON + 7 * DAY + 5 * MINUTE) == 1


def test_a_file_is_known_for_400_days_after_its_last_use_and_the_one_in_use_for_ever(
    db: Db,
) -> None:
    minutes(db, NOON, 1, OLD_1)
    minutes(db, NOON + DAY, 1, NEW_1)

    hosts.prune(db, "default", NOON + 401 * DAY)
    assert db.execute("select count(*) from yamlsched.files").fetchone() == (2,)
    hosts.prune(db, "default", NOON + 402 * DAY)
    assert db.execute("select count(*) from yamlsched.files").fetchone() == (1,)

    # what is forgotten counts as new
    minutes(db, NOON + 402 * DAY, 1, NEW_2)
    assert tick(db, OLD_1, NOON + 402 * DAY).verdict is Verdict.APPLY


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_place_with_an_invalid_file_counts_as_having_the_one_before(db: Db) -> None:
    minutes(db, NOON, 1, OLD_1, OLD_2)
    minutes(db, NOON + MINUTE, 2, NEW_1, OLD_2)

    results = minutes(db, NOON + 3 * MINUTE, 60, a_bad_file("web-1"), OLD_2)

    assert in_use(db) == "new"
    assert [result.has_findings for result in results] == [True, True]
    row = place(db)
    assert (row.hash, row.refused_at) == (NEW_1.sha256, NOON + 3 * MINUTE)
    assert row.refused_hash == a_bad_file().sha256
    assert "hanlder" in row.errors[0]

    # and what was refused is forgotten with the next valid one
    tick(db, NEW_1, NOON + 63 * MINUTE)
    assert (place(db).refused_at, place(db).errors) == (None, None)


def test_a_place_with_an_unreadable_file_counts_as_having_the_one_before(db: Db) -> None:
    minutes(db, NOON, 1, OLD_1, OLD_2)
    minutes(db, NOON + MINUTE, 2, NEW_1, OLD_2)

    for minute in range(3, 60):
        unreadable = replace(NEW_1, data=b"")
        error = "cannot be read"
        known = hosts.namespace_of_refused(db, unreadable)
        hosts.poll(db, unreadable, NOON + minute * MINUTE, known, errors=[error])
        assert tick(db, OLD_2, NOON + minute * MINUTE).verdict is Verdict.SUPERSEDED
    assert place(db).errors == [error]


def test_containers_with_an_invalid_file_count_as_having_the_one_in_use_of_their_path(
    db: Db,
) -> None:
    tick(db, OLD_2, NOON)
    tick(db, pod(1, NEW_JOB), NOON + MINUTE)

    for minute in range(2, 62):
        result = tick(db, a_bad_file(f"pod-{minute}"), NOON + minute * MINUTE)
        assert (result.has_findings, result.namespace) == (True, "default")
        tick(db, OLD_2, NOON + minute * MINUTE)

    assert in_use(db) == "new"
    refused = "select count(*) from yamlsched.hosts where refused_at is not null and hash = %s"
    assert db.execute(refused, [NEW_1.sha256]).fetchone() == (60,)


def test_a_new_place_whose_first_file_is_invalid_is_shown_and_has_no_file(db: Db) -> None:
    tick(db, OLD_1, NOON)

    tick(db, a_bad_file("web-9", path="/new/schedules.yaml"), NOON + MINUTE)

    assert (place(db, "web-9").hash, len(place(db, "web-9").errors)) == (None, 1)


def test_a_new_place_with_an_invalid_file_has_none_of_its_host_and_none_that_was_superseded(
    db: Db,
) -> None:
    tick(db, a_file("web-1", path="/old/schedules.yaml", x=OLD_JOB), NOON)
    tick(db, NEW_2, NOON + MINUTE)
    assert in_use(db) == "new"

    tick(db, a_bad_file("web-2", path="/new/schedules.yaml"), NOON + 2 * MINUTE)
    tick(db, a_bad_file("web-9", path="/old/schedules.yaml"), NOON + 2 * MINUTE)

    refused = "select host, hash from yamlsched.hosts where refused_at is not null order by host"
    assert [tuple(row) for row in db.execute(refused)] == [("web-2", None), ("web-9", None)]


def test_an_unreadable_file_whose_path_is_that_of_several_namespaces_belongs_to_none(
    db: Db,
) -> None:
    for name in ("one", "two"):
        tick(db, a_file("web-1", top=f"namespace: {name}", x=OLD_JOB), NOON)

    unreadable = ScheduleFile(b"version: [", "/app/schedules.yaml", "", "pod-1")
    named = b"version: 1\nnamespace: two\njobs: {x: {hanlder: a.b}}\n"

    assert tick(db, unreadable, NOON + MINUTE).namespace is None
    assert tick(db, replace(unreadable, data=named), NOON + MINUTE).namespace == "two"


# -- environments ------------------------------------------------------------------------------------------------------

TOP = "environments: {staging: {}, production: {}}"
PRODUCTION_JOB = {"cron": "0 * * * *", "environments": ["production"]}
PRODUCTION = a_file(environment="production", top=TOP, x=PRODUCTION_JOB)
STAGING = a_file(environment="staging", top=TOP, x=PRODUCTION_JOB)


def test_a_namespace_remembers_its_environment_and_another_is_refused(db: Db) -> None:
    minutes(db, NOON, 2, PRODUCTION)

    [result] = minutes(db, NOON + 2 * MINUTE, 20, STAGING)

    assert (result.verdict, result.has_findings) == (Verdict.OTHER_ENVIRONMENT, True)
    assert result.may_claim is False
    assert (
        'belongs to environment "production", and this is environment "staging"'
        in (result.messages[0])
    )
    # it may be misspelt: then the file does not have it
    assert "Pass --env production, or" in result.messages[0]
    assert (
        'To move the namespace to this environment, run "yamlsched sync --env staging"'
        in result.messages[0]
    )
    assert definition(db).enabled
    row = place(db)
    assert (row.hash, row.environment, row.refused_at) == (
        PRODUCTION.sha256,
        "staging",
        NOON + 2 * MINUTE,
    )
    tick(db, PRODUCTION, NOON + 22 * MINUTE)
    assert place(db).refused_at is None


def test_sync_by_hand_sets_and_changes_the_environment(db: Db) -> None:
    minutes(db, NOON, 1, PRODUCTION)

    result = sync_by_hand(db, STAGING, NOON + HOUR)

    assert (result.has_findings, result.runs) == (False, 1)
    assert not definition(db).enabled
    assert tick(db, PRODUCTION, NOON + HOUR + MINUTE).verdict is Verdict.OTHER_ENVIRONMENT


def test_sync_without_an_environment_does_not_drop_that_of_the_namespace_unless_it_is_told_to(
    db: Db,
) -> None:
    # given a namespace that belongs to production
    minutes(db, NOON, 1, PRODUCTION)
    file = a_file(top=TOP, x=PRODUCTION_JOB)

    # when an operator forgets --env
    result = sync_by_hand(db, replace(file, names_environment=False), NOON + HOUR)

    # then nothing changes, and the message has the command that would change it
    assert (result.verdict, result.has_findings, result.runs) == (
        Verdict.OTHER_ENVIRONMENT,
        True,
        0,
    )
    assert "yamlsched sync --env ''" in result.messages[0]
    assert definition(db).enabled

    # and --env "" changes it
    result = sync_by_hand(db, file, NOON + HOUR)
    assert (result.has_findings, definition(db).enabled) == (False, False)


def test_an_environment_that_the_file_does_not_list_is_an_error(db: Db) -> None:
    result = tick(db, a_file(environment="prod", top=TOP, x=OLD_JOB), NOON)

    assert result.has_findings
    assert "prod" in result.messages[0]
    assert definition(db) is None


# -- releases and time zone data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column, older", [("yamlsched_version", "0.0.9"), ("tzdata_version", "2019a")]
)
def test_a_newer_version_computes_the_next_slots_again(db: Db, column: str, older: str) -> None:
    tick(db, OLD_1, NOON)
    db.execute(f"update yamlsched.namespaces set {column} = %s".encode(), [older])
    db.execute(
        "update yamlsched.job_definitions set next_slot_at = next_slot_at + interval '17 minutes'"
    )

    result = tick(db, OLD_1, NOON + MINUTE)

    assert result.verdict is Verdict.RENEW
    assert definition(db).next_slot_at == NOON + HOUR
    assert tick(db, OLD_1, NOON + 2 * MINUTE).verdict is Verdict.CURRENT


@pytest.mark.parametrize(
    ("release", "data"), [("99.10.0", "2999a"), ("99.10.0", "2019a"), ("0.0.1", "2999a")]
)
def test_a_place_that_is_older_in_anything_changes_nothing_of_the_same_file(
    db: Db, release: str, data: str
) -> None:
    tick(db, OLD_1, NOON)
    db.execute(
        "update yamlsched.namespaces set yamlsched_version = %s, tzdata_version = %s",
        [release, data],
    )
    db.execute("update yamlsched.job_definitions set next_slot_at = %s", [NOON + 17 * MINUTE])

    assert tick(db, OLD_1, NOON + MINUTE).verdict is Verdict.CURRENT
    assert definition(db).next_slot_at == NOON + 17 * MINUTE


def test_versions_are_compared_as_numbers() -> None:
    version = FileVersion("h", "", "0.10.0", "2026a")

    assert is_newer(version, FileVersion("h", "", "0.9.0", "2026a"))
    assert not is_newer(version, FileVersion("h", "", "0.10.0", "2026b"))
    assert is_newer(version, FileVersion("h", "", "0.10.0", "2025c"))


def with_versions(file: ScheduleFile, yamlsched_version: str, tzdata_version: str) -> ScheduleFile:
    """Return the file on a host with these versions."""
    file = replace(file)
    file.__dict__["version"] = FileVersion(
        file.sha256, file.environment, yamlsched_version, tzdata_version
    )
    return file


def test_hosts_with_crossed_versions_do_not_alternate(db: Db) -> None:
    one, two = with_versions(OLD_1, "1.1.0", "2025a"), with_versions(OLD_2, "1.0.0", "2025b")
    tick(db, one, NOON)

    results = [
        tick(db, file, NOON + minute * MINUTE).verdict
        for minute in range(1, 5)
        for file in (two, one)
    ]

    assert results == [Verdict.CURRENT] * 8


@pytest.fixture
def older_zones(tmp_path: Path) -> Callable[[], AbstractContextManager[None]]:
    """Time zone data before 2024a, in which Almaty was at UTC+6."""
    older = tmp_path / "zoneinfo"
    shutil.copytree(zones.TZDATA_FOLDER, older)
    shutil.copy(older / "Asia" / "Bishkek", older / "Asia" / "Almaty")
    current = zones.TZDATA_FOLDER

    @contextmanager
    def installed() -> Iterator[None]:
        zones.TZDATA_FOLDER = older
        zones.zone.cache_clear()
        try:
            yield
        finally:
            zones.TZDATA_FOLDER = current
            zones.zone.cache_clear()

    return installed


TWICE_A_DAY = {"cron": "0 2,14 * * *", "timezone": "Asia/Almaty", "overlap": "allow"}
NEW_SLOTS = ["01-14 21:00", "01-15 09:00", "01-15 21:00", "01-16 09:00"]


def test_with_two_versions_of_time_zone_data_each_slot_runs_once_by_the_newer_one(
    db: Db, older_zones: Callable[[], AbstractContextManager[None]]
) -> None:
    # given a host with older and one with newer data, whose ticks alternate
    older = with_versions(a_file("web-1", x=TWICE_A_DAY), "1.0.0", "2023d")
    newer = with_versions(a_file("web-2", x=TWICE_A_DAY), "1.1.0", "2024a")
    has_findings = set()
    for minute in range(0, 2 * 24 * 60, 5):
        now = NOON + minute * MINUTE
        with older_zones():
            has_findings.add(tick(db, older, now).has_findings)
        has_findings.add(tick(db, newer, now + 2 * MINUTE).has_findings)

    assert (slots(db), gaps(db), has_findings) == (NEW_SLOTS, [], {False})


def test_an_edit_by_the_host_with_older_time_zone_data_creates_no_slot_twice(
    db: Db, older_zones: Callable[[], AbstractContextManager[None]]
) -> None:
    # given data that moves the slot of 02:00 from 20:00 to 21:00 UTC; here the older host has the later time
    with older_zones():
        newer = with_versions(a_file("web-2", x=TWICE_A_DAY), "1.1.0", "2024a")
        minutes(db, at("2026-01-14 19:58"), 5, newer)
        assert slots(db) == ["01-14 20:00"]

    # when the older host applies an edit after 21:00
    edited = with_versions(
        a_file("web-1", x={**TWICE_A_DAY, "description": "edited"}), "1.0.0", "2023d"
    )
    with older_zones():
        tick(db, newer, at("2026-01-14 21:29"))
    assert tick(db, edited, at("2026-01-14 21:30")).verdict is Verdict.APPLY
    tick(db, edited, at("2026-01-14 21:31"))

    # then 02:00 does not run again, and the newer host computes the next slot
    assert (slots(db), in_use(db)) == (["01-14 20:00"], "edited")
    with older_zones():
        assert (
            tick(db, with_versions(edited, "1.1.0", "2024a"), at("2026-01-14 21:32")).verdict
            is Verdict.RENEW
        )
        tick(db, with_versions(edited, "1.1.0", "2024a"), at("2026-01-15 08:00"))
    assert slots(db) == ["01-14 20:00", "01-15 08:00"]


def test_a_host_with_older_time_zone_data_creates_the_slots_if_no_other_host_ticks_and_reports_this(
    db: Db, older_zones: Callable[[], AbstractContextManager[None]]
) -> None:
    tick(db, with_versions(a_file("web-2", x=TWICE_A_DAY), "1.1.0", "2024a"), NOON)
    older = with_versions(a_file("web-1", x=TWICE_A_DAY), "1.0.0", "2023d")

    with older_zones():
        beside = tick(db, older, NOON + MINUTE)
        alone = tick(db, older, NOON + HOUR)
        tick(db, older, at("2026-01-14 21:00"))

    assert (beside.has_findings, alone.has_findings) == (False, True)
    assert "Upgrade tzdata on this host" in alone.messages[0]
    assert len(slots(db)) == 1
