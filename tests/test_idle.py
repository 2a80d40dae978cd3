"""The tick that finds nothing: what it does is what the command line does, in each state."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from support.command_line import ROOT, yamlsched
from support.database import temporary_database
from yamlsched.extras import monitors
from yamlsched.service import idle

SCHEDULE = """\
version: 1
queues: {web2: {dedicated: true}}
jobs:
  yearly: {cron: "0 0 1 1 *", handler: gc.collect}
  asked: {handler: gc.collect}
"""
INCLUDED = {
    "several.yaml": "version: 1\nnamespace: several\ninclude: [jobs/*.yaml]\njobs: {}\n",
    "jobs/a.yaml": "jobs:\n  first: {handler: gc.collect}\n",
    "jobs/b.yaml": "jobs:\n  second: {handler: gc.collect}\n",
}
SHORT = (
    "import atexit, sys; from yamlsched.__main__ import main; "
    "atexit.register(lambda: open('imported', 'w').write(str('yamlsched.cli' in sys.modules)));"
    " main()"
)
LONG = "from yamlsched.cli import main; main()"
ENDS = re.compile(
    r"[0-9-]{10}T[0-9:]{8}Z|(?<=took=)\S+|/\S*(schedules|several).yaml|test_[0-9a-f]{12}|[0-9.]+ ?m?s\b|"
    r"(?<=worker=)\S+|/tmp/\S+"
)
"""What differs between two ticks of the same state."""
TABLES = """
select (select array_agg((h.hash, h.environment, h.refused_hash)::text
        order by h.host, h.path, h.namespace) from yamlsched.hosts h),
       (select array_agg((n.namespace, n.hash, n.environment)::text order by n.namespace)
        from yamlsched.namespaces n),
       (select array_agg((r.job_type, r.status)::text order by r.job_type, r.status)
        from yamlsched.job_runs r),
       (select count(*) from yamlsched.skipped_slots),
       (select array_agg((d.job_type, d.next_slot_at, d.retired_at is null)::text
        order by d.job_type) from yamlsched.job_definitions d)
