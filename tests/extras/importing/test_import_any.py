"""What is imported fires as at its source, and any input gives a valid file or a reason."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from support.imports import IMPORTS, POLICIES, START, ZONE, import_text, messages
from yamlsched.cli import cli
from yamlsched.errors import Refused
from yamlsched.extras.importing import read, write
from yamlsched.extras.importing.calendar import (
    DEBIAN,
    EPOCH,
    EVERY_MATCH,
    MINUTE,
    SYSTEMD,
    Clock,
    OnCalendar,
)
from yamlsched.extras.importing.expression import fields_of
from yamlsched.extras.importing.model import Origin
from yamlsched.schedule.load import load
from yamlsched.timetable.cron_fields import FIELDS
from yamlsched.timetable.zones import zone

# -- fire times by the rules of the source -----------------------------------------------------------------------------

SPRING, AUTUMN = (
    "2027-03-28",
    "2027-10-31",
)  # in Berlin, 02:00 is skipped on one and repeated on the other


@pytest.mark.parametrize(
    "clock, spring, autumn",
    [  # 02:30 on the local clock, in UTC; what systemd-analyze calendar answers
        (EVERY_MATCH, [], ["00:30", "01:30"]),
        (DEBIAN, ["01:00"], ["00:30"]),
        (SYSTEMD, [], ["00:30"]),
    ],
)
def test_schedulers_differ_when_the_clock_changes(
    clock: Clock, spring: list[str], autumn: list[str]
) -> None:
    daily = OnCalendar(fields_of(("30", "2", "*", "*", "*"), FIELDS), zone(ZONE), clock)

    for day, expected in ((SPRING, spring), (AUTUMN, autumn)):
        midnight = datetime.fromisoformat(f"{day}T00:00Z")
        fires = daily.fires(midnight - timedelta(days=2), midnight + timedelta(hours=12))
        times = [EPOCH + minute * MINUTE for minute in sorted(fires)]
        assert [f"{at:%H:%M}" for at in times if at >= midnight] == expected


def a_field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    stepped = st.tuples(st.just("*") | span, st.integers(1, high)).map(
        lambda parts: f"{parts[0]}/{parts[1]}"
    )
    return st.just("*") | st.lists(number.map(str) | span | stepped, min_size=1, max_size=2).map(
        ",".join
    )


@settings(max_examples=50)
@given(
    fields=st.tuples(
        a_field(0, 59),
        st.sampled_from(("0", "1", "2", "3", "1-3", "*/2", "*")) | a_field(0, 23),
        st.just("*") | a_field(1, 31),
        st.just("*") | a_field(1, 12),
        st.just("*") | a_field(0, 7),
    ),
    zone_name=st.sampled_from(
        ("UTC", ZONE, "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo")
    ),
    start=st.sampled_from(("2011-12-20", "2026-10-20", "2027-03-05", "2027-04-01", "2026-12-28")),
)
def test_what_is_imported_from_a_crontab_fires_as_under_debians_cron(
    fields: tuple[str, ...], zone_name: str, start: str
) -> None:
    source = Origin(f"{' '.join(fields)} x", "crontab", zone_name)

    found = read.read([source], "crontab", None, datetime.fromisoformat(f"{start}T00:00Z"), days=35)

    assert found.differing == 0, messages(found)


@pytest.mark.parametrize(
    "kind, text, message",
    [
        (
            "kubernetes",
            "# x\nkind: CronJob\nmetadata: {name: {{ .name }}}\n",
            "2: left out: CronJob (no name): metadata.name",
        ),
        ("kubernetes", "kind: [\n---\nx: 1\n---\n", "1: left out: a value is missing"),
        ("kubernetes", "kind: Pod\n", " left out: no CronJob found"),
        ("celery", "\nx = (\n", "2: left out: it is not valid Python: '(' was never closed"),
        ("celery", "[\n{]", "2: left out: it is not valid JSON"),
        ("celery", "x = 1", " left out: no beat_schedule found"),
        ("systemd", "[Timer]\n", " left out: no .timer unit among the files"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported_with_its_line(
    kind: str, text: str, message: str
) -> None:
    assert f"source:{message}" in messages(import_text(text, kind))


# -- any input ---------------------------------------------------------------------------------------------------------

INPUTS = [path for path in sorted(IMPORTS.glob("*/input/*")) if path.is_file()]
TOKENS = [
    "*",
    "%",
    "\\",
    "\n",
    "\t",
    "{",
    "}",
    "[",
    "]",
    "'",
    '"',
    ":",
    "&a ",
    "*a",
    "<<: ",
    "- ",
    "@",
    "\x00",
    "é",
    "9" * 5000,
]


TEXT = partial(st.text, st.characters(codec="utf-8"))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Return an example with some parts deleted, repeated, replaced or inserted."""
    text = draw(st.sampled_from(INPUTS)).read_text()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 12))
        text = (
            text[:start] + draw(st.one_of(st.sampled_from(TOKENS), TEXT(max_size=5))) + text[end:]
        )
    return text


@settings(max_examples=50)
@given(
    text=st.one_of(mutated(), TEXT(max_size=200)),
    kind=st.sampled_from(read.KINDS),
    policy=st.sampled_from(POLICIES),
)
def test_any_text_gives_a_valid_file_or_a_reason(text: str, kind: str, policy: str) -> None:
    name = "x.timer" if kind == "systemd" else "x"
    found = read.read([Origin(text, name, "UTC", policy == "faithful")], kind, None, START, days=3)

    report = read.report(found, None, has_zone=False)
    assert all(line.isprintable() for line in report)
    if found.jobs:
        loaded = load(write.as_file(found.jobs, "UTC").encode(), "schedules.yaml", None)
        assert not loaded.has_errors
        assert set(loaded.jobs) == {job.name for job in found.jobs}
    elif not found.has_refusals:
        assert kind in ("crontab", "cron.d") or found.notes


@settings(max_examples=20)
@given(data=st.binary(max_size=200), kind=st.sampled_from(read.KINDS))
def test_any_bytes_end_with_an_exit_code_and_a_message(data: bytes, kind: str) -> None:
    done = CliRunner().invoke(
        cli, ["import", "--from", kind, "-"], input=data, standalone_mode=False
    )

    assert done.exception is None or isinstance(done.exception, Refused), done.exception
    assert done.return_value in (0, 1, None)
