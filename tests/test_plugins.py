"""Plugins: what an installed package adds, and that one that fails stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import guides
from support.command_line import Cli, command_line
from yamlsched import plugin_manager
from yamlsched.cli import cli as root
from yamlsched.entry_points import may_have_plugins
from yamlsched.plugins import FileFinding

SCHEDULE = """\
version: 1
jobs:
  purge: {cron: "0 3 * * *", handler: gc.collect, tags: [billing]}
"""
IMPORTS = "import click\nfrom yamlsched.plugins import FileFinding, hookimpl\n"
FINDS = 'yield FileFinding("ACME001", "it has no owner", "Add one.", "purge", "tags")\n'
CHECK = f"{IMPORTS}@hookimpl\ndef check_file(schedule):\n    {FINDS}"
FAILS = 'raise ValueError("of the plugin")'
FOUND = """\
schedules.yaml:3:57: error[ACME001]: job "purge": it has no owner
 3 |   purge: {cron: "0 3 * * *", handler: gc.collect, tags: [billing]}
   |                                                         ^^^^^^^^^
   = Add one.
"""
Install = Callable[..., None]


def verb(places: str, more: str = "") -> str:
    return f"{IMPORTS}@hookimpl\ndef register_verbs():\n    return {places}\n{more}"


HELLO = "@click.command()\ndef hello():\n    click.echo('hello')\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package with a plugin, into a folder that this process imports from."""
    site = tmp_path / "site"
    site.mkdir()
    modules = []

    def forget() -> None:
        for cached in (plugin_manager.own, plugin_manager.installed):
            cached.cache_clear()
        vars(root).pop("installed", None)

    def install(
        code: str, name: str = "acme", metadata: str | None = None, entry: str = ""
    ) -> None:
        information = site / f"{name}-1.2.dist-info"
        information.mkdir()
        (information / "entry_points.txt").write_text(
            f"[yamlsched]\nrules = {entry or f'{name}_rules'}\n"
        )
        if metadata is None:
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"
        if metadata:
            (information / "METADATA").write_text(metadata)
        (site / f"{name}_rules.py").write_text(code)
        modules.append(f"{name}_rules")

    monkeypatch.syspath_prepend(site)
    forget()
    yield install
    forget()
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def cli(
    tmp_path: Path,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """A command line in a folder with SCHEDULE."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "schedules.yaml").write_text(SCHEDULE)
    return command_line(dsn, monkeypatch, capsys, folder)


def failures(err: str) -> list[str]:
    """Return the log lines about plugins that failed, without their time."""
    return [line.partition("ERROR   ")[2] for line in err.splitlines() if " plugin.failed " in line]


def failure(hook: str, error: str, plugin: str = "acme") -> str:
    return f"plugin.failed plugin={plugin} version=1.2 hook={hook} error={json.dumps(error)}"


def test_a_function_that_wraps_a_hook_is_called_as_pluggy_does(cli: Cli, install: Install) -> None:
    wraps = "    return [*(yield), {'hello': 'acme_rules:hello'}]\n"
    install(f"{IMPORTS}@hookimpl(wrapper=True)\ndef register_verbs():\n{wraps}{HELLO}")

    assert cli("hello").out == "hello\n"


def test_a_finding_is_an_error_of_validate_and_of_diff(cli: Cli, install: Install) -> None:
    install(CHECK)

    validated, compared = cli("validate"), cli("diff", "./schedules.yaml")

    assert (validated.code, validated.out) == (
        1,
        FOUND + "\nschedules.yaml: 1 error, 0 warnings in 1 job\n",
    )
    assert (compared.code, compared.out, compared.err) == (1, "", FOUND)


@pytest.mark.parametrize("verb", ["sync", "tick"])
def test_a_finding_is_logged_once_where_the_file_is_applied(
    cli: Cli, install: Install, verb: str
) -> None:
    install(CHECK)

    first, second = cli(verb), cli(verb)

    logged = 'code=ACME001 error="job \\"purge\\": it has no owner" remedy="Add one."'
    assert first.code == second.code == 0
    assert (
        first.err.count("WARNING file.flagged file=") == first.err.count(f" line=3 {logged}\n") == 1
    )
    assert "sync.applied" in first.err
    assert "file.flagged" not in second.err


@pytest.mark.parametrize("format", ["concise", "json", "github", "sarif"])
def test_every_format_has_a_finding(cli: Cli, install: Install, format: str) -> None:
    install(CHECK)

    done = cli("validate", "--format", format)

    assert done.code == 1
    assert "ACME001" in done.out
    assert done.err == ""
    if format == "sarif":
        [rule] = json.loads(done.out)["runs"][0]["tool"]["driver"]["rules"]
        assert rule == {"id": "ACME001", "shortDescription": {"text": "ACME001, of a plugin"}}


def test_a_comment_suppresses_a_finding_and_is_not_reported_without_the_plugin(
    cli: Cli, install: Install
) -> None:
    ignored = SCHEDULE.rstrip("\n") + "  # yamlsched: ignore[ACME001]\n"
    Path("schedules.yaml").write_text(ignored)
    without = cli("validate")

    install(CHECK)
    plugin_manager.installed.cache_clear()
    with_plugin = cli("validate", "--strict")

    assert (without.code, without.out) == (with_plugin.code, with_plugin.out)
    assert without.out == "schedules.yaml: 1 job, no errors\n"


@pytest.mark.parametrize(
    ("finding", "position"),
    [
        ('"A message."', "1:1: error[ACME001]: A message."),
        ('"A message.", "", "purge"', '3:3: error[ACME001]: job "purge": A message.'),
        ('"A message.", "", "purge", "owner"', '3:3: error[ACME001]: job "purge": A message.'),
        ('"A message.", "", "purge", "cron"', '3:17: error[ACME001]: job "purge": A message.'),
        ('"A message.", "", "unknown", "cron"', "1:1: error[ACME001]: A message."),
        (r'"\x1b[2J::stop", "\n::error::x"', r"1:1: error[ACME001]: \x1b[2J::stop. \n::error::x"),
    ],
)
def test_a_finding_points_to_the_key_or_the_job_or_the_file(
    cli: Cli, install: Install, finding: str, position: str
) -> None:
    install(CHECK.replace(FINDS, f'yield FileFinding("ACME001", {finding})\n'))

    assert cli("validate", "--format", "concise").out == f"schedules.yaml:{position}\n"


def test_a_file_with_errors_is_not_checked_by_plugins(cli: Cli, install: Install) -> None:
    Path("schedules.yaml").write_text(SCHEDULE.replace("cron", "corn"))
    install(CHECK)

    done = cli("validate")

    assert done.code == 1
    assert "ACME001" not in done.out


def a_finding(**values: Any) -> str:
    return repr(FileFinding(**values))


def test_a_check_that_yields_wrong_types_is_logged_and_its_other_findings_are_reported(
    cli: Cli, install: Install
) -> None:
    bad = (
        '"text"',
        "None",
        'FileFinding(7, "x")',
        'FileFinding("YS101", "x")',
        'FileFinding("acme", "x", job=[])',
    )
    bad += ('FileFinding("a b", "x")', 'FileFinding("ACME002", b"x")')
    install(CHECK.replace(FINDS, f"yield from ({', '.join(bad)})\n    {FINDS}"))

    done = cli("validate")

    assert done.out.startswith(FOUND)
    assert failures(done.err) == [
        failure("check_file", f"{finding} is not a FileFinding of strings with a code like ACME001")
        for finding in (
            "'text'",
            "None",
            a_finding(code=7, message="x"),
            a_finding(code="YS101", message="x"),
            a_finding(code="acme", message="x", job=[]),
            a_finding(code="a b", message="x"),
            a_finding(code="ACME002", message=b"x"),
        )
    ]


def test_of_a_check_that_does_not_end_the_first_1000_findings_are_reported(
    cli: Cli, install: Install
) -> None:
    install(CHECK.replace(FINDS, f"while True:\n        {FINDS}"))

    assert cli("validate", "--format", "concise").out.count("ACME001") == 1_000
    assert cli("sync").err.count("file.flagged") == 1_000


CRASHES = {
    "import": (FAILS, "import", "ValueError: of the plugin"),
    "import error": (
        "import no_such_module",
        "import",
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "syntax": ("def (", "import", "SyntaxError: invalid syntax (acme_rules.py, line 1)"),
    "exit": ("raise SystemExit(3)", "import", "SystemExit: 3"),
    "check": (CHECK.replace(FINDS, FAILS), "check_file", "ValueError: of the plugin"),
    "exit of check": (CHECK.replace(FINDS, "raise SystemExit(3)"), "check_file", "SystemExit: 3"),
    "generator": (
        CHECK.replace(FINDS, f"{FAILS}\n    yield"),
        "check_file",
        "ValueError: of the plugin",
    ),
    "no generator": (
        CHECK.replace(FINDS, "return 7"),
        "check_file",
        "TypeError: 'int' object is not iterable",
    ),
}


@pytest.mark.parametrize(
    ("verb", "crash"),
    [
        *(("validate", crash) for crash in CRASHES),
        *((verb, crash) for verb in ("sync", "tick") for crash in ("exit", "check")),
    ],
)
def test_a_plugin_that_fails_is_logged_and_stops_nothing_not_even_another_plugin(
    cli: Cli, install: Install, verb: str, crash: str
) -> None:
    code, hook, error = CRASHES[crash]
    install(code)
    install(CHECK, "other")

    done = cli(verb)

    assert failures(done.err) == [failure(hook, error)]
    assert "ACME001" in done.out + done.err
    assert done.code == (verb == "validate")
    assert ("sync.applied" in done.err) == (verb != "validate")


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("def check_file(unknown):\n    pass", "unknown"),
        ("def no_such_hook():\n    pass", "unknown hook 'no_such_hook'"),
    ],
)
def test_a_hook_that_does_not_exist_or_with_an_unknown_parameter_is_logged(
    cli: Cli, install: Install, hook: str, error: str
) -> None:
    install(f"{IMPORTS}@hookimpl\n{hook}\n")

    done = cli("validate")

    [line] = failures(done.err)
    assert line.startswith(
        'plugin.failed plugin=acme version=1.2 hook=import error="PluginValidationError: '
    )
    assert error in line
    assert done.code == 0


def test_a_command_of_a_plugin_is_executed_listed_and_suggested(cli: Cli, install: Install) -> None:
    install(
        verb(
            '{"hello": "acme_rules:hello"}', HELLO.replace("()\n", '(help="Greet. Politely.")\n', 1)
        )
    )

    assert cli("hello") == (0, "hello\n", "")
    assert "\nOther:\n  hello       Greet.\n" in cli("--help").out
    assert 'no command "helo". Did you mean "hello"?' in cli("helo").err
    assert cli("hello", "--no-such").code == 2


def test_the_exit_code_of_a_plugins_command_is_what_it_returns(cli: Cli, install: Install) -> None:
    install(verb('{"hello": "acme_rules:hello"}', HELLO.replace("click.echo('hello')", "return 1")))

    assert cli("hello").code == 1


def test_a_plugins_command_that_raises_is_a_bug_of_the_plugin(cli: Cli, install: Install) -> None:
    install(verb('{"hello": "acme_rules:hello"}', HELLO.replace("click.echo('hello')", FAILS)))

    done = cli("hello")

    assert done.code == 3
    last = (
        "yamlsched: this is a bug in the plugin acme; please report the lines above to its authors"
    )
    assert done.err.splitlines()[-2:] == ["ValueError: of the plugin", last]


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("no_such_module:hello", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("acme_rules:no", "AttributeError: module 'acme_rules' has no attribute 'no'"),
        ("acme_rules:IMPORTANT", "acme_rules:IMPORTANT is not a click command"),
    ],
)
def test_a_command_that_cannot_be_loaded_fails_by_itself_only(
    cli: Cli, install: Install, place: str, error: str
) -> None:
    install(verb(f'{{"hello": "{place}", "bye": "acme_rules:hello"}}', f"{HELLO}\nIMPORTANT = 7\n"))

    failed, listed, checked = cli("hello", "--any"), cli("--help"), cli("doctor", "--offline")

    label = f'the command "hello" of the plugin acme cannot be loaded: {error}'
    assert (failed.code, failed.out, failed.err) == (3, "", f"yamlsched: {label}\n")
    assert "  hello       (cannot be loaded)\n" in listed.out
    assert cli("bye") == (0, "hello\n", "")
    assert f"fail  plugin acme  1.2 has failed: {label}\n" in checked.out


def test_of_two_plugins_with_one_command_the_first_by_name_has_it_and_the_log_names_both(
    cli: Cli, install: Install
) -> None:
    for name in ("zeta", "acme"):
        install(
            verb(f'{{"hello": "{name}_rules:hello"}}', HELLO.replace("'hello'", f"'{name}'")), name
        )

    done = cli("hello")

    assert (done.code, done.out) == (0, "acme\n")
    assert failures(done.err) == [
        failure("register_verbs", 'acme already has a command "hello"', "zeta")
    ]


@pytest.mark.parametrize("name", ["tick", "web"])
def test_no_plugin_can_replace_a_command_of_yamlsched(
    cli: Cli, install: Install, name: str
) -> None:
    install(verb(f'{{"{name}": "acme_rules:hello", "hello": "acme_rules:hello"}}', HELLO))

    done, replaced = cli("hello"), cli(name, "--help")

    assert failures(done.err) == [
        failure("register_verbs", f'yamlsched already has a command "{name}"')
    ]
    assert "hello" not in replaced.out


@pytest.mark.parametrize(
    "places",
    [
        '{"../x": "acme_rules:hello"}',
        '{"--file": "acme_rules:hello"}',
        '{"a b": "acme_rules:hello"}',
        '{"\\x1b[2J": "acme_rules:hello"}',
        '{"": "acme_rules:hello"}',
        '{7: "acme_rules:hello"}',
        '{"x" * 41: "acme_rules:hello"}',
        '{"hello": "acme_rules"}',
        '{"hello": "../acme_rules:hello"}',
        '{"hello": "acme_rules:hello()"}',
        '{"hello": None}',
        "7",
        '["hello"]',
    ],
)
def test_a_hostile_or_wrong_command_is_logged_on_one_line_and_not_listed(
    cli: Cli, install: Install, places: str
) -> None:
    install(verb(places, HELLO))

    done = cli("--help")

    assert done.code == 0
    assert len(failures(done.err)) == len(done.err.splitlines()) == 1
    assert "Other:" not in done.out
    assert done.err.rstrip("\n").isprintable()


def test_the_name_of_a_package_cannot_control_the_terminal(cli: Cli, install: Install) -> None:
    install(
        "raise ValueError('\\x1b[2J\\nplugin.failed')", metadata="Name: \x1b[2Jx\nVersion: 1\x07\n"
    )

    done = cli("doctor", "--offline")

    assert (done.out + done.err).replace("\n", "").isprintable()
    assert len(failures(done.err)) == 1
    assert "plugin \\x1b[2Jx" in done.out


@pytest.mark.parametrize("metadata", ["", "Version: 2\n", "Name: acme\n"])
def test_a_package_with_incomplete_metadata_is_a_plugin(
    cli: Cli, install: Install, metadata: str
) -> None:
    install(CHECK, metadata=metadata)

    assert cli("validate").out.startswith(FOUND)
    assert cli("doctor", "--offline").out.count("  plugin ") == 1


def test_doctor_lists_plugins_with_their_version_and_fails_for_one_that_fails(
    cli: Cli, install: Install
) -> None:
    install(CHECK)
    install(CHECK.replace(FINDS, FAILS), "zeta")

    offline = cli("doctor", "--offline")

    assert "ok    plugin acme  1.2: check_file\n" in offline.out
    assert "fail  plugin zeta  1.2 has failed: ValueError: of the plugin\n" in offline.out
    assert offline.code == 1
    assert "plugin acme" in cli("doctor").out


DATABASE = """\
from contextlib import contextmanager
@hookimpl
def database(file, is_requested):
    return opened(file)
@contextmanager
def opened(file):
    print("opened", file)
    yield {dsn!r}
    print("closed")
"""


def test_a_plugin_can_have_the_database(
    cli: Cli, install: Install, own_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("YAMLSCHED_DSN")
    install(IMPORTS + DATABASE.format(dsn=own_dsn))

    done = cli("sync", "-q")

    assert (done.code, done.err) == (0, "")
    assert done.out == "opened schedules.yaml\nclosed\n"


@pytest.mark.parametrize("broken", ["return 7", FAILS, "return opened(file, 1)"])
def test_if_a_plugin_fails_to_have_the_database_the_next_one_is_asked(
    cli: Cli, install: Install, own_dsn: str, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.delenv("YAMLSCHED_DSN")
    install(IMPORTS + DATABASE.replace("return opened(file)", broken).format(dsn=""))
    install(IMPORTS + DATABASE.format(dsn=own_dsn), "other")

    done = cli("sync")

    assert done.code == 0
    assert done.out.startswith("opened schedules.yaml\n")
    assert [" hook=database " in line for line in failures(done.err)] == [True]


def test_the_reason_of_a_plugin_why_there_is_no_database_is_reported(
    cli: Cli, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("YAMLSCHED_DSN")
    raises = "from yamlsched.errors import EnvironmentFailed\n    raise EnvironmentFailed('the vault is sealed')"
    install(IMPORTS + DATABASE.replace("return opened(file)", raises).format(dsn=""))

    assert cli("sync") == (3, "", "yamlsched: the vault is sealed\n")


JOBS = """\
version: 1
jobs:
  good: {handler: gc.collect}
  bad: {handler: json.loads, payload: {s: "{"}, max_attempts: 1}
"""
LISTENS = f"""\
{IMPORTS}
@hookimpl
def attempt_started(run):
    with open("noted", "a") as file:
        print("started", run.job_type, file=file)
@hookimpl
def attempt_ended(run, status, seconds, error_type):
    with open("noted", "a") as file:
        print(status, run.job_type, type(seconds).__name__, error_type, file=file)
"""


NOTES = f"""\
import asyncio, os
{IMPORTS}
def note(*words):
    with open(os.environ["NOTED"], "a") as file:
        print(*words, file=file)
@hookimpl
def worker_started(worker, environment):
    return [beside]
async def beside(worker):
    note("worker", worker.workload.namespace)
    try:
        await asyncio.sleep(60)
    finally:
        note("worker ends")
@hookimpl
def tick_ended(environment, namespace, is_healthy, skipped):
    return lambda: note("tick", environment, namespace, is_healthy)
@hookimpl
def run_enqueued(job, count, namespace, key):
    note("enqueue", job, count, namespace, key)
    return lambda ids, error: note("enqueued", len(ids), type(error).__name__)
@hookimpl
def handler_started(run, namespace, redact):
    note("handler", run.job_type, namespace, redact(os.environ["YAMLSCHED_DSN"]) == "")
    return lambda end: note("handler ends", run.job_type, (end and end.error_type) or None)
@hookimpl
def trace_context():
    return "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=1"
@hookimpl
def process_exiting():
    note("process exits")
"""
WORKS = """\
version: 1
jobs:
  fans: {handler: fans.run, max_attempts: 1}
  shows: {command: ["/bin/sh", "-c", 'echo "$TRACEPARENT $TRACESTATE"; exit 3'], max_attempts: 1}
"""


def a_tick(folder: Path, dsn: str) -> subprocess.CompletedProcess[str]:
    """Run what is due, in a process whose installed packages are those of ``install``."""
    environment = {**os.environ, "PYTHONPATH": str(folder.parent / "site"), "YAMLSCHED_DSN": dsn}
    command = [sys.executable, "-m", "yamlsched", "tick", "--concurrency", "1"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def enqueued(cli: Cli) -> None:
    """Two runs of one job that succeeds, and one of a job that dies."""
    Path("schedules.yaml").write_text(JOBS)
    assert cli("sync", "-q").code == 0
    for job in ("good", "bad", "good"):
        assert cli("enqueue", job).code == 0


@pytest.mark.story
@pytest.mark.usefixtures("enqueued")
def test_the_hooks_about_attempts_are_called_for_each_attempt(install: Install, dsn: str) -> None:
    install(LISTENS)

    done = a_tick(Path.cwd(), dsn)

    assert failures(done.stderr) == []
    noted = sorted(Path("noted").read_text().splitlines())
    assert noted[0].startswith("dead bad ")
    assert noted[0].endswith(" JSONDecodeError")
    assert noted[1:] == [
        "started bad",
        "started good",
        "started good",
        "succeeded good float None",
        "succeeded good float None",
    ]


@pytest.mark.story
def test_the_hooks_about_workers_handlers_and_what_is_enqueued_are_called(
    cli: Cli,
    install: Install,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    db_of: Callable[[str], Any],
) -> None:
    # given a handler that enqueues a command, and a plugin with all hooks about execution
    Path("fans.py").write_text("def run(run): run.enqueue('shows', key='one')\n")
    Path("schedules.yaml").write_text(WORKS)
    assert cli("sync", "-q").code == 0
    assert cli("enqueue", "fans").code == 0
    monkeypatch.setenv("NOTED", str(Path.cwd() / "noted"))
    monkeypatch.setenv("YAMLSCHED_TRACE_PROPAGATE", "1")
    monkeypatch.setenv("YAMLSCHED_ENV", "")
    install(NOTES)

    # when a tick runs both
    done = a_tick(Path.cwd(), dsn)

    # then each hook is called where it says
    assert failures(done.stderr) == []
    noted = Path("noted").read_text().splitlines()
    handled = [line for line in noted if line.startswith(("handler", "enqueue"))]
    assert handled == [
        "handler fans default False",
        "enqueue shows 1 default one",
        "enqueued 0 NoneType",
        "handler ends fans None",
        "handler shows default False",
        "handler ends shows exit code 3",
    ]
    assert noted[0] == "worker default"
    assert noted.index("worker ends") < noted.index("process exits")
    assert noted[-1] == "tick None default False"
    [kept] = db_of(dsn).execute(
        "select trace_context from yamlsched.job_runs where job_type = 'shows'"
    )
    assert kept[0] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=1"
    [printed] = db_of(dsn).execute("select output from yamlsched.attempt_outputs")
    assert printed[0].strip() == kept[0]


@pytest.mark.story
@pytest.mark.usefixtures("enqueued")
@pytest.mark.parametrize(
    ("hook", "code"),
    [
        ("worker_started", FAILS),
        ("worker_started", "return [fails]"),
        ("tick_ended", FAILS),
        ("tick_ended", "return lambda: 1 / 0"),
        ("handler_started", FAILS),
        ("handler_started", "return lambda end: 1 / 0"),
        ("trace_context", FAILS),
        ("process_exiting", FAILS),
    ],
)
def test_a_plugin_that_fails_in_a_hook_about_execution_changes_no_run(
    install: Install, dsn: str, db_of: Callable[[str], Any], hook: str, code: str
) -> None:
    install(f"{IMPORTS}async def fails(worker): 1 / 0\n@hookimpl\ndef {hook}():\n    {code}\n")

    done = a_tick(Path.cwd(), dsn)

    assert done.returncode == 1
    assert " plugin.failed " in done.stderr or hook in ("handler_started", "trace_context")
    rows = (
        db_of(dsn)
        .execute("select status, count(*) from yamlsched.job_runs group by 1 order by 1")
        .fetchall()
    )
    assert [tuple(row) for row in rows] == [("dead", 1), ("succeeded", 2)]


@pytest.mark.story
@pytest.mark.usefixtures("enqueued")
@pytest.mark.parametrize("hook", ["attempt_started", "attempt_ended"])
def test_a_plugin_that_fails_in_a_hook_about_attempts_is_logged_once_and_changes_no_run(
    install: Install, dsn: str, db_of: Callable[[str], Any], hook: str
) -> None:
    install(f"{IMPORTS}@hookimpl\ndef {hook}(run):\n    {FAILS}\n")
    install(LISTENS, "other")

    done = a_tick(Path.cwd(), dsn)

    assert failures(done.stderr) == [failure(hook, "ValueError: of the plugin")]
    assert len(Path("noted").read_text().splitlines()) == 6
    rows = (
        db_of(dsn)
        .execute("select status, count(*) from yamlsched.job_runs group by 1 order by 1")
        .fetchall()
    )
    assert [tuple(row) for row in rows] == [("dead", 1), ("succeeded", 2)]


@pytest.mark.story
def test_the_package_of_the_page_works_as_shown_once_it_is_installed(
    tmp_path: Path, dsn: str
) -> None:
    # given what pip writes for the package of the page
    files = {
        step.what: "\n".join(step.lines)
        for step in guides.steps("plugins.md")
        if step.kind == "write"
    }
    project = tomllib.loads(files["acme-rules/pyproject.toml"])["project"]
    information = tmp_path / "acme-rules" / "acme_rules-1.2.dist-info"
    information.mkdir(parents=True)
    entries = [f"{name} = {place}" for name, place in project["entry-points"]["yamlsched"].items()]
    (information / "entry_points.txt").write_text("\n".join(["[yamlsched]", *entries]))
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (information / "METADATA").write_text(metadata)

    # when the commands of the page are executed
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(information.parent), "YAMLSCHED_DSN": dsn}
    wrong = guides.problems("plugins.md", tmp_path, environment, {})

    # then they print what the page shows
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("acme-1.dist-info", "[yamlsched]\nrules = acme\n", True),
        ("acme-1.egg-info", "[console_scripts]\na = b\n\n [ yamlsched ] \nrules = acme\n", True),
        ("acme-1.dist-info", "[console_scripts]\nyamlsched = yamlsched.__main__:main\n", False),
        ("acme-1.dist-info", "[yamlsched_other]\nx = [yamlsched]\n", False),
        ("acme", "[yamlsched]\nrules = acme\n", False),
    ],
)
def test_a_worker_reads_all_entry_points_only_if_a_package_may_have_one_for_yamlsched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, expected: bool
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "entry_points.txt").write_text(content)
    (tmp_path / "empty-1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", ["/no/such/folder", str(tmp_path)])

    assert may_have_plugins() is expected


def test_a_worker_reads_all_entry_points_if_it_imports_from_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all.zip").write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "all.zip")])

    assert may_have_plugins()
