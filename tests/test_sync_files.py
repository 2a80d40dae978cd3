"""Which file is in force when hosts present different ones: stories of two working folders and one database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
import pytest
from syncing import DAY, HOUR, MINUTE, a_bad_file, a_file, at, definition, runs

from yamlsched.store.files import forget
from yamlsched.sync import ScheduleFile, Synced, Verdict, glance, is_current, sync
from yamlsched.sync import files as rules

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
OLD_JOB = {"cron": "0 * * * *", "description": "old"}
NEW_JOB = {"cron": "0 * * * *", "description": "new"}
OLD_1, NEW_1 = a_file("web-1", x=OLD_JOB), a_file("web-1", x=NEW_JOB)
OLD_2, NEW_2 = a_file("web-2", x=OLD_JOB), a_file("web-2", x=NEW_JOB)


def tick(db: Db, file: ScheduleFile, now: datetime) -> Synced:
    """What one minute's tick does: one look, and more only where it says so."""
    seen = glance(db, file, now)
    if is_current(seen, file) and not seen.has_due_jobs:
        return Synced(seen.namespace, Verdict.CURRENT)
    return sync(db, file, now, seen=seen)


def minutes(db: Db, start: datetime, number: int, *files: ScheduleFile) -> list[Synced]:
    """Tick every minute from all the files' hosts; return what the last round said."""
    said: list[Synced] = []
    for minute in range(number):
        said = [tick(db, file, start + minute * MINUTE) for file in files]
    return said


def in_force(db: Db) -> str:
    return str(definition(db).description)


def test_a_new_file_is_applied_by_the_first_host_that_has_it_and_the_others_follow_silently(db: Db) -> None:
    # given two hosts with the old file
    minutes(db, NOON, 3, OLD_1, OLD_2)

    # when a rolling deploy reaches one, and the other two minutes later
    [first, second] = minutes(db, NOON + 3 * MINUTE, 2, NEW_1, OLD_2)
    assert in_force(db) == "new"
    assert (first.exit_code, second.exit_code, second.verdict) == (0, 0, Verdict.HELD_BACK)
    assert "web-1" in second.messages[0]
    assert "2026-01-14T12:03:00Z" in second.messages[0]

    # then nothing goes back and forth, and when the deploy is over all is quiet
    [first, second] = minutes(db, NOON + 5 * MINUTE, 2, NEW_1, NEW_2)
    assert (first.verdict, second.verdict, second.messages) == (Verdict.CURRENT, Verdict.CURRENT, [])
    assert in_force(db) == "new"


def test_a_forgotten_host_never_rolls_back_and_says_so_by_its_exit_code_after_ten_minutes(db: Db) -> None:
    minutes(db, NOON, 3, OLD_1, OLD_2)
    deployed = NOON + 3 * MINUTE

    codes = {}
    for minute in range(60):
        [_, forgotten] = minutes(db, deployed + minute * MINUTE, 1, NEW_1, OLD_2)
        codes[minute] = forgotten.exit_code

    assert in_force(db) == "new"
    assert [minute for minute, code in codes.items() if code == 0] == list(range(10))


def test_a_forgotten_host_makes_the_slots_of_the_file_in_force(db: Db) -> None:
    minutes(db, NOON, 1, OLD_1, OLD_2)
    minutes(db, NOON + MINUTE, 1, NEW_1)

    tick(db, OLD_2, NOON + HOUR)

    assert len(runs(db)) == 1


