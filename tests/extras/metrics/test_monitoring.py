"""The alerts and the dashboard of deploy/ use only metrics and labels that ``yamlsched metrics`` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import promql_parser
import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.database import temporary_database
from support.rows import a_job, a_place, a_run
from yamlsched.db.connection import connect_for_handler
from yamlsched.extras.metrics import metrics

ROOT = Path(__file__).parents[3]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana.json").read_text("utf-8"))
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus-alerts.yml").read_text("utf-8"))[
        "groups"
    ]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel, target["expr"]) for panel in PANELS for target in panel["targets"]]
Db = psycopg.Connection[Any]
Labels = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def printed(server: str, template: str) -> Iterator[Labels]:
    """The metrics that a namespace with something of everything has: their labels, and the values of these."""
    with temporary_database(server, template) as dsn, connect_for_handler(dsn) as db:
        yield printed_by(db)


def printed_by(db: Db) -> Labels:
    a_place(db)
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    job = a_job(db, owner="team-data", overlap="allow", next_slot_at=in_an_hour, after=["extract"])
    runs = {
        status: a_run(db, job, status)
        for status in ("queued", "running", "failed", "dead", "succeeded")
    }
    values = {"paused_at": in_an_hour, "paused_by": "yamlsched", "paused_after": 3}
    a_job(db, "paused", owner="team-data", **values)
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, error_type)"
        " values (%s, 1, 'w', now(), 'lost its worker', 'LostWorker')",
        [runs["failed"]],
    )
    found: Labels = {}
    for family in text_string_to_metric_families(metrics.text(db, "default")):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                values.setdefault(name, set()).add(value)
    return found


def parts(expression: Any) -> Iterator[Any]:
    """Yield an expression and everything that it consists of."""
    yield expression
    for name in ("lhs", "rhs", "expr", "args", "vector_selector", "param"):
        part = getattr(expression, name, None)
        for one in part if isinstance(part, list) else [part] if part is not None else []:
            yield from parts(one)


def selectors(query: str) -> Iterator[Any]:
    """Yield what a query reads. Variables of Grafana are strings in it."""
    for part in parts(promql_parser.parse(query)):
        if type(part).__name__ == "VectorSelector":
            yield part


def check(query: str, printed: Labels) -> set[str]:
    """Check that the metrics and labels of ``query`` are printed; return the labels that its result may have."""
    found: set[str] = set()
    for selector in selectors(query):
        assert selector.name in printed, f"{query}: there is no metric {selector.name}"
        labels = printed[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels, f"{query}: {selector.name} has no label {matcher.name}"
            values = re.split(r"\|", matcher.value)
            if matcher.name in ("status", "waits_for", "error_type"):
                assert set(values) <= labels[matcher.name], (
                    f"{query}: {matcher.name} is never {matcher.value}"
                )
        found |= set(labels)
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        names = set(re.split(r",\s*", grouped))
        assert names <= found, f"{query}: no label {names - found}"
    outermost = re.search(r"\bby \(([^)]*)\)", query)
    return set(re.split(r",\s*", outermost[1])) if outermost else found


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_and_labels_that_are_printed(
    rule: dict[str, Any], printed: Labels
) -> None:
    labels = check(rule["expr"], printed)

    shown = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", shown)) <= labels
    assert rule["labels"]["severity"] in ("page", "ticket")
    if "job_name" in labels:
        assert "owner" in labels, "the alert of a job names its owner"


def test_each_alert_has_a_section_in_the_runbook() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text("utf-8")

    assert re.findall(r"^## (Yamlsched\w+)$", page, re.MULTILINE) == [
        rule["alert"] for rule in ALERTS
    ]


def test_the_runbook_starts_with_status_and_its_symptoms_lead_to_every_section() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text("utf-8")

    assert page.startswith("# Runbook\n\nStart with `yamlsched status`.")
    assert set(re.findall(r"\(#(yamlsched\w+)\)", page)) == {
        rule["alert"].lower() for rule in ALERTS
    }


def test_each_metric_is_described(printed: Labels) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")

    names = {re.sub("_(bucket|sum|count)$", "", name) for name in printed}
    assert {name for name in names if f"`{name}" not in page} == set()
    assert set(re.findall(r"`(yamlsched_\w+?)(?:\{[^`]*)?`", page)) - names - {"yamlsched_worker", "yamlsched_enqueuer",
        "yamlsched_reader", "yamlsched_owner"} == set()  # fmt: skip


@pytest.mark.parametrize(
    ("panel", "query"), QUERIES, ids=lambda one: one["title"] if isinstance(one, dict) else ""
)
def test_a_panel_uses_metrics_and_labels_that_are_printed(
    panel: dict[str, Any], query: str, printed: Labels
) -> None:
    labels = check(query, printed)

    [target] = [target for target in panel["targets"] if target["expr"] == query]
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels
    for step in panel.get("transformations", ()):
        assert set(step["options"]["indexByName"]) <= labels | {"Value"}
    for variable in re.findall(r"\$(\w+)", query):
        assert variable in {one["name"] for one in DASHBOARD["templating"]["list"]}


def test_the_variables_of_the_dashboard_use_labels_that_are_printed(printed: Labels) -> None:
    queries = [
        one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"
    ]

    assert len(queries) == 3
    for query in queries:
        [[selector, label]] = re.findall(r"^label_values\((.*), (\w+)\)$", query)
        check(selector, printed)
        assert label in printed[selector.partition("{")[0]]


def test_what_is_not_printed_is_found(printed: Labels) -> None:
    for query in (
        "yamlsched_job_lat_seconds > 1",
        'yamlsched_runs{state="dead"}',
        'yamlsched_runs{status="died"}',
        "sum by (host) (yamlsched_stuck_runs)",
    ):
        with pytest.raises(AssertionError):
            check(query, printed)


def test_the_dashboard_can_be_imported() -> None:
    assert DASHBOARD["schemaVersion"] >= 36  # Grafana 9.5 and later
    assert (DASHBOARD["id"], DASHBOARD["templating"]["list"][0]["type"]) == (None, "datasource")
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert panel["description"] or panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
