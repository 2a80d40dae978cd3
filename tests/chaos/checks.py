"""The guarantees about runs, each checked only on the evidence. A check yields one line for each violation.

Documented exceptions are excepted here, with the reason in a comment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

from .evidence import Attempt, Evidence, Version
from .schedule import FOLLOWERS, LIMITS

SIGNATURE = re.compile(r"by <([^>]*)>")
FINAL = {"succeeded", "dead", "cancelled"}
# (from, to): every allowed change of status
STEPS = {
    ("queued", "running"), ("failed", "running"), ("running", "running"),  # the last one renews the lease
    ("running", "succeeded"), ("running", "failed"), ("running", "dead"), ("running", "queued"),
    ("queued", "cancelled"), ("failed", "cancelled"), ("running", "cancelled"),
    ("dead", "queued"), ("cancelled", "queued"),
    ("succeeded", "succeeded"), ("cancelled", "cancelled"),  # the turn is handed on
    ("dead", "dead"),  # a worker that comes back notes what its lost attempt used
    ("queued", "queued"), ("failed", "failed"),
    ("succeeded", "deleted"), ("dead", "deleted"), ("cancelled", "deleted"),
}  # fmt: skip
WAKE_SECONDS = 1.5  # time for a continued worker to read the clock and stop its handlers
LATE_SECONDS = 0.5  # tolerance for a busy machine


def check_steps(e: Evidence) -> Iterator[str]:
    """G3, G4: every change of status is allowed, and attempts are counted exactly."""
    for run, versions in e.runs.items():
        first = versions[0]
        if (first.op, first.status, first.attempts) != ("INSERT", "queued", 0):
            yield f"run {run} was created as {first.op} {first.status} with {first.attempts} attempts"
        if len(versions) == 2 and versions[1].op == "DELETE" and versions[1].xact == first.xact:
            continue  # an enqueue found that its key was used, and undid the insert
        tokens: set[str] = set()
        for before, after in pairwise(versions):
            for problem in _problems(before, after, tokens):
                yield f"run {run}, {before.status} -> {after.status} (version {after.seq}): {problem}"


def _problems(before: Version, after: Version, tokens: set[str]) -> Iterator[str]:
    step = before.status, after.status
    # its slot has become a gap
    is_gap = step == ("queued", "deleted") and before.row.get("unreleased")
    if step not in STEPS and not is_gap:
        yield "this change of status is not allowed"
        return
    is_claim = after.status == "running" and (
        before.status != "running" or before.token != after.token
    )
    refund = 1 if step == ("running", "queued") else 0
    expected = before.attempts + is_claim - refund
    if after.status != "deleted" and after.attempts != expected:
        yield f"{after.attempts} attempts, not {expected}"
    if is_claim:
        assert after.token is not None
        if after.token in tokens:
            yield f"the claim {after.token} is not new"
        tokens.add(after.token)
        if before.status == "running":
            yield "claimed although it was running"
        if before.status != "running" and before.row["run_at"] > after.row["started_at"]:
            yield f"claimed at {after.row['started_at']}, but due at {before.row['run_at']}"
    elif before.status == "running" and after.token != before.token:
        yield f"the owner {before.token} became {after.token}"
    if is_loss(before, after) and (before.lease_ends or 0) > after.at:
        yield f"taken {before.lease_ends - after.at:.3f} s before the lease ended"  # type: ignore[operator]
    if after.status == "succeeded" and after.row["by"] not in (None, after.token):
        yield f"the result belongs to {after.row['by']}, not to the claim {after.token}"
    if before.status == "running" and after.status in ("failed", "dead"):
        signature = SIGNATURE.search(after.row["last_error"] or "")
        if signature and signature[1] != after.token:
            yield f"the error belongs to {signature[1]}, not to the claim {after.token}"


def check_writers(e: Evidence) -> Iterator[str]:
    """G3: only the owner of a running run writes to it, except for a takeover and a cancel."""
    pids = e.writers()
    for run, versions in e.runs.items():
        for before, after in pairwise(versions):
            is_outcome = (
                after.status in ("succeeded", "failed", "queued", "dead")
                and after.token == before.token
            )
            is_renewal = after.token == before.token and after.lease_ends != before.lease_ends
            was_lost = (
                after.status in ("failed", "dead") and after.row["error_type"] == "LostWorker"
            )
            if before.status != "running" or was_lost or after.status == "cancelled":
                continue
            if (is_outcome or is_renewal) and pids.get(after.writer) != before.owner:
                yield (
                    f"run {run}, {before.status} -> {after.status} (version {after.seq}): "
                    f"held by {before.token}, written by {after.writer} (pid {pids.get(after.writer)})"
                )


def check_one_live_attempt(e: Evidence) -> Iterator[str]:
    """G3: two attempts of a run never overlap, and none outlives its lease."""
    yield from e.repeated_starts
    by_run: dict[int, list[Attempt]] = {}
    for attempt in e.attempts.values():
        by_run.setdefault(attempt.run, []).append(attempt)
    for run, attempts in by_run.items():
        claims = e.claims(run)
        for attempt in attempts:
            if attempt.token not in claims:
                yield f"{attempt} was started without a claim"
            elif claims[attempt.token][0].attempts != attempt.number:
                yield f"{attempt} was started as number {claims[attempt.token][0].attempts}"
        known = [attempt for attempt in attempts if attempt.token in claims]
        known.sort(key=lambda attempt: claims[attempt.token][0].seq)
        for one, other in combinations(known, 2):
            if one.last > other.start and not _was_suspended(e, one):
                yield f"{one} continued for {one.last - other.start:.2f} s beside {other}"
        for attempt in known:
            lease_ends = claims[attempt.token][1]
            if attempt.last_wall > lease_ends + LATE_SECONDS and not _was_suspended(e, attempt):
                yield f"{attempt} outlived its lease by {attempt.last_wall - lease_ends:.2f} s"


def _was_suspended(e: Evidence, attempt: Attempt) -> bool:
    """Return whether its host was suspended: then a handler continues until its parent has read the clock."""
    first, _ = e.claims(attempt.run)[attempt.token]
    continued = [
        *e.continued(attempt.pid, attempt.last_wall),
        *e.continued(attempt.worker, attempt.last_wall),
    ]
    return any(first.at <= at and attempt.last_wall <= at + WAKE_SECONDS for at in continued)


def check_exclusive(e: Evidence) -> Iterator[str]:
    """With overlap wait or skip, two slot runs of a job never overlap, also after an edit, a cancel or a retry."""
    by_job: dict[int, list[tuple[Attempt, Version]]] = {}
    for attempt in e.attempts.values():
        claim = e.claims(attempt.run).get(attempt.token)
        if claim is None or claim[0].row["scheduled_for"] is None:
            continue
        by_job.setdefault(claim[0].row["definition_id"], []).append((attempt, claim[0]))
    for definition, attempts in by_job.items():
        name = e.definitions[definition][0].row["job_type"]
        attempts.sort(key=lambda pair: pair[1].seq)
        for (one, _), (other, claim) in combinations(attempts, 2):
            if one.run == other.run or one.last <= other.start or one.start >= other.last:
                continue
            if "allow" not in e.overlap_at(definition, claim.at) and not _was_suspended(e, one):
                yield f"{name}: {one} continued for {one.last - other.start:.2f} s beside {other}"


def check_limits(e: Evidence) -> Iterator[str]:
    """G9: no more attempts under a limit, or a value of it, execute at once than the limit says."""
    by_limit: dict[tuple[str, str | None], list[Attempt]] = {}
    for attempt in e.attempts.values():
        claim = e.claims(attempt.run).get(attempt.token)
        if claim is None or _was_suspended(e, attempt):
            continue
        limits = e.limits_at(claim[0].row["definition_id"], claim[0].at)
        if len(limits) == 1 and None not in limits:
            limit = str(limits.pop())
            filler = claim[0].row.get("filler") if "by" in LIMITS[limit] else None
            by_limit.setdefault((limit, filler), []).append(attempt)
    for (limit, filler), attempts in by_limit.items():
        for attempt in attempts:
            beside = [other for other in attempts if other.start <= attempt.start < other.last]
            if len(beside) > LIMITS[limit]["max"]:
                of = f" of filler {filler}" if filler else ""
                yield f"limit {limit}{of}: {len(beside)} at once when {attempt} started"


def check_followers(e: Evidence) -> Iterator[str]:
    """G10: when a run is released, those that it waited for have ended, and it is not claimed before."""
    by_slot: dict[tuple[str, str], list[list[Version]]] = {}
    for versions in e.runs.values():
        row = versions[0].row
        by_slot.setdefault((row["job_type"], row["scheduled_for"] or ""), []).append(versions)
    for run, versions in e.runs.items():
        row = versions[0].row
        for before, after in pairwise(versions):
            if (
                before.row.get("unreleased")
                and not after.row["unreleased"]
                and after.op != "DELETE"
            ):
                for name in FOLLOWERS.get(row["job_type"], {}).get("after", ()):
                    for upstream in by_slot.get((name, row["scheduled_for"]), ()):
                        *_, then = (
                            version
                            for version in upstream
                            if version.seq < after.seq or version is upstream[0]
                        )
                        if then.seq < after.seq and then.status not in FINAL | {"deleted"}:
                            what = f"released while {name} of its slot was {then.status}"
                            yield f"run {run} of {row['job_type']} was {what}"
        is_started = any(
            version.status == "running" and version.row.get("unreleased") for version in versions
        )
        if is_started:
            yield f"run {run} of {row['job_type']} was claimed before it was released"


def is_loss(before: Version, after: Version) -> bool:
    """Return whether a run was taken from its worker because its lease ended."""
    is_ended = after.status in ("failed", "dead")
    return before.status == "running" and is_ended and after.row["error_type"] == "LostWorker"


def check_failures(e: Evidence) -> Iterator[str]:
    """G4, G6: every attempt that was charged failed by its own act, or by a fault that costs an attempt."""
    rows = {(row["run_id"], row["attempt"], row["worker"]): row for row in e.tables["failures"]}
    pruned = {run for run, versions in e.runs.items() if versions[-1].op == "DELETE"}
    for run, versions in e.runs.items():
        for before, after in pairwise(versions):
            if is_loss(before, after):
                yield from _lost(e, run, before, after)
            elif before.status == "running" and after.status in ("failed", "dead"):
                yield from _charged(e, run, before, after)
            else:
                continue
            if run not in pruned and (run, before.attempts, before.token) not in rows:
                yield f"run {run}: job_failures has no row for attempt {before.attempts} of {before.token}"


def _lost(e: Evidence, run: int, before: Version, after: Version) -> Iterator[str]:
    """A lease may end because its worker died, was stopped, or could not reach the database."""
    claim = e.claims(run)[before.token or ""]
    hits = [
        x
        for x in e.journal
        if before.owner in x.pids
        and x.what in ("SIGKILL", "SIGSTOP", "SIGCONT")
        and claim[0].at - 15 <= x.wall <= after.at
    ]
    if not hits and not e.was_disturbed(claim[0].at, after.at):
        yield f"run {run}: attempt {before.attempts} of {before.token} was lost without a fault of its worker"


EXPECTED_ERRORS = {
    "exit": "exited with status 7",
    "segfault": "killed by SIGSEGV",
    "kill": "killed by SIGKILL",
    "hang": "still running after",
    "transaction": "exited with status 7",
    "effect": "exited with status 7",
    "business effect": "exited with status 7",
}


def _charged(e: Evidence, run: int, before: Version, after: Version) -> Iterator[str]:
    error = after.row["last_error"] or ""
    attempt = e.attempts.get((run, before.token or ""))
    problem = f"run {run}: attempt {before.attempts} of {before.token} failed: {error[:120]!r}"
    if attempt is None:
        # its child was killed before the handler's first log line
        if not e.during(e.claims(run)[before.token or ""][0].at, after.at, "SIGKILL child"):
            yield f"{problem}, but it was never started"
        return
    started, ended = attempt.started_wall, after.at
    if SIGNATURE.search(error):
        return
    if attempt.act in EXPECTED_ERRORS and EXPECTED_ERRORS[attempt.act] in error:
        return
    if "killed by SIGKILL" in error and any(
        attempt.pid in x.pids for x in e.journal if x.what == "SIGKILL child"
    ):
        return
    if "still running after" in error and ended - started > 11:
        return
    if attempt.act == "fan out" and 'job "leaf"' in error:
        return  # the job is disabled or not in the file
    if "in doubt" in error and "effect" in attempt.act:
        return
    if attempt.act in ("transaction", "effect", "business effect") and e.was_disturbed(
        started, ended
    ):
        return  # its own statements failed
    if attempt.act in ("transaction", "effect", "business effect") and "LeaseLost" in (
        after.row["error_type"] or ""
    ):
        return
    yield f"{problem} ({attempt}, {attempt.end or 'no end'} {ended - attempt.last_wall:.1f} s before)"


def check_transactions(e: Evidence) -> Iterator[str]:
    """G5: rows written through run.transaction() exist if, and only if, their run succeeded."""
    successes = e.successes()
    ledger = Counter((row["run_id"], row["token"]) for row in e.tables["ledger"])
    for (run, token), number in ledger.items():
        if (run, token) not in successes:
            yield f"run {run}: a row of {token} was committed without its success"
        if number > 1:
            yield f"run {run}: the row of {token} exists {number} times"
    for run, token in successes:
        attempt = e.attempts.get((run, token))
        if attempt and attempt.act == "transaction" and (run, token) not in ledger:
            yield f"{attempt} succeeded, but its row is missing"
    for attempt in e.attempts.values():
        if (
            any(x["event"] == "committed" for x in attempt.events)
            and (attempt.run, attempt.token) not in ledger
        ):
            yield f"{attempt} logged a commit, but its row is missing"


def check_effects(e: Evidence) -> Iterator[str]:
    """G5: an effect that is done is not repeated, and one in doubt only with in_doubt="repeat"."""
    done: set[str] = set()
    started: Counter[str] = Counter()
    for event in e.events:
        key = event.get("key", "")
        if event["event"] == "effect":
            started[key] += 1
            if key in done:
                yield f"effect {key} was done again by run {event['run']} ({event['token']})"
            elif started[key] > 1 and event["in_doubt"] != "repeat":
                yield f"effect {key} (in doubt: {event['in_doubt']}) was started {started[key]} times"
        elif event["event"] == "effect done":
            done.add(key)


def check_fan_outs(e: Evidence) -> Iterator[str]:
    """A fan-out is written completely, together with the success of its run, or not at all."""
    successes = e.successes()
    expected: Counter[int] = Counter()
    for attempt in e.attempts.values():
        if (attempt.run, attempt.token) in successes:
            expected[attempt.run] += sum(
                x["number"] for x in attempt.events if x["event"] == "fan out"
            )
    created = [versions[0].row for versions in e.runs.values()]
    # the runs of hooks are nobody's children
    made = Counter(
        row["parent_id"] for row in created if row["parent_id"] is not None and not row["hook"]
    )
    for run in made | expected:
        if made[run] != expected[run]:
            yield f"run {run} fanned out to {made[run]} runs, not {expected[run]}"


def check_keys(e: Evidence) -> Iterator[str]:
    """G1: one run per key, also after pruning; every acknowledged run exists."""
    keys: Counter[str] = Counter()
    for versions in e.runs.values():
        was_undone = versions[-1].op == "DELETE" and versions[-1].xact == versions[0].xact
        if (key := versions[0].row["idempotency_key"]) and not was_undone:
            keys[key] += 1
    yield from (f"key {key} had {number} runs" for key, number in keys.items() if number > 1)
    used = {row["idempotency_key"] for row in e.tables["used_keys"]}
    for run, versions in e.runs.items():
        key, last = versions[0].row["idempotency_key"], versions[-1]
        is_gap = last.row.get("unreleased") and last.status == "deleted"
        if (
            key
            and last.op == "DELETE"
            and last.xact != versions[0].xact
            and key not in used
            and not is_gap
        ):
            yield f"run {run} was pruned, but its key {key} is not remembered"
    for run, key in e.acknowledged:
        if run not in e.runs:
            yield f"run {run} was acknowledged, but does not exist (key {key})"


def check_deaths(e: Evidence) -> Iterator[str]:
    """Each death of a run with on_dead creates a run of the hook."""
    keys = {versions[0].row["idempotency_key"] for versions in e.runs.values()}
    for run, versions in e.runs.items():
        row = versions[0].row
        died = any(version.status == "dead" for version in versions)
        if died and row["job_type"] == "mortal" and not any(
            (key or "").startswith(f"page:dead:{run}:") for key in keys
        ):  # fmt: skip
            yield f"run {run} died, but no hook was created"


def check_end(e: Evidence) -> Iterator[str]:
    """G4: once the faults are over, all runs end."""
    for run, versions in e.runs.items():
        if versions[-1].status not in FINAL | {"deleted"}:
            yield f"run {run} of {versions[-1].row['job_type']} was left {versions[-1].status}"


def check_processes(e: Evidence) -> Iterator[str]:
    """A process ends with an expected exit code and without a traceback; a loop ends only if it is signalled."""
    for member in e.members:
        name = f"{member.kind} {member.pid} ({member.process.log.name})"
        codes = {"loop": {0} if member.expected else set(), "tick": {0, 1}}.get(member.kind, {0, 1})
        if member.expected == "killed":
            codes = {*codes, -9}
        if member.expected:
            codes = {
                *codes,
                -15,
            }  # the signal came before its handler was installed, or at its exit
        # without a database, a process that starts or stops exits with 3; a running loop continues
        may_give_up = member.kind != "loop" or not member.was_ready or member.expected
        has_given_up = (
            member.code == 3 and may_give_up and e.was_disturbed(member.started, member.ended or 0)
        )
        if member.code not in codes and not has_given_up:
            yield f"{name} ended with {member.code}: {member.process.text.strip()[-300:]}"
        if "Traceback" in re.sub(r"^\[.*$", "", member.process.text, flags=re.MULTILINE):
            yield f"{name} wrote a traceback: {member.process.text.strip()[-300:]}"


CHECKS = (
    check_steps,
    check_writers,
    check_one_live_attempt,
    check_exclusive,
    check_limits,
    check_followers,
    check_failures,
    check_transactions,
    check_effects,
    check_fan_outs,
    check_keys,
    check_deaths,
    check_end,
    check_processes,
)
