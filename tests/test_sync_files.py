"""Which file is in force when hosts present different versions: several hosts and one database."""

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
)
from yamlsched.sync.files import (
    FileVersion,
    ScheduleFile,
    SyncResult,
    Verdict,
    is_current,
    needs_sync,
    poll,
    prune_unapplied,
)
from yamlsched.sync.flow import sync
from yamlsched.timetable import zones

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
OLD_JOB = {"cron": "0 * * * *", "description": "old"}
NEW_JOB = {"cron": "0 * * * *", "description": "new"}
OLD_1, NEW_1 = a_file("web-1", x=OLD_JOB), a_file("web-1", x=NEW_JOB)
OLD_2, NEW_2 = a_file("web-2", x=OLD_JOB), a_file("web-2", x=NEW_JOB)


def tick(db: Db, file: ScheduleFile, now: datetime) -> SyncResult:
    """Tick once: poll, and sync only if the poll says so."""
    snapshot = poll(db, file, now)
    if not needs_sync(snapshot, file):
        return SyncResult(snapshot.namespace, Verdict.CURRENT)
    return sync(db, file, now, snapshot=snapshot)


def minutes(db: Db, start: datetime, number: int, *files: ScheduleFile) -> list[SyncResult]:
    """Tick every minute from the hosts of all files; return the messages of the last minute."""
    results: list[SyncResult] = []
    for minute in range(number):
        results = [tick(db, file, start + minute * MINUTE) for file in files]
    return results


def hash_in_force(db: Db) -> str:
    return str(definition(db).description)


def test_a_new_file_is_applied_by_the_first_host_that_has_it_and_the_others_follow_silently(
    db: Db,
) -> None:
    # given two hosts with the old file
    minutes(db, NOON, 3, OLD_1, OLD_2)

    # when a rolling deployment reaches one, and the other two minutes later
    [first, second] = minutes(db, NOON + 3 * MINUTE, 2, NEW_1, OLD_2)
    assert hash_in_force(db) == "new"
    assert (first.has_findings, second.has_findings, second.verdict) == (
        False,
        False,
        Verdict.HELD_BACK,
    )
    assert "web-1" in second.messages[0]
    assert "2026-01-14T12:03:00Z" in second.messages[0]

    # then no version is rolled back, and there is no message after the deployment
    [first, second] = minutes(db, NOON + 5 * MINUTE, 2, NEW_1, NEW_2)
    assert (first.verdict, second.verdict, second.messages) == (
        Verdict.CURRENT,
        Verdict.CURRENT,
        [],
    )
    assert hash_in_force(db) == "new"


def test_a_forgotten_host_never_rolls_back_and_exits_1_after_ten_minutes(db: Db) -> None:
    minutes(db, NOON, 3, OLD_1, OLD_2)
    deployed = NOON + 3 * MINUTE

    has_findings = {}
    for minute in range(60):
        [_, forgotten] = minutes(db, deployed + minute * MINUTE, 1, NEW_1, OLD_2)
        has_findings[minute] = forgotten.has_findings

    assert hash_in_force(db) == "new"
    assert [minute for minute, found in has_findings.items() if not found] == list(range(10))


def test_a_forgotten_host_creates_the_slots_of_the_file_in_force(db: Db) -> None:
    minutes(db, NOON, 1, OLD_1, OLD_2)
    minutes(db, NOON + MINUTE, 1, NEW_1)

    tick(db, OLD_2, NOON + HOUR)

    assert len(runs(db)) == 1


def test_a_rollback_is_applied_once_no_host_has_presented_the_newer_file_for_five_minutes(
    db: Db,
) -> None:
    minutes(db, NOON, 3, OLD_1, OLD_2)
    minutes(db, NOON + 3 * MINUTE, 10, NEW_1, NEW_2)
    rolled_back = NOON + 13 * MINUTE

    # when both hosts are rolled back
    applied_at = None
    for minute in range(10):
        results = minutes(db, rolled_back + minute * MINUTE, 1, OLD_1, OLD_2)
        assert not any(result.has_findings for result in results)
        if hash_in_force(db) == "old":
            applied_at = minute
            break

    # then the newer one was last presented a minute before the rollback, which applies five minutes later
    assert applied_at == 5
    [first, second] = minutes(db, rolled_back + 6 * MINUTE, 1, OLD_1, OLD_2)
    assert (first.verdict, second.verdict) == (Verdict.CURRENT, Verdict.CURRENT)


