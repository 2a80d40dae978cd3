"""The archive: what pruning deletes is on the disk before it is deleted, whatever fails."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support.command_line import Cli, command_line, yamlsched
from support.database import while_waiting
from support.project import until
from support.rows import a_job, a_place, a_run, row, value
from yamlsched import db as store
from yamlsched.act import prune as retention
from yamlsched.act.prune import ArchiveFailed, FolderArchive, housekeep
from yamlsched.ask import attention, health
from yamlsched.ask.problem import Thresholds
from yamlsched.extras.doctor import doctor
from yamlsched.schedule.job import Retention
from yamlsched.schedule.load import load
from yamlsched.schedule.values import parse, plain
from yamlsched.sync import hosts
from yamlsched.sync.files import ScheduleFile

Db = psycopg.Connection[Any]
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
DAY = timedelta(days=1)
PLENTY = 60.0
HOSTILE = 'quote " backslash \\ line\nbreak \u2028 \U0001f600 \x7f'


def ended(
    db: Db, job: int, status: str = "succeeded", at: datetime = NOON - 100 * DAY, **values: Any
) -> int:
    return a_run(db, job, status, finished_at=at, **values)


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of all files of an archive."""
    found: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*/*")):
        content = gzip.decompress(file.read_bytes()).decode()
        assert content.endswith("\n")
        found += map(json.loads, content.removesuffix("\n").split("\n"))
    return found


def runs_left(db: Db) -> list[int]:
    return [
        found.id for found in db.execute("select id from yamlsched.job_runs order by id").fetchall()
    ]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> FolderArchive:
    return FolderArchive(tmp_path / "archive", "default")


# -- the lines


def a_full_run(db: Db) -> int:
    """Insert a dead run with everything that is pruned with it."""
    run = ended(
        db,
        a_job(db),
        "dead",
        payload=Jsonb({"n": 12345678901234567890, "text": HOSTILE}),
        result=Jsonb([1, None]),
        idempotency_key='invoice:"7"',
        last_error=HOSTILE,
        error_type="OSError",
    )
    for attempt in (2, 1):
        db.execute(
            "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error) "
            "values (%s, %s, 'w', %s, 'e')",
            [run, attempt, NOON],
        )
    db.execute(
        "insert into yamlsched.attempt_outputs values (%s, 1, 'w', %s, 7, %s)", [run, NOON, HOSTILE]
    )
    db.execute(
        "insert into yamlsched.attempt_progress values (%s, 1, %s, 12000, 0.5, 'w', 'half')",
        [run, NOON],
    )
    db.execute(
        "insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, entry, provider_key, state, "
        "claimed_at, done_at, result) "
        "values ('default', 'mail', %s, 1, 'w', gen_random_uuid(), gen_random_uuid(), 'done', %s, %s, '7')",
        [run, NOON - 400 * DAY, NOON - 400 * DAY],
    )
    return run


def test_a_line_has_all_of_a_run_and_what_is_pruned_with_it(db: Db, folder: FolderArchive) -> None:
    run = a_full_run(db)
    before = row(db, run)

    housekeep(db, "default", PLENTY, NOON, archive=folder)

    [line] = [line for line in lines(folder.folder) if line["type"] == "run"]
    assert (line["format_version"], line["id"], line["idempotency_key"], line["status"]) == (
        1,
        run,
        'invoice:"7"',
        "dead",
    )
    assert line["database"] == str(value(db, "select identity from yamlsched.database_identity"))
    assert line["payload"] == {"n": 12345678901234567890, "text": HOSTILE}
    assert (line["result"], line["last_error"], line["priority"]) == ([1, None], HOSTILE, 2)
    for name in ("archived_at", "finished_at", "created_at", "run_at"):
        assert datetime.fromisoformat(line[name]) == (
            NOON if name == "archived_at" else getattr(before, name)
        )
    assert [failure["attempt"] for failure in line["failures"]] == [1, 2]
    assert [(output["omitted_bytes"], output["output"]) for output in line["outputs"]] == [
        (7, HOSTILE)
    ]
    assert [(one["done"], one["total"], one["note"]) for one in line["progress"]] == [
        (12000, 0.5, "half")
    ]
    assert [(effect["key"], effect["state"], effect["result"]) for effect in line["effects"]] == [
        ("mail", "done", 7)
    ]


def test_effects_and_keys_have_lines_of_their_own_when_they_are_pruned(
    db: Db, folder: FolderArchive
) -> None:
    run = a_full_run(db)
    housekeep(db, "default", PLENTY, NOON, archive=folder)

    housekeep(db, "default", PLENTY, NOON + 366 * DAY, archive=folder)

    by_type = {line["type"]: line for line in lines(folder.folder)}
    assert (by_type["effect"]["run_id"], by_type["effect"]["key"], by_type["effect"]["result"]) == (
        run,
        "mail",
        7,
    )
    assert (by_type["key"]["run_id"], by_type["key"]["idempotency_key"]) == (run, 'invoice:"7"')
    for table in ("job_runs", "effects", "used_keys", "attempt_progress"):
        assert value(db, f"select count(*) from yamlsched.{table}") == 0


def test_the_page_of_the_archive_has_exactly_the_fields_of_the_lines(
    db: Db, folder: FolderArchive
) -> None:
    a_full_run(db)
    housekeep(db, "default", PLENTY, NOON, archive=folder)
    housekeep(db, "default", PLENTY, NOON + 366 * DAY, archive=folder)
    page = (Path(__file__).parents[1] / "docs" / "archive.md").read_text().partition("## Lines")[2]
    common, runs, keys, effects = re.split(r"^### .*$", page, flags=re.M)
    effects = effects.partition("\n\n`operator_actions`")[0]
    given = {line["type"]: line for line in lines(folder.folder)}

    always = set(re.findall(r"^\| `(\w+)` \|", common, re.M))
    assert fields(keys) | always == set(given["key"])
    assert fields(effects) - {"retention.effects"} | always == set(given["effect"])
    documented = set[str]()
    for names, meaning in re.findall(r"^\| (`.*?) \|(.*) \|$", runs, re.M):
        documented |= fields(names)
        [name, *_] = fields(names)
        if (
            isinstance(given["run"][name], list)
            and given["run"][name]
            and isinstance(given["run"][name][0], dict)
        ):
            assert fields(meaning.rpartition(":")[2]) == set(given["run"][name][0])
    assert documented | always == set(given["run"]), (
        "docs/archive.md names every column of job_runs"
    )


def fields(text: str) -> set[str]:
    return {name for name in re.findall(r"`([\w.]+)`", text) if name != "retention.keys"}


# -- the files


def test_only_the_owner_can_read_the_archive(db: Db, folder: FolderArchive) -> None:
    before = os.umask(0)
    try:
        ended(db, a_job(db))
        housekeep(db, "default", PLENTY, NOON, archive=folder)
    finally:
        os.umask(before)

    [file] = folder.folder.glob("*/*")
    assert re.fullmatch(
        r"2026-01-14/default-120000Z-runs-[0-9a-f]{16}\.jsonl\.gz",
        str(file.relative_to(folder.folder)),
    )
    assert [path.stat().st_mode & 0o777 for path in (folder.folder, file.parent, file)] == [
        0o700,
        0o700,
        0o600,
    ]


