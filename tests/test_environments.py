"""The values of an environment over those of the file: yamlsched.schedule.environments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.command_line import command_line
from support.database import temporary_database
from support.project import Project, a_project
from yamlsched.schedule.checks import check, check_all
from yamlsched.schedule.load import Loaded, load, load_file

NEVER_INHERITED = ("cron", "crons", "after", "handler", "command", "enabled")
REPLACED = {"cron": "crons", "crons": "cron", "handler": "command", "command": "handler"}
OF_COMMANDS = ("env", "cwd")
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "timeout": st.sampled_from(["1m", "2m"]),
    "max_attempts": st.integers(1, 3),
    "catchup": st.sampled_from(["latest", "all"]),
    "overlap": st.sampled_from(["wait", "skip"]),
    "spread": st.sampled_from(["1m", "30m"]),
    "tags": st.lists(st.sampled_from(["x", "y"]), unique=True),
    "env": st.dictionaries(st.sampled_from(["A", "B"]), st.just("1")),
    "cwd": st.sampled_from(["bin", "etc"]),
    "limit": st.sampled_from(["one", "none_such"]),
}
OWN: dict[str, st.SearchStrategy[Any]] = {
    **PARTS,
    "cron": st.sampled_from(["0 2 * * *", "*/20 * * * *", "61 * * * *"]),
    "crons": st.sampled_from([["0 2 * * *"], ["0 2 * * *", "0 5 * * *"]]),
    "after": st.sampled_from([["a"], ["b"], ["c"]]),
    "enabled": st.booleans(),
}
OVERRIDE = st.fixed_dictionaries(
    {}, optional={**OWN, "handler": st.just("c.d"), "command": st.just(["ls"])}
)
ANY_JOB = st.builds(
    lambda program, keys: {**program, **keys},
    st.sampled_from([{"handler": "a.b"}, {"command": ["true"]}]),
    st.fixed_dictionaries({}, optional=OWN),
)
OF_SLOTS = {key: PARTS[key] for key in ("catchup", "overlap")}
ALWAYS = {key: PARTS[key] for key in ("timeout", "max_attempts", "tags")}
VALID_JOB = st.builds(
    lambda program, slots, keys: {**program, **slots, **keys},
    st.just({"handler": "a.b"})
    | st.fixed_dictionaries(
        {"command": st.just(["true"])}, optional={key: PARTS[key] for key in OF_COMMANDS}
    ),
    st.just({})
    | st.fixed_dictionaries({"cron": st.just("0 2 * * *")}, optional=OF_SLOTS)
    | st.fixed_dictionaries({"crons": OWN["crons"]}, optional=OF_SLOTS),
    st.fixed_dictionaries({}, optional={**ALWAYS, "enabled": OWN["enabled"]}),
)
VALID_OVERRIDE = st.fixed_dictionaries({}, optional={**ALWAYS, "enabled": OWN["enabled"]})


def files(
    job: st.SearchStrategy[Any], defaults: st.SearchStrategy[Any], override: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    in_qa = {"defaults": defaults, "jobs": st.dictionaries(st.sampled_from("abc"), override)}
    environments = {"live": st.just({}), "qa": st.fixed_dictionaries({}, optional=in_qa)}
    return st.fixed_dictionaries(
        {
            "version": st.just(1),
            "limits": st.just({"one": {"max": 1}}),
            "defaults": defaults,
            "jobs": st.fixed_dictionaries({"a": job, "b": job, "c": job}),
            "environments": st.fixed_dictionaries(environments),
        }
    )


# what an environment changes is compared only for files that are valid without it
FILES = (
    files(VALID_JOB, st.fixed_dictionaries({}, optional=ALWAYS), VALID_OVERRIDE)
    | files(VALID_JOB, st.fixed_dictionaries({}, optional=ALWAYS), OVERRIDE)
    | files(ANY_JOB, st.fixed_dictionaries({}, optional=PARTS), OVERRIDE)
)


def loaded(file: dict[str, Any], environment: str | None = None) -> Loaded:
    return load(json.dumps(file).encode(), "schedules.yaml", environment)


def written_out(file: dict[str, Any], environment: str) -> dict[str, Any]:
    """Return the file that says for everywhere what this one says for an environment."""
    values = file["environments"][environment]
    jobs = dict(file["jobs"])
    for name, override in values.get("jobs", {}).items():
        gone = {REPLACED[key] for key in override if key in REPLACED}
        if "command" in gone:
            gone |= {*OF_COMMANDS}
        kept = {key: value for key, value in jobs[name].items() if key not in gone}
        jobs[name] = {**kept, **override}
    defaults = {**file["defaults"], **values.get("defaults", {})}
    return {**file, "environments": {"live": {}, "qa": {}}, "jobs": jobs, "defaults": defaults}


CRON = {"handler": "a.b", "cron": "0 2 * * *"}
FILE: dict[str, Any] = {
    "version": 1,
    "limits": {"one": {"max": 1}},
    "defaults": {},
    "jobs": {"a": CRON, "b": CRON, "c": {"command": ["true"], "env": {"A": "1"}}},
    "environments": {"live": {}, "qa": {}},
}


def in_qa(**jobs: Any) -> dict[str, Any]:
    return {**FILE, "environments": {"live": {}, "qa": {"jobs": jobs}}}


@given(FILES)
@example(in_qa(a={"crons": ["0 5 * * *"]}))
@example(in_qa(c={"handler": "c.d"}))
@example(in_qa(a={"after": ["b"]}, b={"after": ["a"]}))
@example(in_qa(a={"command": ["ls"], "handler": "c.d"}))
@example(in_qa(c={"spread": "1m"}))
@settings(max_examples=80)
def test_an_environment_has_the_jobs_and_the_errors_of_the_file_written_out_for_it(
    file: dict[str, Any],
) -> None:
    base, model = loaded(file), loaded(written_out(file, "qa"), "qa")

    found = loaded(file, "qa")

    if not base.has_errors:
        assert {one.code for one in found.diagnostics} == {one.code for one in model.diagnostics}
        assert found.jobs == model.jobs
    # whatever is wrong elsewhere, what an environment does not change stays
    assert loaded(file, "live").jobs == base.jobs
    assert found.in_environment(None).jobs == base.jobs


@given(FILES)
@settings(max_examples=40)
def test_a_file_is_the_same_in_an_environment_by_whichever_way_it_got_there(
    file: dict[str, Any],
) -> None:
    in_qa, read_in_qa = loaded(file).in_environment("qa"), loaded(file, "qa")

    assert (in_qa.jobs, in_qa.diagnostics) == (read_in_qa.jobs, read_in_qa.diagnostics)


def test_a_valid_override_of_an_invalid_value_is_used_and_the_error_stays() -> None:
    file = {**in_qa(a={"cron": "0 5 * * *"}), "jobs": {"a": {**CRON, "cron": "61 * * * *"}}}

    found = loaded(file, "qa")

    assert [one.code for one in found.diagnostics] == ["YS201"]
    assert str(found.jobs["a"].cron.source if found.jobs["a"].cron else "") == "0 5 * * *"
    assert loaded(file).jobs == {}


@pytest.mark.parametrize("environment", [None, "live", "qa"])
def test_a_job_with_a_list_of_environments_is_enabled_in_these_only(
    environment: str | None,
) -> None:
    file = {**FILE, "jobs": {"a": {**CRON, "environments": ["qa"]}, "b": CRON}}

    jobs = loaded(file, environment).jobs

    assert (jobs["a"].enabled, jobs["b"].enabled) == (environment == "qa", True)


def test_the_example_of_the_documentation_applies_as_its_table_says() -> None:
    page = (Path(__file__).parent.parent / "docs/schedules.md").read_text("utf-8")
    section = page.partition("\n## Environments\n")[2].partition("\n## ")[0]
    text = section.partition("```yaml\n")[2].partition("```")[0]
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    (_, *names), _, *rows = table

    def shown(name: str, environment: str) -> str:
        place = None if environment == "neither" else environment
        found = load(text.encode(), "schedules.yaml", place)
        assert not found.has_errors
        job = found.jobs[name]
        parts = [f"`{job.cron.source}`"] if job.cron else []
        return ", ".join([*parts, f"{job.max_attempts} attempts"]) if job.enabled else "disabled"

    assert rows
    assert rows == [
        [name, *(shown(name, environment) for environment in names)] for name, *_ in rows
    ]


def test_an_error_at_the_same_line_of_another_file_is_another_error(tmp_path: Path) -> None:
    job, values, cron = "  b: {handler: gc.collect, ", "  qa: {jobs: {b: {", 'cron: "61 * * * *"}'
    line, override = job + cron, values.ljust(len(job)) + cron + "}}"
    (tmp_path / "schedules.yaml").write_text(
        f"environments:\n{override}\nversion: 1\ninclude: [b.yaml]\njobs: {{}}\n"
    )
    (tmp_path / "b.yaml").write_text(f"jobs:\n{line}\n")
    file = tmp_path / "schedules.yaml"

    found = check_all(load_file(file, None), file, (), datetime(2026, 1, 14, tzinfo=UTC))

    places = [(Path(one.file).name, one.line, one.code) for one in found]
    assert places == [("b.yaml", 2, "YS201"), ("schedules.yaml", 2, "YS201")]
    assert len({one.column for one in found}) == 1


# -- with databases


TWO_PLACES = """\
version: 1
environments:
  production: {}
  staging:
    defaults: {max_attempts: 2}
    jobs:
      report: {cron: "0 5 * * sun", handler: work.staged, payload: {rows: 3}}
      charge: {enabled: false}
