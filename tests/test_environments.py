"""The values of an environment over those of the file: yamlsched.schedule.environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from yamlsched.schedule.load import Loaded, load

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
JOB = st.builds(
    lambda program, keys: {**program, **keys},
    st.sampled_from([{"handler": "a.b"}, {"command": ["true"]}]),
    st.fixed_dictionaries({}, optional=OWN),
)
DEFAULTS = st.fixed_dictionaries({}, optional=PARTS)
FILES = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "limits": st.just({"one": {"max": 1}}),
        "defaults": DEFAULTS,
        "jobs": st.fixed_dictionaries({"a": JOB, "b": JOB, "c": JOB}),
        "environments": st.fixed_dictionaries(
            {
                "live": st.just({}),
                "qa": st.fixed_dictionaries(
                    {},
                    optional={
                        "defaults": DEFAULTS,
                        "jobs": st.dictionaries(st.sampled_from("abc"), OVERRIDE),
                    },
                ),
            }
        ),
    }
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
@settings(max_examples=300)
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
@settings(max_examples=100)
def test_only_jobs_that_differ_are_checked_again(file: dict[str, Any]) -> None:
    base, found = loaded(file), loaded(file, "qa")

    assert found.changed is not None
    assert {name: found.jobs.get(name) for name in file["jobs"] if name not in found.changed} == {
        name: base.jobs.get(name) for name in file["jobs"] if name not in found.changed
    }
    overridden = file["environments"]["qa"].get("jobs", {})
    assert found.changed >= overridden.keys()


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