"""


@dataclass(frozen=True)
class State:
    """A state in which a tick starts: ``sql`` and ``edit`` are applied after a first tick."""

    is_idle: bool = False
    sql: str = ""
    edit: Callable[[Path], object] = lambda file: None
    words: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def _remove(file: Path) -> None:
    file.unlink()


def _other_main(file: Path) -> None:
    (file.parent / "several.yaml").write_text(f"{INCLUDED['several.yaml']}# edited\n")


def _other_pattern(file: Path) -> None:
    main = INCLUDED["several.yaml"].replace("jobs/*", "jobs/[ab]*")
    (file.parent / "several.yaml").write_text(main)


def _other_included(file: Path) -> None:
    (file.parent / "jobs/a.yaml").write_text(f"{INCLUDED['jobs/a.yaml']}# edited\n")


def _more_included(file: Path) -> None:
    (file.parent / "jobs/c.yaml").write_text("jobs:\n  third: {handler: gc.collect}\n")


def _fewer_included(file: Path) -> None:
    (file.parent / "jobs/a.yaml").unlink()


def _renamed_included(file: Path) -> None:
    (file.parent / "jobs/a.yaml").rename(file.parent / "jobs/c.yaml")


def _ignored(file: Path) -> None:
    for name in (".#a.yaml", "a.yaml~", ".a.yaml.swp"):
        (file.parent / "jobs" / name).write_text("not a job")


def _no_folder(file: Path) -> None:
    shutil.rmtree(file.parent / "jobs")


SEVERAL = ("--file", "several.yaml")
ENQUEUE = "select yamlsched.enqueue('asked')"
ENQUEUE_FIRST = "select yamlsched.enqueue('first', namespace => 'several')"
DUE = "update yamlsched.job_definitions set next_slot_at = '2026-01-01' where job_type = 'yearly'"
IN_USE = "update yamlsched.namespaces"
STATES = {
    "nothing due": State(is_idle=True),
    "plain options": State(
        is_idle=True,
        words=("-q", "--grace", "30s", "--max-time=50s", "--max-runs", "4", "--path", "lib"),
    ),
    "quiet": State(is_idle=True, words=("-q",)),
    "verbose": State(is_idle=True, words=("-v",)),
    "cron": State(is_idle=True, words=("--cron",)),
    "json log": State(is_idle=True, words=("--log-format", "json")),
    "the file by an option": State(is_idle=True, words=("--file=schedules.yaml",)),
    "queues": State(is_idle=True, words=("--queue", "default,web2")),
    "no queue": State(is_idle=True, words=("--queue=none",)),
    "an unknown queue": State(words=("--queue", "default,web3")),
    "a queue and none": State(words=("--queue", "default,none")),
    "a queue and an empty name": State(words=("--queue", "default,")),
    "an invalid queue": State(words=("--queue", "Web2")),
    "an option for more than a tick": State(words=("--migrate",)),
    "an invalid option": State(words=("--grace", "soon")),
    "a host name as the namespace": State(words=("--namespace", "Web-1")),
    "an invalid namespace": State(words=("--namespace", "1st")),
    "an option without a value": State(words=("--env",)),
    "a flag with a value": State(words=("--cron=yes",)),
    "an unknown option": State(words=("--quick",)),
    "an argument": State(words=("now",)),
    "another format": State(words=("--format", "json")),
    "help": State(words=("--help",)),
    "a wrong variable": State(environment={"YAMLSCHED_LOG_FORMAT": "xml"}),
    "a due slot": State(sql=DUE),
    "a due run": State(sql=ENQUEUE),
    "a run of later": State(
        is_idle=True, sql="select yamlsched.enqueue('asked', run_at => now() + interval '1 day')"
    ),
    "a paused job with a due run": State(
        sql=f"{ENQUEUE}; update yamlsched.job_definitions set paused_at = now(), paused_by = 'x'",
    ),
    "a changed file": State(edit=lambda file: file.write_text(f"{SCHEDULE}# edited\n")),
    "a file with errors": State(edit=lambda file: file.write_text("version: 1\njobs: 3\n")),
    "a missing file": State(edit=_remove),
    "another environment": State(words=("--env", "test")),
    "another namespace": State(words=("--namespace", "other")),
    "an invalid DSN": State(words=("--dsn", "host=")),
    "no server": State(words=("--dsn", "host=/nowhere port=1")),
    "housekeeping is due": State(sql=f"{IN_USE} set housekept_at = now() - interval '1 day'"),
    "applied by an older yamlsched": State(sql=f"{IN_USE} set yamlsched_version = '0.0.1'"),
    "applied with other time zone data": State(sql=f"{IN_USE} set tzdata_version = '2020a'"),
    "a changed migration": State(sql="update yamlsched.migrations set checksum = 'x'"),
    "newer tables": State(
        sql="insert into yamlsched.migrations (version, name, checksum) values (9999, 'x', 'x')"
    ),
    "no tables": State(sql="drop schema yamlsched cascade"),
    "included files": State(is_idle=True, words=SEVERAL),
    "files that are not included": State(is_idle=True, words=SEVERAL, edit=_ignored),
    "another main file": State(words=SEVERAL, edit=_other_main),
    "another pattern for the same files": State(words=SEVERAL, edit=_other_pattern),
    "a changed included file": State(words=SEVERAL, edit=_other_included),
    "one more included file": State(words=SEVERAL, edit=_more_included),
    "one fewer included file": State(words=SEVERAL, edit=_fewer_included),
    "an included file with another name": State(words=SEVERAL, edit=_renamed_included),
    "included files that are gone": State(words=SEVERAL, edit=_no_folder),
    "a due slot, and included files": State(words=SEVERAL, sql=f"{ENQUEUE}; {ENQUEUE_FIRST}"),
}


def _environment(folder: Path, dsn: str) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_VERSION"}
    return {**variables, "YAMLSCHED_DSN": dsn, "TMPDIR": str(folder), "PWD": str(folder)}


@pytest.fixture(scope="module")
def prepared(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str]]:
    """A folder, and the name of a database where its file is applied, and nothing is due."""
    folder = tmp_path_factory.mktemp("idle")
    _write_files(folder)
    with temporary_database(server, template) as dsn:
        # the first one applies the file, the second one does the housekeeping
        for file in ("schedules.yaml", "several.yaml") * 2:
            variables = {"YAMLSCHED_DSN": dsn, "TMPDIR": str(folder), "PWD": str(folder)}
            done = yamlsched("tick", "-q", "--file", file, cwd=folder, **variables)
            assert done.returncode == 0, done.stderr
        yield folder, str(conninfo_to_dict(dsn)["dbname"])


def _write_files(folder: Path) -> None:
    shutil.rmtree(folder / "jobs", ignore_errors=True)
    (folder / "jobs").mkdir()
    for name, text in {"schedules.yaml": SCHEDULE, **INCLUDED}.items():
        (folder / name).write_text(text)


def _tick(program: str, state: State, dsn: str, folder: Path) -> tuple[int, str, str, Any]:
    """Bring a copy of the prepared database to the state, and return what a tick there does."""
    _write_files(folder)
    state.edit(folder / "schedules.yaml")
    with psycopg.connect(dsn, autocommit=True) as connection:
        if state.sql:
            connection.execute(state.sql.encode())
        done = subprocess.run(
            [sys.executable, "-c", program, "tick", *state.words],
            cwd=folder,
            env={**_environment(folder, dsn), **state.environment},
            capture_output=True,
            text=True,
        )
        try:
            rows: Any = connection.execute(TABLES.encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            rows = "no tables"
    return done.returncode, ENDS.sub("_", done.stdout), ENDS.sub("_", done.stderr), rows


HANDED_OVER = ("an unknown option", "no server", "a due slot", "a due slot, and included files")
"""One state for each way to the command line: before the file is read, without a database, and with one."""


@pytest.mark.story
@pytest.mark.parametrize(
    "name", [*(name for name, state in STATES.items() if state.is_idle), *HANDED_OVER]
)
def test_a_tick_does_what_the_command_line_does_and_without_it_if_there_is_nothing_to_do(
    server: str, prepared: tuple[Path, str], name: str
) -> None:
    state, (folder, template) = STATES[name], prepared
    results = []
    with contextlib.ExitStack() as stack:
        for program in (LONG, SHORT):
            # an idle tick leaves the database as it was
            if not results or not state.is_idle or state.sql:
                dsn = stack.enter_context(temporary_database(server, template))
            results.append(_tick(program, state, dsn, folder))

    assert results[0] == results[1]
    assert (folder / "imported").read_text() == str(not state.is_idle)


@pytest.mark.parametrize("name", [name for name, state in STATES.items() if not state.is_idle])
def test_a_tick_that_has_something_to_do_is_left_to_the_command_line_as_it_is(
    place: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> None:
    state = STATES[name]
    [before] = place.execute("select now()").fetchone() or ()
    place.execute(state.sql.encode() or b"select")
    place.commit()
    state.edit(Path("schedules.yaml").absolute())
    for variable, value in state.environment.items():
        monkeypatch.setenv(variable, value)

    assert not idle.finds_nothing(["tick", *state.words])

    assert capfd.readouterr() == ("", "")
    writes = "select count(*) from yamlsched.hosts where seen_at > %s"
    if name != "no tables":
        assert place.execute(writes, [before]).fetchone() == (0,)


@pytest.fixture
def place(
    server: str, prepared: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[psycopg.Connection[Any]]:
    """A database in which a tick of this process finds nothing."""
    folder, template = prepared
    monkeypatch.chdir(folder)
    _write_files(folder)
    with temporary_database(server, template) as dsn:
        for name, value in _environment(folder, dsn).items():
            monkeypatch.setenv(name, value)
        with psycopg.connect(dsn) as connection:
            yield connection


def test_what_an_idle_tick_may_have_to_tell_others_is_left_to_the_command_line(
    place: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert idle.finds_nothing(["tick"])

    # it is not idle if a monitoring service, a plugin, or cron's next mail has to be told
    with monkeypatch.context() as context:
        context.setenv("YAMLSCHED_HEARTBEAT_URL_NIGHTLY", "http://localhost:1/")
        assert not idle.finds_nothing(["tick"])
    assert idle.MONITORS == monitors.VARIABLES
    with monkeypatch.context() as context:
        context.setattr(idle, "may_have_plugins", lambda: True)
        assert not idle.finds_nothing(["tick"])
    unsent = idle.permit_folder(Path("schedules.yaml")) / idle.CRON_UNSENT
    unsent.write_text("an error\n")
    assert idle.finds_nothing(["tick"])
    assert not idle.finds_nothing(["tick", "--cron"])
    unsent.unlink()


def test_an_idle_tick_notes_that_its_host_has_the_file_and_waits_for_no_lock(
    place: psycopg.Connection[Any],
) -> None:
    last = "select max(seen_at) from yamlsched.hosts"
    [before] = place.execute(last).fetchone() or ()
    place.commit()

    assert idle.finds_nothing(["tick"])

    [after] = place.execute(last).fetchone() or ()
    assert after > before
    place.execute("lock yamlsched.hosts")
    assert not idle.finds_nothing(["tick"])


def test_a_tick_that_has_something_to_do_counts_as_one_tick(
    place: psycopg.Connection[Any],
) -> None:
    # given a place that ticks each hour, and a due run
    place.execute(
        "update yamlsched.hosts set seen_at = now() - interval '1 hour',"
        " expected_until = now() + interval '1 hour'"
    )
    place.execute(ENQUEUE)
    place.commit()

    subprocess.run([sys.executable, "-m", "yamlsched", "tick", "-q"], check=True)

    # then it counts until the tick after the next one, and not for the time between two polls
    counts = "select expected_until - seen_at > interval '119 minutes' from yamlsched.hosts"
    assert place.execute(counts).fetchone() == (True,)


REASONS = {
    "__main__.py": "the tick that finds nothing does without the command line",
    "extras/mcp/cli.py": "an optional library",
    "extras/notify/sending.py": "an optional library",
    "extras/web/__init__.py": "optional libraries",
    "extras/web/cli.py": "optional libraries",
}


def test_imports_stand_at_the_top_of_modules() -> None:
    folder = ROOT / "yamlsched"
    with_others = set()
    for path in folder.rglob("*.py"):
        source = path.read_text("utf-8")
        if not re.search(r"^[^\S\n]+(?:import|from)\b", source, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                isinstance(inner, ast.Import | ast.ImportFrom) for inner in ast.walk(node)
            ):
                with_others.add(str(path.relative_to(folder)))

    assert with_others <= REASONS.keys()
