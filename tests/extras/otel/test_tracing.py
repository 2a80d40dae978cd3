"""Spans that real workers and an application send to a real OTLP receiver."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.otlp import Collector, collector
from support.project import Project, a_project, until
from yamlsched.extras import otel as tracing
from yamlsched.extras.otel import spans
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, EnqueueBatch
from yamlsched.runs.own_transaction import fan_out

pytestmark = pytest.mark.story

PROPAGATE = {"YAMLSCHED_TRACE_PROPAGATE": "1"}
HANDLERS = '''
import os, time
from opentelemetry import trace


def sign_up(run, user):
    """Fail once, then enqueue."""
    with trace.get_tracer("app").start_as_current_span("work of the application"):
        if run.attempt == 1:
            raise RuntimeError("no answer from amqp://bob:hunter2@mq:5672/")
    run.enqueue("welcome", {"user": user}, key="welcome:7")
    run.enqueue("shows")


async def welcome(run, user):
    with trace.get_tracer("app").start_as_current_span("mail"):
        pass


def fails(secret=None):
    raise ValueError("it failed")


def nothing():
    pass


def stops_itself():
    os._exit(3)


def snoozes():
    import yamlsched

    raise yamlsched.Snooze("1h")
'''
APPLICATION = '''
"""A web application that has configured OpenTelemetry, and enqueues in a request."""
import asyncio, sys
import psycopg
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
import yamlsched

provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
dsn, = sys.argv[1:]
with trace.get_tracer("shop").start_as_current_span("GET /sign-up", kind=trace.SpanKind.SERVER):
    with psycopg.connect(dsn) as connection:
        yamlsched.enqueue(connection, "sign_up", {"user": "hush"}, key="sign_up:7")
        yamlsched.enqueue_many(connection, "nothing", [{}, {}, {}])
        try:
            with connection.transaction():
                yamlsched.enqueue(connection, "unknown", {"user": "hush"})
        except yamlsched.Refused:
            pass


async def enqueue_async():
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await yamlsched.enqueue(connection, "nothing", key="nothing:async")


with trace.get_tracer("shop").start_as_current_span("GET /async", kind=trace.SpanKind.SERVER):
    asyncio.run(enqueue_async())
'''
PATIENT = """
from yamlsched.extras import otel as tracing
from yamlsched.worker.local import pool
tracing.LAST_EXPORT_SECONDS = pool.CLOSE_TIMEOUT_SECONDS = 60.0
"""
"""On a machine that is busy, an export may take longer than a worker waits for at its end."""
INVOKE = (
    "from yamlsched.cli import main; from yamlsched.extras import otel;"
    " otel.LAST_EXPORT_SECONDS = 60.0; main()"
)
SHOW = 'env > "seen-$YAMLSCHED_RUN_ID"'
BACKOFF = {"backoff": {"policy": "fixed", "delay": "1s"}}
NAMES = ("sign_up", "welcome", "fails", "nothing", "stops_itself", "snoozes")
JOBS = {
    **{name: {"handler": f"app.{name}", **BACKOFF} for name in NAMES},
    "shows": {"command": ["/bin/sh", "-c", SHOW], **BACKOFF},
}


@pytest.fixture
def receiver() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture
def project(dsn: str, tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "app.py").write_text(HANDLERS)
    with a_project(tmp_path, dsn) as project:
        project.sync(**JOBS)
        yield project


def application(project: Project, receiver: Collector, **environment: str) -> None:
    path = project.folder / "application.py"
    path.write_text(APPLICATION)
    subprocess.run(
        [sys.executable, str(path), project.dsn],
        env={**os.environ, **receiver.environment, **environment},
        check=True,
        timeout=300,
    )


def test_a_request_its_run_a_retry_a_child_and_a_command_are_one_trace(
    project: Project, receiver: Collector
) -> None:
    # given a request that enqueues a run, whose first attempt fails, and whose second one enqueues others
    application(project, receiver, **PROPAGATE)
    project.work(before=PATIENT, **receiver.environment, **PROPAGATE)

    # then the request and what it enqueued are parents of what is executed
    request, sent = receiver.one("GET /sign-up"), receiver.one("send sign_up")
    assert (sent.kind, sent.parent_id, sent.service) == ("producer", request.span_id, "shop")
    first, second = (
        receiver.one("process sign_up", attempt=1),
        receiver.one("process sign_up", attempt=2),
    )
    for attempt in (first, second):
        assert (attempt.kind, attempt.parent_id, attempt.links) == (
            "consumer",
            sent.span_id,
            [sent.span_id],
        )
        assert (attempt.service, attempt.scope) == ("yamlsched", "yamlsched")
    child = receiver.one("send welcome")
    assert (child.kind, child.parent_id) == ("producer", second.span_id)
    welcome = receiver.one("process welcome")
    assert (welcome.kind, welcome.parent_id, welcome.links) == (
        "consumer",
        child.span_id,
        [child.span_id],
    )
    command = receiver.one("process shows")
    assert command.parent_id == receiver.one("send shows").span_id
    inner = {span.parent_id for span in receiver.find("work of the application")}
    assert inner == {first.span_id, second.span_id}
    assert receiver.one("mail").parent_id == welcome.span_id
    assert {span.trace_id for span in (request, sent, first, second, child, welcome, command)} == {
        request.trace_id
    }

    # and the attributes are those of the conventions
    assert sent.attributes == {
        "messaging.system": "yamlsched",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "sign_up",
        "messaging.message.id": first.attributes["messaging.message.id"],
        "yamlsched.namespace": "default",
        "yamlsched.key": "sign_up:7",
    }
    assert second.attributes == {
        "messaging.system": "yamlsched",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "sign_up",
        "messaging.message.id": first.attributes["messaging.message.id"],
        "yamlsched.namespace": "default",
        "yamlsched.key": "sign_up:7",
        "yamlsched.attempt": 2,
        "yamlsched.max_attempts": 5,
        "yamlsched.outcome": "succeeded",
    }

    # and the failed attempt tells its error, without a password or a payload
    assert (first.is_error, second.is_error) == (True, False)
    assert first.attributes["yamlsched.outcome"] == "failed"
    assert first.attributes["error.type"] == "RuntimeError"
    assert first.description == "no answer from amqp://bob:***@mq:5672/"
    [(event, details)] = first.events
    assert event == "exception"
    assert details["exception.type"] == "RuntimeError"
    assert details["exception.message"] == first.description
    assert details["exception.stacktrace"].endswith(
        "RuntimeError: no answer from amqp://bob:***@mq:5672/\n"
    )
    assert "hush" not in str([span for span in receiver.spans if span.scope == "yamlsched"])

    # and a batch is one span, an enqueue that was refused an error, and asynchronous code has its own request
    batch = receiver.one("send nothing", key=None)
    assert batch.attributes["messaging.batch.message_count"] == 3
    processed = receiver.find("process nothing", key=None)
    assert [span.parent_id for span in processed] == [batch.span_id] * 3
    refused = receiver.one("send unknown")
    assert (refused.is_error, refused.attributes["error.type"], refused.events) == (
        True,
        "Refused",
        [],
    )
    later = receiver.one("process nothing", key="nothing:async")
    assert later.trace_id == receiver.one("GET /async").trace_id != request.trace_id

    # and the command knows its span
    seen = (project.folder / f"seen-{command.attributes['messaging.message.id']}").read_text()
    assert f"TRACEPARENT=00-{command.trace_id}-{command.span_id}-0" in seen


def test_without_propagation_a_run_keeps_no_context_and_has_a_trace_of_its_own(
    project: Project, receiver: Collector
) -> None:
    application(project, receiver)
    project.work(before=PATIENT, **receiver.environment)

    sent, processed = receiver.one("send sign_up"), receiver.one("process sign_up", attempt=1)
    assert processed.trace_id != sent.trace_id
    assert (processed.parent_id, processed.links) == ("", [])
    contexts = project.db.execute(
        "select distinct trace_context from yamlsched.job_runs"
    ).fetchall()
    assert [row.trace_context for row in contexts] == [None]


def test_runs_of_slots_hooks_and_failures_of_all_kinds_have_spans(
    project: Project, receiver: Collector
) -> None:
    # given a run of a slot, failing runs, one of which has a hook, and one whose process dies
    project.sync(
        **{
            **JOBS,
            "nothing": {"handler": "app.nothing", "cron": "* * * * *", **BACKOFF},
            "fails": {
                "handler": "app.fails",
                "max_attempts": 1,
                "on_dead": ["page"],
                **BACKOFF,
            },
            "page": {"handler": "app.is_told"},
            "missing": {"handler": "app.missing", "max_attempts": 1, **BACKOFF},
            "stops_itself": {"handler": "app.stops_itself", "max_attempts": 1, **BACKOFF},
        }
    )
    with (project.folder / "app.py").open("a") as code:
        code.write("\n\ndef is_told(run):\n    assert run.trigger.error_type == 'ValueError'\n")
    project.db.execute("update yamlsched.job_definitions set next_slot_at = '2026-01-14 02:00Z', "
                       "last_slot_at = '2026-01-14 01:59Z', effective_from = '2026-01-14 01:00Z' "
                       "where job_type = 'nothing'")  # fmt: skip
    project.enqueue("fails", {"secret": "hush"})
    project.enqueue("missing")
    project.enqueue("snoozes")
    assert project.start("tick", before=PATIENT, **receiver.environment).wait() == 1

    # then each attempt that was not killed has a span
    slot = receiver.one("process nothing")
    assert (slot.parent_id, slot.links) == ("", [])
    assert re.fullmatch(
        r"20\d\d-\d\d-\d\dT\d\d:\d\d:00Z", slot.attributes["yamlsched.scheduled_for"]
    )
    assert slot.attributes["yamlsched.key"].startswith("nothing:20")
    dead = receiver.one("process fails", outcome="dead")
    assert (dead.is_error, dead.attributes["error.type"], dead.description) == (
        True,
        "ValueError",
        "it failed",
    )
    told = receiver.one("process page", outcome="succeeded")
    assert str(told.attributes["yamlsched.key"]).startswith(
        f"page:dead:{dead.attributes['messaging.message.id']}:"
    )
    assert receiver.one("process missing").attributes["error.type"] == "AttributeError"
    snoozed = receiver.one("process snoozes")
    assert (snoozed.is_error, snoozed.attributes["yamlsched.outcome"]) == (False, "snoozed")
    assert "hush" not in str(receiver.spans)

    # and one that was killed with its process has none
    project.enqueue("stops_itself")
    project.work(code=1, **receiver.environment)
    assert receiver.find("process stops_itself") == []


def test_a_loop_exports_when_it_has_nothing_to_do(project: Project, receiver: Collector) -> None:
    loop = project.start("work", "--loop", before=PATIENT, **receiver.environment)
    project.until_status(project.enqueue("nothing")[0], "succeeded")

    receiver.one("process nothing")

    # and what is left when it ends
    project.enqueue("fails")
    until(lambda: "attempt.failed" in loop.text)
    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0
    until(lambda: receiver.find("process fails"))


def test_a_run_that_names_a_trace_is_only_linked_to_it_by_a_worker_that_does_not_propagate(
    project: Project, receiver: Collector
) -> None:
    project.sync(**JOBS)
    unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    project.db.execute("select yamlsched.enqueue('nothing', trace_context => %s)", [unsampled])

    project.work(before=PATIENT, **receiver.environment)

    found = receiver.one("process nothing")
    assert (found.parent_id or None, found.links) == (None, ["b7ad6b7169203331"])
    assert found.trace_id != "0af7651916cd43dd8448eb211c80319c"


def test_attempts_that_share_a_process_have_spans_of_their_own(
    project: Project, receiver: Collector
) -> None:
    # given three runs that wait for each other in one process, and one whose handler cannot be imported
    (project.folder / "app.py").write_text(
        HANDLERS
        + """
