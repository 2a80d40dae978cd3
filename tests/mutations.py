"""Break each guard in turn and run its tests. A mutation that survives shows a missing test.

    python -m tests.mutations              # all; takes hours on two cores
    python -m tests.mutations runs.sql     # mutations whose names contain this
    python -m tests.mutations --quick      # skip the tests that start workers
    python -m tests.mutations --list

CI does not run this. It works on a copy of the checkout, with one server for all test processes. A guard is a condition
of a statement that writes or locks rows, or of a function, a view or the report, in `case`, too (replaced with
``true``), a lock, a ``skip locked`` (both are removed), a count of attempts, a check of how many rows a statement
changed, or an entry of GUARDS.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 600


def file_of(name: str) -> str:
    """Return the path of a file of tests, whose name alone is enough unless it has a folder."""
    if "/" in name:
        return f"tests/{name}.py"
    [path] = (ROOT / "tests").rglob(f"test_{name}.py")
    return str(path.relative_to(ROOT))


NOTES = ("notes", "notes_messages", "notes_problems", "notes_targets", "notes_model")
NOTIFICATIONS = [f"extras/notify/test_{name}" for name in NOTES]
FOLLOW = ["follow", "follow_actions", "follow_histories", "follow_rule"]
# file -> names of its fast tests
TESTS = {
    "sql/runs.sql": [
        "fences",
        "run_ownership",
        "claims",
        "expiry",
        "unique",
        "gates",
        "limits",
        "priority",
        "outcomes",
        *FOLLOW,
    ],
    "sql/actions.sql": ["operator_actions", "backfill"],
    "sql/follow.sql": FOLLOW,
    "sql/slots.sql": ["slot_rows", "sync", "sync_edits", "sync_faults", "backfill"],
    "sql/definitions.sql": [
        "retired_jobs",
        "sync",
        "sync_edits",
        "sync_faults",
        "retention",
    ],
    "sql/edits.sql": ["edits", "extras/preview/test_edits_shown"],
    "sql/hosts.sql": ["hosts_rule", "hosts", "sync", "sync_edits", "sync_faults"],
    "sql/effects.sql": ["fences", "effects", "effects_transactions", "effects_settle"],
    "sql/retention.sql": ["retention"],
    "sql/schema.sql": [
        *("run_ownership", "enqueue", "sync", "sync_edits", "sync_faults"),
        *("gates", "limits", "claims", *NOTIFICATIONS),
    ],
    "sql/notify.sql": NOTIFICATIONS,
    "sql/report.sql": ["report", "job_days"],
    "yamlsched/act/notes.py": NOTIFICATIONS,
    "yamlsched/extras/notify/sending.py": ["extras/notify/test_sending"],
    "yamlsched/worker/statements.py": ["fences", "run_ownership", "outcomes"],
    "yamlsched/runs/own_transaction.py": ["fences", "succeed_in", "effects_transactions"],
    "yamlsched/runs/effects.py": ["fences", "effects", "effects_transactions", "effects_settle"],
    "yamlsched/sync/due.py": ["sync", "sync_edits", "sync_faults"],
    "yamlsched/sync/slot_rows.py": ["slot_rows", "sync", "sync_edits", "sync_faults"],
    "yamlsched/act/backfill.py": ["backfill"],
    "yamlsched/runs/lifecycle.py": ["runs", "outcomes"],
    "yamlsched/worker/leases.py": ["leases"],
}
GATE_TESTS = ["gates_upkeep", "limits", "gates", "interleavings", "gates_model"]
ENQUEUE_TESTS = ["unique", "expiry", "guarantees/g01_one_row_per_key/test_enqueue", "keys"]
FOLLOW_TESTS = ["follow_enqueued", "follow_enqueued_races", *FOLLOW]
PAUSE_TESTS = ["pause_after", "extras/notify/test_notes_paused"]
# functions and views of schema.sql, and statements -> the tests of these alone, the fastest first
OF_STATEMENTS = {
    "queue_levels": [*GATE_TESTS, "queue_load"],
    "gates_of rooms make_gates lock_gates offer promote release": GATE_TESTS,
    "grant_permits block claim_gated waits_elsewhere leave_gates": GATE_TESTS,
    "continue_edits waited_for unclaimed sweep move_runs repair": GATE_TESTS,
    "block_closed": ["gates_upkeep", "gates", "limits", "late", *PAUSE_TESTS],
    "job_to_enqueue unique_key unique_keys enqueued_run is_worker": ENQUEUE_TESTS,
    "arguments_fault refuse_keys enqueue_many enqueue_fault": ENQUEUE_TESTS,
    "retry_key": ["unique"],
    "is_expired expire": ["expiry", "unique"],
    "insert_hooks enqueue_hooks trigger_of": ["hooks", "unique", "follow_enqueued"],
    "owed_slot upstream has_open_child enqueued is_awaited": FOLLOW_TESTS,
    "awaited_parents awaited upstream_results": FOLLOW_TESTS,
    "is_dying pause_dying": PAUSE_TESTS,
    "note settle_notes events_now note_runs forget_notes messages_due is_silent": NOTIFICATIONS,
    "succeed_in": ["fences", "succeed_in", "effects_transactions", "hooks", "gates"],
    "expected_until put_place report_file": ["hosts_rule", "hosts", "namespaces"],
    "due_work": ["idle", "late"],
    "queue_load_of queue_load": ["queue_load", "starts"],
    "limit_line waits_for": ["status", "job_health", "follow_enqueued", "limits"],
    "late late_jobs job_queues job_health": ["late", "job_health", "status"],
    "is_failing failing_run stuck_runs": ["job_health", "status", "failures"],
}
# file -> names of its slow tests, for mutations that the fast ones do not find
SLOW_TESTS = {
    "sql/notify.sql": ["extras/notify/test_sending"],
    "sql/schema.sql": ["extras/notify/test_sending"],
    "sql/report.sql": ["attempts", "extras/web/test_pages"],
    "sql/runs.sql": ["effects", "effects_transactions", "effects_crashes", "worker", "faults"],
    "sql/slots.sql": ["sync_histories"],
    "sql/definitions.sql": ["sync_histories"],
    "yamlsched/worker/statements.py": [
        "effects",
        "effects_transactions",
        "effects_crashes",
        "worker",
        "faults",
    ],
    "yamlsched/sync/due.py": ["sync_histories"],
    "yamlsched/sync/slot_rows.py": ["sync_histories"],
    "yamlsched/runs/lifecycle.py": ["worker", "faults"],
    "yamlsched/worker/leases.py": ["worker", "faults"],
}

# guards in Python and in the schema: file, pattern, replacement
GUARDS = [
    ("yamlsched/worker/statements.py", r"len\(row\.ids\) == len\(runs\)", "True"),
    ("yamlsched/runs/own_transaction.py", r"\.rowcount == 1", ".rowcount >= 0"),
    ("yamlsched/runs/effects.py", r"\.rowcount\s+== 1", ".rowcount >= 0"),
    ("yamlsched/sync/due.py", r"(?<=if )write_rows", "False and write_rows"),
    ("yamlsched/act/backfill.py", r"if written != len\(runs\)", "if False"),
    ("yamlsched/runs/lifecycle.py", r"refund=True", "refund=False"),
    ("yamlsched/worker/leases.py", r"return max\(.*MARGIN.*\)", "return -3600.0"),
    (
        "sql/schema.sql",
        r"(?<=case when )yamlsched\.is_closed\(d, rooms\.now\)(?= then 0)",
        "false",
    ),
    (
        "sql/schema.sql",
        r"(?<=when )d\.overlap <> 'allow' and (?=n\.name like 'job/%')",
        "false and ",
    ),
    ("sql/schema.sql", r"(?<=where m\.name is null or )s\.place > m\.free", "false"),
    ("sql/schema.sql", r"perform yamlsched\.lock_gates\([^;]*;", ""),
    *(
        ("sql/schema.sql", pattern, new)
        for pattern, new in (
            (r"(?<=then )'problem' = any \(t\.events\)", "true"),
            (r"(?<=else )t\.name = any \(d\.notify\)", "true"),
            (r"greatest\(n\.slot, excluded\.slot\)", "excluded.slot"),
            (r"n\.dead_runs \+ excluded\.dead_runs", "excluded.dead_runs"),
            (r"ended_at = null(?=,\n        due_at)", "ended_at = n.ended_at"),
            (r"s\.events <@ n\.told and n\.quiet_until > now", "false"),
            (r"n\.told = '\{\}' or s\.is_silent", "s.is_silent"),
        )
    ),
    ("yamlsched/act/notes.py", r"(?<=if )problem\.kind in KINDS", "True"),
    ("yamlsched/extras/notify/sending.py", r"error or None", "None"),
    ("yamlsched/extras/notify/sending.py", r"(?<=if )error(?=:)", "False"),
    ("yamlsched/extras/notify/sending.py", r"http_redirects=False", "http_redirects=True"),
]
CHANGES = [
    (r"attempts\s*= r\.attempts - 1", "attempts = r.attempts"),
    (r"attempts\s*= r\.attempts - o\.refund::int", "attempts = r.attempts"),
    (r"attempts\s*= r\.attempts \+ 1", "attempts = r.attempts"),
    (r"\bfor (?:no key update|update|key share|share)\b(?: of \w+)?(?: skip locked)?", ""),
    (r" skip locked\b", ""),
]

# Equivalent mutations: part of the name -> why no test can find them.
EQUIVALENT = {
    **{
        f"effects.sql {name}: e.{part} = ": "redundant: an entry has one key"
        for name in ("mark_in_doubt", "mark_done", "release")
        for part in ("namespace", "key")
    },
    "runs.sql lock: r.id = any": "more runs are locked than are changed",
    "definitions.sql lock: d.id = any": "more jobs are locked than are changed",
    "actions.sql lock_jobs: d.id = any": "more jobs are locked than are changed",
    "make_gates: (select g.name": "redundant: on conflict; without it, sessions would wait for each other for nothing",
    "lock_gates: g.n": "more gates are locked than are needed",
    "promote: k.n": "more gates are locked than are needed",
    "schema.sql release: r.id = any": "gates are offered that got no room",
    "schema.sql release: (e.d).is_followed": "a gate is offered at which nobody waits",
    "schema.sql release: (e.r).status = 'cancelled'": "the permits of the others have named their gates",
    **{
        f"leave_gates: {part}": "gates at which every run stands are marked, and the marks go at once"
        for part in ("yamlsched.waits_elsewhere", "w.definition_id", "w.finished_at", "g.name in")
    },
    "continue_edits: g.is_edited": "gates are asked at which every run stands",
    "continue_edits: g.namespace = of_namespace\n": "gates of others are locked for a moment",
    "continue_edits: w.blocked_on = any": "what waits elsewhere is freed at other gates, too",
    **{
        f"schema.sql release: {part}": "what follows a job looks again, and waits again"
        for part in ("r.finished_at", "(e.r).hook")
    },
    "schema.sql release: (e.r).parent_id": "spares a call for runs without a parent",
    **{
        f"schema.sql {name}.finished_at is null": "redundant: what is blocked is not finished; for the index"
        for name in (
            *("offer: n", "continue_edits: w", "waited_for: r"),
            "repair: r",
        )
    },
    **{
        f"schema.sql queue_levels: {part}": "a queue without entries is looked at"
        for part in ("r.namespace", "r.blocked_on", "r.finished_at")
    },
    "report.sql skipped: g.recorded_at >= %(since)s": "spares reading gaps of which no slot is within the span",
    "report.sql ended: (%(of)s": "spares reading the jobs of which all was read before",
    "queue_levels: f.name is not null #2": "a queue without a name has no entries",
    "waited_for: r.blocked_on > 'b'": "what follows jobs looks again each second, and waits again",
    "waited_for: r.namespace": "gates are asked at which no run of the namespace waits",
    "waited_for: f.name is not null #2": "a gate without a name has no runs",
    **{
        f"schema.sql block: {part}": "redundant: runs of the same jobs, at the same full gate"
        for part in ("e.namespace", "e.queue", "e.priority")
    },
    **{
        f"schema.sql block: {row}.{part}": "redundant: asked of the entry, and again of the locked row; "
        "no test stops between the two, which are one statement"
        for row in "er"
        for part in ("blocked_on", "finished_at", "locked_until")
    },
    **{f"schema.sql block: not {row}.unreleased": "redundant for the same reason" for row in "er"},
    "unique_keys: r.finished_at is null": "redundant: what has expired is queued; for the index",
    "promote: not yamlsched.has_open_child": "what waits looks again, and waits again",
    **{
        f"awaited_parents: {part}": "what follows a job looks again, and waits again"
        for part in ("exists", "f.", "d.job_type")
    },
    "awaited: state = 'succeeded'": "of a job and a run that it enqueued, which are dead, the other one is named",
    "insert_hooks: not is_unique": "a second insert of each, which its key drops: it costs an id",
    "pause_dying: d.pause_after is not null": "redundant: null is no number of runs; this one spares reading them",
    "pause_dying: o.namespace": "redundant: a job belongs to one namespace; this one helps the planner",
    "pause_dying: for": "a race: sessions that change the same rows in another order would wait for each other",
    "block_closed: d.limit_name is not null": "spares computing gates of runs that stand at one without room",
    "block_closed: g.name like": "gates without room are asked, too",
    "runs.sql claim: s.state <> 'free'": "what is claimed is named twice: the worker asks once more",
    **{
        f"runs.sql reclaim: {part}": "more runs are looked at, and checked again when they are locked; for the index"
        for part in (
            *("e.queue", "e.priority", "e.blocked_on", "e.finished_at", "e.run_at"),
            "r.locked_until < (select c.now from clock c)\n",
        )
    },
    "runs.sql claim: d.id = any": "all jobs are read",
    "runs.sql claim: p.exclusive or": "all runs are claimed by claim_gated, which is slower",
    "runs.sql claim: (select j.after": "spares a call for each run of a job that follows none",
    "block: b.name is not null": "spares writing null over null",
    "grant_permits: s.name not like 'closed/%'": "redundant: a closed gate has no room",
    "repair: g.namespace = of_namespace\n": "gates of others are locked for a moment",
    "claim_gated: r.id = any (held)\n": "gates of runs that are not claimed are locked for a moment",
    "continue_edits: g.name = any": "marks of gates at which every run stands go, whoever has them",
    "claim_gated: k.n": "more gates are locked than are needed, for a moment",
    "claim_gated: h.id <> all": "redundant: what executes has locked_until, and is not blocked",
    **{
        f"schema.sql repair: {part}": "redundant: a run is moved to the queue of its own job, if it waits"
        for part in ("e.queue", "e.priority", "e.finished_at", "e.blocked_on")
    },
    **{
        f"schema.sql block: {part}": "runs of other jobs that stand at the same full gate are blocked, too"
        for part in ("r.id = any (run_ids)", "n.definition_id")
    },
    "claim_gated: g.name like": "turns are offered once more than needed: a claim in each round for each run",
    "sweep: m.free > 0": "redundant: `offer` asks again; this one spares waiting for full gates",
    "offer: m.free > 0": "redundant: without room no run is offered, and the sweep passes gates with room",
    "block_closed: r.id > past": "redundant: what is blocked does not match again; this one spares reading it",
    "settle_notes: n.found_since is not null": "redundant: spares writing what is null already",
    "settle_notes: n.slot is not null": "redundant: without a slot none has succeeded; this one spares reading the runs",
    "schema.sql note: (n.subject in (select s ->> 'subject' from jsonb_array_elements(subjects) s))"
    " is true\n": "more notes are locked than are changed",
    "schema.sql note: for update": "a race, as in settle_notes",
    "settle_notes: for update": "a race: sessions that lock the same rows in another order would wait for each other",
    "d.notify <> '{}'": "redundant: without names no target is joined; this one saves work",
    **{
        f"follow.sql {name}: r.{part}": "redundant: `hold` has locked these rows with the same condition"
        for name in ("release", "block", "cancel")
        for part in ("unreleased", "finished_at")
    },
    "follow.sql hold: r.namespace": "redundant: a job belongs to one namespace; this one helps the planner",
    "follow.sql gates: g.namespace": "redundant: names have the id of a job; this one helps the planner",
    "mark_followed: not d.is_followed": "what is marked stays so; this one spares writing it",
}


@dataclass(frozen=True)
class Mutation:
    """``file`` with ``[start:end]`` replaced by ``new``."""

    name: str
    file: str
    start: int
    end: int
    new: str

    @property
    def tests(self) -> list[str]:
        """The names of the fast tests that fit."""
        statement = self.name.partition(":")[0].rpartition(" ")[2]
        own = (tests for names, tests in OF_STATEMENTS.items() if statement in names.split())
        return next(own, TESTS[self.file]) if self.file == "sql/schema.sql" else TESTS[self.file]

    @property
    def reason(self) -> str | None:
        """Why the mutation is equivalent; None if it is not."""
        return next((why for part, why in EQUIVALENT.items() if part in f"{self.name}\n"), None)


def mutations() -> list[Mutation]:
    found: list[Mutation] = []
    for path in sorted((ROOT / "sql").glob("*.sql")):
        file = str(path.relative_to(ROOT))
        if file in TESTS:
            found += _of_statements(file, path.read_text())
    for file, pattern, new in GUARDS:
        text = (ROOT / file).read_text()
        matches = list(re.finditer(pattern, text))
        if not matches:
            raise SystemExit(f"{file} does not match {pattern}: update GUARDS")
        for match in matches:
            line = text.count("\n", 0, match.start()) + 1
            found.append(Mutation(f"{file}:{line} {match[0]} -> {new}", file, *match.span(), new))
    return found


def _of_statements(file: str, text: str) -> Iterator[Mutation]:
    starts = list(
        re.finditer(r"^(?:-- name: |create (?:function|view) yamlsched\.)(\w+)", text, re.MULTILINE)
    )
    for match, following in zip(starts, [*starts[1:], None], strict=True):
        begin, end = match.end(), following.start() if following else len(text)
        body, seen = text[begin:end], Counter[str]()
        if file == "sql/schema.sql":
            body = re.split(r"(?<=\$\$;)\n" if "$$" in body else r"(?<=;)\n\n", body)[0]
        reads = file in ("sql/schema.sql", "sql/report.sql", "sql/runs.sql")
        spans = [(*span, "true") for span in conditions(body, reads)]
        for pattern, new in CHANGES:
            spans += [
                (*m.span(), new)
                for m in re.finditer(pattern, body)
                if not _is_comment(body, m.start())
            ]
        for start, stop, new in spans:
            change = " ".join(body[start:stop].split()) + (f" -> {new}" if new != "true" else "")
            seen[change] += 1
            n = f" #{seen[change]}" if seen[change] > 1 else ""
            yield Mutation(
                f"{file} {match[1]}: {change}{n}", file, begin + start, begin + stop, new
            )


def _is_comment(text: str, at: int) -> bool:
    return "--" in text[text.rfind("\n", 0, at) + 1 : at]


# -- a minimal reader of the SQL in sql/

WORDS = re.compile(r"--[^\n]*|'(?:[^']|'')*'|%\(\w+\)s|::?\w*|[A-Za-z_]\w*|[(),;]|\S")
ENDS = {"returning", "order", "limit", "group", "for", "union", "on", "offset", ";", ")"}
ENDS |= {"join", "left", "cross", "where", "then", "from", "as", ",", "$"}


@dataclass
class Level:
    """The state of the reader at one depth of pareneses."""

    verb: str = ""
    feeds_insert: bool = False
    in_case: int = 0


def conditions(statement: str, reads: bool = False) -> list[tuple[int, int]]:
    """Return the spans of the conditions that restrict which rows the statement writes or locks; with `reads`, of all.

    >>> text = "update t set a = 1 where t.id = 1 and (t.b or t.c) and t.d between 1 and 2 returning t.id"
    >>> [text[start:end] for start, end in conditions(text)]
    ['t.id = 1', '(t.b or t.c)', 't.d between 1 and 2']
    """
    tokens = [m for m in WORDS.finditer(statement) if not m[0].startswith("--")]
    found: list[tuple[int, int]] = []
    levels = [Level()]
    for n, token in enumerate(tokens):
        word, level = token[0].lower(), levels[-1]
        previous = tokens[n - 1][0].lower() if n else ""
        if word == "(":
            levels.append(Level())
        elif word == ")":
            levels.pop()
        elif word == "insert":
            level.verb, level.feeds_insert = "insert", True
        elif word in ("select", "perform"):
            level.verb = "select"
        elif word == "conflict":
            level.feeds_insert = False  # the condition that follows chooses an index
        elif word in ("update", "delete") and previous not in ("key", "for", "do"):
            level.verb, level.feeds_insert = word, False
        elif word == "on" and reads and previous not in ("distinct", "conflict"):
            parts, _ = _conjuncts(tokens, n + 1)
            found += parts if len(parts) > 1 else []  # a join of all rows would not go unseen
        if reads and word in ("when", "select", "(", "if", "elsif"):
            parts, last = _conjuncts(tokens, n + 1)
            is_test = word == "when" and last > n + 2  # of `case x when 1`, 1 is none
            found += parts if len(parts) > 1 or is_test else []
        elif word == "where":
            parts, last = _conjuncts(tokens, n + 1)
            locks = last + 1 < len(tokens) and _is_lock(tokens, last)
            if level.verb in ("update", "delete") or level.feeds_insert or locks or reads:
                found += parts
    return sorted(set(found))


def _is_lock(tokens: list[re.Match[str]], end: int) -> bool:
    """Return whether the select whose `where` ends here locks rows: `for update` at the same depth."""
    depth = 0
    for n in range(end, len(tokens)):
        word = tokens[n][0].lower()
        depth += (word == "(") - (word == ")")
        if depth < 0 or word == ";" or (depth == 0 and word == "union"):
            return False
        if depth == 0 and word == "for":
            return True
    return False


def _conjuncts(tokens: list[re.Match[str]], first: int) -> tuple[list[tuple[int, int]], int]:
    """Return the spans of the parts that `and` joins, and the number of the token that ends the condition."""
    parts: list[tuple[int, int]] = []
    depth, cases, start, has_or, between = 0, 0, first, False, False
    n = first
    while n < len(tokens):
        word = tokens[n][0].lower()
        is_end = word in ENDS and not (word == "from" and tokens[n - 1][0] == "distinct")
        if depth == 0 and not cases and is_end:
            break
        depth += (word == "(") - (word == ")")
        cases += (word == "case") - (word == "end")
        if depth == 0 and not cases:
            if word == "between":
                between = True
            elif word == "or":
                has_or = True
            elif word == "and" and between:
                between = False
            elif word == "and":
                parts.append((tokens[start].start(), tokens[n - 1].end()))
                start = n + 1
        n += 1
    parts.append((tokens[start].start(), tokens[n - 1].end()))
    return ([(parts[0][0], parts[-1][1])] if has_or else parts), n


# -- running them


def run(mutation: Mutation, copy: Path, dsn: str, is_quick: bool) -> str:
    """Return the test that found the mutation, or an empty string."""
    target = copy / mutation.file
    text = target.read_text()
    target.write_text(text[: mutation.start] + mutation.new + text[mutation.end :])
    try:
        found = run_tests(mutation.tests, copy, dsn)
        return (
            found if found or is_quick else run_tests(SLOW_TESTS.get(mutation.file, []), copy, dsn)
        )
    finally:
        target.write_text(text)


def run_tests(names: list[str], copy: Path, dsn: str) -> str:
    """Run the tests of these names; return the first that fails, or an empty string."""
    if not names:
        return ""
    command = [
        "nice",
        "-n",
        "10",
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
    ]
    command += ["--hypothesis-profile", "mutations"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "YAMLSCHED_TEST_DSN": dsn}
    try:
        done = subprocess.run(
            [*command, *map(file_of, names)],
            cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"a test of {', '.join(names)} timed out"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode and not failed:
        raise SystemExit(f"the tests cannot be run: {(done.stdout + done.stderr)[-2000:]}")
    return failed[1] if failed else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "parts", nargs="*", help="run only mutations whose names contain one of these"
    )
    parser.add_argument("--quick", action="store_true", help="skip the tests that start workers")
    parser.add_argument("--list", action="store_true", help="list the mutations and run nothing")
    arguments = parser.parse_args()
    chosen = [
        m
        for m in mutations()
        if not arguments.parts or any(part in m.name for part in arguments.parts)
    ]
    if arguments.list:
        print(
            *(f"{m.name}{f'  (equivalent: {m.reason})' if m.reason else ''}" for m in chosen),
            sep="\n",
        )
        return 0

    from yamlsched.extras import embedded

    # background jobs of a shell ignore SIGINT, and tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        copy = Path(name) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", ".yamlsched", "__pycache__", "results")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        Path(name).chmod(0o755)
        with embedded.running(Path(name) / "schedules.yaml") as dsn:
            names = sorted({name for mutation in chosen for name in mutation.tests})
            if failed := run_tests(names, copy, dsn):
                raise SystemExit(f"{failed} fails without any mutation")
            print("| mutation | found by |\n| --- | --- |")
            for mutation in chosen:
                found = (
                    f"equivalent: {mutation.reason}"
                    if mutation.reason
                    else run(mutation, copy, dsn, arguments.quick)
                )
                survivors += not found
                print(f"| `{mutation.name}` | {found or 'SURVIVED'} |", flush=True)
        embedded.discard(Path(name) / "schedules.yaml")
    equivalents = sum(m.reason is not None for m in chosen)
    print(f"\n{len(chosen)} mutations, {equivalents} equivalent, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
