"""Each check of the chaos scenario finds its violation in evidence that contains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import checks, notes_check, slots_check
from .cluster import Entry, Member
from .evidence import Attempt, Evidence, Message, Version

NOON = "2026-01-14T12:00:00+00:00"
WALL = 1768392000.0  # NOON in seconds
TOKEN, OTHER = "host:10:aa", "host:20:bb"


def a_row(
    status: str = "queued", attempts: int = 0, token: str | None = None, **values: Any
) -> dict[str, Any]:
    lease = "2026-01-14T12:00:10+00:00" if status == "running" else None
    return {
        "id": 1, "definition_id": 1, "job_type": "mortal", "status": status, "attempts": attempts, "locked_by": token,
        "locked_until": lease, "run_at": NOON, "started_at": "2026-01-14T12:00:01+00:00", "last_error": None,
        "error_type": None, "by": None, "idempotency_key": None, "scheduled_for": None, "parent_id": None, "hook": None,
        **values,
    }  # fmt: skip


def a_history(*rows: dict[str, Any], writer: str = "member-1") -> list[Version]:
    """Return the versions of a run that was inserted and then updated once a second."""
    return [
        Version(seq, WALL + seq, str(seq), "UPDATE" if seq else "INSERT", row, writer)
        for seq, row in enumerate([a_row(**_of_insert(rows)), *rows])
    ]


def _of_insert(rows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return (
        {name: rows[0][name] for name in ("id", "definition_id", "scheduled_for")} if rows else {}
    )


def an_attempt(token: str = TOKEN, start: float = 2, last: float = 3, **values: Any) -> Attempt:
    given = {"run": 1, "number": 1, "pid": 11, "process_start": "1", "act": "nap", **values}
    return Attempt(
        token=token,
        start=start,
        started_wall=WALL + start,
        last=last,
        last_wall=WALL + last,
        **given,
    )


def evidence(
    *histories: list[Version], attempts: tuple[Attempt, ...] = (), **values: Any
) -> Evidence:
    tables = {
        "failures": [],
        "ledger": [],
        "gaps": [],
        "used_keys": [],
        "definitions": [],
        **values.pop("tables", {}),
    }
    given: dict[str, Any] = {
        "runs": {history[0].row["id"]: history for history in histories},
        "definitions": {1: [Version(0, WALL - 100, "0", "INSERT", {"job_type": "j", "overlap": "wait"})]},
        "attempts": {(attempt.run, attempt.token): attempt for attempt in attempts},
        "events": [], "tables": tables, "journal": [],
        "members": [Member(NO_PROCESS, "loop", "a", False, "member-1", code=0, expected="terminated")],
        "acknowledged": [], "repeated_starts": [],
        **values,
    }  # fmt: skip
    return Evidence(**given)


NO_PROCESS: Any = type("P", (), {"text": "", "log": Path("log"), "pid": 10})()
RUNNING = a_row("running", 1, TOKEN)
LOST = a_row("failed", 1, TOKEN, error_type="LostWorker")
TAKEN_OVER = a_row("running", 2, OTHER, locked_until="2026-01-14T12:00:30+00:00")


def found(check: Callable[[Evidence], Iterator[str]], e: Evidence) -> str:
    return "\n".join(check(e))


def test_a_normal_history_has_no_violation() -> None:
    history = a_history(RUNNING, a_row("succeeded", 1, TOKEN, by=TOKEN))

    e = evidence(history, attempts=(an_attempt(),))

    assert [line for check in checks.CHECKS for line in check(e)] == []


def test_forbidden_changes_of_status_are_found() -> None:
    succeeded = a_row("succeeded", 1, TOKEN)

    assert "this change of status is not allowed" in found(
        checks.check_steps, evidence(a_history(RUNNING, succeeded, RUNNING))
    )
    assert "this change of status is not allowed" in found(
        checks.check_steps, evidence(a_history(succeeded))
    )


def test_miscounted_attempts_are_found() -> None:
    for after in (
        a_row("queued", 1, TOKEN),
        a_row("failed", 0, TOKEN),
        a_row("succeeded", 2, TOKEN),
    ):
        assert "attempts, not" in found(checks.check_steps, evidence(a_history(RUNNING, after)))


def test_a_takeover_before_the_end_of_the_lease_and_a_repeated_token_are_found() -> None:
    again = a_row("running", 2, TOKEN, locked_until="2026-01-14T12:00:30+00:00")

    assert "before the lease ended" in found(checks.check_steps, evidence(a_history(RUNNING, LOST)))
    assert "although it was running" in found(
        checks.check_steps, evidence(a_history(RUNNING, TAKEN_OVER))
    )
    assert "is not new" in found(
        checks.check_steps, evidence(a_history(RUNNING, a_row("failed", 1, TOKEN), again))
    )


def test_writes_of_a_former_owner_are_found() -> None:
    result = a_row("succeeded", 1, TOKEN, by=OTHER)
    error = a_row("failed", 1, TOKEN, last_error=f"raised by <{OTHER}>")

    assert "the result belongs to" in found(
        checks.check_steps, evidence(a_history(RUNNING, result))
    )
    assert "the error belongs to" in found(checks.check_steps, evidence(a_history(RUNNING, error)))
    assert "became" in found(
        checks.check_steps, evidence(a_history(RUNNING, a_row("succeeded", 1, OTHER)))
    )


def test_a_write_by_another_process_is_found() -> None:
    for after in (
        a_row("queued", 0, TOKEN),
        a_row("succeeded", 1, TOKEN),
        {**RUNNING, "locked_until": NOON},
    ):
        assert found(checks.check_writers, evidence(a_history(RUNNING, after))) == ""
        assert "written by member-2" in found(
            checks.check_writers, evidence(a_history(RUNNING, after, writer="member-2"))
        )
    assert found(checks.check_writers, evidence(a_history(RUNNING, LOST, writer="member-2"))) == ""


def test_overlapping_attempts_of_a_run_are_found() -> None:
    history = a_history(RUNNING, TAKEN_OVER)
    attempts = (an_attempt(start=2, last=9), an_attempt(OTHER, start=4, last=5, number=2))

    assert "continued for 5.00 s beside" in found(
        checks.check_one_live_attempt, evidence(history, attempts=attempts)
    )


def test_an_attempt_that_outlives_its_lease_is_found_unless_its_host_was_suspended() -> None:
    e = evidence(a_history(RUNNING), attempts=(an_attempt(last=12),))
    assert "outlived its lease by 2.00 s" in found(checks.check_one_live_attempt, e)

    e.journal.append(Entry(11, WALL + 11, "SIGCONT", (10, 11)))
    assert found(checks.check_one_live_attempt, e) == ""


def test_an_attempt_without_a_claim_is_found() -> None:
    assert "without a claim" in found(
        checks.check_one_live_attempt, evidence(a_history(), attempts=(an_attempt(),))
    )


def test_overlapping_slots_of_a_job_with_overlap_wait_are_found() -> None:
    one = a_history(a_row("running", 1, TOKEN, scheduled_for=NOON))
    other = a_history(a_row("running", 1, OTHER, scheduled_for=NOON, id=2))
    attempts = (an_attempt(last=4), an_attempt(OTHER, start=3, last=4, run=2))
    e = evidence(one, other, attempts=attempts)

    assert "continued" in found(checks.check_exclusive, e)
    e.definitions[1][0].row["overlap"] = "allow"
    assert found(checks.check_exclusive, e) == ""


def test_more_attempts_than_a_limit_allows_are_found() -> None:
    tokens = [f"host:{number}:aa" for number in range(3)]
    histories = [
        a_history(a_row("running", 1, token, id=number)) for number, token in enumerate(tokens, 1)
    ]
    attempts = [
        an_attempt(token, start=number, last=9, run=number)
        for number, token in enumerate(tokens, 1)
    ]

    few, many = (
        evidence(*histories[:number], attempts=tuple(attempts[:number])) for number in (2, 3)
    )
    for e in (few, many):
        e.definitions[1][0].row["limit_name"] = "pool"

    assert found(checks.check_limits, few) == ""
    assert "limit pool: 3 at once" in found(checks.check_limits, many)


def test_a_run_that_is_released_before_the_one_that_it_waits_for_has_ended_is_found() -> None:
    slot = {"scheduled_for": NOON}
    waits = {"id": 2, "job_type": "second", "unreleased": True, **slot}
    upstream = [
        Version(seq, WALL, str(seq), "INSERT", a_row(status, 1, TOKEN, job_type="wait_all", **slot))
        for seq, status in ((1, "running"), (5, "succeeded"))
    ]
    for seq, message in ((3, "was released while wait_all of its slot was running"), (7, "")):
        released = [
            Version(2, WALL, "2", "INSERT", a_row(**waits)),
            Version(seq, WALL, str(seq), "UPDATE", a_row(**{**waits, "unreleased": False})),
        ]
        assert message in found(checks.check_followers, evidence(upstream, released))
        assert bool(message) == bool(found(checks.check_followers, evidence(upstream, released)))
    started = [Version(1, WALL, "1", "INSERT", a_row("running", 1, TOKEN, **waits))]
    assert "before it was released" in found(checks.check_followers, evidence(started))


def test_attempts_charged_without_a_reason_are_found() -> None:
    failed = a_row("failed", 1, TOKEN, last_error="stopped by yamlsched")

    assert "never started" in found(checks.check_failures, evidence(a_history(RUNNING, failed)))
    assert "stopped by yamlsched" in found(
        checks.check_failures, evidence(a_history(RUNNING, failed), attempts=(an_attempt(),))
    )
    assert "without a fault" in found(checks.check_failures, evidence(a_history(RUNNING, LOST)))


def test_a_missing_failure_row_is_found() -> None:
    failed = a_row("failed", 1, TOKEN, last_error=f"raised by <{TOKEN}>")
    e = evidence(a_history(RUNNING, failed), attempts=(an_attempt(),))

    assert "job_failures has no row" in found(checks.check_failures, e)
    e.tables["failures"].append({"run_id": 1, "attempt": 1, "worker": TOKEN, "error": ""})
    assert found(checks.check_failures, e) == ""


def test_rows_without_a_success_and_successes_without_a_row_are_found() -> None:
    ledger = {"ledger": [{"run_id": 1, "token": TOKEN}]}
    attempt = an_attempt(act="transaction")

    assert "without its success" in found(
        checks.check_transactions, evidence(a_history(RUNNING), tables=ledger)
    )
    e = evidence(a_history(RUNNING, a_row("succeeded", 1, TOKEN)), attempts=(attempt,))
    assert "its row is missing" in found(checks.check_transactions, e)
    e = evidence(a_history(RUNNING), attempts=(attempt,))
    attempt.events.append({"event": "committed"})
    assert "logged a commit" in found(checks.check_transactions, e)


def test_repeated_effects_are_found() -> None:
    started = {"event": "effect", "key": "k", "in_doubt": "skip", "run": 1, "token": TOKEN}
    repeated = started | {"in_doubt": "repeat"}

    assert "was started 2 times" in found(checks.check_effects, evidence(events=[started, started]))
    assert found(checks.check_effects, evidence(events=[repeated, repeated])) == ""
    done = {"event": "effect done", "key": "k"}
    assert "was done again" in found(
        checks.check_effects, evidence(events=[repeated, done, repeated])
    )


def test_an_incomplete_fan_out_is_found() -> None:
    attempt = an_attempt()
    attempt.events.append({"event": "fan out", "number": 2})
    child = [Version(0, WALL, "0", "INSERT", a_row(id=2, parent_id=1))]

    e = evidence(a_history(RUNNING, a_row("succeeded", 1, TOKEN)), child, attempts=(attempt,))

    assert "fanned out to 1 runs, not 2" in found(checks.check_fan_outs, e)


def test_duplicate_forgotten_and_missing_keys_are_found() -> None:
    one = [Version(0, WALL, "0", "INSERT", a_row(idempotency_key="k"))]
    other = [Version(0, WALL, "0", "INSERT", a_row(idempotency_key="k", id=2))]
    pruned = [*one, Version(1, WALL, "1", "DELETE", a_row(idempotency_key="k"))]

    assert "had 2 runs" in found(checks.check_keys, evidence(one, other))
    assert "is not remembered" in found(checks.check_keys, evidence(pruned))
    assert "does not exist" in found(checks.check_keys, evidence(one, acknowledged=[(3, None)]))


def test_a_missing_hook_and_an_unfinished_run_are_found() -> None:
    dead = a_history(RUNNING, a_row("dead", 1, TOKEN))

    assert "no hook was created" in found(checks.check_deaths, evidence(dead))
    assert "was left running" in found(checks.check_end, evidence(a_history(RUNNING)))


def test_processes_that_end_unexpectedly_or_with_a_traceback_are_found(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Traceback (most recent call last):\n")
    process: Any = type(
        "P", (), {"text": (tmp_path / "log").read_text(), "log": tmp_path / "log", "pid": 10}
    )()
    member = Member(
        process,
        "loop",
        "a",
        False,
        "member-1",
        started=WALL,
        ended=WALL + 1,
        code=3,
        was_ready=True,
    )

    lines = found(checks.check_processes, evidence(members=[member]))

    assert "ended with 3" in lines
    assert "wrote a traceback" in lines


def test_slots_that_are_lost_duplicate_or_in_two_gaps_are_found() -> None:
    definition = {
        "id": 1,
        "job_type": "j",
        "schedule": "* * * * *",
        "last_slot_at": "2026-01-14T12:02:00+00:00",
    }
    version = Version(0, WALL, "0", "INSERT", {**definition, "effective_from": NOON})

    def lines(slots: list[int], gaps: list[tuple[int, int, int]]) -> str:
        runs = [
            [
                Version(
                    0,
                    WALL,
                    "0",
                    "INSERT",
                    a_row(id=n, scheduled_for=f"2026-01-14T12:0{slot}:00+00:00"),
                )
            ]
            for n, slot in enumerate(slots)
        ]
        rows = [
            {
                "definition_id": 1,
                "first_slot": f"2026-01-14T12:0{first}:00+00:00",
                "last_slot": f"2026-01-14T12:0{last}:00+00:00",
                "slots": number,
                "reason": "late",
            }
            for first, last, number in gaps
        ]
        e = evidence(
            *runs, definitions={1: [version]}, tables={"definitions": [definition], "gaps": rows}
        )
        return "\n".join(slots_check.check_slots(e, WALL + 150))

    assert lines([1, 2], []) == lines([1], [(2, 2, 1)]) == lines([], [(1, 2, 2)]) == ""
    assert "has no run and lies in 0 gaps" in lines([1], [])
    assert "has 2 runs" in lines([1, 1, 2], [])
    assert "overlap" in lines([], [(1, 2, 2), (2, 2, 1)])
    assert "records 3 slots" in lines([], [(1, 2, 3)])


def a_note(**values: Any) -> dict[str, Any]:
    return {
        "target": "ops", "subject": "mortal", "definition_id": 1, "dead_runs": 0, "told_runs": 0, "told": [],
        "since": NOON, "ended_at": None, "due_at": None, **values,
    }  # fmt: skip


def versions(*rows: dict[str, Any], op: str = "UPDATE", writer: str = "member-1") -> list[Version]:
    """Return the versions of a row, a second apart; the last one may be deleted."""
    return [
        Version(nth, WALL + nth, str(nth), op if nth == len(rows) - 1 else "UPDATE", row, writer)
        for nth, row in enumerate(rows)
    ]


def a_target(next_at: float, **values: Any) -> dict[str, Any]:
    at = datetime.fromtimestamp(WALL + next_at, UTC).isoformat()
    return {"name": "ops", "next_at": at, "error": None, "failing_since": None, **values}


JOB_ON = {"job_type": "mortal", "enabled": True, "retired_at": None, "paused_at": None}
ALWAYS_ON = {1: [Version(0, WALL - 100, "0", "INSERT", JOB_ON)]}


def test_a_death_that_is_not_noted_in_its_transaction_is_found() -> None:
    history = a_history(RUNNING, a_row("dead", 1, TOKEN))
    noted = {
        (target, "mortal"): [Version(9, WALL, "2", "INSERT", a_note())]
        for target in ("ops", "of_mortal")
    }
    elsewhere = noted | {("ops", "mortal"): [Version(9, WALL, "3", "INSERT", a_note())]}
    paused = {1: [Version(0, WALL - 100, "0", "INSERT", JOB_ON | {"paused_at": NOON})]}

    assert (
        found(notes_check.check_noted, evidence(history, definitions=ALWAYS_ON, notes=noted)) == ""
    )
    assert found(notes_check.check_noted, evidence(history, definitions=paused)) == ""
    for notes in (elsewhere, {}):
        e = evidence(history, definitions=ALWAYS_ON, notes=notes)
        assert "run 1 of mortal died at version 2, and ops has no row" in found(
            notes_check.check_noted, e
        )


def test_deaths_that_are_forgotten_and_what_is_not_told_at_the_end_are_found() -> None:
    died = a_note(dead_runs=2, due_at=NOON)
    told = a_note(dead_runs=2, told_runs=2, told=["dead"], due_at="2026-01-14T13:00:00+00:00")
    for rows, op, violation in (
        ((died, told), "UPDATE", ""),
        ((died, a_note(ended_at=NOON)), "UPDATE", ""),
        ((told, told), "DELETE", "was due and was deleted"),
        ((a_note(), a_note()), "DELETE", ""),
        ((died, a_note(dead_runs=1, due_at=NOON)), "UPDATE", "lost 1 deaths"),
        ((told, a_note(told_runs=2, told=["dead"])), "UPDATE", "has 0 deaths, and 2 were sent"),
        ((died, a_note(dead_runs=2)), "UPDATE", "has deaths that are never told"),
        ((died, died), "UPDATE", "was due at 2026-01-14T12:00:00+00:00 and not told"),
    ):
        notes = {("ops", "mortal"): versions(*rows, op=op)}
        shown = found(
            notes_check.check_told, evidence(definitions=ALWAYS_ON, notes=notes, ended=WALL + 60)
        )
        assert violation in shown
        assert bool(violation) == bool(shown), shown


def test_a_target_that_is_taken_by_two_senders_at_once_is_found() -> None:
    free, taken, again = a_target(0), a_target(61), a_target(62)
    reset = (
        versions(free, taken)[1:]
        + versions(free, free, writer=notes_check.RESET)[1:]
        + versions(free, again)[1:]
    )

    assert (
        found(notes_check.check_one_sender, evidence(targets={"ops": versions(free, taken)})) == ""
    )
    assert (
        found(notes_check.check_one_sender, evidence(targets={"ops": [*versions(free), *reset]}))
        == ""
    )
    twice = evidence(targets={"ops": versions(free, taken, again)})
    assert "ops was taken again 59.0 s early, by member-1" in found(
        notes_check.check_one_sender, twice
    )


def test_a_message_that_was_told_twice_and_a_recovery_that_was_said_twice_are_found() -> None:
    written = {"ops": versions(a_target(61), a_target(61))}
    ended = {("ops", "mortal"): versions(a_note(), a_note(ended_at=NOON))}
    [first, same] = [
        Message("ops", WALL + at, "[default] mortal has recovered") for at in (0.5, 20)
    ]
    other = Message(
        "ops", WALL + 20, "[default] 2 recovered\nmortal: has recovered\nleaf: has recovered"
    )

    def shown(*messages: Message, **values: Any) -> str:
        return found(
            notes_check.check_said_once,
            evidence(messages=list(messages), **{"targets": written, **values}),
        )

    assert shown(first, notes=ended) == ""
    # the sender ended before it could write that
    assert shown(first, same, notes=ended, targets={}) == ""
    died = [Message("ops", WALL + at, "[default] mortal: 1 run died") for at in (0.5, 20)]
    assert "ops was told twice" in shown(*died)
    assert "was told 2 times that mortal has recovered" in shown(first, same, notes=ended)
    assert "was told 2 times that mortal has recovered, which it did 1 times" in shown(
        first, other, notes=ended
    )
    assert (
        shown(first, same, notes={("ops", "mortal"): versions(a_note(), a_note(), op="DELETE")})
        == ""
    )