def test_each_batch_has_a_file_of_its_own(
    db: Db, folder: FolderArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH_ROWS", 2)
    job = a_job(db)
    runs = [ended(db, job) for _ in range(5)]

    housekeep(db, "default", PLENTY, NOON, archive=folder)

    assert len(list(folder.folder.glob("*/*"))) == 3
    assert sorted(line["id"] for line in lines(folder.folder)) == runs
    assert runs_left(db) == []


def test_nothing_to_prune_leaves_no_file(db: Db, folder: FolderArchive) -> None:
    housekeep(db, "default", PLENTY, NOON, archive=folder)
    assert not folder.folder.exists()


def test_two_prunes_at_once_archive_each_run_once(db: Db, dsn: str, folder: FolderArchive) -> None:
    job = a_job(db)
    runs = [ended(db, job) for _ in range(4)]
    seen: list[int] = []

    def nested(kind: str, at: datetime, own: Iterable[str]) -> None:
        # while the first batch is held, another process prunes: it finds what is not locked
        if kind == "runs" and not seen:
            seen.append(1)
            late = ended(db_of_other, job)
            runs.append(late)
            housekeep(db_of_other, "default", PLENTY, NOON, archive=folder)
        folder(kind, at, own)

    with store.connect(dsn) as db_of_other:
        housekeep(db, "default", PLENTY, NOON, archive=nested)

    assert len(list(folder.folder.glob("*/*"))) == 2
    assert sorted(line["id"] for line in lines(folder.folder)) == runs
    assert runs_left(db) == []


# -- when it fails


def test_a_file_is_complete_before_its_runs_are_deleted(
    db: Db, dsn: str, folder: FolderArchive
) -> None:
    run = ended(db, a_job(db))

    def die_afterwards(kind: str, at: datetime, own: Iterable[str]) -> None:
        folder(kind, at, own)
        assert [line["id"] for line in lines(folder.folder)] == [run]
        with store.connect(dsn) as other:
            assert runs_left(other) == [run]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        housekeep(db, "default", PLENTY, NOON, archive=die_afterwards)
    assert runs_left(db) == [run]

    # it is archived once more: a duplicate, never a loss
    housekeep(db, "default", PLENTY, NOON, archive=folder)
    assert [line["id"] for line in lines(folder.folder)] == [run, run]
    assert runs_left(db) == []


def test_a_failure_in_the_middle_leaves_no_file_and_deletes_nothing(
    db: Db, folder: FolderArchive
) -> None:
    job = a_job(db)
    runs = [ended(db, job) for _ in range(3)]

    def breaks(kind: str, at: datetime, own: Iterable[str]) -> None:
        def some() -> Iterable[str]:
            yield next(iter(own))
            raise OSError(28, "No space left on device")

        folder(kind, at, some())

    with pytest.raises(ArchiveFailed, match="No space left on device"):
        housekeep(db, "default", PLENTY, NOON, archive=breaks)

    assert list(folder.folder.glob("*/*")) == list(folder.folder.glob("*/.*")) == []
    assert runs_left(db) == runs


def test_a_process_that_is_killed_while_it_writes_loses_nothing(
    db: Db, dsn: str, folder: FolderArchive
) -> None:
    run = ended(db, a_job(db))

    def killed(kind: str, at: datetime, own: Iterable[str]) -> None:
        def some() -> Iterable[str]:
            yield from own
            os._exit(9)

        folder(kind, at, some())

    if (child := os.fork()) == 0:
        try:
            with store.connect(dsn) as own:
                housekeep(own, "default", PLENTY, NOON, archive=killed)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list(folder.folder.glob("*/*.gz")) == []

    # the server notices the end of the session a moment later, and releases the rows
    def pruned() -> int:
        return housekeep(db, "default", PLENTY, NOON, archive=folder).runs

    until(pruned)
    assert [line["id"] for line in lines_of(folder.folder.glob("*/*.gz"))] == [run]


def lines_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in files
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]


