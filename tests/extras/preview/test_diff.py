"""``yamlsched diff``: the expected output for every kind of edit, in files.

``python tests/extras/preview/test_diff.py`` writes the expected outputs again; review the difference in git.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from support.documents import in_html, in_markdown, in_text
from yamlsched.cli import cli
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.preview import base, slot_changes, text
from yamlsched.extras.preview.diff import compare, file_side
from yamlsched.extras.preview.model import JobChange, Level, Preview, document
from yamlsched.extras.preview.slot_changes import rule
from yamlsched.schedule.load import load
from yamlsched.show import terminal as _output
from yamlsched.show.document import Document, Entries, as_text
from yamlsched.timetable.slots import slots

DIFFS = Path(__file__).parent / "diffs"
EDITS = sorted(folder.name for folder in DIFFS.iterdir())
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
AT = {"across_a_clock_change": datetime(2026, 3, 27, 12, tzinfo=UTC)}
DAY = timedelta(days=1)
WEEK = 7 * DAY
RENDERERS = {
    "txt": in_text,
    "md": in_markdown,
    "json": lambda preview: _output.document(**document(preview)),
}


def preview_of(
    before: str | bytes,
    after: str | bytes,
    at: datetime = NOON,
    days: int = 7,
    environment: str | None = None,
) -> Preview:
    """Return the preview of replacing one file with the other."""
    loaded = []
    for name, written in (("main:schedules.yaml", before), ("schedules.yaml", after)):
        data = written.encode() if isinstance(written, str) else written
        found = load(data, name, environment)
        assert [one for one in found.diagnostics if one.code != "YS116"] == []
        loaded.append(file_side(name, found, environment))
    return compare(*loaded, at, at + days * DAY, environment)


@cache
def edit(name: str) -> Preview:
    before, after = ((DIFFS / name / f"{which}.yaml").read_bytes() for which in ("before", "after"))
    return preview_of(before, after, AT.get(name, NOON))


def a_file(top: str = "", **jobs: Mapping[str, Any]) -> str:
    entries = {name: {"handler": "handlers.x.run", **job} for name, job in jobs.items()}
    return f"version: 1\n{top}\njobs: {json.dumps(entries)}\n"


def the_job(preview: Preview) -> JobChange:
    [job] = preview.jobs
    return job


def warned(preview: Preview) -> list[str]:
    notes = [*preview.notes, *(note for job in preview.jobs for note in job.notes)]
    return [note.text for note in notes if note.level is Level.WARNING]


@pytest.mark.parametrize("suffix", RENDERERS)
@pytest.mark.parametrize("name", EDITS)
def test_the_output_for_an_edit_is_exactly_that_of_its_file(name: str, suffix: str) -> None:
    expected = (DIFFS / name / f"diff.{suffix}").read_text("utf-8")
    assert RENDERERS[suffix](edit(name)) + "\n" == expected


@pytest.mark.parametrize("name", EDITS)
def test_html_has_what_text_has(name: str) -> None:
    lines = (DIFFS / name / "diff.txt").read_text("utf-8").splitlines()
    page = in_html(edit(name))
    assert page.open == []
    assert [line for line in lines if line.strip() not in page.text] == []


CRONS = [
    "0 2 * * *",
    "0 23 * * *",
    "30 2 * * *",
    "0 2 1 * *",
    "*/15 * * * *",
    "7,37 * * * *",
    "15 1,3 * * *",
]
CRONS += ["0 12 * * 1-5", "5-59/15 8-17 * * *", "0 0 29 2 *", "@hourly"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]
JOBS = st.fixed_dictionaries(
    {},
    optional={
        "cron": st.sampled_from(CRONS),
        "enabled": st.booleans(),
        "max_attempts": st.integers(1, 4),
        "environments": st.lists(st.sampled_from(["qa", "live"]), unique=True, min_size=1),
    },
)
FILES = st.tuples(st.sampled_from(ZONES), st.dictionaries(st.sampled_from("abc"), JOBS))
INSTANTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(
    lambda naive: naive.replace(tzinfo=UTC)
)


@settings(max_examples=25)
@given(
    before=FILES,
    after=FILES,
    at=INSTANTS,
    days=st.integers(1, 9),
    environment=st.sampled_from([None, "qa"]),
)
def test_the_slots_added_removed_and_moved_are_the_difference_of_the_slots_of_both_files(
    before: Any, after: Any, at: datetime, days: int, environment: str | None
) -> None:
    texts = [
        a_file(f"timezone: {tz}\nenvironments: {{qa: {{}}, live: {{}}}}", **jobs)
        for tz, jobs in (before, after)
    ]
    preview = preview_of(texts[0], texts[1], at, days, environment)

    changed = {job.job_type: job for job in preview.jobs}
    for name in {*before[1], *after[1]}:
        slots_before, slots_after = (
            _slots(each, name, preview) for each in (preview.base, preview.head)
        )
        if name not in changed:
            assert slots_before == slots_after
            continue
        found = changed[name].slots
        came = [*found.added, *(m.after for m in found.moved if m.after <= preview.until)]
        went = [*found.removed, *(m.before for m in found.moved if m.before <= preview.until)]
        assert sorted(came) == sorted(slots_after - slots_before)
        assert sorted(went) == sorted(slots_before - slots_after)
        assert all(at < one.before and at < one.after for one in found.moved)
        assert {one.scheduled_for for one in changed[name].key_taken} <= slots_after
    # and all formats can be written
    for render in RENDERERS.values():
        assert render(preview)


def _slots(which: Any, name: str, preview: Preview) -> set[datetime]:
    entry = which.entries.get(name)
    decides = rule(entry.job) if entry else None
    if decides is None:
        return set()
    return {slot.at for slot in decides.slots(preview.at, preview.until)}


@settings(max_examples=15)
@given(file=FILES, at=INSTANTS)
def test_a_file_does_not_differ_from_itself(file: Any, at: datetime) -> None:
    written = a_file(f"timezone: {file[0]}\nenvironments: {{qa: {{}}, live: {{}}}}", **file[1])
    preview = preview_of(written, "# the same\n" + written, at)
    assert (preview.has_changes, preview.pile_ups, preview.notes) == (False, (), ())
    assert preview.unchanged == len(file[1])


def test_an_edit_before_the_nightly_slot_moves_it_and_skips_no_date() -> None:
    before, after = (a_file(x={"cron": cron}) for cron in ("0 2 * * *", "0 23 * * *"))
    preview = preview_of(before, after, NOON.replace(hour=1))
    assert [one.shift for one in the_job(preview).slots.moved] == [timedelta(hours=21)] * 7
    assert warned(preview) == []


def test_long_values_are_shown_where_they_differ_and_keys_as_the_file_has_them() -> None:
    command = ["sbatch", *(f"--option-{n}=value" for n in range(20))]

    def file(last: str, by: str) -> bytes:
        start = {"command": [*command, last], "max_workers": 8}
        top = f"queues: {json.dumps({'gpu': {'start': start}})}\nlimits: {{shop: {{max: 3{by}}}}}"
        return a_file(top, x={"queue": "gpu", "limit": "shop"}).encode()

    preview = preview_of(file("--gres=gpu:1", ""), file("--gres=gpu:2", ", by: [tenant]"))

    [start, by] = preview.fields
    assert (start.field, by.field) == ("queues.gpu.start.command", "limits.shop.by")
    [line] = [line for line in in_text(preview).splitlines() if start.field in line]
    assert line.endswith('"--gres=gpu:1"] -> ...value", "--gres=gpu:2"]')
    assert [change.field for change in the_job(preview).fields] == ["limit.by"]


def test_a_key_is_not_taken_in_another_namespace() -> None:
    before = a_file("namespace: one", x={"cron": "0 2 * * *"})
    after = a_file("namespace: two", x={"cron": "0 23 * * *"})
    assert the_job(preview_of(before, after)).key_taken == ()


def test_true_and_one_differ_in_a_payload_and_one_and_one_point_zero_do_not() -> None:
    before, after = {"a": 1, "b": 1}, {"a": True, "b": 1.0}
    preview = preview_of(a_file(x={"payload": before}), a_file(x={"payload": after}))
    assert [(one.field, one.after) for one in the_job(preview).fields] == [("payload.a", True)]


def test_without_an_environment_all_jobs_count_as_enabled_and_with_one_only_those_enabled_there() -> (
    None
):
    before = a_file(
        "environments: {qa: {}, live: {}}", x={"cron": "0 2 * * *", "environments": ["live"]}
    )
    after = a_file(
        "environments: {qa: {}, live: {}}", x={"cron": "0 3 * * *", "environments": ["live", "qa"]}
    )

    anywhere, qa, live = (
        preview_of(before, after, environment=name) for name in (None, "qa", "live")
    )

    assert [len(the_job(each).slots.moved) for each in (anywhere, qa, live)] == [7, 0, 7]
    assert (the_job(qa).fires_per_week_before, the_job(qa).fires_per_week_after) == (0, 7)
    assert "enabled in qa" in in_text(qa)
    assert "it now runs in qa" in in_text(anywhere)


def test_a_slot_that_moves_by_weeks_is_seen_although_the_next_is_weeks_away() -> None:
    job = {"cron": "0 2 * * *", "handler": "a.b", "every": "4w"}
    before = a_file(x={**job, "cron": "0 2 * * mon", "starts_on": "2026-01-05"})
    after = a_file(x={**job, "cron": "0 2 * * mon", "starts_on": "2026-01-12"})

    slots = the_job(preview_of(before, after)).slots

    assert [slot.date().isoformat() for slot in slots.removed] == ["2026-02-02"]
    assert [slot.date().isoformat() for slot in slots.added] == ["2026-02-09"]


def test_what_runs_have_enqueued_is_waited_for_or_not_any_more() -> None:
    up, follower = {"cron": "0 2 * * *", "handler": "a.b"}, {"handler": "a.b", "after": ["up"]}
    plain, waiting = (
        a_file(up=up, x=each) for each in (follower, {**follower, "after_enqueued": "ended"})
    )

    texts = [
        [hint.text for hint in the_job(preview_of(*files)).notes]
        for files in ((plain, waiting), (waiting, plain))
    ]

    assert "a slot now waits until the runs that those it follows enqueue have ended" in texts[0]
    assert "a slot no longer waits for the runs that those it follows enqueue" in texts[1]


def test_jobs_that_change_in_the_same_way_are_shown_once() -> None:
    names = [f"job_{number}" for number in range(40)]
    before = a_file(**{name: {"cron": "0 2 * * *"} for name in names})
    after = a_file("defaults: {timeout: 5m}", **{name: {"cron": "0 2 * * *"} for name in names})
    written = in_text(preview_of(before, after))
    assert written.count("an attempt is now killed after 5m instead of 1h") == 1
    assert "job_0, job_1, job_10" in written
    assert "and 30 more" in written


def test_a_comment_stays_below_the_size_limit_of_forges_for_any_edit() -> None:
    jobs = {
        f"job_{number}": {"cron": f"{number % 60} 2 * * *", "owner": "x" * 80}
        for number in range(250)
    }
    after = {
        name: {**job, "description": f"{name} " * 30, "timeout": "5m"} for name, job in jobs.items()
    }
    written = in_markdown(preview_of(a_file(**jobs), a_file("timezone: Asia/Tokyo", **after)))
    assert len(written) < 65_536
    assert re.search(r"\nand \d+ more parts: --format text shows all$", written)


def test_the_example_of_the_documentation_is_the_actual_output() -> None:
    page = (Path(__file__).parents[3] / "docs" / "review.md").read_text("utf-8")
    example = page.partition("$ yamlsched diff main\n")[2].partition("      ...")[0]
    assert (DIFFS / "nightly_later_today" / "diff.txt").read_text("utf-8").startswith(example)


def test_a_limited_number_of_slots_is_computed_for_busy_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given 20 different jobs that fire every minute
    before = a_file(**{f"j{n}": {"cron": f"{n}-59 * * * *"} for n in range(20)})
    after = a_file(**{f"j{n}": {"cron": f"*/{1 + n % 7} {n % 23}-23 * * *"} for n in range(20)})
    seen = 0

    def counted(*arguments: Any) -> Iterator[Any]:
        nonlocal seen
        for slot in slots(*arguments):
            seen += 1
            yield slot

    monkeypatch.setattr("yamlsched.timetable.slots.slots", counted)
    slot_changes.changes.cache_clear()

    for days in (7, 90):
        seen = 0
        preview = preview_of(before, after, days=days)
        RENDERERS["json"](preview)

        # then no job needs more than a few lists of slots for any number of days
        assert seen < 20 * 5 * slot_changes.MAX_COMPARED_SLOTS
        assert (
            max(len(job.slots.added) + len(job.slots.removed) for job in preview.jobs)
            <= 2 * slot_changes.MAX_COMPARED_SLOTS
        )


@settings(max_examples=12)
@given(
    crons=st.tuples(
        *[
            st.sampled_from(
                ["* * * * *", "*/2 * * * *", "*/3 8-20 * * *", "0 3 * * *", "*/10 * * * *"]
            )
        ]
        * 2
    ),
    at=INSTANTS,
    days=st.integers(1, 12),  # from one on, every minute is more than is compared
)
def test_the_difference_of_a_busy_job_is_exact_until_the_reported_time(
    crons: tuple[str, str], at: datetime, days: int
) -> None:
    preview = preview_of(
        *(a_file("timezone: Europe/Berlin", x={"cron": cron}) for cron in crons), at, days
    )
    if not preview.jobs:
        return
    [job] = preview.jobs
    until = job.slots.compared_until
    before, after = (_slots(side, "x", preview) for side in (preview.base, preview.head))
    assert (until is not None) == (max(len(before), len(after)) > slot_changes.MAX_COMPARED_SLOTS)
    if until is not None:
        assert set(job.slots.added) == {slot for slot in after - before if slot <= until}
        assert set(job.slots.removed) == {slot for slot in before - after if slot <= until}
        assert job.slots.moved == ()
        assert "slots until " in in_text(preview)
        assert "slots until " in in_markdown(preview)


def test_a_busy_job_whose_first_slots_are_unchanged_reports_this() -> None:
    preview = preview_of(a_file(x={"cron": "* * * * *"}), a_file(x={"cron": "* * * * 1-5"}))
    assert "slots until Thu 2026-01-15 08:00 (UTC)\n      no slot differs" in in_text(preview)
    assert "no slot differs" in in_markdown(preview)


# -- the command line


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], standalone_mode=False)


def git(folder: Path, *arguments: str) -> None:
    config = [
        "-c",
        "user.name=ann",
        "-c",
        "user.email=ann@example.org",
        "-c",
        "init.defaultBranch=main",
    ]
    subprocess.run(["git", *config, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with schedules.yaml in a folder, committed once and then edited."""
    top = tmp_path_factory.mktemp("committed")
    folder = top / "deploy"
    folder.mkdir()
    git(top, "init")
    (folder / "schedules.yaml").write_text(a_file(x={"cron": "0 2 * * *"}))
    git(top, "add", ".")
    git(top, "commit", "-m", "one")
    (folder / "schedules.yaml").write_text(a_file(x={"cron": "0 3 * * *"}))
    return top