def test_sync_on_the_command_line_rolls_back_at_once(db: Db) -> None:
    minutes(db, NOON, 2, OLD_1)
    minutes(db, NOON + 2 * MINUTE, 2, NEW_1)

    result = sync(db, OLD_1, NOON + 4 * MINUTE, at_once=True)

    assert result.verdict is Verdict.APPLY
    assert hash_in_force(db) == "old"


def test_the_newer_of_two_superseded_files_wins(db: Db) -> None:
    # given three files applied one after the other; no host presents the last one now
    newest = a_file("web-3", x={**NEW_JOB, "description": "newest"})
    for start, file in enumerate([OLD_1, NEW_2, newest]):
        tick(db, file, NOON + start * MINUTE)

    # when hosts with the first and the second continue
    minutes(db, NOON + 3 * MINUTE, 20, OLD_1, NEW_2)

    # then the second is applied
    assert hash_in_force(db) == "new"


def test_an_interruption_of_the_presentation_restarts_the_five_minutes(db: Db) -> None:
    minutes(db, NOON, 1, OLD_1)
    minutes(db, NOON + MINUTE, 1, NEW_1)

    tick(db, OLD_1, NOON + 20 * MINUTE)
    assert hash_in_force(db) == "new"
    minutes(db, NOON + 21 * MINUTE, 5, OLD_1)

    assert hash_in_force(db) == "old"


def test_pods_with_a_new_name_each_minute_count_as_one_host_of_their_file(db: Db) -> None:
    def pod(minute: int, job: dict[str, str]) -> ScheduleFile:
        return a_file(f"pod-{minute}", x=job)

    for minute in range(3):
        tick(db, pod(minute, OLD_JOB), NOON + minute * MINUTE)
    for minute in range(3, 6):
        tick(db, pod(minute, NEW_JOB), NOON + minute * MINUTE)
    assert hash_in_force(db) == "new"

    for minute in range(6, 12):
        tick(db, pod(minute, OLD_JOB), NOON + minute * MINUTE)

    assert hash_in_force(db) == "old"


def test_presentations_of_pods_are_forgotten_and_applied_files_are_not(db: Db) -> None:
    for minute in range(5):
        tick(db, a_file(f"pod-{minute}", x=OLD_JOB), NOON + minute * MINUTE)

    assert prune_unapplied(db, "default", NOON + DAY) == 0
    assert prune_unapplied(db, "default", NOON + 2 * DAY) == 4

    assert is_current(
        poll(db, a_file("pod-9", x=OLD_JOB), NOON + 2 * DAY), a_file("pod-9", x=OLD_JOB)
    )


def test_a_forgotten_host_does_not_roll_back_while_the_newest_host_has_an_invalid_file(
    db: Db,
) -> None:
    minutes(db, NOON, 1, OLD_1, OLD_2)
    minutes(db, NOON + MINUTE, 2, NEW_1, OLD_2)

    # when the file of the newest host is invalid for an hour
    results = minutes(db, NOON + 3 * MINUTE, 60, a_bad_file("web-1"), OLD_2)

    # then the host still counts as presenting its last valid file
    assert hash_in_force(db) == "new"
    assert [result.has_findings for result in results] == [True, True]


def test_two_services_in_one_namespace_get_a_warning_and_do_not_retire_each_others_jobs_each_minute(
    db: Db,
) -> None:
    one = a_file("web-1", path="/one/schedules.yaml", x=OLD_JOB)
    two = a_file("web-1", path="/two/schedules.yaml", y=OLD_JOB)

    results = minutes(db, NOON, 30, one, two)

    # the last one is in force: x was retired once, y never
    assert definition(db, "x").retired_at == NOON
    assert definition(db, "y").retired_at is None
    assert [result.has_findings for result in results] == [True, False]
    assert "/two/schedules.yaml" in results[0].messages[0]


def test_services_in_different_namespaces_do_not_affect_each_other(db: Db) -> None:
    one = a_file("web-1", path="/one/schedules.yaml", top="namespace: one", x=OLD_JOB)
    two = a_file("web-1", path="/two/schedules.yaml", top="namespace: two", x=NEW_JOB)

    results = minutes(db, NOON, 15, one, two)

    assert [result.has_findings for result in results] == [False, False]
    assert [
        r.namespace
        for r in db.execute("select namespace from yamlsched.job_definitions order by 1")
    ] == [
        "one",
        "two",
    ]