@pytest.mark.parametrize("broken", ["folder", "parent"])
def test_a_folder_that_cannot_be_written_is_named(db: Db, tmp_path: Path, broken: str) -> None:
    run = ended(db, a_job(db))
    if broken == "folder":
        (tmp_path / "archive").write_text("a file")
    place = tmp_path / ("archive" if broken == "folder" else "missing/archive")

    with pytest.raises(ArchiveFailed) as failed:
        housekeep(db, "default", PLENTY, NOON, archive=FolderArchive(place, "default"))

    assert str(place) in str(failed.value)
    assert "what is not archived is not pruned" in str(failed.value)
    assert runs_left(db) == [run]


@pytest.mark.parametrize("part", ["folder", "day"])
@pytest.mark.parametrize("problem", ["another user", "every user may write", "not a folder"])
def test_an_archive_that_another_user_could_replace_is_refused(
    db: Db, tmp_path: Path, part: str, problem: str
) -> None:
    run = ended(db, a_job(db))
    place = tmp_path / "archive"
    shared = place if part == "folder" else place / f"{NOON:%Y-%m-%d}"
    shared.mkdir(parents=True)
    if problem == "another user":
        os.chown(shared, 12345, -1)
    elif problem == "every user may write":
        shared.chmod(0o777)
    elif part == "day":
        shared.rmdir()
        (tmp_path / "elsewhere").mkdir()
        shared.symlink_to(tmp_path / "elsewhere")
    else:
        shared.rmdir()
        shared.write_text("a file")

    with pytest.raises(ArchiveFailed, match="what is not archived is not pruned"):
        housekeep(db, "default", PLENTY, NOON, archive=FolderArchive(place, "default"))

    assert runs_left(db) == [run]


def test_a_run_that_is_retried_meanwhile_is_neither_archived_nor_deleted(
    db: Db, dsn: str, folder: FolderArchive
) -> None:
    job = a_job(db)
    retried, other = ended(db, job, "dead"), ended(db, job, "dead")
    with store.connect(dsn) as operator, operator.transaction():
        operator.execute("select from yamlsched.job_runs where id = %s for update", [retried])
        housekeep(db, "default", PLENTY, NOON, archive=folder)

    assert [line["id"] for line in lines(folder.folder)] == [other]
    assert runs_left(db) == [retried]


