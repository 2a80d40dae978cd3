"""Actions with forms: enqueue, backfill, settle, and those on many runs; and the page of the audit trail."""

from __future__ import annotations

import html
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from support.forms import SAME_ORIGIN, confirm, hidden, result, review, trail, words
from support.rows import a_job, a_run, row
from yamlsched.act import pause as pausing
from yamlsched.act import runs as actions
from yamlsched.db.query import load, sql_folder
from yamlsched.extras.web.actions import backfill as backfill_action
from yamlsched.extras.web.actions import many, pause, selection
from yamlsched.extras.web.ask import audit

Visit = Callable[..., TestClient]
Db = psycopg.Connection[Any]


def runs(db: Db) -> list[Any]:
    return db.execute("select * from yamlsched.job_runs order by id").fetchall()


# -- enqueue


def test_a_form_that_was_carried_out_says_so_to_a_browser_that_goes_back(
    page: TestClient, db: Db
) -> None:
    # given a run that was enqueued by a form
    a_job(db)
    asked = page.get("/actions/enqueue?job=purge")
    form = {**hidden(asked), "payload": '{"days": 3}'}
    shown = review(page, "enqueue", form)
    path, _ = result(confirm(page, shown))

    # when what would happen is asked for again, with other values, or to change it
    for fields in (form, {**form, "payload": "{}"}, {**hidden(shown), "edit": "1"}):
        again = review(page, "enqueue", fields)

        # then the page says what was done, and has nothing to confirm
        assert f"Done already, and not repeated You enqueued run {path[6:]} 0s ago." in words(again)
        assert f'href="{path}"' in again.text
        assert "confirm" not in again.text
        assert again.headers["cache-control"] == "no-store"
    assert len(runs(db)) == 1

    # and a new form creates another run
    [new] = re.findall(r'href="(/actions/enqueue[^"]*)"', again.text)
    second = page.get(html.unescape(new))
    assert hidden(second)["request"] != form["request"]
    confirm(page, review(page, "enqueue", hidden(second)))
    assert len(runs(db)) == 2


def test_a_form_keeps_its_id_through_mistakes_and_changes(page: TestClient, db: Db) -> None:
    a_job(db)
    asked = page.get("/actions/enqueue?job=purge")
    wrong = review(page, "enqueue", {**hidden(asked), "payload": "{"})
    shown = review(page, "enqueue", hidden(wrong))
    changed = review(page, "enqueue", {**hidden(shown), "edit": "1"})
    assert len({hidden(each)["request"] for each in (asked, wrong, shown, changed)}) == 1


def test_enqueue_shows_the_run_that_it_creates_and_creates_it_once(
    page: TestClient, db: Db
) -> None:
    a_job(db, timezone="Europe/Berlin")
    asked = page.get("/actions/enqueue?job=purge")
    assert "Enqueue a run: purge" in words(asked)

    given = {
        "job": "purge",
        "payload": '{"days": 3}',
        "key": "by hand",
        "at": "2036-01-14T02:00",
        "priority": "high",
    }
    shown = review(page, "enqueue", given)
    said = words(shown)
    assert "It is due at Mon 2036-01-14 02:00 CET." in said
    assert 'Payload: {"days": 3}' in said
    assert runs(db) == []

    path, text = result(confirm(page, shown))
    [run] = runs(db)
    assert (path, run.payload, run.idempotency_key, run.priority) == (
        f"/runs/{run.id}",
        {"days": 3},
        "by hand",
        1,
    )
    assert (
        text
        == f"Run {run.id} of purge was created, due at 2036-01-14T01:00Z (Mon 2036-01-14 02:00 CET)."
    )
    assert trail(db) == [("maria", "enqueue", f"run:{run.id}")]

    assert result(confirm(page, shown)) == (
        f"/runs/{run.id}",
        f"Done already, and not repeated: you enqueued run {run.id} 0s ago.",
    )
    assert "was used by run" in words(review(page, "enqueue", given))
    assert len(runs(db)) == 1


def test_a_form_without_a_key_that_is_sent_twice_creates_one_run_and_two_forms_create_two(
    page: TestClient, db: Db
) -> None:
    a_job(db)
    first, second = (review(page, "enqueue", {"job": "purge"}) for _ in range(2))
    paths = {result(confirm(page, shown))[0] for shown in (first, first, second)}
    assert len(paths) == len(runs(db)) == 2


