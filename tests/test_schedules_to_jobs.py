"""schedules.yaml to jobs: yamlsched.schedule.load."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from yamlsched import durations, jsonb
from yamlsched.runs.backoff import POLICIES, Backoff
from yamlsched.schedule.job import Catchup, Job, Overlap, Retention
from yamlsched.schedule.load import Loaded, load
from yamlsched.schedule.schema import DATE, HANDLER, JOB_KEYS, NAME, SCHEMA, Schema
from yamlsched.schedule.schema_check import REPORTERS
from yamlsched.timetable.cron import EVERY, parse_cron

ROOT = Path(__file__).parent.parent
CODES = frozenset(
    f"YS{number}" for number in (*range(101, 111), 113, 114, 115, 118, 119, 124, 144, 163, 301)
)
"""The codes of schema violations. The others are about rules that a schema cannot express."""


def resolved(schema: Schema) -> Schema:
    """Return ``schema``, or the schema that it refers to."""
    if "$ref" in schema:
        path, schema = schema["$ref"], SCHEMA
        for part in path.removeprefix("#/").split("/"):
            schema = schema[part]
    return schema


def loaded(text: str | bytes, environment: str | None = None) -> Loaded:
    return load(text.encode() if isinstance(text, str) else text, "schedules.yaml", environment)


def codes(text: str | bytes, environment: str | None = None) -> list[str]:
    return [diagnostic.code for diagnostic in loaded(text, environment).diagnostics]


def a_file(job: str = "", top: str = "") -> str:
    """Return a file with one job, ``cleanup``, that has the given lines besides its handler."""
    lines = "".join(f"    {line}\n" for line in job.splitlines())
    return f"version: 1\n{top}jobs:\n  cleanup:\n    handler: handlers.cleanup.run\n{lines}"


def the_job(job: str = "", top: str = "", environment: str | None = None) -> Job:
    found = loaded(a_file(job, top), environment)
    assert found.diagnostics == ()
    return found.jobs["cleanup"]


def test_every_key_of_the_documentations_example_is_read():
    found = loaded(
        """\
version: 1
timezone: Europe/Berlin
defaults:
  max_attempts: 10
  backoff: {policy: exponential, delay: 1m, max_delay: 30m}
jobs:
  cleanup_nightly:
    owner: team-platform
    cron: "0 2 * * *"
    handler: handlers.cleanup.run
    payload: {older_than_days: 30}
  refresh_cache:
    cron: "*/10 * * * *"
    handler: handlers.cache:refresh
    overlap: skip
    catchup_window: 10m
    timeout: 5m