@pytest.mark.parametrize("every", [1, 5, 10, 30, 60])
def test_a_rollback_is_applied_also_with_rare_ticks_and_is_reported_until_then(
    db: Db, every: int
) -> None:
    # given hosts with rare ticks, which get a new file
    step = every * MINUTE
    for n in range(3):
        minutes(db, NOON + n * step, 1, OLD_1, OLD_2)
    minutes(db, NOON + 3 * step, 1, NEW_1, OLD_2)
    minutes(db, NOON + 4 * step, 1, NEW_1, NEW_2)

    # when both are rolled back
    rolled_back = NOON + 5 * step
    for n in range(20):
        now = rolled_back + n * step
        results = minutes(db, now, 1, OLD_1, OLD_2)
        if hash_in_force(db) == "old":
            break
        # then it is held back at first, and after some time the exit code reports this
        assert (results[0].has_findings, len(results[0].messages)) == (
            now - rolled_back >= 10 * MINUTE,
            1,
        )

    # and it is applied within two ticks, or five minutes
    assert hash_in_force(db) == "old"
    assert now - rolled_back <= max(2 * step, 5 * MINUTE)


@pytest.mark.parametrize("every", [5, 10, 30, 60])
def test_a_forgotten_host_with_rare_ticks_never_rolls_back_and_reports_this(
    db: Db, every: int
) -> None:
    # given ticks of both hosts, not at the same minute
    step, later = every * MINUTE, MINUTE
    for n in range(3):
        tick(db, OLD_1, NOON + n * step)
        tick(db, OLD_2, NOON + n * step + later)
    deployed = NOON + 3 * step

    has_findings = []
    for n in range(12):
        tick(db, NEW_1, deployed + n * step)
        has_findings.append(tick(db, OLD_2, deployed + n * step + later).has_findings)
        assert hash_in_force(db) == "new"

    assert not has_findings[0]
    assert has_findings[3:] == [True] * 9


def test_forgotten_hosts_with_frequent_ticks_do_not_roll_back_a_host_with_rare_ones(db: Db) -> None:
    for n in range(3):
        tick(db, OLD_1, NOON + n * 30 * MINUTE)
    deployed = NOON + 90 * MINUTE

    for minute in range(120):
        if minute % 30 == 0:
            tick(db, NEW_1, deployed + minute * MINUTE)
        tick(db, OLD_2, deployed + minute * MINUTE)
        assert hash_in_force(db) == "new"


def test_a_file_that_was_applied_by_hand_does_not_delay_a_rollback(db: Db) -> None:
    minutes(db, NOON, 3, OLD_1)
    by_hand = replace(NEW_2, by_hand=True)
    sync(db, by_hand, NOON + 3 * MINUTE, at_once=True)
    sync(db, by_hand, NOON + 50 * MINUTE, at_once=True)

    minutes(db, NOON + 51 * MINUTE, 6, OLD_1)

    assert hash_in_force(db) == "old"


def test_pods_with_new_names_and_an_invalid_file_count_for_the_file_of_their_path(db: Db) -> None:
    # given pods with the new file, and a forgotten host of the same path
    for minute in range(3):
        tick(db, OLD_2, NOON + minute * MINUTE)
    for minute in range(3, 6):
        tick(db, a_file(f"pod-{minute}", x=NEW_JOB), NOON + minute * MINUTE)
        tick(db, OLD_2, NOON + minute * MINUTE)

    # when the next pods have an invalid file for an hour
    for minute in range(6, 66):
        result = tick(db, a_bad_file(f"pod-{minute}"), NOON + minute * MINUTE)
        assert (result.has_findings, result.namespace) == (True, "default")
        tick(db, OLD_2, NOON + minute * MINUTE)

    # then they count as presenting the file in force, and their errors are reported
    assert hash_in_force(db) == "new"
    row: Any = db.execute(
        "select count(*) as n from yamlsched.schedule_files where refused_at is not null"
    ).fetchone()
    assert row.n == 60


def test_a_pod_whose_invalid_file_may_belong_to_several_namespaces_counts_for_none(db: Db) -> None:
    for name in ("one", "two"):
        tick(db, a_file("web-1", top=f"namespace: {name}", x=OLD_JOB), NOON)

    unreadable = ScheduleFile(b"version: [", "/app/schedules.yaml", "", "pod-1")
    named = ScheduleFile(
        b"version: 1\nnamespace: two\njobs: {x: {hanlder: a.b}}\n",
        "/app/schedules.yaml",
        "",
        "pod-1",
    )

    assert tick(db, unreadable, NOON + MINUTE).namespace is None
    assert tick(db, named, NOON + MINUTE).namespace == "two"