def test_a_key_that_another_took_since_creates_nothing_and_says_whose_it_is(
    page: TestClient, db: Db
) -> None:
    job = a_job(db)
    shown = review(page, "enqueue", {"job": "purge", "key": "mine"})
    other = a_run(db, job, idempotency_key="mine")
    assert result(confirm(page, shown)) == (
        f"/runs/{other}",
        f'Nothing was created: run {other} has the key "mine".',
    )


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("payload", "{", "invalid JSON where it ends"),
        ("payload", "[1]", "Not a JSON object"),
        ("payload", '{"a": NaN}', "NaN is not a valid JSON value"),
        ("payload", '{"a": "\\u0000"}', "NUL"),
        ("payload", '{"a": "' + "x" * 65_536 + '"}', "64 KiB"),
        ("payload", "[" * 5_000, "Nested too deep"),
        ("key", "purge:2026-01-14", "slot"),
        ("key", "k" * 500 + "k", "longer than 500 characters"),
        ("at", "someday", "is not a valid time"),
        ("at", "yesterday", "has passed"),
        ("priority", "urgent", "Choose one of: high, normal, low."),
        ("job", "perge", 'Did you mean "purge"?'),
    ],
)
def test_what_cannot_be_enqueued_is_reported_at_its_field(
    page: TestClient, db: Db, field: str, value: str, why: str
) -> None:
    a_job(db)
    answer = review(page, "enqueue", {"job": "purge", field: value})
    assert answer.status_code in (400, 422)
    assert why in words(answer)
    if answer.status_code == 422:
        assert f'id="e-{field}"' in answer.text
    assert runs(db) == []


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"enabled": False}, "is not enabled in schedules.yaml"),
        ({"retired_at": "2026-01-01"}, "was removed from schedules.yaml"),
    ],
)
def test_a_job_that_no_worker_runs_cannot_be_enqueued(
    page: TestClient, db: Db, job: dict[str, Any], why: str
) -> None:
    a_job(db, **job)
    assert why in words(review(page, "enqueue", {"job": "purge"}))


def test_a_payload_is_checked_against_the_handler_on_the_pages_disk_which_is_read_again_each_time(
    visit: Visit, page_dsn: str, db: Db, tmp_path: Path
) -> None:
    # given a schedule whose handler must not be imported
    (tmp_path / "mail.py").write_text(
        "import sys\nsys.exit('imported')\ndef send(user_id, template='x'): ...\n"
    )
    file = tmp_path / "schedules.yaml"
    job = "  mail:\n    handler: mail:send\n    payload: {template: y}\n"
    file.write_text(f"version: 1\nnamespace: default\njobs:\n{job}")
    a_job(db, "mail", schedule=None)
    page = visit(page_dsn, actions_dsn=page_dsn, namespace="default", file=file)

    # then the form says what it takes
    form = page.get("/actions/enqueue?job=mail")
    asked = words(form)
    assert "mail:send takes: user_id (required), template." in asked
    assert "a key that you remove keeps its value" in asked
    # and has what the file says, to be changed
    assert '>\n{\n  "template": "y"\n}</textarea>' in html.unescape(form.text)
    assert 'Payload: {"template": "y", "user_id": 1}' in words(
        review(page, "enqueue", {"job": "mail", "payload": '{"user_id": 1}'})
    )

    # and what does not fit is refused
    assert 'has no parameter "user"' in words(
        review(page, "enqueue", {"job": "mail", "payload": '{"user": 1}'})
    )
    assert 'requires "user_id"' in words(review(page, "enqueue", {"job": "mail"}))
    assert "A run is created." in words(
        review(page, "enqueue", {"job": "mail", "payload": '{"user_id": 1}'})
    )

    # also after the handler was edited
    (tmp_path / "mail.py").write_text("def send(user): ...\n")
    assert "A run is created." not in words(
        review(page, "enqueue", {"job": "mail", "payload": '{"user_id": 1}'})
    )


def test_a_payload_that_cannot_be_checked_is_accepted_with_a_warning(
    page: TestClient, db: Db
) -> None:
    a_job(db)
    assert "The page cannot check the payload" in words(
        review(page, "enqueue", {"job": "purge", "payload": '{"a": 1}'})
    )


def test_a_run_of_a_paused_job_says_that_it_waits(page: TestClient, db: Db) -> None:
    pausing.pause(db, "default", [a_job(db, schedule=None)], "jonas")
    shown = review(page, "enqueue", {"job": "purge"})
    assert "The job is paused by jonas, until it is resumed. The run waits" in words(shown)
    assert "it waits until the job is resumed" in result(confirm(page, shown))[1]


# -- backfill


def test_backfill_counts_the_runs_first_and_then_creates_the_missing_ones(
    page: TestClient, db: Db
) -> None:
    # given a job since three days ago, which has a run of one slot
    job = a_job(db, schedule="0 */6 * * *")
    db.execute("update yamlsched.job_definitions set created_at = '2026-01-10'")
    a_run(
        db,
        job,
        "succeeded",
        idempotency_key="purge:2026-01-14T06:00Z",
        scheduled_for="2026-01-14T06:00Z",
    )

    # when a day is chosen
    shown = review(page, "backfill", {"job": "purge", "first": "2026-01-14"})

    # then the page counts and lists what is missing, and creates nothing
    said = words(shown)
    assert "The span is Wed 2026-01-14 00:00 UTC to Wed 2026-01-14 23:59 UTC." in said
    assert "3 runs will be created, due at once, the oldest first." in said
    assert "1 slot has a run already." in said
    assert "purge:2026-01-14T18:00Z for Wed 14 Jan 18:00 UTC" in said
    assert "Create 3 runs" in said
    assert len(runs(db)) == 1

    # and confirmed, it creates them, once
    assert result(confirm(page, shown)) == (
        "/jobs/purge",
        "3 runs were created; 1 slot had one, or its key was used.",
    )
    assert "Done already" in result(confirm(page, shown))[1]
    assert len(runs(db)) == 4
    assert trail(db) == [("maria", "backfill", "job:purge")]
    assert "Nothing is missing: 4 slots of this span had a run." in words(
        review(page, "backfill", {"job": "purge", "first": "2026-01-14"})
    )