"""
    )

    assert found.diagnostics == ()
    assert (found.namespace, found.timezone, found.retention) == (
        "default",
        "Europe/Berlin",
        Retention(),
    )
    backoff = Backoff("exponential", timedelta(minutes=1), timedelta(minutes=30))
    assert found.jobs == {
        "cleanup_nightly": Job(
            "cleanup_nightly",
            cron=parse_cron("0 2 * * *"),
            timezone="Europe/Berlin",
            handler="handlers.cleanup.run",
            payload={"older_than_days": 30},
            max_attempts=10,
            backoff=backoff,
            owner="team-platform",
        ),
        "refresh_cache": Job(
            "refresh_cache",
            cron=parse_cron("*/10 * * * *"),
            timezone="Europe/Berlin",
            handler="handlers.cache:refresh",
            max_attempts=10,
            backoff=backoff,
            timeout=timedelta(minutes=5),
            overlap=Overlap.SKIP,
            catchup_window=timedelta(minutes=10),
        ),
    }


def test_a_file_without_jobs_is_valid_and_an_empty_file_is_an_error():
    assert loaded("version: 1\njobs: {}\n").jobs == {}
    assert not loaded("version: 1\njobs: {}\n").has_errors
    assert [codes(text) for text in ("", "\n\n", "# nothing\n", "---\n")] == [["YS012"]] * 4
    assert codes("version: 1\njobs:\n") == ["YS101"]


def test_the_schema_has_the_defaults_of_a_job():
    job = Job("a", command=("true",))
    numbers = {key for key, schema in JOB_KEYS.items() if schema.get("type") == "integer"}
    unbounded = sorted(key for key in numbers if "maximum" not in JOB_KEYS[key])
    assert unbounded == [], "each integer needs a maximum in schedules.schema.json"
    said = {key: schema["default"] for key, schema in JOB_KEYS.items() if "default" in schema}

    other = {"command": ["true"], "cron": "@daily"}
    jobs = {"a": {**other, "after": ["b"], **said}, "b": other}
    read = loaded(json.dumps({"version": 1, "jobs": jobs})).jobs["a"]

    assert {key: getattr(read, key) for key in said} == {key: getattr(job, key) for key in said}
    retention = json.dumps(SCHEMA["properties"]["retention"]["default"])
    assert loaded(a_file(top=f"retention: {retention}\n")).retention == Retention()


def test_a_job_is_enabled_only_in_the_environments_that_it_names():
    top = "environments: {staging: {}, production: {}}\n"

    assert [
        the_job("environments: [production]", top, environment).enabled
        for environment in ("production", "staging", None)
    ] == [True, False, False]
    assert the_job("", top, "staging").enabled
    assert not the_job("environments: [production]\nenabled: false", top, "production").enabled


def test_an_environment_that_the_file_does_not_list_is_an_error():
    [found] = loaded(a_file(top="environments: {production: {}}\n"), "prodution").diagnostics

    assert (found.code, found.line, found.remedy) == ("YS116", 2, 'Did you mean "production"?')


def test_valid_jobs_are_known_whatever_is_wrong_with_others():
    found = loaded(
        "version: 1\nnamspace: x\ndefaults: {max_atempts: 3, timeout: 5}\njobs:\n"
        "  a: {handler: a.b, timeout: 1m}\n  b: {handler: a.b}\n  c: {handler: a}\n"
        "  d: {handler: a.b, timeout: 1m, x: 1}\n"
    )

    assert list(found.jobs) == ["a"]
    assert len(found.diagnostics) == 5


def test_aliases_and_merge_keys_are_replaced_by_their_values():
    found = loaded(
        "version: 1\nx-base: &base {timeout: 5m, max_attempts: 3}\njobs:\n"
        "  a: {<<: *base, handler: a.b, max_attempts: 4}\n  b: {<<: [*base, {lease: 1m}], handler: &h a.c}\n"
        "  c: {handler: *h}\n"
    )

    assert found.diagnostics == ()
    assert (found.jobs["a"].timeout, found.jobs["a"].max_attempts) == (timedelta(minutes=5), 4)
    assert (found.jobs["b"].max_attempts, found.jobs["b"].lease) == (3, timedelta(minutes=1))
    assert found.jobs["c"].handler == "a.c"


@pytest.mark.parametrize(
    "written, meant",
    [
        ("no", "no"),
        ("on", "on"),
        ("22:30", "22:30"),
        ("2026-01-14", "2026-01-14"),
        ("1_000", "1_000"),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("1.5e3", 1500.0),
        ("~", None),
        ("", None),
        ("True", True),
        ("=", "="),
        ("'1'", "1"),
        ("<<", "<<"),
    ],
)
def test_a_scalar_has_the_value_of_the_yaml_1_2_core_schema(written: str, meant: Any):
    value = the_job(f"payload:\n  a: {written}").payload["a"]

    assert (value, type(value)) == (meant, type(meant))


HUGE = {
    "hexadecimal": "0x" + "f" * 5000,
    "octal": "0o" + "7" * 9000,
    "decimal": "-" + "1" * 4200,
    "fraction": "1" * 5000 + ".5",
    "long fraction": "0." + "0" * 600_000 + "1",
    "exponent": "1e99999999999",
    "just too large": "1" * 1001,
}


@pytest.mark.parametrize("number", HUGE.values(), ids=HUGE.keys())
def test_a_number_that_cannot_be_stored_is_an_error_in_every_position(number: str):
    keys = [
        f"payload: {{n: {number}}}",
        f"payload: {{n: [{number}]}}",
        f"max_attempts: {number}",
        f"owner: {number}",
        f"backoff: {{jitter: {number}}}",
        f"tags: [{number}]",
    ]
    jobs = [f"  j{n}: {{handler: a.b, {key}}}\n" for n, key in enumerate(keys)]

    found = loaded(f"version: 1\njobs:\n{''.join(jobs)}  other: {{handler: a.b}}\n")

    huge = [one.line - 3 for one in found.diagnostics if one.code == "YS009"]
    assert (huge, list(found.jobs)) == ([*range(len(keys))], ["other"])
    assert codes(f"version: {number}\njobs: {{}}\n") == ["YS009"]


@pytest.mark.parametrize("number", [10**1000 - 1, -(10**999) + 1, 1.7976931348623157e308, 5e-324])
def test_the_largest_numbers_are_read_and_can_be_stored(number: float):
    payload = the_job(f"payload: {{n: {number}}}").payload

    assert payload == {"n": number}
    assert jsonb.encode_result(payload, "payload")


@pytest.mark.parametrize(
    "before, value, size",
    [
        ("", "'{}'", len(b'{"a": ""}')),
        ("x-s: &s '{}'\n", "*s", len(b'{"a": ""}')),
    ],
    ids=["written", "aliased"],
)
@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_a_payload_of_64_kib_is_valid_and_one_byte_more_is_not(
    before: str, value: str, size: int, letter: str
):
    def with_bytes(count: int) -> str:
        long = letter * ((count - size) // len(letter.encode()))
        long += "x" * (count - size - len(long.encode()))
        return a_file(f"payload: {{a: {value}}}", before).replace("{}", long)

    assert [codes(with_bytes(count)) for count in (65_535, 65_536, 65_537)] == [[], [], ["YS117"]]


def test_a_payload_of_many_short_aliases_counts_each_of_them():
    text = "\\u0001" * 60
    payload = "payload: {a: [" + "*s, " * 200 + "*s]}"

    assert codes(a_file(payload, f'x-s: &s "{text}"\n')) == ["YS117"]


def bomb(levels: int, form: str) -> str:
    lines = ["version: 1", "jobs: {}", "x-0: &a0 {k0: 1}"]
    for level in range(1, levels):
        names = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(
            f"x-{level}: &a{level} " + form.replace("NAMES", names).replace("K", f"k{level}")
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        bomb(30, "[NAMES]"),
        bomb(30, "{<<: [NAMES], K: 1}"),
        "[" * 100_000,
        "{a: " * 100_000,
        "- " * 60 + "a\n",
        "x: &a [*a]\n",
        "a: " + "x" * 10_000_001,
    ],
    ids=["aliases", "merges", "lists", "mappings", "block lists", "itself", "bytes"],
)
def test_an_alias_bomb_is_rejected_with_one_diagnostic(text: str):
    assert [code for code in codes(text) if not code.startswith("YS1")] in (["YS013"], ["YS014"])


def test_a_value_shared_by_jobs_is_reported_once():
    found = loaded(
        "version: 1\nx-good: &good {handler: a.b}\n"
        "x-bad: &bad {handler: a.b, timeout: 5, tags: [1], colour: red}\njobs:\n"
        + "".join(f"  good_{n}: *good\n  bad_{n}: *bad\n" for n in range(5))
    )

    assert list(found.jobs) == [f"good_{n}" for n in range(5)]
    assert [one.code for one in found.diagnostics] == ["YS107", "YS101", "YS102"]


@pytest.mark.parametrize("depth, expected", [(49, []), (50, []), (51, ["YS013"])])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ("{a: ", "}")])
def test_fifty_levels_are_read_and_one_more_is_not(
    depth: int, expected: list[str], opening: str, closing: str
):
    inner = depth - 1  # the file itself is one level

    assert codes(f"version: 1\njobs: {{}}\nx-a: {opening * inner}1{closing * inner}\n") == expected


@pytest.mark.parametrize("value", ["(", "a.", "/", ".py:", "a.b(", " ", "\\n", "1h ", "0 "])
@pytest.mark.parametrize(
    "key, code",
    [("handler", "YS301"), ("timeout", "YS107"), ("timezone", "YS205"), ("cron", "YS20")],
)
def test_a_string_of_a_hundred_kilobytes_is_rejected_like_a_short_one(
    key: str, code: str, value: str
):
    written = f'"{value * (100_000 // len(value))}"'
    job = {"handler": "a.b", "cron": '"@daily"', key: written}
    entry = ", ".join(f"{name}: {text}" for name, text in job.items())

    [found] = codes(f"version: 1\njobs: {{a: {{{entry}}}}}\n")

    assert found.startswith(code)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_three_line_endings_are_supported(end: str):
    text = "version: 1\njobs:\n  a:\n    handler: a.b\n    timeout: 5\n"

    [found] = loaded(text.replace("\n", end)).diagnostics

    assert (found.code, found.line, found.column, found.source) == (
        "YS107",
        5,
        14,
        "    timeout: 5",
    )


TEXTS = ["", "a", "a.b", "a:b", "5m", "1h30m", "wait", "all", "steps", "Clean-up"]
SCALARS = st.sampled_from([*TEXTS, 0, 1, 5, 101, 1.0, 0.5, True, None])
KEYS = st.sampled_from(["a", "policy", "delays"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(good, good, good, VALUES)


def a_value(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    examples = [*schema.get("examples", []), *([schema["default"]] if "default" in schema else [])]
    return mostly(st.sampled_from(examples) if examples else VALUES)


def an_object(properties: dict[str, Any], more: dict[str, Any]) -> st.SearchStrategy[Any]:
    keys = {key: a_value(resolved(schema)) for key, schema in properties.items()}
    return st.fixed_dictionaries({}, optional={**keys, **more, "typo": SCALARS})


JOB = st.builds(
    lambda handler, rest: {**handler, **rest},
    st.sampled_from([{"handler": "a.b"}, {"handler": "a.b"}, {"command": ["true"]}, {}]),
    an_object(JOB_KEYS, {"backoff": an_object(JOB_KEYS["backoff"]["properties"], {})}),
)
DOCUMENTS = st.builds(
    lambda start, rest: {**start, **rest},
    st.sampled_from([{"version": 1, "jobs": {}}, {"version": 1, "jobs": {}}, {}]),
    an_object(
        SCHEMA["properties"],
        {
            "jobs": mostly(
                st.dictionaries(
                    st.sampled_from(["a", "b_1", "C", "d-e", ""]), mostly(JOB), max_size=2
                )
            ),
            "defaults": mostly(
                an_object(SCHEMA["properties"]["defaults"]["properties"], {"cron": SCALARS})
            ),
            "retention": an_object(SCHEMA["properties"]["retention"]["properties"], {}),
            "x-notes": VALUES,
        },
    ),
)


ALL_AND_SKIP = {"catchup": "all", "overlap": "skip"}
CRON = {"handler": "a.b", "cron": "@daily"}


@given(DOCUMENTS)
@example({"version": 1, "jobs": {"a": {**CRON, **ALL_AND_SKIP}}})
@example({"version": 1, "jobs": {"a": {**CRON, "catchup": "all"}}, "defaults": {"overlap": "skip"}})
@example({"version": 1, "jobs": {}, "defaults": ALL_AND_SKIP})
@example({"version": 1, "jobs": {}, "include": [""]})
@example({"version": 1, "jobs": {"a": {**CRON, "backoff": {"policy": "steps"}}}})
@example({"version": 1, "jobs": {"a": {**CRON, "backoff": {"delays": ["1m"]}}}})
@example({"version": 1, "jobs": {"a": {"handler": "a.b", "spread": "1m"}}})
@example({"version": 1, "jobs": {"a": {"handler": "a.b\n"}}})
@settings(max_examples=75)
def test_load_rejects_exactly_what_the_schema_rejects(document: Any):
    is_valid = jsonschema.Draft7Validator(SCHEMA).is_valid(document) and not ends_in_a_line_break(
        document
    )

    found = {code for code in codes(json.dumps(document)) if code in CODES}

    # YS115 is also about what a job inherits, which no schema can express
    assert found <= {"YS115"} if is_valid else found


def test_what_resembles_a_valid_part_of_another_job_is_checked_by_itself():
    parts = [
        ("max_attempts: 1", []),
        ("max_attempts: true", ["YS101"]),
        ('max_attempts: "1"', ["YS101"]),
        ("max_attempts: 1", []),
        ("owner: null", ["YS101"]),
        ('owner: "null"', []),
        ("owner: 2026-11-22", []),
        ("owner: [2026-11-22]", ["YS101"]),
        ("tags: [a, b]", []),
        ('tags: "[a, b]"', ["YS101"]),
        ('description: "1"', []),
        ('timeout: "1"', ["YS107"]),
        ("overlap: skip", ["YS114"]),
    ]
    jobs = [f"  j{number}: {{handler: a.b, {part}}}" for number, (part, _) in enumerate(parts)]

    found = load("\n".join(["version: 1", "jobs:", *jobs]).encode(), "", None).diagnostics

    assert [(one.line - 3, one.code) for one in found] == [
        (number, code) for number, (_, expected) in enumerate(parts) for code in expected
    ]


def ends_in_a_line_break(document: Any) -> bool:
    # Python's "$" matches before a final line break, that of JSON Schema does not
    return "\\n" in json.dumps(document)


def test_the_schema_uses_no_keyword_whose_errors_have_no_message():
    def schemas(schema: dict[str, Any]) -> Any:
        yield schema
        for key in ("properties", "definitions", "patternProperties"):
            for inner in schema.get(key, {}).values():
                yield from schemas(inner)
        for key in ("items", "additionalProperties", "propertyNames"):
            if isinstance(schema.get(key), dict):
                yield from schemas(schema[key])

    jsonschema.Draft7Validator.check_schema(SCHEMA)
    used = {keyword for schema in schemas(SCHEMA) for keyword in schema}
    notes = {"$schema", "title", "description", "default", "examples", "definitions"}
    containers = {
        "$ref",
        "allOf",
        "items",
        "properties",
        "patternProperties",
        "propertyNames",
        "type",
        "maximum",
        "if",
        "then",
    }
    assert used - notes - containers == REPORTERS.keys() - {"propertyNames"}
    assert all(
        "description" in schema and "type" in schema
        for schema in schemas(SCHEMA)
        if "examples" in schema
    )
    for schema in schemas(SCHEMA):
        for key, inner in schema.get("properties", {}).items():
            one = resolved(inner)
            assert one["description"], key
            assert one["examples"] or one["default"] is not None, key
            for value in [*one["examples"], *([one["default"]] if "default" in one else [])]:
                validator = jsonschema.Draft7Validator(SCHEMA).evolve(schema=one)
                assert validator.is_valid(value), (key, value)


def test_patterns_and_choices_of_the_schema_match_the_code():
    patterns = {schema["pattern"] for schema in JOB_KEYS.values() if "pattern" in schema}
    assert patterns == {durations.PATTERN, HANDLER, NAME, DATE, f"^({EVERY})w$"}
    assert set(JOB_KEYS["backoff"]["properties"]["policy"]["enum"]) == set(POLICIES)
    assert set(JOB_KEYS["overlap"]["enum"]) == set(Overlap)
    assert set(JOB_KEYS["catchup"]["enum"]) == set(Catchup)


@pytest.mark.parametrize("default", [None, "always", "failed", "never"])
@pytest.mark.parametrize("own", [None, "always", "failed", "never"])
def test_output_is_kept_of_failures_and_of_all_attempts_of_commands_unless_the_file_says_otherwise(
    default: str | None, own: str | None
) -> None:
    entry = f", output: {{keep: {own}}}" if own else ""
    defaults = f"defaults: {{output: {{keep: {default}}}}}\n" if default else ""
    jobs = f"  purge: {{handler: shop.purge.run{entry}}}\n  dump: {{command: [/bin/true]{entry}}}\n"
    found = loaded(f"version: 1\n{defaults}jobs:\n{jobs}").jobs

    given = own or default
    assert found["purge"].output.keep == (given or "failed")
    assert found["dump"].output.keep == (given or "always")


# -- hooks

HOOKS = ("on_dead", "on_failure", "on_success")
JOB_NAMES = [f"j{number}" for number in range(5)]
LISTS = st.dictionaries(
    st.sampled_from(HOOKS), st.lists(st.sampled_from(JOB_NAMES), unique=True, max_size=3)
)


@given(LISTS, st.lists(LISTS, min_size=len(JOB_NAMES), max_size=len(JOB_NAMES)))
def test_a_job_has_its_own_hooks_or_those_of_defaults_unless_it_is_a_hook_itself(
    defaults: dict[str, list[str]], own: list[dict[str, list[str]]]
) -> None:
    jobs = {name: {"handler": "a.b", **lists} for name, lists in zip(JOB_NAMES, own, strict=True)}
    found = loaded(json.dumps({"version": 1, "defaults": defaults, "jobs": jobs}))

    named = {name for lists in (defaults, *own) for listed in lists.values() for name in listed}
    edges = {
        name: {other for listed in lists.values() for other in listed}
        for name, lists in zip(JOB_NAMES, own, strict=True)
    }
    reached = {name: _reached(edges, name) for name in JOB_NAMES}
    is_circular = any(name in reached[name] for name in JOB_NAMES)
    assert bool(found.diagnostics) == is_circular
    if is_circular:
        assert {one.code for one in found.diagnostics} == {"YS162"}
        return
    for name, lists in zip(JOB_NAMES, own, strict=True):
        expected = lists if name in named else {**defaults, **lists}
        job = found.jobs[name]
        assert {key: list(getattr(job, key)) for key in HOOKS} == {
            key: expected.get(key, []) for key in HOOKS
        }
    # so no hook leads back to itself, by way of what others inherit either
    edges = {
        name: {one for key in HOOKS for one in getattr(job, key)}
        for name, job in found.jobs.items()
    }
    assert not any(name in _reached(edges, name) for name in edges)


def _reached(edges: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [*edges[start]]
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += edges[name]
    return reached