import asyncio

together = asyncio.Barrier(3)


async def meets(run):
    await together.wait()
    with trace.get_tracer("app").start_as_current_span(f"inside {run.id}"):
        await together.wait()
    run.enqueue("nothing", key=f"nothing:{run.id}")
    await together.wait()
"""
    )
    shared = {"queue": "shared", "lease": "30s", **BACKOFF}
    missing = {"handler": "app.missing", "max_attempts": 1, **shared}
    project.sync(**JOBS, meets={"handler": "app.meets", **shared}, missing=missing)
    runs = project.enqueue("meets", count=3) + project.enqueue("missing")

    project.work(before=PATIENT, code=1, **receiver.environment, **PROPAGATE)

    for run in map(str, runs[:3]):
        [attempt] = [
            s for s in receiver.find("process meets") if s.attributes["messaging.message.id"] == run
        ]
        assert receiver.one(f"inside {run}").parent_id == attempt.span_id
        assert receiver.one("send nothing", key=f"nothing:{run}").parent_id == attempt.span_id
        assert receiver.one("process nothing", key=f"nothing:{run}").trace_id == attempt.trace_id
    assert receiver.one("process missing").attributes["error.type"] == "AttributeError"


def test_the_provider_of_an_application_is_used(project: Project, receiver: Collector) -> None:
    # given a module of handlers that configures OpenTelemetry for itself, in any way
    (project.folder / "app.py").write_text(
        HANDLERS
        + APPLICATION[
            APPLICATION.index("from opentelemetry import trace") : APPLICATION.index("dsn, =")
        ].replace("SimpleSpanProcessor", "BatchSpanProcessor")
    )
    project.enqueue("nothing")

    # also where the variables ask for something else
    project.work(before=PATIENT, **receiver.environment, OTEL_TRACES_EXPORTER="console")

    assert receiver.one("process nothing").service == "shop"


def test_handlers_and_commands_fork_while_spans_are_exported(
    project: Project, receiver: Collector
) -> None:
    # given a handler that forks while its process exports a span each millisecond
    (project.folder / "app.py").write_text(
        HANDLERS
        + """