def test_slots_from_before_the_job_was_applied_need_a_tick(page: TestClient, db: Db) -> None:
    a_job(db)
    given = {"job": "purge", "first": "2020-01-01", "last": "2020-01-03"}
    answer = review(page, "backfill", given)
    assert answer.status_code == 422
    assert "Tick the box to include earlier slots." in words(answer)
    assert "3 runs will be created" in words(
        review(page, "backfill", {**given, "before_first": "1"})
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"first": "someday"}, "is not a valid time"),
        ({"first": "2020-01-02", "last": "2020-01-01"}, "is before"),
        (
            {"first": "1970-01-01", "last": "now", "before_first": "1"},
            "yamlsched backfill purge --from 1970-01-01T",
        ),
        ({"job": "manual", "first": "yesterday"}, "has no cron"),
        ({"first": ""}, "This is needed."),
        (
            {"first": "2020-01-01T00:01Z", "before_first": "1"},
            "The job has no slot from Wed 2020-01-01 00:01 UTC",
        ),
    ],
)
def test_a_span_that_cannot_be_filled_says_why(
    page: TestClient, db: Db, given: dict[str, str], why: str
) -> None:
    a_job(db)
    a_job(db, "manual", schedule=None)
    assert why in words(review(page, "backfill", {"job": "purge", **given}))