def test_a_rollback_is_applied_once_nobody_has_presented_the_newer_file_for_five_minutes(db: Db) -> None:
    minutes(db, NOON, 3, OLD_1, OLD_2)
    minutes(db, NOON + 3 * MINUTE, 10, NEW_1, NEW_2)
    rolled_back = NOON + 13 * MINUTE

    # when both hosts are rolled back
    applied_at = None
    for minute in range(10):
        said = minutes(db, rolled_back + minute * MINUTE, 1, OLD_1, OLD_2)
        assert all(s.exit_code == 0 for s in said)
        if in_force(db) == "old":
            applied_at = minute
            break

    # then the last presentation of the newer one was a minute before, and five have passed since ours began
    assert applied_at == 5
    [first, second] = minutes(db, rolled_back + 6 * MINUTE, 1, OLD_1, OLD_2)
    assert (first.verdict, second.verdict) == (Verdict.CURRENT, Verdict.CURRENT)


def test_sync_on_the_command_line_rolls_back_at_once(db: Db) -> None:
    minutes(db, NOON, 2, OLD_1)
    minutes(db, NOON + 2 * MINUTE, 2, NEW_1)

    synced = sync(db, OLD_1, NOON + 4 * MINUTE, at_once=True)

    assert synced.verdict is Verdict.APPLY
    assert in_force(db) == "old"


def test_the_newer_of_two_superseded_files_wins(db: Db) -> None:
    # given three files applied one after the other, the last of which nobody presents any more
    newest = a_file("web-3", x={**NEW_JOB, "description": "newest"})
    for start, file in enumerate([OLD_1, NEW_2, newest]):
        tick(db, file, NOON + start * MINUTE)

    # when hosts with the first and the second go on
    minutes(db, NOON + 3 * MINUTE, 20, OLD_1, NEW_2)

    # then it is the second that comes back
    assert in_force(db) == "new"


def test_a_break_in_presenting_starts_the_five_minutes_anew(db: Db) -> None:
    minutes(db, NOON, 1, OLD_1)
    minutes(db, NOON + MINUTE, 1, NEW_1)

    tick(db, OLD_1, NOON + 20 * MINUTE)
    assert in_force(db) == "new"
    minutes(db, NOON + 21 * MINUTE, 5, OLD_1)

    assert in_force(db) == "old"


def test_pods_with_a_new_name_each_minute_present_one_file_together(db: Db) -> None:
    def pod(minute: int, job: dict[str, str]) -> ScheduleFile:
        return a_file(f"pod-{minute}", x=job)

    for minute in range(3):
        tick(db, pod(minute, OLD_JOB), NOON + minute * MINUTE)
    for minute in range(3, 6):
        tick(db, pod(minute, NEW_JOB), NOON + minute * MINUTE)
    assert in_force(db) == "new"

    for minute in range(6, 12):
        tick(db, pod(minute, OLD_JOB), NOON + minute * MINUTE)

    assert in_force(db) == "old"


def test_presentations_of_pods_are_forgotten_and_applied_files_are_not(db: Db) -> None:
    for minute in range(5):
        tick(db, a_file(f"pod-{minute}", x=OLD_JOB), NOON + minute * MINUTE)

    assert forget(db, "default", NOON + DAY) == 0
    assert forget(db, "default", NOON + 2 * DAY) == 4

    assert is_current(glance(db, a_file("pod-9", x=OLD_JOB), NOON + 2 * DAY), a_file("pod-9", x=OLD_JOB))


def test_a_broken_edit_on_the_newest_host_does_not_let_a_forgotten_one_roll_back(db: Db) -> None:
    minutes(db, NOON, 1, OLD_1, OLD_2)
    minutes(db, NOON + MINUTE, 2, NEW_1, OLD_2)

    # when the file of the newest host is broken for an hour
    said = minutes(db, NOON + 3 * MINUTE, 60, a_bad_file("web-1"), OLD_2)

    # then it stands for what that host presented before
    assert in_force(db) == "new"
    assert [s.exit_code for s in said] == [1, 1]