def forks():
    for each in range(100):
        with trace.get_tracer("app").start_as_current_span("between forks"):
            pid = os.fork()
            if pid == 0:
                trace.get_tracer("app").start_span("of a fork").end()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
"""
    )
    job = {"handler": "app.forks", "timeout": "60s", "max_attempts": 1}
    project.sync(**{**JOBS, "forks": job})
    project.enqueue("forks")
    project.enqueue("shows", count=20)

    project.work(before=PATIENT, **receiver.environment, OTEL_BSP_SCHEDULE_DELAY="1")

    # then all of them succeed, and each span that this process has ended arrives once
    until(
        lambda: len(receiver.find("process shows")) == 20 and receiver.find("process forks") != []
    )
    assert len(receiver.find("between forks")) == 100


def test_what_the_variables_turn_off_sends_nothing(project: Project, receiver: Collector) -> None:
    for settings in (
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    ):
        project.enqueue("nothing")
        project.work(**{**receiver.environment, **settings})

    assert receiver.spans == []


def test_the_variables_name_the_service_and_the_compression(
    project: Project, receiver: Collector
) -> None:
    project.enqueue("nothing")
    project.work(
        before=PATIENT,
        **receiver.environment,
        OTEL_SERVICE_NAME="billing",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    assert receiver.one("process nothing").service == "billing"


def test_a_collector_that_does_not_answer_fails_and_loses_no_run(project: Project) -> None:
    project.sync(**{**JOBS, "fails": {"handler": "app.fails", "max_attempts": 1, **BACKOFF}})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (silent.getsockname()[1], 1):
            runs = project.enqueue("nothing", count=3) + project.enqueue("fails")

            worker = project.work(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", code=1)

            assert [project.row(run).status for run in runs] == ["succeeded"] * 3 + ["dead"]
            assert "127.0.0.1" not in worker.text


def test_an_invalid_header_is_reported_without_its_value(
    project: Project, receiver: Collector
) -> None:
    project.enqueue("nothing")

    worker = project.work(
        before=PATIENT, **receiver.environment, OTEL_EXPORTER_OTLP_HEADERS="x-team: hunter2"
    )

    assert (
        "OTEL_EXPORTER_OTLP_HEADERS or OTEL_EXPORTER_OTLP_TRACES_HEADERS has an invalid header"
        in worker.text
    )
    assert "hunter2" not in worker.text


def test_a_program_gets_the_context_that_its_run_keeps_although_its_worker_is_not_traced(
    project: Project,
) -> None:
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=a b,other=c"
    [kept, invalid] = [
        project.db.execute(
            "select run_id from yamlsched.enqueue('shows', trace_context => %s)", [given]
        ).fetchone().run_id  # type: ignore[union-attr]
        for given in (context, "x" * 700)
    ]  # fmt: skip
    project.work()

    seen = (project.folder / f"seen-{kept}").read_text()
    assert "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n" in seen
    assert "TRACESTATE=vendor=a b,other=c\n" in seen
    assert "TRACEPARENT" not in (project.folder / f"seen-{invalid}").read_text()
    assert (project.row(kept).trace_context, project.row(invalid).trace_context) == (context, None)


def test_invoke_sends_a_span(project: Project, receiver: Collector) -> None:
    def invoke(job: str) -> int:
        command = [
            sys.executable,
            "-c",
            INVOKE,
            "invoke",
            "--file",
            str(project.file),
            "--dsn",
            project.dsn,
            job,
        ]
        environment = {**os.environ, **receiver.environment}
        return subprocess.run(command, env=environment, cwd=project.folder, timeout=300).returncode

    assert [invoke(job) for job in ("nothing", "fails", "shows")] == [0, 1, 0]
    assert receiver.one("process nothing").attributes["yamlsched.outcome"] == "succeeded"
    assert receiver.one("process fails").attributes["error.type"] == "ValueError"
    [seen] = project.folder.glob("seen-*")
    assert f"TRACEPARENT=00-{receiver.one('process shows').trace_id}-" in seen.read_text()


# -- without processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "TRUE"},
            False,
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
                "OTEL_TRACES_EXPORTER": "none",
            },
            False,
        ),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
    ],
)
def test_only_the_variables_of_exporters_ask_for_traces(
    environ: dict[str, str], wanted: bool
) -> None:
    assert tracing.is_requested(environ) is wanted


def test_batches_join_with_the_contexts_of_their_runs() -> None:
    def a_batch(*contexts: str) -> EnqueueBatch:
        payloads = ["{}"] * max(1, len(contexts))
        return EnqueueBatch(
            "mail", payloads, [None] * len(payloads), None, None, None, list(contexts) or None
        )

    batch = a_batch("a")
    assert batch.can_join(a_batch("b", "c"))
    assert not batch.can_join(a_batch())
    assert not a_batch().can_join(a_batch("b"))
    batch.join(a_batch("b", "c"))

    [parameters] = fan_out("default", 1, [batch])
    assert parameters["trace_contexts"] == ["a", "b", "c"]
    [parameters] = fan_out("default", 1, [a_batch()])
    assert parameters["trace_contexts"] is None


@pytest.mark.parametrize(
    ("kind", "attempt", "outcome"),
    [
        (EndKind.RETURNED, 1, "succeeded"),
        (EndKind.COMMITTED, 5, "succeeded"),
        (EndKind.RAISED, 4, "failed"),
        (EndKind.RAISED, 5, "dead"),
        (EndKind.RETRY_AFTER, 5, "dead"),
        (EndKind.DISCARDED, 1, "dead"),
        (EndKind.SNOOZED, 5, "snoozed"),
    ],
)
def test_the_outcome_is_what_becomes_of_the_run(kind: EndKind, attempt: int, outcome: str) -> None:
    run = ClaimedRun(1, "mail", None, None, attempt, 5, "{}", False, 60.0, "host:1:a")
    assert spans._outcome(run, AttemptEnd(kind)) == outcome


def test_nothing_of_opentelemetry_is_imported_by_default() -> None:
    code = (
        "import sys, json, yamlsched.runs.enqueue, yamlsched.testing, yamlsched.worker.local.runner; "
        "from yamlsched.testing import FakeRun; FakeRun().enqueue('mail'); "
        "print(json.dumps([name for name in sys.modules if 'opentelemetry' in name]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(found.stdout) == []
