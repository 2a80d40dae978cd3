"""Jobs in several files: which ones are included, how they are read, and that they are one schedule."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from support.schedules import MINUTE, at, definition, tick
from yamlsched import durations
from yamlsched.cli import cli
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule.file import Included, IncludedFile, digest, matching, read_included
from yamlsched.schedule.include import including, patterns
from yamlsched.schedule.load import load, load_file
from yamlsched.schedule.source import Source
from yamlsched.sync import revision
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.in_use import Verdict

ROOT = Path(__file__).parent.parent
NOON = at("2026-01-14 12:00")
MAIN = "version: 1\ninclude: [jobs/*.yaml]\njobs: {}\n"
ONE = "jobs:\n  {0}: {{handler: gc.collect}}\n"
GIT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Maria"), ("EMAIL", "maria@example.org"))
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a main file that includes two others; it is the working directory."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"schedules.yaml": MAIN, "jobs/a.yaml": ONE.format("a")})
    write(tmp_path, {"jobs/b.yaml": ONE.format("b")})
    return tmp_path


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=GIT, capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path, subject: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


# --- which files are included ------------------------------------------------------------------------------------


def test_files_are_included_in_the_order_of_the_bytes_of_their_names(tmp_path: Path) -> None:
    names = ["Z.yaml", "a.yaml", "é.yaml", "\U0001f600.yaml", "\uffe6.yaml", "b-.yaml", "b.yaml"]
    ignored = [".a.yaml", "a.yaml~", ".#a.yaml", "deep/c.yaml", ".git/a.yaml", "a.yml"]
    write(tmp_path, dict.fromkeys([*names, *ignored, "schedules.yaml"], ""))

    found = read_included(tmp_path / "schedules.yaml", ["*.yaml", "?.yaml"]).files

    assert [each.path for each in found] == sorted(names, key=os.fsencode)


@given(
    patterns=st.lists(
        st.sampled_from(["*", "..", "../*", "/etc/*", "", "a/../*", "*/*", "[.].", "."])
    ),
)
def test_no_pattern_leads_out_of_the_folder(patterns: list[str]) -> None:
    asked = []

    def names_in(path: str) -> list[str]:
        asked.append(path)
        return ["a", "b"]

    found = matching(patterns, names_in, "schedules.yaml")

    assert {*asked, *found} <= {"", "a", "b", "a/a", "a/b", "b/a", "b/b"}


def test_what_is_removed_while_it_is_read_is_not_included(folder: Path, monkeypatch: Any) -> None:
    removed = folder / "jobs/a.yaml"
    read = schedule_file._read

    def remove_first(file: Path, most: int) -> bytes:
        removed.unlink(missing_ok=True)
        return read(file, most)

    monkeypatch.setattr(schedule_file, "_read", remove_first)

    assert [each.path for each in read_included(folder / "schedules.yaml", ["jobs/*"]).files] == [
        "jobs/b.yaml"
    ]


def test_the_size_of_all_files_together_is_limited(folder: Path) -> None:
    filler = "# " + "x" * 1_999_000 + "\n"
    write(
        folder, {"jobs/a.yaml": filler + ONE.format("a"), "jobs/b.yaml": filler + ONE.format("b")}
    )
    assert set(load_file(Path("schedules.yaml"), None).jobs) == {"a", "b"}

    write(folder, {"jobs/c.yaml": "x-note: " + "y" * 2_000 + "\n" + ONE.format("c")})
    loaded = load_file(Path("schedules.yaml"), None)

    [error] = loaded.diagnostics
    assert (error.code, loaded.jobs) == ("YS013", {})
    assert "the files that it includes have more than 4,000,000 bytes" in error.message


def test_a_thousand_files_are_one_schedule(folder: Path) -> None:
    write(folder, {f"jobs/n{n}.yaml": ONE.format(f"n{n}") for n in range(998)})

    result = run("validate")

    assert result.output == "schedules.yaml and 1,000 included files: 1,000 jobs, no errors\n"


def test_links_lead_out_of_the_folder_only_where_nothing_is_quoted(folder: Path) -> None:
    (folder / "jobs/c.yaml").symlink_to("/etc/passwd")
    (folder / "jobs/d.yaml").symlink_to("a.yaml")

    reviewed = read_included(folder / "schedules.yaml", ["jobs/*.yaml"], is_reviewed=True).files
    followed = read_included(folder / "schedules.yaml", ["jobs/*.yaml"]).files

    assert [bool(each.problem) for each in reviewed] == [False, False, True, False]
    assert reviewed[2].data == b""
    assert followed[2].data == Path("/etc/passwd").read_bytes()


# --- what they mean ----------------------------------------------------------------------------------------------

TEXTS = st.text("ab \n\r\t#", max_size=12)


@given(TEXTS, st.lists(TEXTS, max_size=4), st.data())
def test_a_place_in_a_file_does_not_depend_on_the_other_files(
    main: str, others: list[str], data: st.DataObject
) -> None:
    source = Source("main", main, *((str(number), text) for number, text in enumerate(others)))
    number = data.draw(st.integers(0, len(others)))
    text = [main, *others][number]
    at = data.draw(st.integers(0, len(text)))
    end = at + data.draw(st.integers(0, 3))
    part = source.parts[number]

    alone = Source(part.file, text).diagnostic((at, end), "YS001", "", "", (), "error")
    span = part.start + at, part.start + end
    among = source.diagnostic(span, "YS001", "", "", (), "error")

    assert among == alone


VALUES = {
    "owner": st.sampled_from(["a", "b", "c"]),
    "max_attempts": st.integers(1, 9),
    "timeout": st.sampled_from(["1m", "2m", "3m"]),
    "lease": st.sampled_from(["5s", "10s"]),
    "tags": st.lists(st.sampled_from(["x", "y"]), unique=True),
}
LAYER = st.fixed_dictionaries({}, optional=VALUES)


@given(LAYER, LAYER, LAYER, LAYER)
def test_a_key_is_that_of_the_job_else_of_its_file_else_of_the_main_file(
    main: dict[str, Any], first: dict[str, Any], second: dict[str, Any], own: dict[str, Any]
) -> None:
    entry = {"handler": "gc.collect", **own}
    files = [
        IncludedFile(
            f"{name}.yaml", json.dumps({"defaults": values, "jobs": {name: entry}}).encode()
        )
        for name, values in (("a", first), ("b", second))
    ]
    head = {"version": 1, "include": ["?.yaml"], "defaults": main, "jobs": {"m": entry}}
    loaded = load(json.dumps(head).encode(), "s.yaml", None, Included(("?.yaml",), tuple(files)))

    assert loaded.diagnostics == ()
    for name, layer in (("m", {}), ("a", first), ("b", second)):
        for key, value in {**main, **layer, **own}.items():
            found = getattr(loaded.jobs[name], key)
            shown = durations.show(found) if isinstance(found, timedelta) else found
            assert (list(shown) if isinstance(shown, tuple) else shown) == value


def test_only_jobs_that_inherit_an_invalid_default_are_invalid(folder: Path) -> None:
    wrong = "defaults: {timeout: soon, lease: 5s}\n"
    write(folder, {"schedules.yaml": "x-a: {}\n" + MAIN, "jobs/a.yaml": wrong + ONE.format("a")})
    assert set(load_file(Path("schedules.yaml"), None).jobs) == {"b"}

    # an invalid default of the main file is not inherited where another value stands above it
    write(folder, {"schedules.yaml": wrong + MAIN})
    write(folder, {"jobs/a.yaml": "defaults: {timeout: 5m}\n" + ONE.format("a")})
    loaded = load_file(Path("schedules.yaml"), None)
    assert {name: job.timeout for name, job in loaded.jobs.items()} == {"a": timedelta(minutes=5)}


def test_a_name_twice_makes_both_jobs_invalid_and_no_other(folder: Path) -> None:
    write(folder, {"jobs/c.yaml": ONE.format("a") + "  c: {handler: gc.collect}\n"})

    loaded = load_file(Path("schedules.yaml"), None)

    [error] = loaded.diagnostics
    [first] = error.notes
    assert (error.file, error.line) == ("jobs/c.yaml", 2)
    assert (first.file, first.line) == ("jobs/a.yaml", 2)
    assert set(loaded.jobs) == {"b", "c"}


def test_comments_suppress_on_their_own_line_in_their_own_file(folder: Path) -> None:
    job = '  x{0}: {{cron: "0 2 31 4 *", handler: gc.collect, max_attempts: 1}}'
    write(folder, {"jobs/a.yaml": f"jobs:\n{job.format(1)}   # yamlsched: ignore[YS420, YS203]\n"})
    write(folder, {"jobs/b.yaml": "jobs:\n  y: {handler: gc.collect, max_attempts: 1}\n"})

    found = run("validate", "--format", "concise").output.splitlines()

    assert [line.split(" ")[0] for line in found if "YS420" in line] == ["jobs/b.yaml:2:42:"]


def test_handlers_and_paths_are_looked_up_beside_the_main_file(folder: Path) -> None:
    write(folder, {"errands.py": "def run() -> None: ...\n"})
    write(
        folder, {"jobs/a.yaml": "jobs:\n  a: {handler: errands.run}\n  c: {handler: errands.rn}\n"}
    )

    [found] = run("validate", "--format", "concise").output.splitlines()

    assert found.startswith("jobs/a.yaml:3:")
    assert 'Did you mean "run"?' in found


# --- validate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "concise", "json", "github", "sarif"])
def test_every_format_names_the_included_file(folder: Path, form: str) -> None:
    write(folder, {"jobs/a.yaml": "jobs:\n  a: {handlr: gc.collect}\n"})

    result = run("validate", "--format", form)

    assert result.return_value == 1
    assert "jobs/a.yaml" in result.output
    if form == "sarif":
        [sarif] = json.loads(result.output)["runs"]
        artifacts = [each["location"]["uri"] for each in sarif["artifacts"]]
        assert artifacts == ["schedules.yaml", "jobs/a.yaml", "jobs/b.yaml"]


def test_an_included_file_is_validated_with_the_nearest_one_that_includes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        folder, {"jobs/schedules.yaml": "version: 1\njobs: {}\n", "alone/x.yaml": ONE.format("x")}
    )

    for files in (["jobs/a.yaml"], ["jobs/b.yaml", "schedules.yaml", "jobs/a.yaml"]):
        output = run("validate", *files).output
        # the main file includes the nearer one, too, by its pattern
        assert 'jobs/schedules.yaml:1:1: error[YS102]: unknown key "version"' in output
        assert output.count("schedules.yaml and 3 included files") == 1
    (folder / "jobs/schedules.yaml").unlink()
    alone = run("validate", "alone/x.yaml")
    assert (alone.return_value, "or include the file in another one" in alone.output) == (1, True)

    monkeypatch.chdir(folder / "jobs")
    assert (
        run("validate", "a.yaml").output
        == "../schedules.yaml and 2 included files: 2 jobs, no errors\n"
    )
    absolute = run("validate", str(folder / "jobs/a.yaml")).output
    assert absolute.startswith(f"{folder}/schedules.yaml and 2")
    assert including(Path("b.yaml"), "other.yaml") is None


def test_editors_complete_included_files_by_a_schema_of_their_own(folder: Path) -> None:
    schema = run("schema", "--included").output
    jsonschema.Draft7Validator.check_schema(json.loads(schema))
    validator = jsonschema.Draft7Validator(json.loads(schema))
    assert validator.is_valid(
        {"x-a": 1, "defaults": {"timeout": "5m"}, "jobs": {"a": {"handler": "a.b"}}}
    )
    for wrong in ({}, {"version": 1, "jobs": {}}, {"jobs": {"a": {}}}, {"jobs": {}, "defaults": 1}):
        assert not validator.is_valid(wrong)


def test_the_example_has_one_owner_for_each_file() -> None:
    page = (ROOT / "docs/several-files.md").read_text()
    blocks = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", page, re.S))
    owners = dict(line.split() for line in blocks["CODEOWNERS"].splitlines())
    names = [name for name in blocks if name.startswith("jobs/")]
    files = tuple(IncludedFile(name, blocks[name].encode()) for name in names)
    loaded = load(
        blocks["schedules.yaml"].encode(), "schedules.yaml", None, Included(("jobs/*.yaml",), files)
    )

    assert owners.keys() == {f"/{name}" for name in ("schedules.yaml", "CODEOWNERS", *names)}
    for name, job in loaded.jobs.items():
        place = loaded.source.position(loaded.spot(name).node.start).file
        assert owners[f"/{place}"] == f"@example/{job.owner}"
    hook = re.search(r"files: (\S+)", blocks[".pre-commit-config.yaml"])
    assert hook is not None
    assert all(re.search(hook[1], name) for name in ("schedules.yaml", *names))


# --- one schedule ------------------------------------------------------------------------------------------------

CONTENTS = st.dictionaries(st.sampled_from(["a", "b", "ab"]), st.sampled_from([b"", b"1:", b"a"]))


@given(st.lists(st.tuples(st.sampled_from([b"", b"1"]), CONTENTS, st.booleans()), max_size=8))
def test_different_files_have_different_hashes(
    found: list[tuple[bytes, dict[str, bytes], bool]],
) -> None:
    hashes: dict[str, object] = {}
    for data, files, is_other in found:
        included = Included(
            ("a*",) if is_other else ("a*", "b*"),
            tuple(IncludedFile(path, files[path]) for path in sorted(files)),
        )
        assert hashes.setdefault(digest(data, included), (data, included)) == (data, included)


def read(folder: Path, host: str = "web-1") -> ScheduleFile:
    schedule = ScheduleFile.read(folder / "schedules.yaml", None, find_patterns=patterns)
    return ScheduleFile(**{**vars_of(schedule), "host": host})


def vars_of(schedule: ScheduleFile) -> dict[str, Any]:
    return {name: getattr(schedule, name) for name in schedule.__dataclass_fields__}


def jobs_in_use(db: Any) -> set[str]:
    rows = db.execute("select job_type from yamlsched.job_definitions where retired_at is null")
    return {row.job_type for row in rows}


def minutes(db: Any, folder: Path, start: int, number: int = 1) -> SyncResult:
    for minute in range(start, start + number):
        result = tick(db, read(folder), NOON + minute * MINUTE)
    return result


def test_an_edit_of_an_included_file_is_an_edit(db: Any, folder: Path) -> None:
    minutes(db, folder, 0)
    assert jobs_in_use(db) == {"a", "b"}
    assert minutes(db, folder, 1).verdict is Verdict.CURRENT

    write(folder, {"jobs/a.yaml": "jobs:\n  a: {handler: gc.collect, description: edited}\n"})
    assert minutes(db, folder, 2).verdict is Verdict.APPLY
    assert definition(db, "a").description == "edited"

    # the same jobs in another file are another schedule, in which no job changes
    (folder / "jobs/a.yaml").rename(folder / "jobs/c.yaml")
    result = minutes(db, folder, 3)
    assert result.verdict is Verdict.APPLY
    assert result.changes is not None
    assert not result.changes.edits


def test_a_half_copied_deploy_retires_no_job(db: Any, folder: Path) -> None:
    minutes(db, folder, 0)
    (folder / "jobs/b.yaml").rename(folder / "b.copied")

    # given a file that is gone for one tick
    assert minutes(db, folder, 1).verdict is Verdict.UNCONFIRMED
    (folder / "b.copied").rename(folder / "jobs/b.yaml")
    assert minutes(db, folder, 2).verdict is Verdict.CURRENT
    assert jobs_in_use(db) == {"a", "b"}

    # and then one that stays away
    (folder / "jobs/b.yaml").unlink()
    minutes(db, folder, 3, 2)
    assert jobs_in_use(db) == {"a"}


def test_an_error_in_one_file_changes_nothing_and_stops_only_its_job(db: Any, folder: Path) -> None:
    minutes(db, folder, 0)
    write(folder, {"jobs/a.yaml": "jobs:\n  a: {handlr: gc.collect}\n  c: {handler: gc.collect}\n"})

    result = minutes(db, folder, 1)

    assert result.has_findings
    assert "jobs/a.yaml:2:" in result.messages[0]
    assert jobs_in_use(db) == {"a", "b"}
    assert result.jobs is not None
    assert set(result.jobs) == {"b", "c"}


def test_an_emptied_folder_retires_no_job(db: Any, folder: Path) -> None:
    minutes(db, folder, 0)
    shutil.rmtree(folder / "jobs")

    result = minutes(db, folder, 1, 5)

    assert "YS018" in result.messages[0]
    assert jobs_in_use(db) == {"a", "b"}


def test_all_files_are_of_the_release_to_which_a_link_leads(db: Any, tmp_path: Path) -> None:
    for release in ("1", "2"):
        files = {"schedules.yaml": MAIN, f"jobs/{release}.yaml": ONE.format(f"of_{release}")}
        write(tmp_path / "releases" / release, files)
    current = tmp_path / "current"
    current.symlink_to("releases/1")
    first = read(current)
    tick(db, first, NOON)

    current.unlink()
    current.symlink_to("releases/2")
    second = read(current)
    for minute in (1, 2):
        tick(db, second, NOON + minute * MINUTE)

    assert first.path == second.path == str(current / "schedules.yaml")
    assert jobs_in_use(db) == {"of_2"}

    # the main file itself may be the link
    link = tmp_path / "etc" / "schedules.yaml"
    link.parent.mkdir()
    link.symlink_to(current / "schedules.yaml")
    assert [each.path for each in read(link.parent).included.files] == ["jobs/2.yaml"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_the_last_one_of_any_file(folder: Path) -> None:
    def recorded() -> tuple[str | None, bool]:
        schedule = read(folder)
        found = revision.read(str(schedule.real_file), schedule.data, os.environ, schedule.included)
        assert found.problem == ""
        return found.commit, found.is_dirty

    git(folder, "init", "-q")
    write(folder, {"jobs/note.txt": "no jobs", "jobs/.a.yaml": "ignored"})
    commit(folder, "first")
    write(folder, {"jobs/a.yaml": ONE.format("a") + "# edited\n"})
    edited = commit(folder, "an included file")
    write(folder, {"jobs/note.txt": "nothing of the schedule"})
    commit(folder, "another file")
    assert recorded() == (edited, False)

    (folder / "jobs/b.yaml").unlink()
    assert recorded() == (edited, True)
    removed = commit(folder, "an included file is removed")
    assert recorded() == (removed, False)
    write(folder, {"jobs/c.yaml": ONE.format("c")})
    assert recorded() == (removed, True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("below", ["", "conf/"])
def test_diff_reads_the_files_of_the_revision(folder: Path, below: str) -> None:
    if below:
        (folder / "conf").mkdir()
        (folder / "jobs").rename(folder / "conf/jobs")
        (folder / "schedules.yaml").rename(folder / "conf/schedules.yaml")
    git(folder, "init", "-q")
    first = commit(folder, "first")
    (folder / f"{below}jobs/a.yaml").unlink()
    write(folder, {f"{below}jobs/c.yaml": ONE.format("c")})
    write(folder, {f"{below}jobs/b.yaml": "jobs:\n  b: {handler: gc.collect, owner: x}\n"})
    main = f"{below}schedules.yaml"

    for base in ("HEAD", first, f"HEAD:{main}"):
        lines = run("--file", main, "diff", base).output.splitlines()
        assert [line.split(":")[0] for line in lines if re.match("[-+~] ", line)] == [
            "- a",
            "~ b",
            "+ c",
        ]


def test_values_of_an_environment_are_over_the_defaults_of_a_file(folder: Path) -> None:
    there = "environments: {x: {defaults: {timeout: 3m}, jobs: {b: {lease: 9s}}}, y: {}}\n"
    write(folder, {"schedules.yaml": f"defaults: {{timeout: 1m, owner: m}}\n{there}{MAIN}"})
    write(folder, {"jobs/a.yaml": "defaults: {timeout: 2m, lease: 5s}\n" + ONE.format("a")})

    found = {}
    for environment in ("x", "y"):
        loaded = load_file(Path("schedules.yaml"), environment)
        assert loaded.diagnostics == ()
        for name, job in loaded.jobs.items():
            times = durations.show(job.timeout), durations.show(job.lease)
            found[environment, name] = (*times, job.owner)

    assert found == {
        ("x", "a"): ("3m", "5s", "m"),
        ("x", "b"): ("3m", "9s", "m"),
        ("y", "a"): ("2m", "5s", "m"),
        ("y", "b"): ("1m", "2m", "m"),
    }
    assert run("validate").return_value == 0


@pytest.mark.parametrize("name", ["schedules.yaml", "jobs/a.yaml"])
def test_jobs_are_imported_into_any_of_the_files(folder: Path, name: str) -> None:
    write(folder, {"jobs/a.yaml": ONE.format("a") + "\nx-end: 1\n", "schedules.yaml": MAIN})
    write(folder, {"crontab": "*/5 * * * * df -h\n0 3 * * * a --all\n"})

    result = run("import", "crontab", "--into", name)

    assert "2 jobs imported, 0 left out" in result.output
    loaded = load_file(Path("schedules.yaml"), None)
    places = {job: loaded.source.position(loaded.spot(job).node.start).file for job in loaded.jobs}
    assert places == {"a": "jobs/a.yaml", "b": "jobs/b.yaml", "df": name, "a_2": name}


def test_what_an_included_file_cannot_have_is_not_imported_into_it(folder: Path) -> None:
    lock = "0 3 * * * flock /tmp/l ls\n0 4 * * * flock /tmp/l df\n"
    write(folder, {"crontab": lock, "other/x.yaml": ONE.format("x")})

    for file, why in (("jobs/a.yaml", "limits are in the main file"), ("other/x.yaml", "version")):
        result = run("import", "crontab", "--policy", "advised", "--into", file)
        assert why in str(result.exception)
    assert (folder / "jobs/a.yaml").read_text() == ONE.format("a")


def test_an_import_names_what_it_inherits_from_the_defaults_of_its_file(folder: Path) -> None:
    write(folder, {"jobs/a.yaml": "defaults: {env: {A: '1'}, owner: x}\n" + ONE.format("a")})
    write(folder, {"crontab": "*/5 * * * * df -h\n"})

    result = run("import", "crontab", "--into", "jobs/a.yaml")

    assert "the imported jobs also get its defaults: owner" in result.output
    job = load_file(Path("schedules.yaml"), None).jobs["df"]
    assert (job.env, job.owner) == ({}, "x")