@pytest.fixture
def repository(committed: Path, tmp_path: Path) -> Path:
    """A copy of ``committed``."""
    shutil.copytree(committed, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("revision", ["main", "HEAD", "main:deploy/schedules.yaml"])
@pytest.mark.parametrize("place", [".", "deploy"])
def test_a_revision_is_read_through_git_from_any_folder(
    repository: Path, monkeypatch: pytest.MonkeyPatch, revision: str, place: str
) -> None:
    monkeypatch.chdir(repository / place)
    file = "deploy/schedules.yaml" if place == "." else "schedules.yaml"
    done = run("diff", revision, file, "--at", "2026-01-14T12:00Z", "--format", "json")
    found = json.loads(done.stdout)
    assert done.return_value == 0
    assert (found["base"]["name"].partition(":")[0], found["head"]["name"]) == (
        revision.partition(":")[0],
        file,
    )
    assert [(one["field"], one["before"], one["after"]) for one in found["jobs"][0]["fields"]] == [
        ("cron", "0 2 * * *", "0 3 * * *")
    ]


def test_signs_are_coloured_on_a_terminal_and_control_characters_are_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lines() -> list[str]:
        below = [text.entry("! a warning"), text.entry("-no sign")]
        return as_text(
            Document("", [Entries([text.entry("a\x1b[2J"), text.entry("+ job: x", below)])])
        ).splitlines()

    assert lines() == ["a\\x1b[2J", "+ job: x", "    ! a warning", "    -no sign"]
    monkeypatch.setattr(_output, "has_colours", lambda: True)
    assert lines() == [
        "a\\x1b[2J",
        "\x1b[32m+ job: x\x1b[0m",
        "    \x1b[33m! a warning\x1b[0m",
        "    -no sign",
    ]


def test_the_file_of_the_options_is_compared_and_differences_exit_1_only_with_exit_code(
    repository: Path,
) -> None:
    file = repository / "deploy" / "schedules.yaml"
    assert run("diff", "HEAD", "--file", file).return_value == 0
    assert run("diff", "HEAD", "--file", file, "--exit-code").return_value == 1
    assert run("diff", file, "--file", file, "--exit-code").return_value == 0


@pytest.mark.parametrize(
    "revision, message",
    [
        ("nope", '"nope" is not a revision of the repository of .*: if it is a branch of the remote, '
                 "run git fetch origin nope first"),
        ("HEAD~7", '"HEAD~7" is not a revision of the repository of .*schedules.yaml$'),
        ("origin/x", "run git fetch origin x first"),
        ("main:gone.yaml", "gone.yaml is not a file in main: pass the path of a file that exists there, from the "
                           "repository's top"),
    ],
)  # fmt: skip
def test_a_revision_that_cannot_be_read_is_named_with_a_remedy(
    repository: Path, revision: str, message: str
) -> None:
    file = repository / "deploy" / "schedules.yaml"
    with pytest.raises(EnvironmentFailed, match=message):
        CliRunner().invoke(
            cli, ["diff", revision, str(file)], standalone_mode=False, catch_exceptions=False
        )


@pytest.mark.parametrize(
    "name", ["main", "HEAD", "HEAD~0", "origin/main", "v1", "main:deploy/schedules.yaml"]
)
def test_a_file_with_the_name_of_a_revision_never_replaces_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # given an edit, and a file with the edit's content and the name of the revision that it is compared with
    monkeypatch.chdir(repository)
    for ref in ("refs/remotes/origin/main", "refs/tags/v1"):
        subprocess.run(["git", "update-ref", ref, "HEAD"], check=True)
    forged = Path(name)
    forged.parent.mkdir(parents=True, exist_ok=True)
    forged.write_bytes(Path("deploy/schedules.yaml").read_bytes())

    # then the name is refused, and the path of the file is not
    with pytest.raises(
        EnvironmentFailed,
        match=f'"{re.escape(name)}" is a revision and a file: for the file, write',
    ):
        CliRunner().invoke(
            cli,
            ["diff", name, "deploy/schedules.yaml"],
            standalone_mode=False,
            catch_exceptions=False,
        )
    assert run("diff", f"./{name}", "deploy/schedules.yaml", "--exit-code").return_value == 0


@pytest.mark.parametrize("is_repository", [True, False])
def test_a_file_is_named_with_its_path(
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    is_repository: bool,
) -> None:
    folder = repository / "deploy" if is_repository else tmp_path_factory.mktemp("folder")
    monkeypatch.chdir(folder)
    for name in ("old.yaml", "schedules.yaml"):
        Path(name).write_text(a_file(x={"cron": "0 3 * * *"}))
    with pytest.raises(
        EnvironmentFailed, match=r'"old.yaml" is not a revision.*: for the file, write ./old.yaml'
    ):
        CliRunner().invoke(cli, ["diff", "old.yaml"], standalone_mode=False, catch_exceptions=False)
    for path in ("./old.yaml", f"../{folder.name}/old.yaml", str(folder / "old.yaml")):
        assert run("diff", path, "--exit-code").return_value == 0


def test_a_base_over_the_size_limit_of_files_is_refused_with_its_size(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_FILE_BYTES", 10)
    file = repository / "deploy" / "schedules.yaml"
    with pytest.raises(
        EnvironmentFailed,
        match=r"main:\./schedules.yaml cannot be read: it has \d+ bytes, over the limit of 10$",
    ):
        CliRunner().invoke(
            cli, ["diff", "main", str(file)], standalone_mode=False, catch_exceptions=False
        )


@pytest.mark.parametrize("flags, code", [([], 0), (["--exit-code"], 1)])
def test_every_job_is_new_if_the_base_does_not_have_the_file(
    repository: Path, flags: list[str], code: int
) -> None:
    file = repository / "new.yaml"
    file.write_text(a_file("timezone: Europe/Berlin", x={"cron": "0 2 * * *"}))

    done = run("diff", "main", file, "--format", "json", *flags)

    found = json.loads(done.stdout)
    assert done.return_value == code
    assert [(job["job_type"], job["change"]) for job in found["jobs"]] == [("x", "added")]
    assert found["fields"] == []
    assert [note["level"] for note in found["notes"]] == ["note"]
    assert found["notes"][0]["text"].startswith("main:new.yaml does not exist: every job is new")
    for form in ("text", "markdown"):
        assert "main:new.yaml does not exist" in run("diff", "main", file, "--format", form).stdout


def test_a_repository_without_commits_says_so(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "schedules.yaml").write_text(a_file())
    with pytest.raises(EnvironmentFailed, match="it has no commits yet"):
        CliRunner().invoke(
            cli,
            ["diff", "HEAD", str(tmp_path / "schedules.yaml")],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_the_error_for_a_shallow_clone_says_how_to_fetch_the_history(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "commit", "-am", "two")
    git(tmp_path, "clone", "--depth", "1", f"file://{repository}", "shallow")
    file = tmp_path / "shallow" / "deploy" / "schedules.yaml"
    with pytest.raises(
        EnvironmentFailed, match="this clone has no history; run git fetch --unshallow"
    ):
        CliRunner().invoke(
            cli, ["diff", "HEAD~1", str(file)], standalone_mode=False, catch_exceptions=False
        )


def test_a_partial_clone_is_not_taken_for_one_without_the_file_and_runs_no_program(
    repository: Path, tmp_path: Path
) -> None:
    # given a clone without the contents of files, whose origin would be reached by a program
    git(repository, "commit", "-am", "two")
    git(repository, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial"
    git(tmp_path, "clone", "--filter=blob:none", f"file://{repository}", str(clone))
    marker, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{marker}'\n")
    program.chmod(0o755)
    git(clone, "config", "core.sshCommand", str(program))
    git(clone, "remote", "set-url", "origin", "ssh://example.invalid/repository")

    # when the file is compared with a revision whose content is not there
    message = r"HEAD~1:\./schedules.yaml is not in this clone, which is partial: run git show HEAD~1:\./schedules.yaml once"
    file = str(clone / "deploy" / "schedules.yaml")
    with pytest.raises(EnvironmentFailed, match=message):
        CliRunner().invoke(
            cli, ["diff", "HEAD~1", file], standalone_mode=False, catch_exceptions=False
        )

    # then no connection was tried
    assert not marker.exists()


def test_a_git_that_does_not_answer_is_an_error(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(base, "MAX_GIT_SECONDS", 0.2)

    file = str(repository / "deploy" / "schedules.yaml")
    with pytest.raises(
        EnvironmentFailed,
        match=r"git did not answer within .* seconds: pass a file to compare with",
    ):
        CliRunner().invoke(
            cli, ["diff", "HEAD", file], standalone_mode=False, catch_exceptions=False
        )


def test_the_variables_of_a_hook_lead_to_no_other_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    assert (
        run("diff", "HEAD", repository / "deploy" / "schedules.yaml", "--exit-code").return_value
        == 1
    )


def test_outside_of_a_repository_only_files_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    before, after = tmp_path / "a.yaml", tmp_path / "b.yaml"
    before.write_text(a_file(x={"cron": "0 2 * * *"}))
    after.write_text(a_file())
    assert run("diff", before, after).return_value == 0
    with pytest.raises(
        EnvironmentFailed, match=r'"main" is not a revision: .*b.yaml is not in a git repository'
    ):
        CliRunner().invoke(
            cli, ["diff", "main", str(after)], standalone_mode=False, catch_exceptions=False
        )


def test_errors_of_the_new_file_are_shown_and_nothing_is_compared(repository: Path) -> None:
    file = repository / "deploy" / "schedules.yaml"
    file.write_text("version: 1\njobs: {x: {hanlder: a.b}}\n")
    done = run("diff", "HEAD", file)
    assert (done.return_value, done.stdout) == (1, "")
    assert f'{file}:2:12: error[YS102]: unknown key "hanlder" in job "x"' in done.stderr


BROKEN = """version: 1
timezone: Europe/Berlin
jobs:
  good: {handler: a.b, cron: "0 2 * * *"}
  bad: {hanlder: a.b, cron: "0 3 * * *"}
  gone: {handler: a.b, cron: "0 61 * * *"}
"""


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_an_edit_that_fixes_the_base_passes_and_only_valid_jobs_are_compared(
    repository: Path, form: str
) -> None:
    # given a base with two invalid jobs
    file = repository / "deploy" / "schedules.yaml"
    file.write_text(BROKEN)
    git(repository, "commit", "-am", "broken")

    # when one is fixed, one is removed, and a valid job is edited
    repaired = BROKEN.replace("hanlder", "handler").replace("0 2", "0 4")
    file.write_text("\n".join(repaired.splitlines()[:-1]) + "\n")
    done = run("diff", "HEAD", file, "--format", form, "--at", "2026-01-14T12:00Z")

    # then the edit is shown, with a warning
    assert (done.return_value, done.stderr) == (0, "")
    assert "HEAD:schedules.yaml has 2 errors, and only its valid jobs are compared" in done.stdout
    assert "line 5" in done.stdout
    assert "jobs that have errors in HEAD:schedules.yaml are removed: " in done.stdout
    if form == "json":
        found = json.loads(done.stdout)
        assert [(job["job_type"], job["change"]) for job in found["jobs"]] == [
            ("bad", "added"),
            ("good", "changed"),
        ]
        assert "all of it is shown as new" in found["jobs"][0]["notes"][0]["text"]
        assert (found["base"]["invalid_jobs"], found["fields"]) == (["bad", "gone"], [])


def test_two_revisions_are_refused_with_the_way_to_compare_them(repository: Path) -> None:
    done = run("diff", "HEAD", "other")

    assert "other is not a file" in str(done.exception)
    assert "check it out, then: yamlsched diff HEAD" in str(done.exception)


@pytest.mark.parametrize(
    "broken", ["jobs: [", "", "- a\n", "version: 2\njobs: {x: {handler: a.b}}\n", "\x00", "a\nb: c"]
)
def test_a_base_without_valid_jobs_counts_as_empty(repository: Path, broken: str) -> None:
    file = repository / "deploy" / "schedules.yaml"
    file.write_text(broken)
    git(repository, "commit", "-am", "broken")
    file.write_text(a_file("timezone: Europe/Berlin\nnamespace: shop", x={"cron": "0 2 * * *"}))

    done = run("diff", "HEAD", file, "--format", "json")

    found = json.loads(done.stdout)
    assert done.return_value == 0
    assert [(job["job_type"], job["change"]) for job in found["jobs"]] == [("x", "added")]
    assert found["notes"][0]["level"] == "warning"
    assert [one["field"] for one in found["fields"]] == []


def test_an_environment_that_the_edit_adds_is_not_an_error_of_the_base(tmp_path: Path) -> None:
    before, after = tmp_path / "a.yaml", tmp_path / "b.yaml"
    before.write_text(
        a_file("environments: {live: {}}", x={"cron": "0 2 * * *", "environments": ["live"]})
    )
    after.write_text(
        a_file(
            "environments: {live: {}, qa: {}}",
            x={"cron": "0 2 * * *", "environments": ["live", "qa"]},
        )
    )
    done = run("diff", before, after, "--env", "qa")
    assert done.return_value == 0
    assert "enabled in qa" in done.stdout
    assert run("diff", after, before, "--env", "qa").return_value == 1


if __name__ == "__main__":
    for name in EDITS:
        for suffix, render in RENDERERS.items():
            (DIFFS / name / f"diff.{suffix}").write_text(render(edit(name)) + "\n", "utf-8")
