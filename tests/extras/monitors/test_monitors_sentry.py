"""Check-ins of Sentry's cron monitors, received by a real HTTP server that reads them as Sentry does."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import Cli, command_line
from support.monitoring import KEY, Sentry, service
from support.project import a_project, until
from yamlsched.extras.doctor.doctor_offline import check as check_variables
from yamlsched.extras.monitors import outbox as monitors
from yamlsched.extras.monitors import targets as module
from yamlsched.extras.monitors.delivery import Request
from yamlsched.extras.monitors.outbox import MAX_PENDING, Outbox
from yamlsched.extras.monitors.targets import (
    BAD_DSN,
    Project,
    monitor_config,
    monitor_slug,
    tick_slug,
)
from yamlsched.runs.backoff import Backoff
from yamlsched.runs.lifecycle import ClaimedRun, Status
from yamlsched.schedule.job import Job
from yamlsched.timetable.calendars import Calendar
from yamlsched.timetable.cron import Cron, combine, parse_cron

HANDLERS = """
from pathlib import Path


def well(run=None):
    pass


def ill():
    raise RuntimeError("no route to host")


def recovers(run):
    if run.attempt == 1:
        raise RuntimeError("not yet")
"""
SCHEDULE = """version: 1
timezone: Europe/Berlin
defaults: {backoff: {policy: fixed, delay: 1s}}
jobs:
  well: {cron: "0 2 * * *", handler: jobs.well}
  ill: {cron: "0 2 * * *", handler: jobs.ill, max_attempts: 1, on_dead: [page]}
  page: {handler: jobs.well}
  recovers: {cron: "0 2 * * *", handler: jobs.recovers}