def test_a_span_with_exactly_the_most_slots_is_accepted(
    page: TestClient, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_job(db)
    monkeypatch.setattr(backfill_action, "MAX_SLOTS", 3)
    given = {"job": "purge", "first": "2020-01-01", "before_first": "1"}
    assert "3 runs will be created" in words(
        review(page, "backfill", {**given, "last": "2020-01-03"})
    )
    assert "4 slots, more than 3" in review(page, "backfill", {**given, "last": "2020-01-04"}).text


def test_a_backfill_of_an_unknown_job_says_so(page: TestClient) -> None:
    assert page.get("/actions/backfill?job=nope").status_code == 200
    answer = review(page, "backfill", {"job": "nope", "first": "3d"})
    assert "nope" in words(answer)


def test_the_counting_of_a_backfill_needs_only_the_role_of_readers(
    visit: Visit, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    db = db_of(own_dsn)
    db.execute((sql_folder() / "roles.sql").read_bytes())
    a_job(db)
    reader = make_conninfo(own_dsn, options="-c role=yamlsched_reader")
    page = visit(reader, actions_dsn=reader, namespace="default")
    shown = review(page, "backfill", {"job": "purge", "first": "2020-01-01", "before_first": "1"})
    assert "1 run will be created" in words(shown)
    for form in (shown, review(page, "enqueue", {"job": "purge"})):
        answer = confirm(page, form)
        assert answer.status_code == 403
        assert "permission denied" in words(answer)
    assert runs(db) == []


# -- pause and resume by tag


def paused(db: Db) -> list[str]:
    rows = db.execute(
        "select job_type from yamlsched.job_definitions where paused_at is not null order by 1"
    ).fetchall()
    return [name for (name,) in rows]


def three_nightly_jobs(db: Db) -> dict[str, int]:
    jobs = {
        name: a_job(db, name, tags=["nightly", "mail"]) for name in ("digest", "purge", "report")
    }
    a_job(db, "gone", tags=["nightly"], retired_at="2026-01-01")
    a_job(db, "other", tags=["mail"])
    return jobs


def test_all_jobs_with_a_tag_are_paused_and_resumed_as_they_were_shown(
    page: TestClient, db: Db
) -> None:
    # given jobs with a tag, of which one is paused
    jobs = three_nightly_jobs(db)
    pausing.pause(db, "default", [jobs["purge"]], "jonas", reason="by hand")
    assert '<option value="nightly">' in page.get("/actions/pause-tag").text

    # when maria pauses them all, the jobs are named and counted first
    shown = review(page, "pause-tag", {"tag": "nightly", "reason": "stocktaking", "until": "2h"})
    said = words(shown)
    assert "Pause 3 jobs tagged nightly" in said
    assert "3 jobs have the tag nightly. All are paused until" in said
    assert "1 of them is paused already: the reason is replaced, and the end." in said
    assert "digest purge, paused by jonas, until it is resumed; reason: by hand report" in said
    assert paused(db) == ["purge"]
    assert result(confirm(page, shown)) == ("/actions", "3 jobs tagged nightly are paused.")

    # then each is recorded, and the trail shows one action
    assert paused(db) == ["digest", "purge", "report"]
    names = ["digest", "purge", "report"]
    assert trail(db)[1:] == [("maria", "pause", f"job:{name}") for name in names]
    assert "maria pause web report , purge , digest reason stocktaking" in words(
        page.get("/actions")
    )
    assert (
        result(confirm(page, shown))[1]
        == "Done already, and not repeated: you paused job report 0s ago."
    )
    again = review(page, "pause-tag", {**hidden(shown), "reason": "another one"})
    assert "You paused job digest 0s ago. This form was carried out, also on 2 others." in words(
        again
    )

    # and the same the other way
    shown = review(page, "resume-tag", {"tag": "nightly"})
    assert "3 of them are paused, and resumed." in words(shown)
    assert result(confirm(page, shown)) == ("/actions", "3 jobs tagged nightly are resumed.")
    assert paused(db) == []
    assert "none of them is paused" in words(review(page, "resume-tag", {"tag": "nightly"}))


def test_who_pauses_by_tag_learns_who_was_quicker_with_one_of_the_jobs(
    page: TestClient, db: Db
) -> None:
    jobs = three_nightly_jobs(db)
    shown = review(page, "pause-tag", {"tag": "nightly", "reason": "stocktaking"})
    pausing.pause(db, "default", [jobs["report"]], "jonas", reason="by hand")
    answer = confirm(page, shown)
    assert answer.status_code == 409
    assert "Nothing was done Jonas paused job report 0s ago." in words(answer)
    assert paused(db) == ["report"]


def test_a_tag_that_other_jobs_have_now_is_not_what_was_confirmed(page: TestClient, db: Db) -> None:
    three_nightly_jobs(db)
    shown = review(page, "pause-tag", {"tag": "nightly", "reason": "stocktaking"})
    a_job(db, "new", tags=["nightly"])
    answer = confirm(page, shown)
    assert answer.status_code == 409
    assert "Other jobs have the tag nightly now: schedules.yaml has changed." in words(answer)
    assert paused(db) == []


@pytest.mark.parametrize(
    ("picked", "written", "said"),
    [
        ("2036-01-14T09:30", "", "Mon 2036-01-14 09:30 CET"),
        ("2036-01-14T09:30", "2035-01-14T10:00Z", "Sun 2035-01-14 11:00 CET"),
    ],
)
def test_a_time_is_picked_in_the_time_zone_of_the_job_or_written(
    page: TestClient, db: Db, picked: str, written: str, said: str
) -> None:
    a_job(db, timezone="Europe/Berlin")
    asked = page.get("/actions/pause?job=purge").text
    assert '<input type="datetime-local" id="f-until.local" name="until.local"' in asked
    assert "<small>in Europe/Berlin</small>" in asked
    assert "in the time zone of the job" in page.get("/actions/pause").text

    fields = {"job": "purge", "reason": "x", "until.local": picked, "until": written}
    shown = review(page, "pause", fields)
    assert f"It stays paused until {said}" in words(shown)

    # and the form that changes it has what was picked or written
    again = page.post("/actions/pause", data={**hidden(shown), "edit": "1"}, headers=SAME_ORIGIN)
    assert f'value="{written or picked}"' in again.text


@pytest.mark.parametrize("action, field", [("enqueue", "at"), ("pause", "until")])
def test_an_instant_that_no_review_has_written_is_refused(
    page: TestClient, db: Db, action: str, field: str
) -> None:
    a_job(db)
    fields = {"job": "purge", field: "2h"} | ({"reason": "x"} if action == "pause" else {})
    shown = review(page, action, fields)

    answer = confirm(page, shown, instant="soon")

    assert answer.status_code == 422
    assert trail(db) == []


def test_a_tag_that_no_job_has_is_reported_at_its_field(
    page: TestClient, db: Db, monkeypatch: Any
) -> None:
    three_nightly_jobs(db)
    answer = review(page, "pause-tag", {"tag": "nightyl", "reason": "stocktaking"})
    assert answer.status_code == 422
    assert 'No job in namespace "default" has the tag "nightyl". Did you mean "nightly"?' in words(
        answer
    )
    monkeypatch.setattr(pause, "MAX_JOBS", 2)
    said = words(review(page, "pause-tag", {"tag": "nightly", "reason": "stocktaking"}))
    assert (
        "More than 2 jobs have the tag nightly. The command line has no limit: yamlsched pause --tag nightly"
        in said
    )


# -- settle


def an_effect(db: Db, run: int, key: str, state: str = "in_doubt", **more: Any) -> None:
    columns = {
        "namespace": "default",
        "key": key,
        "run_id": run,
        "attempt": 5,
        "locked_by": "web-1:4711:c0ffee",
    }
    columns |= {"entry": uuid.uuid4(), "provider_key": uuid.uuid4(), "state": state, **more}
    columns |= {"doubted_at": "now"} if state == "in_doubt" else {}
    places = ", ".join(f"%({name})s" for name in columns)
    statement = f"insert into yamlsched.effects ({', '.join(columns)}) values ({places})"
    db.execute(statement.encode(), columns)


def test_settle_asks_whether_it_happened_and_says_what_follows_from_either_answer(
    page: TestClient, db: Db
) -> None:
    run = a_run(db, a_job(db), "dead")
    key = f"run:{run}:mail"
    an_effect(db, run, key)
    [[provider_key]] = db.execute("select provider_key from yamlsched.effects").fetchall()

    asked = page.get("/actions/settle", params={"key": key})
    assert str(provider_key) in words(asked)

    no = review(page, "settle", {"key": key, "happened": "not-done"})
    assert "It is reset. The next attempt performs it" in words(no)
    assert "If it did happen after all, it happens twice." in words(no)

    yes = review(page, "settle", {"key": key, "happened": "done", "result": '"<id@example.org>"'})
    assert "No attempt performs it again." in words(yes)
    assert f"Run {run} is dead, and stays so: retry it afterwards" in words(yes)

    path, text = result(confirm(page, yes))
    assert path == f"/runs/{run}"
    assert text.startswith(f'Effect "{key}" is done: no attempt repeats it')
    [[state, value]] = db.execute("select state, result from yamlsched.effects").fetchall()
    assert (state, value) == ("done", "<id@example.org>")
    assert trail(db) == [("maria", "settle", f"run:{run}")]

    # and whoever answered otherwise meanwhile learns that it was settled
    late = confirm(page, no)
    assert late.status_code == 409
    assert f"you settled an effect of run {run} 0s ago." in words(late)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "happened"),
        ({"happened": "maybe"}, "happened"),
        ({"happened": "not-done", "result": "1"}, "result"),
        ({"happened": "done", "result": "{x"}, "result"),
        ({"happened": "done", "result": '"' + "x" * 65_536 + '"'}, "result"),
        ({"happened": "done", "key": "run:1:other"}, "key"),
    ],
)
def test_an_answer_that_cannot_be_recorded_is_reported_at_its_field(
    page: TestClient, db: Db, given: dict[str, str], field: str
) -> None:
    run = a_run(db, a_job(db), "dead")
    an_effect(db, run, "run:7:mail")
    answer = review(page, "settle", {"key": "run:7:mail", **given})
    assert answer.status_code == 422
    assert f'id="e-{field}"' in answer.text