# -- environments ------------------------------------------------------------------------------------------------------

TOP = "environments: [staging, production]"


def test_a_namespace_remembers_its_environment_and_another_is_refused(db: Db) -> None:
    job = {"cron": "0 * * * *", "environments": ["production"]}
    minutes(db, NOON, 2, a_file(environment="production", top=TOP, x=job))

    [result] = minutes(db, NOON + 2 * MINUTE, 20, a_file(environment="staging", top=TOP, x=job))

    assert (result.verdict, result.has_findings) == (Verdict.OTHER_ENVIRONMENT, True)
    assert '"production"' in result.messages[0]
    assert '"staging"' in result.messages[0]
    assert definition(db).enabled


def test_sync_on_the_command_line_sets_and_changes_the_environment(db: Db) -> None:
    job = {"cron": "0 * * * *", "environments": ["production"]}
    minutes(db, NOON, 1, a_file(environment="production", top=TOP, x=job))

    result = sync(db, a_file(environment="staging", top=TOP, x=job), NOON + HOUR, at_once=True)

    assert (result.has_findings, result.runs) == (False, 1)
    assert not definition(db).enabled


def test_sync_without_an_environment_does_not_drop_that_of_the_namespace_unless_it_is_told_to(
    db: Db,
) -> None:
    # given a namespace that belongs to production
    job = {"cron": "0 * * * *", "environments": ["production"]}
    file = a_file(top=TOP, x=job)
    minutes(db, NOON, 1, a_file(environment="production", top=TOP, x=job))

    # when an operator forgets --env
    result = sync(
        db, replace(file, by_hand=True, names_environment=False), NOON + HOUR, at_once=True
    )

    # then nothing changes, and the message has the command that would change it
    assert (result.verdict, result.has_findings, result.runs) == (
        Verdict.OTHER_ENVIRONMENT,
        True,
        0,
    )
    assert "yamlsched sync --env ''" in result.messages[0]
    assert definition(db).enabled

    # and --env "" changes it
    result = sync(db, replace(file, by_hand=True), NOON + HOUR, at_once=True)
    assert (result.has_findings, definition(db).enabled) == (False, False)


def test_an_environment_that_the_file_does_not_list_is_an_error(db: Db) -> None:
    result = tick(db, a_file(environment="prod", top=TOP, x=OLD_JOB), NOON)

    assert result.has_findings
    assert "prod" in result.messages[0]
    assert definition(db) is None


# -- newer rules or time zone data -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column, older", [("yamlsched_version", "0.0.9"), ("tzdata_version", "2019a")]
)
def test_a_newer_version_computes_the_next_slots_again(db: Db, column: str, older: str) -> None:
    tick(db, OLD_1, NOON)
    db.execute(f"update yamlsched.schedule_files set {column} = %s".encode(), [older])
    db.execute(
        "update yamlsched.job_definitions set next_slot_at = next_slot_at + interval '17 minutes'"
    )

    result = tick(db, OLD_1, NOON + MINUTE)

    assert result.verdict is Verdict.RENEW
    assert definition(db).next_slot_at == NOON + HOUR
    assert tick(db, OLD_1, NOON + 2 * MINUTE).verdict is Verdict.CURRENT


def test_an_older_version_keeps_what_a_newer_one_computed(db: Db) -> None:
    tick(db, OLD_1, NOON)
    db.execute(
        "update yamlsched.schedule_files set yamlsched_version = '99.10.0', tzdata_version = '2999a'"
    )

    assert tick(db, OLD_1, NOON + MINUTE).verdict is Verdict.CURRENT


def test_versions_are_compared_as_numbers() -> None:
    version = FileVersion("h", "", "0.10.0", "2026a")

    assert not version.is_covered_by("0.9.0", "2026a")
    assert version.is_covered_by("0.10.0", "2026b")
    assert not version.is_covered_by("0.10.0", "2025c")


def with_versions(file: ScheduleFile, yamlsched_version: str, tzdata_version: str) -> ScheduleFile:
    """Return the file as a host of these versions presents it."""
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

    assert results == [Verdict.RENEW, *[Verdict.CURRENT] * 7]
    row: Any = db.execute(
        "select yamlsched_version, tzdata_version from yamlsched.schedule_files where applied_at is not null"
    ).fetchone()
    assert tuple(row) == ("1.1.0", "2025b")


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
    assert (slots(db), hash_in_force(db)) == (["01-14 20:00"], "edited")
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
