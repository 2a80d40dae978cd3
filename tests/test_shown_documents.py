"""Documents of verbs as text, Markdown and HTML, whatever is in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support.command_line import Cli, command_line
from support.documents import HOSTILE, Page, assert_harmless, rendered
from support.rows import a_job, a_place, a_run

Db = psycopg.Connection[Any]
FORMS = ("text", "markdown", "html", "json")


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [("--all",), ("--all-namespaces",)])
def test_status_shows_hostile_text_and_nothing_in_it_is_markup(
    db: Db, cli: Cli, form: str, options: tuple[str, ...]
) -> None:
    a_place(db, host=HOSTILE, path=HOSTILE)
    job = a_job(db, HOSTILE, schedule=None)
    a_job(db, "held", paused_at="2026-01-14T12:00Z", paused_by=HOSTILE, paused_reason=HOSTILE)
    a_run(db, job, "dead", last_error=HOSTILE, error_type=HOSTILE)

    assert_harmless(cli("status", *options, "--format", form).out, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [(), ("--full",)])
def test_show_shows_hostile_text_and_nothing_in_it_is_markup(
    db: Db, cli: Cli, form: str, options: tuple[str, ...]
) -> None:
    job = a_job(db, HOSTILE, schedule=None)
    parent = a_run(db, job, "succeeded")
    run = a_run(
        db, job, "dead", attempts=1, idempotency_key=HOSTILE, payload=Jsonb({HOSTILE: HOSTILE}), parent_id=parent,
        last_error=HOSTILE, error_type=HOSTILE,
    )  # fmt: skip
    a_run(db, job, idempotency_key=f"{HOSTILE}2", parent_id=run)
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error, error_type, stack) "
        "values (%s, 1, %s, '2026-01-14T12:00Z', '2026-01-14T12:00:05Z', %s, %s, %s)",
        [run, HOSTILE, HOSTILE, HOSTILE, f"{HOSTILE}\n````\n{HOSTILE}"],
    )
    db.execute(
        "insert into yamlsched.attempt_outputs values (%s, 1, %s, '2026-01-14T12:00:05Z', 0, %s)",
        [run, HOSTILE, HOSTILE],
    )
    db.execute(
        "insert into yamlsched.effects "
        "(namespace, key, run_id, attempt, locked_by, entry, provider_key, state, done_at, result) "
        "values ('default', %s, %s, 1, 'w', gen_random_uuid(), gen_random_uuid(), 'done', now(), %s)",
        [HOSTILE, run, Jsonb(HOSTILE)],
    )
    db.execute(
        "insert into yamlsched.operator_actions (namespace, who, verb, target, detail) "
        "values ('default', %s, 'retry', %s, %s)",
        [HOSTILE, f"run:{run}", Jsonb({"reason": HOSTILE})],
    )

    out = cli("show", run, *options, "--format", form).out

    assert_harmless(out, form)
    if form == "markdown":
        # the stack and the output are each one block of code, and what follows is outside of them
        blocks = re.findall("<pre><code>(.*?)</code></pre>", rendered(out), re.DOTALL)
        assert [block.count("```\n") for block in blocks] == [3, 1]
        # the facts are a list of their own, without paragraphs
        assert "<ul>\n<li><strong>run</strong>:" in rendered(out)
        assert "retry by" in re.sub("<pre>.*?</pre>", "", rendered(out), flags=re.DOTALL)


def test_markdown_and_html_of_status_have_what_text_has(db: Db, cli: Cli) -> None:
    a_place(db)
    a_run(db, a_job(db, "bad", schedule=None), "dead")
    a_job(db, "good", next_slot_at="2100-01-14T12:00Z", timezone="Europe/Berlin")

    html = Page(cli("status", "--format", "html").out)
    markdown = cli("status", "--format", "markdown").out

    for words in (
        "2100-01-14T12:00:00Z (13:00 CET)",
        "1 run died within 1h: OSError: no route to host",
        "last tick",
    ):
        assert words in html.text
        assert words in Page(rendered(markdown)).text
    assert markdown.startswith("## yamlsched status: default\n\n- **namespace**: default at ")
    assert html.text.count("Needs attention") == 2  # and in the title
    assert re.search(r"  `yamlsched show (\d+)`?; then `?yamlsched retry \1`", markdown)


def test_status_of_no_jobs_is_a_sentence_in_each_format(db: Db, cli: Cli) -> None:
    for form in ("text", "markdown", "html"):
        out = cli("status", "--all-namespaces", "--format", form).out
        assert "no namespaces yet: run yamlsched sync to apply a schedules.yaml" in out

    a_place(db)

    for form in ("text", "markdown", "html"):
        assert (
            "no jobs yet: run yamlsched sync to apply schedules.yaml"
            in cli("status", "--format", form).out
        )


def test_of_many_healthy_jobs_each_format_says_how_to_list_them(db: Db, cli: Cli) -> None:
    for number in range(31):
        a_job(db, f"job_{number}", schedule=None)

    for form in ("text", "markdown", "html"):
        assert "and 31 more are healthy: --all lists them" in cli("status", "--format", form).out


@pytest.mark.parametrize("option", ["--output", "--follow"])
@pytest.mark.parametrize("form", ["markdown", "html"])
def test_what_a_run_printed_is_text(db: Db, cli: Cli, option: str, form: str) -> None:
    run = a_run(db, a_job(db), "succeeded")

    refused = cli("show", run, option, "--format", form)

    assert (refused.code, refused.out) == (2, "")
    assert "leave out" in refused.err


def test_check_prints_lines(db: Db, cli: Cli) -> None:
    a_place(db)

    for form in ("markdown", "html"):
        assert cli("status", "--check", "--format", form).code == 2
    assert json.loads(cli("status", "--check", "--format", "json").out)["healthy"] is True