def test_an_effect_that_an_attempt_is_performing_is_not_in_doubt(page: TestClient, db: Db) -> None:
    run = a_run(db, a_job(db), "running")
    an_effect(db, run, "mail", "claimed", attempt=1)
    answer = page.get("/actions/settle?key=mail")
    assert answer.status_code == 422
    assert f"attempt 1 of run {run} is performing it" in words(answer)


# -- many runs


def test_the_dead_runs_of_one_error_are_counted_and_then_retried(page: TestClient, db: Db) -> None:
    # given dead runs of two classes of error and without one, and of another job
    job = a_job(db, on_dead=["tell"])
    timeouts = [a_run(db, job, "dead", error_type="Timeout") for _ in range(3)]
    others = [
        a_run(db, job, "dead"),
        a_run(db, job, "dead", error_type=None),
        a_run(db, a_job(db, "other"), "dead"),
    ]

    # when those that timed out are to be retried
    shown = page.get("/actions/retry-dead?job=purge&error_type=Timeout")
    said = words(shown)
    assert "Retry 3 dead runs of purge" in said
    assert "3 dead runs of purge that died of Timeout." in said
    assert "For each that dies, these run again: tell." in said

    # then only those are, and not one that died after the count
    later = a_run(db, job, "dead", error_type="Timeout", finished_at="(now() + interval '1 hour')")
    assert result(confirm(page, shown)) == ("/dead", "3 runs of purge are queued again.")
    assert [row(db, run).status for run in timeouts] == ["queued"] * 3
    assert {row(db, run).status for run in [*others, later]} == {"dead"}
    assert trail(db) == [("maria", "retry", f"run:{run}") for run in timeouts]

    # and the same form says the same again
    assert result(confirm(page, shown))[1] == "3 runs of purge are queued again."
    assert "1 dead run of purge without an error class." in words(
        page.get("/actions/retry-dead?job=purge&error_type=-")
    )
    assert "Retry 2 dead runs" in words(page.get("/actions/retry-dead?job=purge"))