def test_an_operator_who_retries_a_run_waits_for_its_archive(
    db: Db, dsn: str, folder: FolderArchive
) -> None:
    run = ended(db, a_job(db), "dead")
    with store.connect(dsn) as own, own.transaction():
        before = dict.fromkeys(("succeeded", "dead", "cancelled"), NOON)
        values = {**before, **retention.START}
        held = retention.prune_batch(own, "runs", "default", values, 10, NOON, folder)
        assert held.rows == 1
        with store.connect(dsn) as operator:
            update = "update yamlsched.job_runs set run_at = now() where id = %s"
            assert (
                while_waiting(
                    db,
                    operator,
                    lambda: operator.execute(update, [run]).rowcount,
                    lambda: own.execute("commit"),
                )
                == 0
            )


# -- ticks, and what they report


FILE = """version: 1
retention: {succeeded: 0s, archive: kept}
jobs:
  purge: {handler: platform.node, cron: "0 2 1 1 *"}
"""


@pytest.fixture
def ticked(cli: Cli, db: Db, tmp_path: Path) -> Callable[[], Any]:
    """A function that lets a tick housekeep; the file has been applied."""
    (tmp_path / "schedules.yaml").write_text(FILE)
    assert cli("tick").code == 0

    def tick() -> Any:
        db.execute("update yamlsched.namespaces set housekept_at = null")
        return cli("tick")

    return tick


def a_succeeded_run(db: Db) -> int:
    job = value(db, "select id from yamlsched.job_definitions")
    return a_run(db, job, "succeeded", finished_at="(now() - interval '1 hour')")


def test_a_tick_archives_into_the_folder_that_its_own_file_names(
    db: Db, ticked: Callable[[], Any], tmp_path: Path
) -> None:
    run = a_succeeded_run(db)

    assert ticked().code == 0

    assert [line["id"] for line in lines(tmp_path / "kept")] == [run]
    assert runs_left(db) == []


def test_a_tick_that_cannot_archive_prunes_nothing_and_status_says_so_until_it_can(
    db: Db, cli: Cli, ticked: Callable[[], Any], tmp_path: Path
) -> None:
    run = a_succeeded_run(db)
    (tmp_path / "kept").write_text("a file in the way")

    failed = ticked()

    assert failed.code == 1
    assert "housekeeping.failed" in failed.err
    assert runs_left(db) == [run]
    checked = cli("status", "--check")
    assert checked.code == 1
    assert "pruning has failed since 20" in checked.out
    assert f"{tmp_path}/kept" in checked.out
    reported = cli("report", "--since", "1h")
    assert (reported.code, "pruning has failed since 20" in reported.out) == (1, True)
    now = health.read(db, "default", timedelta(hours=1))
    assert [problem.kind for problem in attention.problems(now, Thresholds())] == ["prune"]
    assert [check.level for check in doctor.problems(now)] == ["fail"]
    metric = 'yamlsched_prune_failing_seconds{namespace="default"} '
    assert float(cli("metrics").out.partition(metric)[2].split()[0]) > 0
    first = value(db, "select prune_failing_since from yamlsched.namespaces")
    assert ticked().code == 1
    assert value(db, "select prune_failing_since from yamlsched.namespaces") == first

    (tmp_path / "kept").unlink()
    assert ticked().code == 0
    assert [line["id"] for line in lines(tmp_path / "kept")] == [run]
    assert cli("status", "--check").code == 0
    assert f"{metric}0\n" in cli("metrics").out


def test_a_row_of_the_database_never_says_where_something_is_written(
    db: Db, ticked: Callable[[], Any], tmp_path: Path
) -> None:
    a_succeeded_run(db)
    db.execute(
        "update yamlsched.namespaces set retention = retention || %s",
        [Jsonb({"archive": "elsewhere"})],
    )

    assert ticked().code == 0

    assert not (tmp_path / "elsewhere").exists()
    assert len(lines(tmp_path / "kept")) == 1


def test_a_host_whose_file_names_no_archive_leaves_pruning_to_others(
    db: Db, ticked: Callable[[], Any], tmp_path: Path
) -> None:
    run = a_succeeded_run(db)
    (tmp_path / "schedules.yaml").write_text(FILE.replace(", archive: kept", ""))
    # another file is in use, of another host
    db.execute(
        "insert into yamlsched.files select namespace, %s, '', now() from yamlsched.namespaces",
        [hashlib.sha256((tmp_path / "schedules.yaml").read_bytes()).hexdigest()],
    )
    db.execute("update yamlsched.namespaces set hash = %s", ["0" * 64])
    a_place(db, in_use=False, hash="0" * 64)

    ticked()

    assert runs_left(db) == [run]


