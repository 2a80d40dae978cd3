"""A part of a schedule is read as the whole file is, or the whole file is read."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from yamlsched.definitions import head, on_demand
from yamlsched.definitions.decode import decode
from yamlsched.definitions.excerpt import MANY_JOBS, Excerpts
from yamlsched.definitions.job import Job
from yamlsched.definitions.load import load
from yamlsched.definitions.on_demand import JobsOnDemand
from yamlsched.definitions.parse import parse
from yamlsched.definitions.schema.check import _validators

NAMES = ("a", "b", "ab", "c")
MISTAKES = Path(__file__).parent / "mistakes"


def on_demand_jobs(text: str) -> JobsOnDemand:
    with patch.object(on_demand, "MIN_BYTES", 0):
        return JobsOnDemand(text.encode(), "schedules.yaml", None)


def whole(text: str) -> dict[str, Job]:
    """Return the jobs of a text that must be valid."""
    loaded = load(text.encode(), "schedules.yaml", None)
    assert not loaded.diagnostics, (text, loaded.diagnostics)
    return loaded.jobs


def assert_head_alike(data: bytes, *, is_whole: bool = False) -> None:
    loaded = load(data, "schedules.yaml", None)
    for min_bytes in (len(data) + 1,) if is_whole else (0, len(data) + 1):
        with patch.object(head, "MIN_BYTES", min_bytes):
            assert head.read_head(data, "schedules.yaml") == (loaded.namespace, loaded.timezone), data


def assert_read_alike(text: str) -> None:
    """Read each job alone, some together, and none, also those that do not exist, as from the whole file."""
    expected = whole(text)
    for name in (*NAMES, *expected):
        assert on_demand_jobs(text).get(name) == expected.get(name), (name, text)
    together = on_demand_jobs(text)
    together.read(list(expected)[::2])
    assert dict(together) == expected
    assert_head_alike(text.encode())


PLAIN_FILE = """\
---
# of the shop
version: 1
timezone: Europe/Berlin   # "all
x-base: &base {owner: team, payload: {list: [1, "a, [b", 'it''s']}}
x-note: |
  jobs:
    c: {handler: m.evil}