def test_runs_that_somebody_else_retried_are_counted_apart(
    page: TestClient, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(db)
    found = [a_run(db, job, "dead") for _ in range(5)]
    shown = page.get("/actions/retry-dead?job=purge")
    actions.retry(db, found[:2], "jonas")
    assert result(confirm(page, shown))[1] == "3 runs of purge are queued again."
    assert [who for who, _, _ in trail(db)] == ["jonas"] * 2 + ["maria"] * 3


def test_of_too_many_runs_the_oldest_are_taken(
    page: TestClient, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "MAX_RUNS", 3)
    monkeypatch.setattr(many, "BATCH_RUNS", 2)
    job = a_job(db)
    found = [
        a_run(db, job, "dead", finished_at=f"(now() - interval '{9 - nth} minutes')")
        for nth in range(5)
    ]
    shown = page.get("/actions/retry-dead?job=purge")
    assert "There are more than 3 dead runs of purge. The oldest 3 are taken" in words(shown)
    assert result(confirm(page, shown))[1] == "3 runs of purge are queued again."
    assert [row(db, run).status for run in found] == ["queued"] * 3 + ["dead"] * 2
    assert "2 dead runs of purge." in words(page.get("/actions/retry-dead?job=purge"))


def test_waiting_runs_are_cancelled_but_not_those_enqueued_after_the_count(
    page: TestClient, db: Db
) -> None:
    job = a_job(db)
    waiting = [a_run(db, job), a_run(db, job, "failed")]
    running = a_run(db, job, "running")
    shown = review(page, "cancel-runs", {"job": "purge", "state": "waiting"})
    assert "2 waiting runs of purge." in words(shown)
    later = a_run(db, job)

    assert (
        result(confirm(page, shown, reason="wrong import"))[1] == "2 runs of purge are cancelled."
    )

    assert [row(db, run).status for run in waiting] == ["cancelled"] * 2
    assert (row(db, running).status, row(db, later).status) == ("running", "queued")
    everything = review(page, "cancel-runs", {"job": "purge", "state": "unfinished"})
    assert "Running handlers are killed" in words(everything)
    assert result(confirm(page, everything))[1] == "2 runs of purge are cancelled."
    assert "There are no running runs of purge." in words(
        review(page, "cancel-runs", {"job": "purge", "state": "running"})
    )


def test_a_bulk_form_that_was_interrupted_continues_when_it_is_sent_again(
    page: TestClient, db: Db, page_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a second batch that another session blocks
    monkeypatch.setattr(many, "BATCH_RUNS", 2)
    monkeypatch.setattr("yamlsched.extras.web.pool.ACTION_SETTINGS", {})
    job = a_job(db)
    found = [a_run(db, job, "dead") for _ in range(4)]
    shown = page.get("/actions/retry-dead?job=purge")
    real = actions.retry
    calls = []

    def fails_second(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
        return real(*args, **options)

    monkeypatch.setattr(actions, "retry", fails_second)
    answer = confirm(page, shown)
    assert answer.status_code == 504
    assert "the rest was not" in words(answer)
    assert [row(db, run).status for run in found] == ["queued"] * 2 + ["dead"] * 2

    # when the form is sent again, then it does the rest, and counts all
    assert result(confirm(page, shown))[1] == "4 runs of purge are queued again."


# -- the page


def test_the_page_shows_pauses_with_who_why_and_until_when(page: TestClient, db: Db) -> None:
    assert "No job is paused." in words(page.get("/actions"))
    assert "No actions yet" in words(page.get("/actions"))
    [[now]] = db.execute("select now()").fetchall()
    job = a_job(db)
    pausing.pause(
        db,
        "default",
        [job],
        "jonas",
        reason="<i>disk</i>",
        until=now + timedelta(hours=5, minutes=1),
    )
    a_run(db, job)
    pausing.pause(
        db, "default", [a_job(db, "over")], "jonas", until=now + timedelta(seconds=1), now=now
    )
    db.execute("update yamlsched.job_definitions set paused_until = now() where job_type = 'over'")
    shown = page.get("/actions")
    said = words(shown)
    assert "1 paused job" in said
    assert "purge <i>disk</i> jonas" in said
    assert "in 5h" in said
    assert 'href="/actions/resume?job=purge"' in shown.text
    assert 'href="/actions/resume?job=over"' not in shown.text


def test_the_trail_is_filtered_and_pages_by_actions(
    page: TestClient, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two actions on many runs, and ten on one
    monkeypatch.setattr("yamlsched.extras.web.pages.actions.PAGE_ACTIONS", 5)
    monkeypatch.setattr(audit, "READ_ENTRIES", 35)
    job, other = a_job(db), a_job(db, "other")
    many = [a_run(db, job, "dead") for _ in range(30)]
    actions.retry(db, many, "maria")
    actions.cancel(db, many, "jonas", reason="too many")
    actions.cancel(db, [a_run(db, job)], "jonas", reason="another")
    single = [a_run(db, other) for _ in range(10)]
    for run in single:
        actions.cancel(db, [run], "maria", reason=str(run))

    # when all pages are read
    seen: list[str] = []
    url = "/actions"
    while url:
        shown = page.get(url)
        part = shown.text.partition('id="trail"')[2]
        seen += re.findall(r"<tr>\s*<td.*?</tr>", part, flags=re.S)
        [*found] = re.findall(r'href="([^"]*)" rel="next"', part)
        url = found[0].replace("&amp;", "&") if found else ""

    # then each action is shown once, the newest first
    assert len(seen) == 13
    assert [f"run {run}<" in text for run, text in zip(reversed(single), seen, strict=False)] == [
        True
    ] * 10
    assert "another" in seen[10]
    assert "and 18 more" in seen[11]
    assert "too many" in seen[11]
    assert "and 18 more" in seen[12]
    assert "retry" in seen[12]

    monkeypatch.setattr(audit, "READ_ENTRIES", 100)

    def count(**filters: str) -> int:
        text = page.get("/actions", params=filters).text.partition('id="trail"')[2]
        return len(re.findall(r"<tr>\s*<td", text))

    assert count(who="jonas") == 2
    assert count(verb="retry") == 1
    assert count(verb="retry", who="jonas") == 0
    assert count(job="purge") == 3
    assert count(run=str(single[3])) == 1
    assert count(job="nothing") == 0
    assert "No action matches" in words(page.get("/actions?job=nothing"))
    assert page.get("/actions?verb=explode").status_code == 400
    assert page.get("/actions?run=x").status_code == 400


def test_the_trail_of_another_namespace_is_not_shown(page: TestClient, db: Db) -> None:
    actions.cancel(db, [a_run(db, a_job(db, namespace="other"))], "jonas")
    assert "jonas" not in page.get("/actions").text


@pytest.mark.parametrize("filters", [{}, {"target": "run:7"}])
def test_no_page_of_the_trail_reads_more_than_it_shows(db: Db, filters: dict[str, str]) -> None:
    # given many actions, of which few match
    db.execute(
        "insert into yamlsched.operator_actions (namespace, who, verb, target, job_type)"
        " select 'default', 'maria', 'retry', 'run:' || n, 'purge' from generate_series(1000, 21000) n"
    )
    db.execute("analyze yamlsched.operator_actions")
    parameters = {
        "namespace": "default",
        "verb": None,
        "who": None,
        "job_type": None,
        "target": None,
        "request": None,
        "before": None,
    }
    statement = b"explain (analyze, format json) " + load("audit")["trail"]

    [[[plan]]] = db.execute(statement, {**parameters, "limit": 50, **filters}).fetchall()

    def reads(node: dict[str, Any]) -> float:
        own = (
            node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            if "Relation Name" in node
            else 0
        )
        return own + sum(reads(child) for child in node.get("Plans", ()))

    assert "Seq Scan" not in str(plan)
    assert reads(plan["Plan"]) <= 50


def test_a_form_without_its_subject_asks_for_it(page: TestClient, db: Db) -> None:
    a_job(db)
    for name in ("pause", "resume", "enqueue", "backfill", "retry-dead", "cancel-runs"):
        asked = page.get(f"/actions/{name}")
        assert asked.status_code == 200
        assert '<option value="purge">' in asked.text
    for name in ("retry", "cancel", "settle"):
        assert "required" in page.get(f"/actions/{name}").text
    shown = hidden(page.get("/actions/pause?job=purge"))
    assert (shown.keys(), shown["job"]) == ({"job", "request"}, "purge")
    assert page.post("/actions/pause", data={"job": ""}, headers=SAME_ORIGIN).status_code == 422


# -- many jobs at once


def test_dead_runs_of_many_jobs_are_retried_by_one_form(page: TestClient, db: Db) -> None:
    # given an outage, of which each job has a dead run, and runs that died of something else or before
    jobs = [
        a_job(db, f"job_{nth}", owner="shop" if nth < 3 else "crm", tags=["db"]) for nth in range(5)
    ]
    outage = [a_run(db, job, "dead", error_type="OutageError") for job in jobs]
    other = a_run(db, jobs[0], "dead", error_type="ValueError")
    long_ago = a_run(
        db, jobs[1], "dead", error_type="OutageError", finished_at="(now() - interval '3 days')"
    )

    # when all that match are to be retried, from the page of dead runs
    listed = page.get("/dead?by=error&type=OutageError&span=24h")
    assert "5 dead runs in 1 group" in words(listed)
    assert "5 5 jobs OutageError" in words(listed)
    [link] = re.findall(r'class="button primary" href="(/actions/retry-dead[^"]*)"', listed.text)
    shown = page.get(html.unescape(link))
    assert "5 dead runs of 5 jobs that died of OutageError, since 24h." in words(shown)
    assert result(confirm(page, shown)) == ("/dead", "5 runs of 5 jobs are queued again.")

    # then only those are
    assert {row(db, run).status for run in outage} == {"queued"}
    assert {row(db, run).status for run in (other, long_ago)} == {"dead"}
    assert len(trail(db)) == 5


def test_effects_in_doubt_of_many_runs_are_to_be_settled_first(page: TestClient, db: Db) -> None:
    # given dead runs, one of which has two effects in doubt, and an effect in doubt that the retry of a run resolves
    jobs = a_job(db, "charge"), a_job(db, "purge")
    doubtful, *_ = (a_run(db, jobs[nth % 2], "dead") for nth in range(4))
    for name in ("charge", "receipt"):
        an_effect(db, doubtful, name)
    an_effect(db, a_run(db, jobs[0], "failed"), "mail")

    warning = '1 of these runs has effects in doubt: settle them first. With in_doubt="raise" it will be dead again.'
    assert warning in words(page.get("/actions/retry-dead?all=1"))
    assert "in doubt" not in words(page.get("/actions/retry-dead?job=purge"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"owner": "shop"}, "3 dead runs of 3 jobs, owner shop."),
        ({"owner": "crm", "tag": "db"}, "2 dead runs of 2 jobs, tag db, owner crm."),
        ({"owner": "shop", "job": "job_1"}, "1 dead run of job_1, owner shop."),
        ({"owner": "shop", "job": "job_4"}, "There are no dead runs of job_4, owner shop."),
        ({"since": "1h"}, "5 dead runs of 5 jobs, since 1h."),
        ({"until": "1h"}, "There are no dead runs, until 1h."),
        ({"owner": "shoop"}, 'has the owner "shoop". Did you mean "shop"?'),
        ({"tag": "dbb"}, 'has the tag "dbb". Did you mean "db"?'),
        ({"since": "soon"}, "soon"),
        ({"job": "job_9"}, 'There is no job "job_9"'),
    ],
)
def test_runs_of_many_jobs_are_chosen_by_owner_tag_and_time(
    page: TestClient, db: Db, given: dict[str, str], expected: str
) -> None:
    for nth in range(5):
        a_run(db, a_job(db, f"job_{nth}", owner="shop" if nth < 3 else "crm", tags=["db"]), "dead")
    assert expected in words(review(page, "retry-dead", given))


def test_a_link_without_a_filter_leads_to_the_form_and_not_to_all_runs(
    page: TestClient, db: Db
) -> None:
    a_run(db, a_job(db), "queued")
    for path in ("/actions/retry-dead", "/actions/cancel-runs?state=unfinished"):
        assert "Show what will happen" in words(page.get(path))


def test_runs_that_were_ticked_are_retried_or_cancelled_and_the_others_are_not(
    page: TestClient, db: Db
) -> None:
    job = a_job(db)
    dead, cancelled, running, other = (
        a_run(db, job, state) for state in ("dead", "cancelled", "running", "dead")
    )
    assert f'name="runs" value="{dead}"' in page.get("/runs").text

    shown = page.get(f"/actions/retry-dead?runs={dead}&runs={cancelled}&runs={running}")
    assert "2 chosen runs" in words(shown)
    assert "1 chosen run is in another state, and not changed." in words(shown)
    assert result(confirm(page, shown))[1] == "2 runs of purge are queued again."
    assert [row(db, run).status for run in (dead, cancelled, running, other)] == [
        "queued",
        "queued",
        "running",
        "dead",
    ]

    shown = page.get(f"/actions/cancel-runs?state=unfinished&runs={dead}&runs={other}")
    assert result(confirm(page, shown))[1] == "1 run of purge is cancelled."
    assert [row(db, run).status for run in (dead, cancelled)] == ["cancelled", "queued"]
    assert page.get("/actions/retry-dead?runs=x").status_code == 422


def test_what_no_worker_would_claim_is_left_out_of_a_retry_of_many_jobs(
    page: TestClient, db: Db
) -> None:
    jobs = [a_job(db, "a"), a_job(db, "b", enabled=False), a_job(db, "c")]
    pausing.pause(db, "default", [jobs[2]], "jonas", reason="x")
    found = [a_run(db, job, "dead", error_type="OutageError") for job in jobs]
    shown = page.get("/actions/retry-dead?error_type=OutageError")
    assert "1 run of jobs that are not enabled, or were removed, will not change" in words(shown)
    assert "1 job of these is paused: the runs wait" in words(shown)
    assert "1 run was not changed" in result(confirm(page, shown))[1]
    assert [row(db, run).status for run in found] == ["queued", "dead", "queued"]


def test_all_that_match_a_filter_of_runs_are_cancelled(page: TestClient, db: Db) -> None:
    found = [a_run(db, a_job(db, f"job_{nth}", owner="shop" if nth else "crm")) for nth in range(3)]
    listed = page.get("/runs?status=queued&owner=shop")
    [link] = re.findall(r'class="button final" href="(/actions/cancel-runs[^"]*)"', listed.text)
    assert (
        result(confirm(page, page.get(html.unescape(link))))[1] == "2 runs of 2 jobs are cancelled."
    )
    assert [row(db, run).status for run in found] == ["queued", "cancelled", "cancelled"]
    assert (
        'class="button final" href="/actions/cancel-runs'
        not in page.get("/runs?status=queued&error=x").text
    )


def test_a_retry_lists_the_runs_with_their_errors(page: TestClient, db: Any) -> None:
    at = datetime.now(UTC)
    job = a_job(db, "purge")
    error = {"error_type": "OSError", "last_error": "disk full"}
    first, second = (
        a_run(db, job, "dead", finished_at=at - timedelta(hours=hours), **error) for hours in (3, 2)
    )

    many = page.get("/actions/retry-dead?job=purge").text

    for run in (first, second):
        assert f'<a href="/runs/{run}" class="command">show run {run}</a>: purge, ' in many
    assert many.count("OSError: disk full") == 2