defaults: {max_attempts: 7}
jobs:
  report: {cron: "0 2 * * *", handler: work.real, payload: {days: 1}}
  charge: {handler: work.real}
  announce: {handler: work.real, environments: [production]}
"""


@pytest.fixture
def places(server: str, template: str, tmp_path: Path) -> Iterator[dict[str, Project]]:
    """Two copies of one file, each with a database of its own."""
    with ExitStack() as stack:
        places = {}
        for name in ("production", "staging"):
            (folder := tmp_path / name).mkdir()
            (folder / "work.py").write_text(
                "def real(run, days=0): return {'days': days}\n"
                "def staged(run, rows): return {'rows': rows}\n"
            )
            (folder / "schedules.yaml").write_text(TWO_PLACES)
            dsn = stack.enter_context(temporary_database(server, template))
            places[name] = stack.enter_context(a_project(folder, dsn))
        yield places


@pytest.mark.story
def test_one_file_has_in_each_database_the_jobs_of_its_environment(
    places: dict[str, Project], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, place in places.items():
        process = place.start("tick", "--env", name)
        assert process.wait() == 0, process.text

    stored = {
        name: {
            row.job_type: (row.schedule, row.handler, row.payload, row.max_attempts, row.enabled)
            for row in place.db.execute("select * from yamlsched.job_definitions")
        }
        for name, place in places.items()
    }
    real = "work.real"
    assert stored["production"] == {
        "report": ("0 2 * * *", real, {"days": 1}, 7, True),
        "charge": (None, real, {}, 7, True),
        "announce": (None, real, {}, 7, True),
    }
    assert stored["staging"] == {
        "report": ("0 5 * * sun", "work.staged", {"rows": 3}, 2, True),
        "charge": (None, real, {}, 2, False),
        "announce": (None, real, {}, 2, False),
    }

    # the payload is checked against, and the run executed by, the handler of the environment
    for name, place in places.items():
        cli = command_line(place.dsn, monkeypatch, capsys, place.folder)
        wrong, right = ('{"rows": 1}', "{}") if name == "production" else ('{"days": 1}', "{}")
        assert 'has no parameter "' in cli("enqueue", "report", "--payload", wrong).err
        assert cli("enqueue", "report", "--payload", right).code == 0
        assert place.start("tick", "--env", name).wait() == 0
        hashes = place.db.execute("select hash, environment from yamlsched.namespaces").fetchall()
        assert [row.environment for row in hashes] == [name]
        refused = cli("enqueue", "announce").code
        assert refused == int(name == "staging")
    results = [
        place.db.execute("select result from yamlsched.job_runs where job_type = 'report'")
        .fetchall()[0]
        .result
        for place in places.values()
    ]
    assert results == [{"days": 1}, {"rows": 3}]
    hashes = {
        row.hash
        for place in places.values()
        for row in place.db.execute("select hash from yamlsched.namespaces")
    }
    assert len(hashes) == 1


@pytest.mark.parametrize("environment", [None, "live", "qa"])
def test_sync_checks_the_handlers_of_jobs_that_do_not_differ(
    environment: str | None, tmp_path: Path
) -> None:
    (tmp_path / "work.py").write_text("def real(run): ...\n")
    program = {"handler": "work.real"}
    file = {**in_qa(a={"timeout": "5m"}), "jobs": {"a": program, "b": {"handler": "work.reel"}}}

    found = check(loaded(file, environment), tmp_path / "schedules.yaml", ())

    assert [one.code for one in found.errors] == ["YS302"]
    assert list(found.jobs) == ["a"]
