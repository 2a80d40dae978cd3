"""Coming slots on the command line, without a database."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from yamlsched.cli import main

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run the command line in an empty folder; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["yamlsched", *arguments])
        with pytest.raises(SystemExit) as exit:
            main()
        captured = capsys.readouterr()
        return int(str(exit.value.code)), captured.out, captured.err

    return run


FILE = """
version: 1
timezone: Europe/Berlin
environments: {production: {}}
jobs:
  cleanup_nightly: {handler: a.b, cron: "0 2 * * *"}
  report:          {handler: a.b, cron: "0 2 * * 1", timezone: UTC}
  by_hand:         {handler: a.b}
  off:             {handler: a.b, cron: "0 2 * * *", enabled: false}
  only_there:      {handler: a.b, cron: "0 2 * * *", environments: [production]}
"""


def slots(cli: Cli, *arguments: str) -> list[dict[str, str]]:
    code, out, _ = cli("next", *arguments, "--format", "json")
    document = json.loads(out)
    assert (code, document["format_version"]) == (0, 1)
    return list(document["slots"])


@pytest.mark.parametrize(
    "cron, start, number, expected",
    [
        (
            "30 1 * * *",
            "2026-11-01T04:00Z",
            2,
            [("05:30", "x:2026-11-01"), ("06:30", "x:2026-11-02")],
        ),
        ("30 2 * * *", "2026-03-08T00:00Z", 1, [("07:00", "x:2026-03-08")]),
        (
            "0 * * * *",
            "2026-11-01T04:30Z",
            2,
            [("05:00", "x:2026-11-01T05:00Z"), ("06:00", "x:2026-11-01T06:00Z")],
        ),
    ],
)
def test_an_expression_needs_no_file_and_shows_the_effects_of_clock_changes(
    cli: Cli, cron: str, start: str, number: int, expected: list[tuple[str, str]]
) -> None:
    found = slots(
        cli, "--cron", cron, "--timezone", "America/New_York", "--from", start, "-n", str(number)
    )

    assert [(slot["scheduled_for"][11:16], slot["key"]) for slot in found] == expected
    assert found[0]["note"]


def test_json_has_the_documented_keys_and_no_others(cli: Cli) -> None:
    [slot] = slots(
        cli,
        "--cron",
        "0 2 * * *",
        "--timezone",
        "Asia/Kolkata",
        "--from",
        "2026-01-13T12:00Z",
        "-n",
        "1",
    )

    assert slot == {
        "job_type": "x",
        "scheduled_for": "2026-01-13T20:30:00Z",
        "local": "2026-01-14T02:00:00+05:30",
        "key": "x:2026-01-14",
        "note": "",
    }


def test_slots_are_strictly_after_from(cli: Cli) -> None:
    [slot] = slots(cli, "--cron", "0 2 * * *", "--from", "2026-01-14T02:00Z", "-n", "1")

    assert slot["scheduled_for"] == "2026-01-15T02:00:00Z"


def test_slots_of_all_jobs_are_sorted_by_time(cli: Cli) -> None:
    Path("schedules.yaml").write_text(FILE)

    code, out, err = cli("next", "--from", "2026-01-11T12:00Z", "-n", "3")

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "JOB",
        "cleanup_nightly",
        "report",
        "cleanup_nightly",
    ]
    assert "2026-01-12T02:00Z" in out.splitlines()[2]
    assert '"off" is disabled' in err
    assert '"only_there" is disabled without an environment' in err


def test_without_a_number_each_job_has_one_line_by_time(cli: Cli) -> None:
    minutely = '  minutely: {handler: a.b, cron: "* * * * *"}\n'
    never = '  never: {handler: a.b, cron: "0 0 30 2 *"}\n'
    Path("schedules.yaml").write_text(FILE + minutely + never)

    code, out, _ = cli("next", "--from", "2026-01-11T12:00Z")

    assert code == 1  # a day that no month has
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "minutely",
        "cleanup_nightly",
        "report",
    ]


def test_one_job_is_shown_in_its_own_zone(cli: Cli) -> None:
    Path("schedules.yaml").write_text(FILE)

    code, out, _ = cli("next", "cleanup_nightly", "--from", "2026-03-28", "-n", "2")

    assert code == 0
    words, _, _, first, second = out.splitlines()
    assert words == "At 02:00, every day (Europe/Berlin)"
    assert first.split() == [
        *("Sat", "2026-03-28", "02:00", "CET"),
        "2026-03-28T01:00Z",
        "cleanup_nightly:2026-03-28",
    ]
    assert "does not exist" in second


def test_an_expression_without_true_words_has_only_its_slots(cli: Cli) -> None:
    code, out, _ = cli("next", "--cron", "*/35 * * * *", "-n", "2")

    assert code == 0
    assert out.startswith("LOCAL ")
    assert len(out.splitlines()) == 3


def test_a_job_of_an_environment_has_slots_there(cli: Cli) -> None:
    Path("schedules.yaml").write_text(FILE)

    found = slots(cli, "only_there", "--env", "production", "-n", "4")

    assert len(found) == 4


def test_a_job_without_cron_is_reported(cli: Cli) -> None:
    Path("schedules.yaml").write_text(FILE)

    code, out, err = cli("next", "by_hand")

    assert (code, out) == (0, "no slots\n")
    assert "has no cron" in err


def test_an_unknown_job_is_refused_with_the_nearest_name(cli: Cli) -> None:
    Path("schedules.yaml").write_text(FILE)

    code, _, err = cli("next", "cleanup_nigthly")

    assert code == 1
    assert 'Did you mean "cleanup_nightly"?' in err


def test_an_invalid_file_shows_its_valid_jobs_and_exits_1(cli: Cli) -> None:
    Path("schedules.yaml").write_text(FILE + '  broken: {handler: a.b, cron: "61 * * * *"}\n')

    code, out, err = cli("next", "-n", "1")

    assert code == 1
    assert "cleanup_nightly" in out
    assert "yamlsched validate" in err


def test_a_calendar_shows_where_jobs_pile_up(cli: Cli) -> None:
    jobs = "".join(f'  job_{n}: {{handler: a.b, cron: "0 0 * * *"}}\n' for n in range(12))
    Path("schedules.yaml").write_text(f"version: 1\njobs:\n{jobs}")

    code, out, _ = cli("next", "--days", "7", "--from", "2026-01-11T12:00Z")

    lines = out.splitlines()
    assert code == 0
    assert lines[2].split() == ["Mon", "01-12", "12", *["."] * 23]
    assert len([line for line in lines if line[3:7] == " 01-"]) == 7
    assert (
        "00:00  12 jobs, 7 times from Mon 01-12: job_0, job_1, job_10, job_11, job_2, job_3 and 6 more"
        in out
    )


def test_the_time_of_a_run_that_spread_moves_is_shown_and_counted_in_the_calendar(cli: Cli) -> None:
    Path("schedules.yaml").write_text(
        'version: 1\ntimezone: Europe/Berlin\njobs: {x: {handler: a.b, cron: "30 2 * * *", spread: 24h}}\n'
    )

    _, table, _ = cli("next", "x", "-n", "1", "--from", "2026-01-14T12:00Z")
    _, on_clock_change, _ = cli("next", "x", "-n", "1", "--from", "2026-03-29T00:00Z")
    _, calendar, _ = cli("next", "--days", "1", "--from", "2026-01-14T12:00Z")

    assert "starts Thu 13:34:36 (spread)" in table
    assert "02:30 does not exist" in on_clock_change
    assert "; starts Sun 14:04:36 (spread)" in on_clock_change
    # the run of the slot of today, which is before --from, and not yet that of tomorrow
    assert calendar.splitlines()[2].split() == ["Wed", "01-14", *["."] * 13, "1", *["."] * 10]
    assert [slot["note"] for slot in slots(cli, "x", "-n", "1", "--from", "2026-01-14T12:00Z")] == [
        "starts Thu 13:34:36 (spread)"
    ]

    # a host with a namespace of its own has other times
    _, elsewhere, _ = cli(
        "next", "x", "-n", "1", "--from", "2026-01-14T12:00Z", "--namespace", "web-01"
    )
    assert "(spread)" in elsewhere
    assert "13:34:36" not in elsewhere


def test_the_minutes_with_the_most_jobs_are_listed(cli: Cli) -> None:
    def most_at_once(each: int) -> list[str]:
        jobs = "".join(
            f'  job_{hour}_{n}: {{handler: a.b, cron: "0 {hour} 12 1 *"}}\n'
            for hour in range(18)
            for n in range(each)
        )
        Path("schedules.yaml").write_text(f"version: 1\njobs:\n{jobs}")
        _, out, _ = cli("next", "--days", "2", "--from", "2026-01-11T12:00Z")
        return out.split("most at once:\n")[1].splitlines()

    fives, twos = most_at_once(5), most_at_once(2)

    assert len(fives) == 11
    assert fives[0] == "  00:00  5 jobs, on Mon 01-12: job_0_0, job_0_1, job_0_2, job_0_3, job_0_4"
    assert fives[-1] == "  and 8 more with 5 jobs or more"
    assert len(twos) == 10


def test_an_unknown_job_without_a_close_match_is_refused_with_all_names(cli: Cli) -> None:
    Path("schedules.yaml").write_text(FILE)

    code, _, err = cli("next", "zzz")

    assert code == 1
    assert "Its jobs: cleanup_nightly, report, by_hand, off, only_there." in err


def test_days_as_json_are_all_slots_of_these_days(cli: Cli) -> None:
    assert (
        len(slots(cli, "--cron", "0 * * * *", "--days", "3", "--from", "2026-01-11T12:00Z")) == 72
    )


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--cron", "61 * * * *"], 1, "^^"),
        (["--cron", "* * * * *", "--timezone", "Europe/Berln"], 1, 'Did you mean "Europe/Berlin"?'),
        (["--cron", "* * * * *", "--from", "soon"], 2, "write a date such as"),
        (["--cron", "* * * * *", "-n", "0"], 2, "-n"),
        (["--cron", "* * * * *", "-n", "2", "--days", "2"], 2, "--days"),
        (["--timezone", "UTC"], 2, "--timezone"),
        ([], 3, "schedules.yaml"),
    ],
)
def test_invalid_arguments_are_refused_with_a_remedy(
    cli: Cli, arguments: list[str], code: int, message: str
) -> None:
    got, out, err = cli("next", *arguments)

    assert (got, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    "start", ["1900-01-01", "9900-12-31", "9900-12-31T23:59-14:00", "1900-01-01T00:00+14:00"]
)
@pytest.mark.parametrize(
    ("options", "zone"),
    [(["-n", "3"], "Pacific/Kiritimati"), (["--days", "366"], "Pacific/Niue")],
)
def test_the_first_and_the_last_year_have_slots(
    cli: Cli, start: str, options: list[str], zone: str
) -> None:
    code, out, err = cli(
        "next", "--cron", "0 2 29 2 *", "--timezone", zone, "--from", start, *options
    )

    assert (code, err) == (0, "")
    assert "02" in out or out == "no slots\n"


@pytest.mark.parametrize(
    "start", ["9960-01-01", "0001-01-01", "9999-12-31T23:59-14:00", "1899-12-31"]
)
def test_a_time_out_of_range_is_refused_with_the_range(cli: Cli, start: str) -> None:
    code, _, err = cli("next", "--cron", "@daily", "--from", start)

    assert code == 2
    assert f'"{start}" is out of range: write a year from 1900 to 9900' in err


def test_a_job_that_follows_others_shows_the_slots_that_it_has_from_them_and_their_names(
    cli: Cli, tmp_path: Path
) -> None:
    text = (
        FILE
        + """
  load:    {handler: a.b, after: [cleanup_nightly], spread: 1h}
  summary: {handler: a.b, after: [load, report], cron: "0 6 * * *"}
  totals:  {handler: a.b, after: [load], cron: "0 6 * * *", after_enqueued: ended}
"""
    )
    (tmp_path / "schedules.yaml").write_text(text)

    [load] = slots(cli, "load", "--from", "2026-01-14T12:00Z", "-n", "1")
    [summary] = slots(cli, "summary", "--from", "2026-01-14T12:00Z", "-n", "1")
    [totals] = slots(cli, "totals", "--from", "2026-01-14T12:00Z", "-n", "1")

    assert (load["scheduled_for"], load["local"]) == (
        "2026-01-15T01:00:00Z",
        "2026-01-15T02:00:00+01:00",
    )
    assert load["note"].startswith("starts Thu 02:")
    assert load["note"].endswith("(spread); after cleanup_nightly")
    assert summary["note"] == "after load, report"
    assert totals["note"] == "after load and what it enqueues"


def test_a_job_that_follows_one_with_errors_has_no_known_slots(cli: Cli, tmp_path: Path) -> None:
    text = (
        FILE.replace("0 2 * * *", "0 25 * * *", 1)
        + "\n  load: {handler: a.b, after: [cleanup_nightly]}\n"
    )
    (tmp_path / "schedules.yaml").write_text(text)

    code, out, err = cli("next", "load")

    assert (code, out) == (1, "no slots\n")
    assert 'has errors: "yamlsched validate" shows them' in err