@pytest.mark.parametrize("archived, pauses", [({}, 5), ({"archive": "kept"}, 60)])
def test_with_an_archive_ticks_prune_once_an_hour(
    db: Db, archived: dict[str, str], pauses: int
) -> None:
    a_place(db, retention=Jsonb(archived), housekept_at=NOON)
    minute = timedelta(minutes=1)
    schedule = ScheduleFile(b"", "/srv/schedules.yaml")

    def is_due(at: datetime) -> bool:
        return hosts.poll(db, schedule, at, "default", writes=False).needs_housekeeping

    assert not is_due(NOON + (pauses - 1) * minute)
    assert is_due(NOON + pauses * minute)


# -- the verb


def test_prune_writes_to_a_folder_or_to_stdout(cli: Cli, db: Db, tmp_path: Path, dsn: str) -> None:
    a_place(db, retention=Jsonb({}))
    job = a_job(db)
    first = ended(db, job, at=datetime(2020, 1, 1, tzinfo=UTC))

    assert (
        cli("prune", "--archive", "elsewhere").out
        == "pruned 1 run, 0 keys, 0 effects; cancelled 0 runs of removed jobs\n"
    )
    assert [line["id"] for line in lines(tmp_path / "elsewhere")] == [first]

    second = ended(db, job, at=datetime(2020, 1, 1, tzinfo=UTC))
    result = yamlsched(
        "prune", "--archive", "-", "--dsn", dsn, "--namespace", "default", cwd=tmp_path
    )
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [second]
    assert "pruned 1 run" in result.stderr


def test_prune_uses_the_archive_of_the_file_unless_it_is_told_not_to(
    cli: Cli, db: Db, ticked: Callable[[], Any], tmp_path: Path
) -> None:
    first = a_succeeded_run(db)
    assert cli("prune").code == 0
    assert [line["id"] for line in lines(tmp_path / "kept")] == [first]

    a_succeeded_run(db)
    (tmp_path / "schedules.yaml").unlink()
    refused = cli("prune", "--namespace", "default")
    assert refused.code == 1
    assert "pass --file, --archive DIR, or --no-archive to delete without an archive" in refused.err

    assert cli("prune", "--namespace", "default", "--no-archive").code == 0
    assert runs_left(db) == []
    assert len(lines(tmp_path / "kept")) == 1


@pytest.mark.parametrize(
    "options, says",
    [
        (["--archive", "-", "--format", "json"], "leave out --format json"),
        (["--archive", "x", "--no-archive"], "pass --archive or --no-archive"),
        (["--archive", ""], "pass a folder, or - for stdout"),
    ],
)
def test_options_of_prune_that_contradict_each_other_are_a_usage_error(
    cli: Cli, options: list[str], says: str
) -> None:
    result = cli("prune", *options)
    assert result.code == 2
    assert says in result.err


@pytest.mark.parametrize("stdout", ["/dev/full", "closed"])
def test_a_reader_of_stdout_that_takes_nothing_costs_nothing(
    db: Db, dsn: str, tmp_path: Path, stdout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended(db, a_job(db))
    if stdout == "closed":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(stdout, os.O_WRONLY)
    monkeypatch.setattr(retention, "STDOUT", writing)

    with pytest.raises(ArchiveFailed, match="stdout"):
        housekeep(db, "default", PLENTY, NOON, archive=retention.StdoutArchive())

    os.close(writing)
    assert runs_left(db) == [run]


# -- the file


def test_the_folder_is_stored_with_the_retention_and_read_back() -> None:
    assert "archive" not in plain(Retention())
    kept = Retention(succeeded=DAY, archive="kept")
    assert plain(kept)["archive"] == "kept"
    assert parse(Retention, plain(kept)) == kept
    assert parse(Retention, {"succeeded": "1d", "of_a_later_version": "7"}) == Retention(
        succeeded=DAY
    )


@pytest.mark.parametrize("written", ['""', "7", "[a]"])
def test_an_archive_that_is_not_a_folder_is_an_error_of_the_file(written: str) -> None:
    loaded = load(
        f"version: 1\nretention: {{archive: {written}}}\njobs: {{}}\n".encode(),
        "schedules.yaml",
        None,
    )
    assert [
        diagnostic.code for diagnostic in loaded.diagnostics if diagnostic.severity == "error"
    ] != []


def test_an_archive_is_read_from_the_file() -> None:
    loaded = load(
        b"version: 1\nretention: {archive: kept, dead: 1d}\njobs: {}\n", "schedules.yaml", None
    )
    assert loaded.retention == Retention(dead=DAY, archive="kept")