def test_two_services_that_share_a_namespace_by_mistake_are_told_and_do_not_retire_each_others_jobs_each_minute(
    db: Db,
) -> None:
    one = a_file("web-1", path="/one/schedules.yaml", x=OLD_JOB)
    two = a_file("web-1", path="/two/schedules.yaml", y=OLD_JOB)

    said = minutes(db, NOON, 30, one, two)

    # the one that came last is in force: x was retired once, y never
    assert definition(db, "x").retired_at == NOON
    assert definition(db, "y").retired_at is None
    assert [s.exit_code for s in said] == [1, 0]
    assert "/two/schedules.yaml" in said[0].messages[0]


def test_services_with_namespaces_of_their_own_do_not_touch_each_other(db: Db) -> None:
    one = a_file("web-1", path="/one/schedules.yaml", top="namespace: one", x=OLD_JOB)
    two = a_file("web-1", path="/two/schedules.yaml", top="namespace: two", x=NEW_JOB)

    said = minutes(db, NOON, 15, one, two)

    assert [s.exit_code for s in said] == [0, 0]
    assert [r.namespace for r in db.execute("select namespace from yamlsched.job_definitions order by 1")] == [
        "one",
        "two",
    ]


# -- environments ------------------------------------------------------------------------------------------------------

TOP = "environments: [staging, production]"


def test_a_namespace_remembers_its_environment_and_another_is_refused(db: Db) -> None:
    job = {"cron": "0 * * * *", "environments": ["production"]}
    minutes(db, NOON, 2, a_file(environment="production", top=TOP, x=job))

    [said] = minutes(db, NOON + 2 * MINUTE, 20, a_file(environment="staging", top=TOP, x=job))

    assert (said.verdict, said.exit_code) == (Verdict.OTHER_ENVIRONMENT, 1)
    assert '"production"' in said.messages[0]
    assert '"staging"' in said.messages[0]
    assert definition(db).enabled


def test_sync_on_the_command_line_settles_and_changes_the_environment(db: Db) -> None:
    job = {"cron": "0 * * * *", "environments": ["production"]}
    minutes(db, NOON, 1, a_file(environment="production", top=TOP, x=job))

    synced = sync(db, a_file(environment="staging", top=TOP, x=job), NOON + HOUR, at_once=True)

    assert (synced.exit_code, synced.runs) == (0, 1)
    assert not definition(db).enabled


def test_an_environment_that_the_file_does_not_list_is_a_mistake(db: Db) -> None:
    said = tick(db, a_file(environment="prod", top=TOP, x=OLD_JOB), NOON)

    assert said.exit_code == 1
    assert "prod" in said.messages[0]
    assert definition(db) is None


# -- newer rules or time zone data -------------------------------------------------------------------------------------


@pytest.mark.parametrize("column, older", [("yamlsched_version", "0.0.9"), ("tzdata_version", "2019a")])
def test_a_newer_version_computes_the_next_slots_again(db: Db, column: str, older: str) -> None:
    tick(db, OLD_1, NOON)
    db.execute(f"update yamlsched.schedule_files set {column} = %s".encode(), [older])
    db.execute("update yamlsched.job_definitions set next_slot_at = next_slot_at + interval '17 minutes'")

    said = tick(db, OLD_1, NOON + MINUTE)

    assert said.verdict is Verdict.RENEW
    assert definition(db).next_slot_at == NOON + HOUR
    assert tick(db, OLD_1, NOON + 2 * MINUTE).verdict is Verdict.CURRENT


def test_an_older_version_leaves_what_a_newer_one_computed(db: Db) -> None:
    tick(db, OLD_1, NOON)
    db.execute("update yamlsched.schedule_files set yamlsched_version = '99.10.0', tzdata_version = '2999a'")

    assert tick(db, OLD_1, NOON + MINUTE).verdict is Verdict.CURRENT


def test_versions_are_compared_as_numbers() -> None:
    ours = rules.Ours("h", "", "0.10.0", "2026a")

    assert not rules.is_known("0.9.0", "2026a", ours)
    assert rules.is_known("0.10.0", "2026b", ours)
    assert not rules.is_known("0.10.0", "2025c", ours)