defaults: {max_attempts: 3}
jobs:

    # the first
    a:
      <<: *base
      cron: "0 2 * * *"
      handler: m.a
      description: >-
        Don't "quote
        b:
          handler: m.evil
      tags:
      - one
      - two

    b: {handler: m.b, payload: {n: 1}}   # a comment: "not a string
  # less indented
    ab:
      command:
        - /bin/sh
        - -c
        - "echo \\"a: b\\" && true # no comment"
      description: a long
        text: with-a-colon, and [a bracket
        b
environments: [x]
"""


def test_an_ordinary_file_is_read_in_parts() -> None:
    text = PLAIN_FILE.replace("        text: with-a-colon,", "        text with-a-colon,")
    excerpts = Excerpts.of(text)

    assert excerpts is not None
    part = excerpts.with_jobs(["b"])
    assert part is not None
    assert "m.b" in part
    assert "m.a" not in part
    assert_read_alike(text)


OTHER_FILES = {
    "a quoted string over several lines that contains an entry": """\
version: 1
jobs:
  a:
    handler: m.a
    description: "text
  b:
    handler: m.evil
    description: x #"
""",
    "the same in single quotes": """\
version: 1
jobs:
  a:
    handler: m.a
    description: 'x
  b:
    handler: m.evil
  '
""",
    "a flow collection over several lines": """\
version: 1
jobs:
  a: {handler: m.a, payload: {
  b: {n: 1}
  }}
""",
    "a string before the jobs that contains them": """\
version: 1
x-text: "
jobs:
  b:
    handler: m.evil
#"
jobs:
  a:
    handler: m.a
""",
    "an anchor in a job": """\
version: 1
x-base: &base {owner: x}
jobs:
  a: {handler: m.a, payload: {n: 1}}
  b: &base
    handler: m.b
    owner: y
  c:
    <<: *base
""",
    "jobs that are merged": "version: 1\nx-jobs: &jobs\n  b: {handler: m.b}\njobs:\n  <<: *jobs\n  a: {handler: m.a}\n",
    "a quoted name": "version: 1\njobs:\n  a: {handler: m.a}\n  'b': {handler: m.b}\n",
    "a key in quotes": 'version: 1\n"jobs":\n  a: {handler: m.a}\n  b: {handler: m.b}\n',
    "JSON": '{"version": 1, "jobs": {"a": {"handler": "m.a"}, "b": {"handler": "m.b"}}}',
    "line ends of Windows": "version: 1\r\njobs:\r\n  a: {handler: m.a}\r\n  b: {handler: m.b}\r\n",
    "tabs": "version: 1\njobs:\n  a:\t{handler: m.a}\n  b:\n    handler:\tm.b\n",
    "a complex key": "version: 1\njobs:\n  a: {handler: m.a}\n  ? b\n  : {handler: m.b}\n",
    "a tag": "version: 1\njobs: !!map\n  a: {handler: m.a}\n  b: {handler: !!str m.b}\n",
    "no line end": "version: 1\njobs:\n  a: {handler: m.a}\n  b: {handler: m.b}",
    "jobs first": "jobs:\n a: {handler: m.a}\n b:\n  handler: m.b\nversion: 1\ndefaults:\n  timeout: 5m\n",
    "no jobs": "version: 1\njobs: {}\n",
    "a marker at the end": "version: 1\njobs:\n  a: {handler: m.a}\n...\n",
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_any_other_file_is_read_alike(kind: str) -> None:
    assert_read_alike(OTHER_FILES[kind])


def test_many_jobs_are_read_together() -> None:
    names = [f"job_{number}" for number in range(2 * MANY_JOBS)]
    text = "version: 1\njobs:\n" + "".join(f"  {name}:\n    handler: m.{name}\n" for name in names)
    jobs = on_demand_jobs(text)

    jobs.read(names[1:])

    assert dict(jobs) == whole(text)
    assert jobs.get("unknown") is None


def test_for_namespace_and_time_zone_neither_jobs_are_parsed_nor_jsonschema_is_imported() -> None:
    jobs = "".join(f"  job_{number}: {{handler: m.f, cron: '0 2 * * *'}}\n" for number in range(1_000))
    text = f"version: 1\nnamespace: shop\njobs:\n{jobs}timezone: Europe/Berlin\n"

    parsed: list[str] = []
    _validators.cache_clear()
    with patch.dict(sys.modules, jsonschema=None), patch.object(head, "parse") as parse_text:
        parse_text.side_effect = lambda found: parsed.append(found.source.text) or parse(found)  # type: ignore[func-returns-value]
        found = head.read_head(text.encode(), "schedules.yaml")

    assert found == ("shop", "Europe/Berlin")
    assert "job_1" not in "".join(parsed)


@pytest.mark.parametrize("file", sorted(MISTAKES.glob("*.yaml")), ids=lambda file: file.name)
def test_namespace_and_time_zone_of_an_invalid_file_are_those_of_the_whole_check(file: Path) -> None:
    assert_head_alike(file.read_bytes(), is_whole=True)  # in an excerpt, errors in jobs are not found


VALUES = (
    "", "shop", "Shop", "'shop '", '"shop\\n"', "a" * 63, "a" * 64, "''", "1", "null", "~", "[shop]", "{a: b}", "*x",
    "*y", "&y shop", "!!str 1", "!!str shop", "!other shop", "!!int shop", "010", ".inf", "|\n  shop\n", ">-\n  UTC\n",
    "Europe/Berlin", "europe/berlin", "Factory", "CET", "local", "UTC", "+01:00",
)  # fmt: skip


@pytest.mark.parametrize("key", ["namespace", "timezone", "namespce", "tz"])
def test_any_value_of_namespace_and_time_zone_is_read_as_by_the_whole_check(key: str) -> None:
    for value in VALUES:
        for more in ("", "namespace: other\n", "timezone: Asia/Tokyo\n", "version: 2\n", "{\n", "x-b: *none\n"):
            text = f"version: 1\nx-a: &x Europe/Paris\n{key}: {value}\n{more}jobs:\n  a: {{handler: m.f}}\n"
            assert_head_alike(text.encode())
    for data in (
        b"",
        b"[]",
        b"a",
        b"\xff",
        b"namespace: \xff\n",
        b"\xef\xbb\xbfnamespace: a\n",
        "namespace: é\n".encode(),
    ):
        assert_head_alike(data)


PIECES = [
    "version: 1\n", "jobs:\n", "x-a: &x\n", "x-a: ", "defaults:\n", "  a:\n", "  b:\n", "  c: ", "    a:\n", "    b:\n",
    "    handler: m.f\n", "    handler: m.g\n", "    description: ", "    payload: ", "    payload:\n", "    tags:\n",
    "    - x\n", "      n: ", "text", "x: y", '"', "'", '"', "'", "{", "}", "[", "]", ", ", "n: 1",
    "|\n", ">-\n", "#", " # ",
    "&x ", "*x", "<<: *x\n", "\n", "\n", "\n", "      ", "  ", "- ", "---\n", "...\n",
    "\\", "-", ":", "? ", "!!str ", "a:\n",
    "  b: {handler: m.g}\n", "    description: 'it''s'\n", '    description: "x\n', "    description: |\n", "  # b:\n",
]  # fmt: skip
PREFIX = st.sampled_from(["", "version: 1\n", "---\nversion: 1\n", "version: 1\nx-a: &x {owner: o}\n"])
ENTRY = "    handler: m.f\n"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(PREFIX, st.lists(st.lists(st.sampled_from(PIECES), max_size=7).map("".join), min_size=1, max_size=3), st.data())
def test_whatever_is_valid_is_read_alike(prefix: str, inside: list[str], data: st.DataObject) -> None:
    parts = [prefix, "jobs:\n"]
    for name, more in zip(NAMES, inside, strict=False):
        parts += [f"  {name}:\n", ENTRY, more, data.draw(st.sampled_from(["", "\n"]))]
    text = "".join(parts) + data.draw(st.sampled_from(["", "version: 1\n", "x-b: 1\n", "  # end\n"]))
    found = decode(text.encode(), "schedules.yaml")
    assume(parse(found) is not None and not len(found))  # quicker than to load it
    assume(not load(text.encode(), "schedules.yaml", None).diagnostics)

    assert_read_alike(text)
