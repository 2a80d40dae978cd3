"""Problems of every kind, in everything that shows them: one list of kinds, one order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from starlette.testclient import TestClient

from support.command_line import Cli, command_line
from support.health import a_healthy_job
from yamlsched.act import notes
from yamlsched.ask import attention, health, report
from yamlsched.ask.namespaces import NamespaceHealth
from yamlsched.ask.problem import KINDS, Problem, worst_first
from yamlsched.extras import web
from yamlsched.extras.mcp.answers import answer
from yamlsched.extras.mcp.tools import all_tools
from yamlsched.extras.metrics import metrics

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


@pytest.fixture
def all_kinds(db: Db, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have a problem of every kind, and return their texts in the order of severity."""
    a_healthy_job(db)
    problems = [Problem(kind, "purge", f"{kind} problem", f"fix {kind}") for kind in KINDS]

    def of_status(*_: Any) -> Iterator[Problem]:
        yield from reversed(problems)

    def of_report(*_: Any) -> Iterator[Problem]:
        yield from [problem for problem in problems if problem.kind in report.OWN_KINDS]

    monkeypatch.setattr(attention, "_ticks", of_status)
    monkeypatch.setattr(report, "_problems", of_report)
    return [problem.what for problem in problems]


def shown(text: str, problems: list[str]) -> list[str]:
    """Return the problems that a text has, in its order."""
    return sorted((each for each in problems if each in text), key=text.index)


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("status", "--check"),
        ("status", "--format", "markdown"),
        ("status", "--format", "html"),
        ("status", "--all-namespaces", "--check"),
    ],
    ids=" ".join,
)
def test_status_shows_problems_of_every_kind_worst_first(
    cli: Cli, all_kinds: list[str], arguments: tuple[str, ...]
) -> None:
    found = cli(*arguments)

    assert shown(found.out.replace(r"\_", "_"), all_kinds) == all_kinds, found


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_the_report_shows_problems_of_every_kind_worst_first(
    cli: Cli, all_kinds: list[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("yamlsched.ask.report_document.MAX_PROBLEMS", len(KINDS))

    found = cli("report", "--format", form)

    assert found.code == 1, found
    assert shown(found.out.replace(r"\_", "_"), all_kinds) == all_kinds


@pytest.mark.parametrize("tool", ["status", "report"])
def test_json_and_the_tools_of_an_assistant_have_problems_of_every_kind_worst_first(
    cli: Cli, all_kinds: list[str], tool: str
) -> None:
    found = cli(*all_tools({})[tool].words({}))

    assert [problem["what"] for problem in json.loads(found.out)["problems"]] == all_kinds
    assert shown(answer(found.out, False, "", False), all_kinds) == all_kinds


@pytest.mark.parametrize("path", ["/", "/report"])
def test_the_page_shows_problems_of_every_kind_worst_first(
    dsn: str, all_kinds: list[str], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with TestClient(
        web.app(dsn, namespace="default", auth="none"), base_url="http://localhost"
    ) as client:
        found = client.get(path)

    assert found.status_code == 200
    assert shown(found.text, all_kinds) == all_kinds


def test_metrics_and_notifications_go_on_with_problems_of_every_kind(
    db: Db, all_kinds: list[str]
) -> None:
    assert "yamlsched_tick_age_seconds" in metrics.text(db, "default")
    assert notes.settle(db, "default") == []


def test_problems_of_one_kind_are_in_the_order_of_the_jobs_they_hold_up_then_of_age() -> None:
    def died(name: str, hours_ago: int | None, held_up: int = 0) -> Problem:
        since = None if hours_ago is None else NOON - hours_ago * HOUR
        return Problem("dead", name, f"{name} died", "retry it", since=since, held_up=held_up)

    problems = [died("new", 1), died("old", 3), died("unknown", None), died("chain", 2, held_up=4)]

    found = worst_first([Problem("calendar", None, "the calendar ended", ""), *problems])

    assert [problem.job_type for problem in found] == ["chain", "old", "new", "unknown", None]


def test_of_several_namespaces_the_one_with_the_most_severe_problem_is_first() -> None:
    def a_namespace(name: str, *problems: Problem) -> NamespaceHealth:
        now = health.Health(name, NOON, NOON, "web-1", *[None] * 11)  # type: ignore[arg-type]
        return NamespaceHealth(now, list(problems))

    ended = a_namespace("calendars", *[Problem("calendar", None, "ended", "edit it")] * 3)
    died = a_namespace("pay", Problem("dead", "pay", "died", "retry it"))

    assert sorted([a_namespace("ok"), ended, died], key=lambda each: each.rank) == [
        died,
        ended,
        a_namespace("ok"),
    ]