"""
SLOT = "2026-01-14"
DAILY = parse_cron("@daily")
JOB = Job("nightly", cron=DAILY, handler="jobs.well", timezone="Europe/Berlin")
RUN = ClaimedRun(
    1,
    "nightly",
    "nightly:2026-01-14",
    "2026-01-14 01:00:00+00",
    1,
    5,
    "{}",
    False,
    60.0,
    "host:1:a",
)


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    with service() as found:
        yield Sentry(found)


@pytest.fixture
def cli(
    dsn: str,
    sentry: Sentry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Cli:
    (tmp_path / "jobs.py").write_text(HANDLERS)
    (tmp_path / "schedules.yaml").write_text(SCHEDULE)
    monkeypatch.setenv("YAMLSCHED_SENTRY_DSN", sentry.dsn)
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_a_slot_that_a_calendar_skips_is_reported_as_well(
    cli: Cli, sentry: Sentry, db_of: Any, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given a job that a calendar skips on all days, and whose latest slot is due
    monkeypatch.setenv("YAMLSCHED_HEARTBEAT_URL_WELL", f"{sentry.service.url}/well")
    job = "{cron: '0 2 * * *', handler: jobs.well, skip_on: [always]}"
    calendars = "calendars: {always: {dates: [2020-01-01/2100-01-01]}}"
    (tmp_path / "schedules.yaml").write_text(f"version: 1\n{calendars}\njobs: {{well: {job}}}\n")
    assert cli("sync").code == 0
    db_of(dsn).execute(
        "update yamlsched.job_definitions set effective_from = now() - interval '2 days', "
        "next_slot_at = date_trunc('day', now()) - interval '22 hours'"
    )

    # when two ticks find it, of which the first records the slot
    assert [cli("tick").code, cli("tick").code] == [0, 0]

    # then its monitors are told once
    assert sentry.service.received.count("/well") == 1
    check_ins = [request.body for request in sentry.service.requests if b'"well"' in request.body]
    assert [b'"status": "ok"' in body for body in check_ins] == [True]


# -- what is sent ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("https://abc@o1.ingest.sentry.io/42", "https://o1.ingest.sentry.io/api/42/envelope/"),
        (
            "https://abc:secret@o1.ingest.sentry.io/42",
            "https://o1.ingest.sentry.io/api/42/envelope/",
        ),
        ("http://abc@localhost:9000/42/", "http://localhost:9000/api/42/envelope/"),
        ("https://abc@example.com/sentry/eu/42", "https://example.com/sentry/eu/api/42/envelope/"),
    ],
)
def test_a_dsn_names_where_check_ins_go(dsn: str, url: str) -> None:
    project = Project.of(dsn, None)

    assert (project.url, project.key, project.error) == (url, "abc", "")
    assert "abc" not in repr(project)


@pytest.mark.parametrize(
    "dsn",
    ["nonsense", "https://sentry.io/42", "https://abc@sentry.io", "https://abc@/42", "ftp://abc@host/42",
     "https://abc@host/42?x=1", "https://a\r\nX: y@host/42", "https://abc@host name/42", "https://abc@host/42#x"],
)  # fmt: skip
def test_a_dsn_that_is_not_valid_sends_nothing(dsn: str) -> None:
    assert Project.of(dsn, None) == Project(error=BAD_DSN)


def test_a_monitor_is_configured_as_its_job() -> None:
    job = replace(
        JOB,
        timeout=timedelta(hours=1),
        lease=timedelta(minutes=2),
        spread=timedelta(seconds=61),
        max_attempts=4,
        backoff=Backoff("exponential", timedelta(minutes=1), timedelta(hours=1)),
    )

    assert monitor_config(job, DAILY) == {
        "schedule": {"type": "crontab", "value": "0 0 * * *"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 5 + 2,
        "max_runtime": 60 + 4 + 2 + 5,  # an attempt, the longest backoff between two, a lost lease
    }
    assert monitor_config(replace(job, max_attempts=1), DAILY)["max_runtime"] == 60 + 2 + 5
    assert monitor_config(replace(job, timeout=timedelta(days=400)), DAILY)["max_runtime"] == 40_320


@given(namespaces=st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True), min_size=2, max_size=2),
       jobs=st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True), min_size=2, max_size=2))  # fmt: skip
def test_slugs_are_valid_and_differ(namespaces: list[str], jobs: list[str]) -> None:
    pairs = {(namespace, job) for namespace in (*namespaces, "default") for job in jobs}
    slugs = [monitor_slug(*pair) for pair in pairs] + [
        tick_slug(namespace) for namespace in {*namespaces, "default"}
    ]

    assert len(set(slugs)) == len(slugs)
    assert all(
        len(slug) <= 50 and set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
        for slug in slugs
    )


def test_a_slug_of_50_characters_is_kept_and_a_longer_one_is_shortened() -> None:
    assert monitor_slug("default", "j" * 50) == "j" * 50
    assert len(monitor_slug("default", "j" * 51)) == 50
    assert monitor_slug("default", "j" * 51) != monitor_slug("default", "j" * 52)


def test_all_attempts_of_a_run_have_one_id_until_an_operator_retries_it() -> None:
    project = Project.of("https://abc@sentry.io/42", "staging")
    again = RUN._replace(attempt=2, locked_by="other:2:b")

    def ids(*runs: ClaimedRun, of: Project = project, namespace: str = "default") -> set[str]:
        return {one.stream for run in runs for one in of.of_run(namespace, JOB, run, "in_progress")}

    assert len(ids(RUN, again)) == 1
    assert len(ids(RUN, RUN._replace(prior_attempts=5), RUN._replace(id=2))) == 3
    assert not ids(RUN) & ids(RUN, of=replace(project, environment="production"))
    assert not ids(RUN) & ids(RUN, namespace="billing")


WORKDAYS, SATURDAYS = parse_cron("0 9 * * 1-5"), parse_cron("0 9,12 * * 6")
EVERY_DAY = parse_cron("0 9 * * *")
PAYDAYS = Calendar("paydays", ((date(2026, 1, 16), date(2026, 1, 16)),), date(2026, 12, 31))
FRIDAY, SATURDAY = (
    datetime(2026, 1, 16, 8, tzinfo=UTC),
    datetime(2026, 1, 17, 8, tzinfo=UTC),
)  # 09:00 in Berlin


@pytest.mark.parametrize(
    "expressions, slot, names",
    [
        ([WORKDAYS, SATURDAYS], FRIDAY, ["nightly"]),
        ([WORKDAYS, SATURDAYS], SATURDAY, ["nightly-2"]),
        ([WORKDAYS, SATURDAYS], SATURDAY + timedelta(hours=3), ["nightly-2"]),
        ([WORKDAYS, SATURDAYS, EVERY_DAY], FRIDAY, ["nightly", "nightly-3"]),  # both expect it
        (
            [WORKDAYS, SATURDAYS],
            FRIDAY + timedelta(hours=1),
            [],
        ),  # of an expression that has left the file
        ([WORKDAYS], SATURDAY, ["nightly"]),
    ],
)
def test_each_expression_has_a_monitor_which_gets_the_runs_of_its_slots(
    expressions: list[Cron], slot: datetime, names: list[str]
) -> None:
    job = replace(JOB, cron=combine(expressions, True))
    run = RUN._replace(scheduled_for=f"{slot:%Y-%m-%d %H:%M:%S}+00")

    found = dict(module.monitors(job, slot))
    requests = list(
        Project.of("https://abc@sentry.io/42", None).of_run("default", job, run, "ok", 1.0)
    )

    assert list(found) == names
    for name, config in found.items():
        expression = expressions[int(name.partition("-")[2] or 1) - 1]
        assert config is not None
        assert config["schedule"]["value"] == expression.expression
    assert len({request.stream for request in requests}) == len(names)
    for name, request in zip(names, requests, strict=True):
        assert f'"{name}"'.encode() in (request.body or b"")


def test_the_first_expression_keeps_the_monitor_that_the_job_has_with_one() -> None:
    alone = dict(module.monitors(replace(JOB, cron=WORKDAYS), FRIDAY))
    of_several = dict(
        module.monitors(replace(JOB, cron=combine([WORKDAYS, SATURDAYS], True)), FRIDAY)
    )

    assert alone == of_several


def test_a_slot_that_a_clock_change_moves_is_that_of_its_expression() -> None:
    job = replace(JOB, cron=combine([parse_cron("30 2 * * *"), parse_cron("30 4 * * *")], True))

    assert [name for name, _ in module.monitors(job, datetime(2026, 3, 29, 1, 0, tzinfo=UTC))] == [
        "nightly"
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {"after": ("load",)},
        {"cron": combine([WORKDAYS, SATURDAYS], True), "only_on": (PAYDAYS,)},
        {"cron": combine([WORKDAYS], False, date(2026, 1, 12), None, 2)},
        {"cron": parse_cron("0 9 15W * *")},
        {"cron": combine([parse_cron("0 9 L-3 * *"), WORKDAYS], True)},
        {},
    ],
    ids=["follower", "calendars", "off weeks", "nearest weekday", "from the end", "plain"],
)
def test_sentry_expects_no_slot_whose_time_it_cannot_know(keys: dict[str, Any]) -> None:
    [(name, config)] = module.monitors(replace(JOB, **keys), FRIDAY)

    assert name == "nightly"
    assert (config is None) is bool(keys)


# -- what is collected -------------------------------------------------------------------------------------------------


def an_outbox() -> Outbox:
    return Outbox(
        {}, Project.of("https://abc@sentry.io/42", None), "default", lambda: {"nightly": JOB}
    )


@pytest.mark.parametrize(
    "run",
    [
        RUN._replace(scheduled_for=None, key=None),
        RUN._replace(job_type="of_another_file"),
    ],
    ids=["ad hoc", "unknown job"],
)
def test_only_runs_of_slots_check_in(run: ClaimedRun) -> None:
    outbox = an_outbox()

    outbox.note_start(run)
    outbox.note_end(run, Status.SUCCEEDED, 1.0, None)

    assert outbox.take(0.0) == []
    outbox.note_start(RUN)
    assert len(outbox.take(0.0)) == 1


def test_what_could_not_be_sent_comes_first_and_a_bounded_number_waits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outbox = an_outbox()

    outbox.note_start(RUN)
    first = outbox.take(0.0)
    outbox.note_end(RUN, Status.SUCCEEDED, 1.0, None)
    outbox.restore(first)
    assert [b'"in_progress"' in (request.body or b"") for request in outbox.take(0.0)] == [
        True,
        False,
    ]

    for number in range(MAX_PENDING + 3):
        outbox.note_start(RUN._replace(id=number))
    assert len(outbox.take(0.0)) == MAX_PENDING
    assert "monitor.dropped variable=YAMLSCHED_SENTRY_DSN requests=3" in capsys.readouterr().err
    assert outbox.take(0.0) == []


def test_the_requests_of_a_job_wait_for_their_turn() -> None:
    outbox = Outbox({"YAMLSCHED_HEARTBEAT_URL_NIGHTLY": "http://h/x"}, None, "default", dict)

    def urls(now: float | None) -> list[str]:
        return [request.url.removeprefix("http://h/x") for request in outbox.take(now)]

    def end(is_success: bool = True) -> None:
        outbox.note_end(RUN, Status.SUCCEEDED if is_success else Status.DEAD, 1.0, "RuntimeError")

    # a start, and its end, at once
    outbox.note_start(RUN)
    assert outbox.next_due_at() == 0.0
    assert urls(100.0) == ["/start"]
    assert outbox.next_due_at() is None
    end()
    assert urls(101.0) == [""]

    # what comes soon after that
    outbox.note_start(RUN)
    assert urls(129.9) == []
    assert outbox.next_due_at() == 130.0
    for is_success in (True, False, True):
        end(is_success)
    assert urls(130.0) == ["/start"]
    assert outbox.next_due_at() == 131.0
    assert urls(131.0) == ["/fail"]

    # a start that may not be reported before the end of all that has started is not reported after it
    outbox.note_start(RUN)
    assert urls(150.0) == []
    end()
    assert urls(161.0) == ["/start", ""]
    outbox.note_start(RUN)
    assert urls(190.0) == []
    outbox._states["YAMLSCHED_HEARTBEAT_URL_NIGHTLY"].end_due_at = 0.0
    end()
    assert urls(190.5) == [""]
    assert urls(300.0) == []

    # at the end of the worker, everything
    outbox.note_start(RUN)
    end()
    assert urls(None) == ["/start", ""]
    assert urls(None) == []


def test_secrets_are_not_shown_by_a_request() -> None:
    request = Project.of("https://abcsecret@sentry.io/42", None).of_tick("default", True)

    assert "abcsecret" not in repr(request)
    assert "sentry.io" not in repr(request)
    assert "hc/secret" not in repr(Request("X", "http://hc/secret", "a"))


# -- real ticks and loops ----------------------------------------------------------------------------------------------


def test_runs_of_slots_check_in_when_they_start_and_end(
    cli: Cli, sentry: Sentry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YAMLSCHED_ENV", "")
    cli("sync")

    # a success
    assert cli("backfill", "well", "--from", SLOT, "--before-first", "--yes").code == 0
    assert cli("tick").code == 0
    (first, one), (last, two) = dict.fromkeys(sentry.statuses("well"))
    assert (first, last) == ("in_progress", "ok")
    assert one == two
    check_in = [c for c in sentry.check_ins if c["monitor_slug"] == "well"][-1]
    assert 0 <= check_in["duration"] < 60
    assert check_in["environment"] == "production"
    assert "jobs.well" not in str(sentry.service.requests[0].body)

    # a failed attempt that is retried: the start of each attempt, and one end
    assert cli("backfill", "recovers", "--from", SLOT, "--before-first", "--yes").code == 0
    assert cli("tick").code == 0
    found = sentry.statuses("recovers")
    assert len(found) >= 3
    assert {status for status, _ in found[:-1]} == {"in_progress"}
    assert found[-1][0] == "ok"
    assert len({check_in_id for _, check_in_id in found}) == 1

    # a death, and the operator's retry, which is another check-in; hooks have none
    assert cli("backfill", "ill", "--from", SLOT, "--before-first", "--yes").code == 0
    assert cli("tick").code == 1
    assert cli("retry", "--dead", "--job", "ill", "--yes").code == 0
    assert cli("tick").code == 1
    found = sentry.statuses("ill")
    assert [status for status, _ in dict.fromkeys(found)] == ["in_progress", "error"] * 2
    assert len({check_in_id for _, check_in_id in found}) == 2

    # what is enqueued belongs to no slot
    before = len(sentry.statuses("well"))
    cli("enqueue", "well")
    assert cli("tick").code == 0
    assert len(sentry.statuses("well")) == before

    # each tick
    assert [status for status, _ in sentry.statuses("tick-of-default")] == [
        "ok",
        "ok",
        "error",
        "error",
        "ok",
    ]


def test_runs_of_a_job_with_several_expressions_check_in_at_the_monitor_of_theirs(
    cli: Cli, sentry: Sentry, tmp_path: Path
) -> None:
    job = "{crons: ['0 2 * * *', '0 14 * * *'], handler: jobs.well}"
    (tmp_path / "schedules.yaml").write_text(
        f"version: 1\ntimezone: Europe/Berlin\njobs: {{twice: {job}}}\n"
    )
    cli("sync")

    assert (
        cli(
            "backfill", "twice", "--from", SLOT, "--to", "2026-01-15", "--before-first", "--yes"
        ).code
        == 0
    )
    assert cli("tick").code == 0

    for slug, hour in (("twice", 2), ("twice-2", 14)):
        assert {status for status, _ in sentry.statuses(slug)} == {"in_progress", "ok"}
        configs = [
            found["monitor_config"] for found in sentry.check_ins if found["monitor_slug"] == slug
        ]
        assert {config["schedule"]["value"] for config in configs} == {f"0 {hour} * * *"}


def test_sentry_finds_a_missed_slot_by_what_a_check_in_told_it(cli: Cli, sentry: Sentry) -> None:
    cli("sync")
    cli("backfill", "well", "--from", SLOT, "--before-first", "--yes")
    assert cli("tick").code == 0

    # the next slot is at 02:00 in Berlin, and has a margin of five minutes
    last = datetime(2026, 1, 14, 1, 0, tzinfo=UTC)
    assert not sentry.is_missed("well", datetime(2026, 1, 15, 1, 5, tzinfo=UTC), last)
    assert sentry.is_missed("well", datetime(2026, 1, 15, 1, 6, tzinfo=UTC), last)

    # on the day when clocks go forward, 02:00 is 00:00 UTC
    last = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert sentry.is_missed("well", datetime(2026, 3, 30, 0, 6, tzinfo=UTC), last)

    # a tick is expected each minute
    now = datetime(2026, 1, 14, 1, 0, tzinfo=UTC)
    assert not sentry.is_missed("tick-of-default", now + timedelta(minutes=6), now)
    assert sentry.is_missed("tick-of-default", now + timedelta(minutes=7), now)


@pytest.mark.story
def test_a_run_that_loses_its_worker_for_good_is_an_error(
    own_dsn: str, sentry: Sentry, tmp_path: Path
) -> None:
    with a_project(tmp_path, own_dsn) as project:
        project.sync(kills_its_worker={"max_attempts": 1, "cron": "0 2 * * *"})
        [run] = project.enqueue("kills_its_worker")
        project.db.execute(
            "update yamlsched.job_runs set scheduled_for = '2026-01-14 02:00Z' where id = %s",
            (run,),
        )

        worker = project.start("work", YAMLSCHED_SENTRY_DSN=sentry.dsn)
        assert worker.wait() == -signal.SIGKILL
        other = project.start("work", "--loop", YAMLSCHED_SENTRY_DSN=sentry.dsn)
        until(lambda: "error" in [status for status, _ in sentry.statuses("kills_its_worker")])

        other.signal(signal.SIGTERM)
        assert other.wait() == 0


@pytest.mark.story
def test_a_sentry_that_is_dead_fails_and_loses_no_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("yamlsched.extras.monitors.delivery.DEADLINE_SECONDS", 0.5)
    cli("sync")

    # one that accepts connections, and answers nothing
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for number, dsn in enumerate(
            (f"http://{KEY}@127.0.0.1:{port}/7", f"http://{KEY}@127.0.0.1:1/7", KEY)
        ):
            monkeypatch.setenv("YAMLSCHED_SENTRY_DSN", dsn)
            cli("backfill", "well", "--from", f"2026-01-{14 + number}", "--before-first", "--yes")
            result = cli("tick", "-v")

            assert result.code == 0
            assert "attempt.succeeded" in result.err
            assert "monitor.failed variable=YAMLSCHED_SENTRY_DSN" in result.err
            for secret in (KEY, "127.0.0.1", f":{port}"):
                assert secret not in result.err
    assert module.SENTRY_VARIABLE == "YAMLSCHED_SENTRY_DSN"


@pytest.mark.story
def test_a_command_gets_no_dsn_of_sentry_and_no_process_shows_it(
    sentry: Sentry, own_dsn: str, tmp_path: Path
) -> None:
    with a_project(tmp_path, own_dsn) as project:
        project.sync(
            shows={
                "command": [
                    "/bin/sh",
                    "-c",
                    "env > seen; for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done >> seen",
                ]
            }
        )
        project.enqueue("shows")

        assert project.start("tick", YAMLSCHED_SENTRY_DSN=sentry.dsn).wait() == 0

        seen = (tmp_path / "seen").read_text("utf-8", "replace")
        assert "YAMLSCHED_JOB=shows" in seen
        assert KEY not in seen


def end_while_it_is_sent(sentry: Sentry, outbox: Outbox, is_answered: bool) -> None:
    """End a worker after it has sent a check-in, and before it is answered: a moment later, or not before the end."""

    async def send() -> None:
        task = asyncio.create_task(monitors.send_continually(outbox))
        outbox.note_start(RUN)
        while not sentry.service.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        if is_answered:
            asyncio.get_running_loop().call_later(0.05, sentry.service.may_answer.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    sentry.service.may_answer.clear()
    asyncio.run(send())
    sentry.service.may_answer.set()


def test_a_worker_that_ends_waits_for_an_answer_that_is_on_its_way(
    sentry: Sentry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "LAST_HELPER_SECONDS", 60.0)
    outbox = Outbox({}, Project.of(sentry.dsn, None), "default", lambda: {"nightly": JOB})

    end_while_it_is_sent(sentry, outbox, is_answered=True)

    assert outbox.take(None) == []
    assert [c["status"] for c in sentry.check_ins] == ["in_progress"]


def test_a_worker_that_ends_sends_again_what_was_not_answered_in_time(
    sentry: Sentry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "LAST_HELPER_SECONDS", 0.0)
    outbox = Outbox({}, Project.of(sentry.dsn, None), "default", lambda: {"nightly": JOB})

    end_while_it_is_sent(sentry, outbox, is_answered=False)

    assert len(outbox.take(None)) == 1


def test_doctor_checks_the_variables_and_shows_no_part_of_them() -> None:
    def found(**environ: str) -> list[tuple[str, str]]:
        checks = list(check_variables(environ))
        assert "secret" not in str(checks)
        return [(check.name, check.level) for check in checks]

    assert found() == []
    assert found(
        YAMLSCHED_HEARTBEAT_URL="http://secret/x", YAMLSCHED_SENTRY_DSN="https://secret@sentry.io/1"
    ) == [
        ("heartbeats", "ok"),
        ("sentry", "ok"),
    ]
    assert found(
        YAMLSCHED_HEARTBEAT_URL="secret",
        YAMLSCHED_HEARTBEAT_URL_A="http://secret:x/",
        YAMLSCHED_SENTRY_DSN="secret",
    ) == [("heartbeats", "fail"), ("heartbeats", "fail"), ("sentry", "fail")]
    assert found(OTEL_TRACES_EXPORTER="otlp") == [("traces", "ok")]
