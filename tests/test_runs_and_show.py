"""runs and show."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.rows import a_job, a_long_history, a_place, a_run, rows_read
from yamlsched.ask import history, search
from yamlsched.ask.search import Filter
from yamlsched.db.query import load
from yamlsched.errors import Refused

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
WORKER = "web-1:4711:c0ffee"
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_each_filter_selects_its_runs(db: Db) -> None:
    purge, mail = a_job(db, "purge", tags=["nightly", "disk"]), a_job(db, "mail", tags=["nightly"])
    dead = a_run(db, purge, "dead", finished_at=NOON, failed_at=NOON)
    running = a_run(db, purge, "running", started_at=NOON, exclusive=True)
    queued = a_run(db, mail, "queued", run_at=NOON.replace(hour=14), idempotency_key="mail:12_a")
    a_run(
        db,
        mail,
        "succeeded",
        finished_at=NOON.replace(hour=8),
        locked_by="web-2:7:beef",
        idempotency_key="mail:12xa",
    )

    def found(**chosen: Any) -> list[int]:
        return [row.id for row in search.page(db, "default", Filter(**chosen), 10).runs]

    assert len(found()) == 4
    assert found() == sorted(found(), reverse=True)
    assert found(jobs=["purge"]) == [running, dead]
    assert found(jobs=["purge", "mail"]) == found()
    assert found(tags=["nightly", "disk"]) == [running, dead]
    assert found(statuses=["dead"]) == [dead]
    assert found(statuses=["queued", "running", "failed"]) == [queued, running]
    assert found(statuses=["dead", "queued"]) == [queued, dead]
    assert found(since=NOON) == [queued, running, dead]
    assert found(since=NOON, until=NOON.replace(hour=13)) == [running, dead]
    assert found(key="mail:12_a") == [queued]
    assert found(key="mail:12_*") == [queued]
    assert len(found(key="mail:*")) == 2
    assert found(worker="web-1") == [running, dead]
    assert found(worker="web-1:4711") == [running, dead]
    assert found(worker="web") == []
    assert (
        found(error="ROUTE to")
        == found(error="oserror: no")
        == found(error_type="OSError")
        == [dead]
    )
    assert found(error_type="OS") == found(error="r_ute") == []


def test_the_options_about_errors_select_runs_in_each_verb(db: Db, cli: Cli) -> None:
    job = a_job(db)
    timeout, other = (
        a_run(db, job, "dead", error_type=name, last_error="x") for name in ("Timeout", "OSError")
    )

    def listed(*options: str) -> list[int]:
        return [
            run["id"] for run in json.loads(cli("runs", *options, "--format", "json").out)["runs"]
        ]

    assert listed("--error", "time") == listed("--error-type", "Timeout") == [timeout]
    assert (
        f"would retry 1 run: {other}"
        in cli("retry", "--dead", "--error-type", "OSError", "--dry-run").out
    )
    assert (
        f"would retry 1 run: {timeout}"
        in cli("retry", "--dead", "--error", "TIME", "--dry-run").out
    )


def test_pages_have_no_gaps_and_no_duplicates(db: Db, cli: Cli) -> None:
    job = a_job(db)
    runs = [a_run(db, job) for _ in range(5)]

    pages, before = [], None
    while True:
        result = json.loads(
            cli(
                "runs", "--limit", 2, "--format", "json", *(["--before", before] if before else [])
            ).out
        )
        pages.append([run["id"] for run in result["runs"]])
        before = result["next_before"]
        if before is None:
            break

    assert pages == [[runs[4], runs[3]], [runs[2], runs[1]], [runs[0]]]


def test_the_namespaces_of_one_database_do_not_see_each_other(db: Db) -> None:
    a_run(db, a_job(db, namespace="billing"))

    assert search.page(db, "default", Filter(), 10).runs == []
    with pytest.raises(Refused, match='no job "purge" in namespace "default"'):
        search.page(db, "default", Filter(jobs=["purge"]), 10)


def test_runs_are_listed_as_text_and_json(db: Db, cli: Cli) -> None:
    run = a_run(
        db,
        a_job(db),
        "dead",
        started_at=NOON,
        finished_at=NOON,
        failed_at=NOON,
        idempotency_key="purge:x",
    )

    text = cli("runs").out.splitlines()
    document = json.loads(cli("runs", "--format", "json").out)

    assert text[0].split() == ["ID", "JOB", "STATUS", "ATTEMPT", "WHEN", "TOOK", "KEY", "NOTE"]
    assert text[1].split() == [
        *(
            str(run),
            "purge",
            "dead",
            "5/5",
            "2026-01-14T12:00:00Z",
            "0s",
            "purge:x",
            "OSError:",
            "no",
            "route",
            "to",
            "host",
        ),
    ]
    assert document["format_version"] == 1
    assert document["runs"][0]["finished_at"] == "2026-01-14T12:00:00Z"
    assert document["runs"][0]["priority"] == "normal"


def test_piped_output_has_no_colours_and_no_matching_run_is_not_an_error(db: Db, cli: Cli) -> None:
    assert cli("runs") == (0, "", "no runs match\n")
    a_run(db, a_job(db), "dead")
    assert "\x1b" not in cli("runs").out


def keep_output(
    db: Db, run: int, attempt: int, output: str, omitted: int = 0, worker: str = WORKER
) -> None:
    db.execute(
        "insert into yamlsched.attempt_outputs "
        "values (%s, %s, %s, '2026-01-14T12:00:05Z'::timestamptz + make_interval(secs => %s), %s, %s)",
        [run, attempt, worker, attempt, omitted, output],
    )


def test_show_prints_everything_about_a_run(db: Db, cli: Cli) -> None:
    # given a run that failed twice, succeeded, had an effect, fanned out, and was changed by an operator
    job = a_job(db)
    parent = a_run(db, job, "succeeded")
    run = a_run(
        db, job, "succeeded", attempts=3, idempotency_key="purge:2026-01-14", scheduled_for=NOON, parent_id=parent,
        result="(to_jsonb(7))",
    )  # fmt: skip
    child = a_run(db, a_job(db, "mail"), idempotency_key="mail:7", parent_id=run)
    for attempt, error in ((1, "no route to host"), (2, "lost its worker")):
        db.execute(
            "insert into yamlsched.job_failures "
            "(run_id, attempt, worker, started_at, failed_at, error, error_type, stack) "
            "values (%s, %s, 'web-1:4711:c0ffee', '2026-01-14T12:00Z', '2026-01-14T12:00:05Z', %s, 'OSError', %s)",
            [run, attempt, error, "\n".join(f"frame {n}" for n in range(20))],
        )
    keep_output(db, run, 1, "tried\x1b[2J red")
    db.execute(
        "insert into yamlsched.effects "
        "(namespace, key, run_id, attempt, locked_by, entry, provider_key, state, done_at) values "
        "('default', %s, %s, 3, 'w', gen_random_uuid(), '2f1b0c5e-0000-8000-8000-000000000001', 'done', "
        "'2026-01-14T12:01Z')",
        [f"run:{run}:mail", run],
    )
    db.execute(
        "insert into yamlsched.operator_actions (namespace, who, verb, target, detail) "
        """values ('default', 'ann', 'retry', %s, '{"was": "dead"}')""",
        [f"run:{run}"],
    )

    # when it is shown by its key
    result = cli("show", "purge:2026-01-14")

    # then everything is shown, and output of handlers is escaped
    for part in (
        f"run       {run} of purge (handlers.purge:run)",
        "status    succeeded",
        "attempts  3 of 5",
        "slot      2026-01-14T12:00:00Z",
        "result    7",
        "attempt 1  failed  2026-01-14T12:00:00Z  took 5s  web-1:4711:c0ffee",
        "    OSError: no route to host",
        "    stack: (8 earlier lines; --full shows them)",
        "      frame 19",
        "      tried\\x1b[2J red",
        "    OSError: lost its worker",
        "attempt 3  succeeded",
        f"run:{run}:mail  done",
        "2f1b0c5e-0000-8000-8000-000000000001",
        f"enqueued by run {parent} of purge, succeeded",
        "mail:7",
        "retry by ann, was: dead",
    ):
        assert part in result.out
    assert "frame 0" not in result.out
    assert "frame 0" in cli("show", run, "--full").out
    document = json.loads(cli("show", run, "--format", "json").out)
    assert [child["id"] for child in document["children"]] == [child]
    assert [attempt["attempt"] for attempt in document["failures"]] == [1, 2]
    assert document["run"]["payload"] == {}


def test_show_suggests_the_next_command(db: Db, cli: Cli) -> None:
    dead = a_run(db, a_job(db), "dead")
    waiting = a_run(db, a_job(db, "off", enabled=False))
    paused = a_run(db, a_job(db, "mail", paused_at=NOON))
    failed = a_run(db, a_job(db, "sync"), "failed")

    assert f"next      yamlsched retry {dead}\n" in cli("show", dead).out
    assert (
        "next      its job is not enabled in schedules.yaml: no worker claims it"
        in cli("show", waiting).out
    )
    assert "next      its job is paused: yamlsched resume mail" in cli("show", paused).out
    assert (
        f"next      it is retried automatically; to retry it now: yamlsched retry {failed}\n"
        in cli("show", failed).out
    )


def test_show_suggests_settling_an_effect_in_doubt_before_a_retry(db: Db, cli: Cli) -> None:
    dead = a_run(db, a_job(db), "dead")
    db.execute(
        "insert into yamlsched.effects "
        "(namespace, key, run_id, attempt, locked_by, entry, provider_key, state, doubted_at) values "
        "('default', 'the mail', %s, 1, 'web-1:1:c0ffee', gen_random_uuid(), gen_random_uuid(), 'in_doubt', now())",
        [dead],
    )

    step = f"next      yamlsched settle --done 'the mail' (or --not-done); then yamlsched retry {dead}\n"
    assert step in cli("show", dead).out


def test_a_cancelled_run_has_no_duration_in_the_list(db: Db, cli: Cli) -> None:
    # given a released run, and one that is running
    job, started = a_job(db), "(now() - interval '3 days')"
    released = a_run(db, job, "queued", started_at=started)
    running = a_run(db, job, "running", started_at=started)

    cli("cancel", released, running)

    took = {row.split()[0]: row.split()[5] for row in cli("runs").out.splitlines()[1:]}
    assert (took[str(released)], took[str(running)]) == ("-", "-")
    assert "the last attempt took" not in cli("show", released).out


@pytest.mark.parametrize("status", ["cancelled", "succeeded"])
def test_show_names_the_attempt_that_was_cancelled_or_succeeded_before_a_retry(
    db: Db, cli: Cli, status: str
) -> None:
    # given a run whose first attempt failed and whose second was cancelled or succeeded
    run = a_run(db, a_job(db), "running", attempts=2, started_at="(now() - interval '90 seconds')")
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error) "
        "values (%s, 1, 'web-2:1:aa', now(), now(), 'no route')",
        [run],
    )
    if status == "cancelled":
        assert cli("cancel", run, "--reason", "wrong day").code == 0
    else:
        db.execute(
            "update yamlsched.job_runs set status = 'succeeded', locked_until = null, finished_at = now() "
            "where id = %s",
            [run],
        )

    # when it is retried, and its third attempt is running
    assert cli("retry", run, "--force").code == 0
    db.execute(
        "update yamlsched.job_runs set status = 'running', attempts = 3, locked_by = 'web-3:1:bb', started_at = now(), "
        "locked_until = now() + interval '1 minute' where id = %s",
        [run],
    )

    # then the trail has the second
    lines = [
        line.split()
        for line in cli("show", run).out.splitlines()
        if re.match("attempt +[0-9]", line)
    ]
    assert [(line[1], line[2], line[-1]) for line in lines] == [
        ("1", "failed", "web-2:1:aa"),
        ("3", "running", "web-3:1:bb"),
    ]
    retried = rf"retry by \S+, was: {status}, attempt: 2 on web-1:4711:c0ffee, \S+Z to \S+Z\n?$"
    assert re.search(retried, cli("show", run).out)


def test_an_unknown_run_and_a_pruned_one_get_different_messages(db: Db, cli: Cli) -> None:
    db.execute(
        "insert into yamlsched.used_keys (namespace, idempotency_key, run_id, job_type, pruned_at) "
        "values ('default', 'purge:2026-01-14', 7, 'purge', '2026-02-01')"
    )

    assert cli("show", 12).err == "yamlsched: run 12 does not exist, or was pruned\n"
    assert (
        'run 7 with the key "purge:2026-01-14" was pruned on 2026-02-01'
        in cli("show", "purge:2026-01-14").err
    )


def test_the_namespace_is_that_of_the_file_or_the_only_one(
    db: Db, tmp_path: Path, cli: Cli
) -> None:
    # without a file and without jobs it is "default"
    assert history.namespace_of(db, None, Path("schedules.yaml")) == "default"

    # the only one
    a_job(db, namespace="billing")
    assert history.namespace_of(db, None, Path("schedules.yaml")) == "billing"

    # with several, --namespace is required
    a_job(db)
    with pytest.raises(
        Refused, match=r"several namespaces \(billing, default\): pass --namespace or --file"
    ):
        history.namespace_of(db, None, Path("schedules.yaml"))
    assert history.namespace_of(db, "billing", Path("schedules.yaml")) == "billing"

    # or the file names it, even if all of its jobs are invalid
    file = tmp_path / "jobs.yaml"
    file.write_text("version: 1\nnamespace: mailing\njobs: {a: 1}\n")
    assert history.namespace_of(db, None, file) == "mailing"

    # a file that cannot be parsed has the namespace of its place
    file.write_text("version: [\n")
    with pytest.raises(Refused, match="has no valid namespace"):
        history.namespace_of(db, None, file)
    import socket

    a_place(db, namespace="mailing", host=socket.gethostname(), path=str(file))
    assert history.namespace_of(db, None, file) == "mailing"


def test_dead_and_unfinished_runs_and_runs_of_a_key_are_found_without_reading_the_history(
    own_dsn: str,
) -> None:
    sql = load("history")["runs"]
    with psycopg.connect(own_dsn, autocommit=True) as db:
        a_long_history(db)
        position = {
            "namespace": "default",
            "low": 0,
            "high": 10**9,
            "limit": 50,
            "oldest_first": False,
            "ids": None,
        }
        no_filter = search.Filter().parameters(None)

        def read(**given: Any) -> int:
            return rows_read(db, sql, {**no_filter, **position, **given})

        # then runs are read in order, or by their ids
        assert read() <= 51
        assert read(oldest_first=True) <= 51
        assert read(error_like="%nothing%", low=19_512) == 501
        assert read(ids=[1, 2, 3]) == 3

        # and an index finds the ids of few runs
        def found(by: str, **given: Any) -> int:
            return rows_read(
                db, load("history")["indexed_ids"], {**no_filter, **position, "by": by, **given}
            )

        tomorrow = datetime.now(UTC) + timedelta(days=1)
        assert found("key", key="purge:2026-01-14") == 0
        assert found("dead") <= 4
        assert found("open") <= 25
        assert found("end", since=tomorrow) <= 50
        assert (
            found(
                "end",
                since=datetime(2020, 1, 1, tzinfo=UTC),
                until=datetime(2020, 1, 2, tzinfo=UTC),
            )
            <= 50
        )
        assert found("end", definitions=[1]) <= 250


@pytest.mark.parametrize("few", [0, 1000])
def test_pages_forward_and_back_have_each_run_once_whatever_reads_them(
    db: Db, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(search, "FEW_RUNS", few)
    job, other = a_job(db, "mail"), a_job(db, "other")
    runs = [a_run(db, job if nth % 3 else other) for nth in range(40)]
    mails = [run for nth, run in enumerate(runs) if nth % 3][::-1]
    filter = Filter(jobs=["mail"])

    page, forward = search.page(db, "default", filter, 5), list[int]()
    while True:
        forward += [row.id for row in page.runs]
        if page.older is None:
            break
        last, page = page, search.page(db, "default", filter, 5, before=page.older)
    assert forward == mails

    page, back = last, [row.id for row in last.runs]
    while (
        page.newer is not None
        and (page := search.page(db, "default", filter, 5, after=page.newer)).runs
    ):
        back = [row.id for row in page.runs] + back
    assert back == mails[: len(back)]
    assert len(back) >= len(mails) - 5


def test_a_page_of_many_dead_runs_reads_the_first_of_them(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FIRST_IDS", 3)
    job = a_job(db)
    dead = [a_run(db, job, "dead") for _ in range(40)]
    read: list[int] = []
    select = search.runs.runs

    def counted(*given: Any, **options: Any) -> Any:
        read.append(len(options["ids"]))
        return select(*given, **options)

    monkeypatch.setattr(search.runs, "runs", counted)
    page = search.page(db, "default", Filter(statuses=["dead"]), 5)

    assert [run.id for run in page.runs] == dead[:-6:-1]
    assert read == [3, 12]


def test_an_index_finds_the_same_runs_as_a_search(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    # given runs of two jobs that ended before and after an instant, failed for two reasons, or have not ended
    jobs = [a_job(db, "mail"), a_job(db, "other"), a_job(db, "else", namespace="other")]
    for nth in range(60):
        at = NOON + timedelta(hours=nth % 7)
        failed = (
            {"error_type": ("OSError", "KeyError")[nth % 2], "failed_at": at, "last_error": "x"}
            if nth % 3
            else {}
        )
        status = ("dead", "succeeded", "queued", "cancelled")[nth % 4]
        if status == "dead":
            failed = {"error_type": "OSError", "failed_at": at, "last_error": "x"}
        ended = {"finished_at": at} if status != "queued" else {"run_at": at}
        job = jobs[nth % 3]
        a_run(db, job, status, **ended, **failed)

    # when they are selected through an index, and by reading them all
    filters = [
        Filter(since=NOON + timedelta(hours=hours), jobs=names, **more)
        for hours in (0, 3, 6, 7)
        for names in ((), ("mail",), ("mail", "other"))
        for more in (
            {},
            {"error_type": "OSError"},
            {"error": "x"},
            {"statuses": ["queued", "dead"]},
        )
    ]
    filters += [Filter(error_type="KeyError"), Filter(error_type="Nothing"), Filter(error_type="")]
    found = []
    for few in (1_000, 0):
        monkeypatch.setattr(search, "FEW_RUNS", few)
        found.append(
            [[row.id for row in search.page(db, "default", filter, 100).runs] for filter in filters]
        )

    # then they are the same
    assert found[0] == found[1]
    assert [len(ids) for ids in found[0]].count(0) < len(filters) / 2


def test_the_list_of_runs_says_where_its_search_stopped(
    db: Db, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(db)
    wanted = a_run(db, job, "cancelled")
    runs = [a_run(db, job, "succeeded") for _ in range(40)]
    monkeypatch.setattr(search, "FEW_RUNS", 0)
    monkeypatch.setattr(search, "MAX_LISTED_IDS", 30)

    stopped = cli("runs", "--status", "cancelled", "--limit", 1)
    stopped_at = runs[10]
    assert stopped.out == ""
    assert stopped.err == (
        f"no runs match down to run {stopped_at}, where the search stopped\n"
        f"to search older runs: pass --before {stopped_at}\n"
    )
    document = json.loads(
        cli("runs", "--status", "cancelled", "--limit", 1, "--format", "json").out
    )
    assert (document["runs"], document["next_before"]) == ([], stopped_at)
    document = json.loads(
        cli(
            "runs",
            "--status",
            "cancelled",
            "--before",
            stopped_at,
            "--limit",
            1,
            "--format",
            "json",
        ).out
    )
    assert ([run["id"] for run in document["runs"]], document["next_before"]) == ([wanted], None)


def test_a_search_that_finds_nothing_stops_and_can_be_continued(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(db)
    wanted = a_run(db, job, "dead", last_error="disk full", error_type=None)
    runs = [a_run(db, job, "succeeded") for _ in range(100)]
    full = Filter(error="DISK")

    first = search.page(db, "default", full, 2, max_ids=60)
    assert (list(first.runs), first.older, first.searched_to) == ([], runs[40], runs[40])
    second = search.page(db, "default", full, 2, before=first.older, max_ids=60)
    assert [row.id for row in second.runs] == [wanted]
    assert (second.older, second.newer) == (None, runs[40] - 1)
    newer = search.page(db, "default", full, 2, after=wanted, max_ids=60)
    assert (list(newer.runs), newer.newer) == ([], wanted + 60)
    assert (
        search.page(db, "default", Filter(statuses=["dead"], error_type="", error="%"), 2).runs
        == []
    )
    assert search.page(db, "default", full, 2).runs == list(second.runs)


def test_no_runs_have_one_empty_page(db: Db) -> None:
    for position in ({}, {"before": 1}, {"before": 10**15}, {"after": 0}, {"after": 10**15}):
        found = search.page(db, "default", Filter(), 50, max_ids=1000, **position)
        assert (list(found.runs), found.searched_to) == ([], None)
        assert position or (found.older, found.newer) == (None, None)


def test_a_run_and_its_hooks_name_each_other(db: Db, cli: Cli) -> None:
    job, page = a_job(db, "hang"), a_job(db, "page", schedule=None)
    dead = a_run(db, job, "dead")
    hook = a_run(db, page, "queued", parent_id=dead, hook="dead")
    child = a_run(db, page, "queued", parent_id=dead)

    lines = {int(line.split()[0]): line for line in cli("runs").out.splitlines()[1:]}
    assert f"page (dead: {dead})" in lines[hook]
    assert "(" not in lines[dead]

    shown = cli("show", dead).out
    assert re.search(rf"ENQUEUED .*\n{child} .*page", shown)
    assert re.search(rf"HOOKS .*\n{hook} .*page", shown)
    assert f"reports the death of run {dead} of hang, dead" in cli("show", hook).out
    document = json.loads(cli("show", dead, "--format", "json").out)
    assert ([one["id"] for one in document["hooks"]], document["run"]["hook"]) == ([hook], None)
    rows = json.loads(cli("runs", "--format", "json").out)["runs"]
    assert {one["id"]: (one["hook"], one["parent_id"]) for one in rows} == {
        dead: (None, None),
        hook: ("dead", dead),
        child: (None, dead),
    }


# -- output


def test_show_prints_the_end_of_what_each_attempt_printed(db: Db, cli: Cli) -> None:
    # given a run whose second attempt was released, and whose last one succeeded
    run = a_run(db, a_job(db), "succeeded", attempts=2, locked_by="w:2")
    keep_output(db, run, 1, "of the released one\n", worker="w:1")
    keep_output(
        db,
        run,
        2,
        "".join(f"line {n}\n" for n in range(20)) + "x" * 1_000,
        omitted=1 << 30,
        worker="w:2",
    )

    # when it is shown
    shown, full = cli("show", run).out.splitlines(), cli("show", run, "--full").out.splitlines()

    # then the attempts are in order, with the last lines of each
    [at] = [nth for nth, line in enumerate(shown) if line.startswith("attempt 1")]
    assert shown[at : at + 3] == [
        "attempt 1  ended  2026-01-14T12:00:06Z  w:1",
        "    output:",
        "      of the released one",
    ]
    assert shown[at + 3].startswith("attempt 2  succeeded")
    assert shown[at + 4] == "    output: (9 earlier lines; --full shows them)"
    assert shown[at + 5] == "      line 9"
    assert shown[-1] == f"      {'x' * 397}..."
    assert "    output, after 1.0 GiB that were not kept:" in full
    assert full[-1] == f"      {'x' * 1_000}"


def test_show_prints_only_the_output_for_another_program(db: Db, cli: Cli) -> None:
    run = a_run(db, a_job(db), "dead", attempts=3)
    keep_output(db, run, 1, "first\n")
    keep_output(
        db, run, 3, "\x1b[1;31mred\x1b[0m\r\n::stop-commands::x\n\x1b]0;title\x07\n", omitted=5
    )

    assert cli("show", run, "--output") == (
        0,
        "red\n\\::stop-commands::x\n\\x1b]0;title\\x07\n",
        "the last 46 bytes: 5 bytes before it were not kept\n",
    )
    assert cli("show", run, "--output", "--attempt", "1") == (0, "first\n", "")
    kept = json.loads(cli("show", run, "--output", "--format", "json").out)["output"]
    assert (kept["attempt"], kept["omitted_bytes"], kept["output"][:5]) == (3, 5, "\x1b[1;3")
    everything = json.loads(cli("show", run, "--format", "json").out)
    assert [output["attempt"] for output in everything["outputs"]] == [1, 3]


def test_a_run_without_output_is_explained(db: Db, cli: Cli) -> None:
    job = a_job(db)
    silent, running = a_run(db, job, "succeeded"), a_run(db, job, "running")
    failed = a_run(db, job, "dead", attempts=2)
    keep_output(db, failed, 1, "first\n")
    excluded = "it printed nothing before its lease was last renewed, or output.keep of its job excludes it (now: failed)"

    for words, message in (
        ([silent], f"no output of run {silent} is kept: {excluded}"),
        ([running], f"no output of run {running} is kept: {excluded}"),
        (
            [failed, "--attempt", "2"],
            f"no output of run {failed}, attempt 2 is kept. Attempts with output: 1",
        ),
    ):
        assert cli("show", *words, "--output") == (1, "", f"yamlsched: {message}\n")
    assert cli("show", failed, "--attempt", "1").code == 2
