"""Commands in real child processes: what the program gets, what its exit means, and what is killed when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.project import is_alive, until
from yamlsched.handler import programs
from yamlsched.handler.programs import Program, with_last_lines
from yamlsched.handler.run import Trigger
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind
from yamlsched.schedule.commands import directory_obstacle, program_obstacle
from yamlsched.schedule.job import ExitCodes, Job
from yamlsched.worker import clock
from yamlsched.worker.attempt import Attempt, Ended, EventQueue, Succeeded, Workload
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.local.pool import Pool
from yamlsched.worker.permits import ConcurrencyPermits

RETURNED = AttemptEnd(EndKind.RETURNED)
STOPPED = AttemptEnd(EndKind.RELEASED, "stopped by the test")
SPOIL = """
import os, signal
def spoil(folder):
    os.environ.update(SPOILT="yes", PATH="/nowhere")
    os.environ.pop("HOME", None)
    os.umask(0o777)
    os.chdir("/")
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
"""
REPORT = """
import json, os, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
found = {
    "env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[1:], "stdin": sys.stdin.read(),
    "files": sorted(os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 3),
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16) & ~(3 << 31),
    "umask": os.umask(0), "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
}
open("report", "w").write(json.dumps(found))
"""


class PoolOfOne:
    """A pool of one child process for commands."""

    def __init__(self, folder: Path) -> None:
        (folder / "spoils.py").write_text(SPOIL)
        self.folder, self.events = folder, EventQueue()
        workload = Workload("", "default", {}, ClaimScope(), folder / "schedules.yaml")
        self.pool = Pool(workload, ConcurrencyPermits(folder / "permits", 1), self.events)
        self.ends: dict[int, AttemptEnd] = {}

    def submit(self, id: int = 1, payload: str = "{}", **job: Any) -> Attempt:
        run = ClaimedRun(id, "job", None, None, 1, 5, payload, False, 60.0, "host:1:a")
        attempt = Attempt(run, Job("job", **job), clock.now() + 60, clock.now())
        self.pool.submit([attempt])
        return attempt

    async def end(self, attempt: Attempt) -> AttemptEnd:
        """Wait for the end of ``attempt``, and return it."""
        while attempt.run.id not in self.ends:
            for event in await self.events.wait():
                if isinstance(event, Succeeded):
                    self.ends |= {done.run.id: RETURNED for done in event.attempts}
                elif isinstance(event, Ended):
                    self.ends[event.attempt.run.id] = event.end._replace(enqueued=(), usage=None)
            self.pool.check()
        return self.ends[attempt.run.id]

    async def run(self, *argv: str, **job: Any) -> AttemptEnd:
        return await self.end(self.submit(command=argv, **job))

    async def sh(self, script: str, **job: Any) -> AttemptEnd:
        return await self.run("/bin/sh", "-c", script, **job)

    async def read(self, name: str) -> int:
        """Wait until the program has written a process id into a file, and return it."""
        while not (path := self.folder / name).exists() or not path.read_text().endswith("\n"):
            await asyncio.sleep(0.005)
        return int(path.read_text())

    def child(self) -> int:
        return next(iter(self.pool._children))


def story(folder: Path, tell: Callable[[Pool], Coroutine[Any, Any, None]]) -> None:
    """Run ``tell`` with a pool in ``folder``."""

    async def told() -> None:
        pool = PoolOfOne(folder)
        ticker = asyncio.create_task(check_regularly(pool))
        try:
            await tell(pool)
        finally:
            ticker.cancel()
            await pool.pool.close()

    async def check_regularly(pool: Pool) -> None:
        while True:
            await asyncio.sleep(0.02)
            pool.pool.check()
            pool.events.wake()

    asyncio.run(asyncio.wait_for(told(), 60))


def are_dead(*pids: int) -> None:
    for pid in pids:
        until(lambda pid=pid: not is_alive(pid), f"process {pid} has ended")


# -- what the program gets


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_a_program_gets_none_of_the_secrets_that_yamlsched_reads() -> None:
    run = ClaimedRun(1, "job", None, None, 1, 5, "{}", False, 60.0, "host:1:a")
    secrets = (
        "YAMLSCHED_DSN",
        "YAMLSCHED_ACTIONS_DSN",
        "YAMLSCHED_WEB_USERS",
        "YAMLSCHED_HEARTBEAT_URL_JOB",
        "YAMLSCHED_SENTRY_DSN",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "PGPASSFILE",
    )
    kept = (
        "YAMLSCHED_ENV",
        "YAMLSCHED_NAMESPACE",
        "YAMLSCHED_FILE",
        "MY_PG",
        "OTEL_SERVICE_NAME",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    )

    inherited = {name.encode(): b"value" for name in (*secrets, *kept)}
    found = Program.from_job(Job("job", command=("true",), env={"PGPASSFILE": "own"})).environment(
        inherited, run
    )

    assert found[b"PGPASSFILE"] == b"own"
    assert not {name.encode() for name in secrets[:-1]} & found.keys()
    assert {name.encode() for name in kept} <= found.keys()


def test_a_program_starts_in_a_directory_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"l\xe4t")
    (folder / "scripts").mkdir(parents=True)

    async def tell(pool: Pool) -> None:
        assert await pool.run("touch", "here", cwd="scripts") == RETURNED

    story(folder, tell)

    assert (folder / "scripts" / "here").exists()


def test_a_program_gets_the_workers_environment_without_ours_and_then_its_own_and_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "scripts").mkdir()
    program = (sys.executable, "-c", REPORT, "ü", "", "a b", "*")
    payload = '{"a": "ö€\\"\'", "n": 1.0}'

    async def tell(pool: Pool) -> None:
        job = {
            "cwd": "scripts",
            "env": {"GREETING": "grüß dich", "PGHOST": "db.internal"},
            "stdin": "line ä\n",
        }
        spoiler = pool.submit(1, '{"folder": ""}', handler="spoils.spoil")
        assert await pool.end(spoiler) == RETURNED
        attempt = pool.submit(7, payload, command=program, **job)
        attempt.run = attempt.run._replace(
            key="k:1", scheduled_for="2026-01-14T02:00:00+01:00", attempt=2
        )
        assert await pool.end(attempt) == RETURNED

    os.umask(before := os.umask(0o027))
    os.umask(0o027)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
    try:
        with environment(
            YAMLSCHED_DSN="secret", PGPASSWORD="secret", PGHOST="ours", KEPT="yes", GREETING="hello"
        ):
            story(tmp_path, tell)
    finally:
        os.umask(before)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGWINCH])

    found = json.loads((tmp_path / "scripts" / "report").read_text())
    env = found.pop("env")
    assert (
        found
        == {
            "cwd": str(tmp_path / "scripts"),
            "argv": ["ü", "", "a b", "*"],
            "stdin": "line ä\n",
            "files": [],
            "blocked": 0,
            "ignored": 0x1001000,  # what Python ignores itself: SIGPIPE and SIGXFSZ; 32 and 33 are glibc's own
            "umask": 0o027,
            "leads": True,
        }
    )
    assert {name: value for name, value in env.items() if name.startswith(("YAMLSCHED", "PG"))} == {
        "PGHOST": "db.internal",
        "YAMLSCHED_RUN_ID": "7",
        "YAMLSCHED_JOB": "job",
        "YAMLSCHED_KEY": "k:1",
        "YAMLSCHED_SCHEDULED_FOR": "2026-01-14T01:00:00Z",
        "YAMLSCHED_ATTEMPT": "2",
        "YAMLSCHED_MAX_ATTEMPTS": "5",
        "YAMLSCHED_PAYLOAD": payload,
    }
    assert (env["KEPT"], env["GREETING"], "SPOILT" in env, "HOME" in env) == (
        "yes",
        "grüß dich",
        False,
        True,
    )


def test_a_program_that_is_not_python_finds_no_signal_ignored(tmp_path: Path) -> None:
    async def tell(pool: Pool) -> None:
        assert await pool.sh("grep -E '^Sig(Ign|Blk)' /proc/self/status > report") == RETURNED

    story(tmp_path, tell)

    masks = [
        int(line.split("\t")[1], 16) for line in (tmp_path / "report").read_text().splitlines()
    ]
    assert [mask & ~(3 << 31) for mask in masks] == [
        0,
        0,
    ]  # 32 and 33 are glibc's own: posix_spawn may ignore them


def test_without_stdin_the_input_is_empty_and_a_run_without_key_and_slot_has_empty_variables(
    tmp_path: Path,
) -> None:
    async def tell(pool: Pool) -> None:
        script = 'set -u; cat; echo "[$YAMLSCHED_KEY][$YAMLSCHED_SCHEDULED_FOR]$(readlink /proc/self/fd/0)" > report'
        assert await pool.sh(script) == RETURNED

    story(tmp_path, tell)

    assert (tmp_path / "report").read_text() == "[][]/dev/null\n"


def test_ten_thousand_arguments_and_the_largest_payload_reach_the_program(tmp_path: Path) -> None:
    payload = json.dumps({"x": "€" * 21_800}, ensure_ascii=False)

    async def tell(pool: Pool) -> None:
        script = 'echo "$# $YAMLSCHED_PAYLOAD" > report'
        command = ("/bin/sh", "-c", script, "sh", *map(str, range(10_000)))
        assert await pool.end(pool.submit(1, payload, command=command)) == RETURNED

    assert 65_000 < len(payload.encode()) <= 65_536
    story(tmp_path, tell)

    assert (tmp_path / "report").read_text() == f"10000 {payload}\n"


def test_a_program_may_exit_without_reading_its_input(tmp_path: Path) -> None:
    async def tell(pool: Pool) -> None:
        assert await pool.sh("exit 0", stdin="x" * 65_536) == RETURNED
        assert (
            await pool.end(
                pool.submit(2, command=("/bin/sh", "-c", "wc -c > n"), stdin="x" * 65_536)
            )
            == RETURNED
        )

    story(tmp_path, tell)

    assert (tmp_path / "n").read_text().strip() == "65536"


# -- what its exit means

CODES = st.integers(0, 255)


@st.composite
def exit_codes(draw: st.DrawFn) -> ExitCodes:
    codes = draw(st.lists(CODES, unique=True, max_size=9))
    success, discard, later = codes[0::3], codes[1::3], codes[2::3]
    return ExitCodes(
        tuple(success), tuple(discard), {code: timedelta(seconds=code + 1) for code in later}
    )


@given(exit_codes(), st.integers(-64, 255))
def test_every_exit_has_one_meaning(codes: ExitCodes, status: int) -> None:
    end = Program.from_job(Job("job", command=("x",), exit_codes=codes)).end(status)

    if status in codes.success:
        assert end is None
    else:
        assert end is not None
        kind = EndKind.RETRY_AFTER if status in codes.retry_after else EndKind.RAISED
        assert end.kind is (EndKind.DISCARDED if status in codes.discard else kind)
        assert end.delay == codes.retry_after.get(status)
        name = f"exit code {status}" if status >= 0 else f"signal {-status}"
        assert name in end.error_type


@given(st.text(max_size=2_000))
def test_an_error_has_at_most_the_last_three_lines_of_the_output(output: str) -> None:
    end = with_last_lines(AttemptEnd(EndKind.RAISED, "", "exit code 1"), output)

    assert 0 < len(end.error) <= 300
    assert with_last_lines(end, "more") == end
    assert with_last_lines(RETURNED, output) == RETURNED


def test_an_attempt_ends_as_its_exit_code_says(tmp_path: Path) -> None:
    codes = ExitCodes((0, 1), (64,), {75: timedelta(minutes=15)})

    async def tell(pool: Pool) -> None:
        async def end(id: int, script: str) -> AttemptEnd:
            command = ("/bin/sh", "-c", script)
            return (await pool.end(pool.submit(id, command=command, exit_codes=codes)))._replace(
                output=""
            )

        assert await end(1, "exit 1") == RETURNED
        failed = AttemptEnd(EndKind.RAISED, "one / two / dump: no such host", "exit code 3")
        assert (
            await end(2, "echo zero; echo one; echo two; echo; echo dump: no such host >&2; exit 3")
            == failed
        )
        assert await end(3, "exit 64") == AttemptEnd(EndKind.DISCARDED, "no output", "exit code 64")
        later = AttemptEnd(
            EndKind.RETRY_AFTER, "no output", "exit code 75", delay=timedelta(minutes=15)
        )
        assert await end(4, "exit 75") == later
        killed = AttemptEnd(EndKind.RAISED, "no output", "killed by SIGKILL (signal 9)")
        assert await end(5, "kill -9 $$") == killed

    story(tmp_path, tell)


def test_output_that_is_not_text_is_kept_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def tell(pool: Pool) -> None:
        end = await pool.sh(r"printf 'a\377\000b\n'; printf '\033[31mred'; exit 1")
        assert (end.output, end.error) == ("a\ufffd\0b\n\x1b[31mred", "a\ufffd\0b / \x1b[31mred")

    story(tmp_path, tell)

    assert capsys.readouterr().err == "[job 1] a\ufffd\\x00b\n[job 1] \\x1b[31mred\n"


def test_a_long_line_is_left_out_of_an_error_and_the_last_one_never_is() -> None:
    def error(output: str) -> str:
        return with_last_lines(AttemptEnd(EndKind.RAISED, "", "exit code 1"), output).error

    assert error("a\nb\nc\nd\n") == "b / c / d"
    assert error(f"{'x' * 300}\nno disk\n") == "no disk"
    assert error(f"a\n{'x' * 290}\nno disk\n") == f"{'x' * 290} / no disk"
    assert error(f"a\n{'x' * 400}no disk\n") == f"{'x' * 293}no disk"
    assert error(" \n\n") == "no output"


# -- what cannot be started


@pytest.mark.parametrize(
    "argv, cwd, error",
    [
        (["no-such-program"], None, "FileNotFoundError: cannot be started: No such file or"),
        (["./missing"], None, "cannot be started: No such file or directory: ./missing"),
        (["./plain"], None, "PermissionError: cannot be started: Permission denied: ./plain"),
        (["./folder"], None, "Permission denied: ./folder"),
        (["./data"], None, "OSError: cannot be started: Exec format error: ./data"),
        (["./script"], None, "No such file or directory: ./script"),
        (["/bin/sh"], "no/such", "/no/such"),
        (["/bin/true", *["x" * 32_767] * 200], None, "Argument list too long: /bin/true"),
    ],
)
def test_a_program_that_no_retry_can_start_makes_the_run_dead(
    tmp_path: Path, argv: list[str], cwd: str | None, error: str
) -> None:
    (tmp_path / "folder").mkdir()
    files = {
        "plain": "",
        "data": "no program",
        "script": "#!/no/such/interpreter\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o644 if name == "plain" else 0o755)

    async def tell(pool: Pool) -> None:
        end = await pool.run(*argv, cwd=cwd)
        assert end.kind is EndKind.DISCARDED
        assert error in f"{end.error_type}: {end.error}"

    story(tmp_path, tell)


def test_a_program_that_is_being_written_is_retried(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "program").chmod(0o755)

    async def tell(pool: Pool) -> None:
        end = await pool.run("./program")
        assert (end.kind, end.error) == (
            EndKind.RAISED,
            "cannot be started: Text file busy: ./program",
        )

    with (tmp_path / "program").open("a"):
        story(tmp_path, tell)


def test_validate_finds_what_makes_a_script_fail_to_start(tmp_path: Path) -> None:
    files = {
        "empty": "",
        "data": "exit 0\n",
        "typo": "#!/bin/shh -e\n",
        "dos": "#!/bin/sh\r\n",
        "good": "#!/bin/sh\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    found = {name: program_obstacle(f"./{name}", str(tmp_path), "/bin") for name in files}

    assert {name: obstacle and obstacle.message for name, obstacle in found.items()} == {
        "empty": '"./empty" has no #! line',
        "data": '"./data" has no #! line',
        "typo": 'the first line of "./typo" names "/bin/shh", which does not exist',
        "dos": 'the first line of "./dos" names "/bin/sh\\r", which does not exist',
        "good": None,
    }
    # as the system finds too, at the latest
    for name, obstacle in found.items():
        status = None
        with contextlib.suppress(OSError):
            status = subprocess.run([tmp_path / name], check=False).returncode
        assert (status == 0) is (obstacle is None)


# -- what is killed

GROUP = "sleep 1000 & echo $! > grandchild; echo $$ > program; "


def test_a_timeout_kills_the_whole_process_group(tmp_path: Path) -> None:
    async def tell(pool: Pool) -> None:
        attempt = pool.submit(
            command=("/bin/sh", "-c", GROUP + "wait"), timeout=timedelta(seconds=0.3)
        )
        pids = [await pool.read("program"), await pool.read("grandchild")]

        end = await pool.end(attempt)

        assert attempt.stopped == AttemptEnd(
            EndKind.RAISED, "still running after 0.3s, killed", "Timeout"
        )
        assert (end.error, end.error_type) == (
            "stopped by yamlsched",
            "killed by SIGTERM (signal 15)",
        )
        are_dead(*pids)

    story(tmp_path, tell)


def obstacle_of_another_user(program: str, cwd: str) -> str:
    """Return why a user with no rights of ours cannot start ``program`` in ``cwd``."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        if os.getuid() == 0:
            os.setuid(65534)
        found = directory_obstacle(cwd, cwd) or program_obstacle(program, "/", "/bin")
        os.write(writing, found.message.encode() if found else b"")
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as answer:
        return answer.read()


def test_a_program_in_a_folder_that_the_user_may_not_enter_is_not_said_to_be_missing() -> None:
    with tempfile.TemporaryDirectory() as home:
        closed = Path(home, "closed")
        closed.mkdir()
        (closed / "program").touch()
        Path(home).chmod(0o755)
        closed.chmod(0o700 if os.getuid() == 0 else 0)

        try:
            of_program = obstacle_of_another_user(f"{closed}/program", "/")
            of_folder = obstacle_of_another_user("/bin/true", f"{closed}/inside")
        finally:
            closed.chmod(0o700)

    assert of_program == f'"{closed}/program" does not exist or cannot be reached'
    assert of_folder == f'"{closed}/inside" is not a directory that this user can enter'


@pytest.mark.parametrize("who", ["program", "grandchild"])
def test_a_process_that_ignores_sigterm_is_killed_after_kill_after(
    tmp_path: Path, who: str
) -> None:
    ignores = "trap '' TERM; "
    scripts = {
        "program": ignores + GROUP + "while :; do sleep 1000; done",
        "grandchild": f"(trap '' TERM; while :; do sleep 1000; done) & echo $! > grandchild; {GROUP[31:]} wait",
    }

    async def tell(pool: Pool) -> None:
        kill_after = timedelta(seconds=0.3)
        attempt = pool.submit(command=("/bin/sh", "-c", scripts[who]), kill_after=kill_after)
        pids = [await pool.read("program"), await pool.read("grandchild")]
        attempt.stopped = STOPPED
        stopped_at = clock.now()
        pool.pool.stop([attempt])

        await pool.end(attempt)

        assert clock.now() - stopped_at >= 0.3
        are_dead(*pids)

    story(tmp_path, tell)


def test_a_program_may_use_the_time_until_kill_after_and_its_success_does_not_count(
    tmp_path: Path,
) -> None:
    script = (
        "trap 'echo tidy > report; exit 0' TERM; echo $$ > program; while :; do sleep 0.01; done"
    )

    async def tell(pool: Pool) -> None:
        attempt = pool.submit(command=("/bin/sh", "-c", script))
        await pool.read("program")
        attempt.stopped = STOPPED
        pool.pool.stop([attempt])

        end = await pool.end(attempt)

        assert (end.kind, end.error_type) == (EndKind.RAISED, "exit code 0")

    story(tmp_path, tell)

    assert (tmp_path / "report").read_text() == "tidy\n"


def test_without_grace_the_process_group_is_killed_at_once(tmp_path: Path) -> None:
    async def tell(pool: Pool) -> None:
        attempt = pool.submit(
            command=("/bin/sh", "-c", "trap '' TERM; " + GROUP + "wait; sleep 1000")
        )
        pids = [await pool.read("program"), await pool.read("grandchild")]
        attempt.stopped = STOPPED
        pool.pool.stop([attempt], grace=0)

        await pool.end(attempt)

        are_dead(*pids)

    story(tmp_path, tell)


def test_the_death_of_the_child_process_kills_the_whole_process_group_and_ends_the_attempt(
    tmp_path: Path,
) -> None:
    async def tell(pool: Pool) -> None:
        attempt = pool.submit(command=("/bin/sh", "-c", GROUP + "wait"))
        pids = [await pool.read("program"), await pool.read("grandchild")]
        os.kill(pool.child(), signal.SIGKILL)

        end = await pool.end(attempt)

        assert end.error_type == "WorkerDied"
        are_dead(*pids)

    story(tmp_path, tell)


def test_an_attempt_ends_when_its_program_exits_although_a_background_process_keeps_the_output_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "echo $PPID > first; (while [ ! -e go ]; do sleep 0.01; done; echo late) & echo early"

    async def tell(pool: Pool) -> None:
        try:
            assert await pool.sh(script) == RETURNED

            # its later output is not that of another run, which another child executes
            second = pool.submit(2, command=("/bin/sh", "-c", "echo $PPID > second; echo second"))
            assert await pool.end(second) == RETURNED
            assert await pool.read("first") != await pool.read("second")
        finally:
            (tmp_path / "go").touch()

    story(tmp_path, tell)

    assert capsys.readouterr().err == "[job 1] early\n[job 2] second\n"


@pytest.mark.parametrize("says", ["", "echo early; "])
def test_what_waits_behind_a_program_that_left_a_process_goes_to_another_child(
    says: str, tmp_path: Path
) -> None:
    script = f"{says}(while [ ! -e go ]; do sleep 0.01; done) &"

    async def tell(pool: Pool) -> None:
        try:
            assert await pool.run("/bin/true") == RETURNED
            first = pool.child()
            # so that it is handed over with what follows
            pool.pool._seconds = 1e-5

            leaving = pool.submit(2, command=("/bin/sh", "-c", script))
            waiting = [
                pool.submit(id, command=("/bin/sh", "-c", f"echo $PPID > parent{id}"))
                for id in range(3, 9)
            ]

            assert {
                (await pool.end(attempt))._replace(output="") for attempt in (leaving, *waiting)
            } == {RETURNED}
            assert str(first) not in {
                (tmp_path / f"parent{id}").read_text().strip() for id in range(3, 9)
            }
        finally:
            (tmp_path / "go").touch()

    story(tmp_path, tell)


def test_programs_run_and_stop_on_a_system_without_subreapers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LIBC", None)

    async def tell(pool: Pool) -> None:
        assert (
            await pool.sh("sleep 0.1; read line; exit $line", stdin="3")
        ).error_type == "exit code 3"
        attempt = pool.submit(
            2, command=("/bin/sh", "-c", GROUP + "wait"), timeout=timedelta(seconds=0.3)
        )
        pids = [await pool.read("program"), await pool.read("grandchild")]

        await pool.end(attempt)

        are_dead(*pids)

    story(tmp_path, tell)


def test_a_background_process_survives_the_end_of_its_attempt(tmp_path: Path) -> None:
    script = (
        "(while [ ! -e go ]; do sleep 0.01; done; echo done > report) > /dev/null 2>&1 & exit 1"
    )

    async def tell(pool: Pool) -> None:
        assert (await pool.sh(script)).error_type == "exit code 1"

    story(tmp_path, tell)
    (tmp_path / "go").touch()

    until((tmp_path / "report").exists, "the background process went on")


def test_many_programs_run_one_after_the_other_in_one_child(tmp_path: Path) -> None:
    async def tell(pool: Pool) -> None:
        await pool.run("/bin/true")
        child = pool.child()
        files = len(os.listdir(f"/proc/{child}/fd"))
        attempts = [pool.submit(id, command=("/bin/true",)) for id in range(2, 22)]

        assert [await pool.end(attempt) for attempt in attempts] == [RETURNED] * 20

        assert (pool.child(), len(os.listdir(f"/proc/{child}/fd"))) == (child, files)
        assert Path(f"/proc/{child}/task/{child}/children").read_text() == ""

    story(tmp_path, tell)


TRIGGER = {
    "job_type": "charge", "run_id": 118, "key": None, "scheduled_for": None, "status": "dead",
    "attempt": 3, "error": "no route", "error_type": "OSError",
}  # fmt: skip


@given(st.integers(0, 70_000), st.integers(0, 70_000))
def test_a_trigger_fits_into_a_variable_without_payload_and_result_if_need_be(
    payload: int, result: int
) -> None:
    values = {"payload": {"text": "ü" * (payload // 2)}, "result": "x" * result}
    text = json.dumps(TRIGGER | {name: json.dumps(value) for name, value in values.items()})

    shown = programs.bounded_trigger(text)

    assert len(shown.encode()) <= programs.MAX_VARIABLE_BYTES
    whole = json.dumps(TRIGGER | values, ensure_ascii=False)
    fits = len(whole.encode()) <= programs.MAX_VARIABLE_BYTES
    assert json.loads(shown) == TRIGGER | (
        values if fits else {"payload": {}, "result": None, "omitted": True}
    )


@pytest.mark.parametrize("payload", ["[" * 100_000, '{"n": ' + "9" * 5_000 + "}"])
def test_a_payload_that_python_cannot_read_does_not_keep_a_hook_from_reporting_the_death(
    payload: str,
) -> None:
    text = json.dumps(TRIGGER | {"payload": payload, "result": None})

    found = json.loads(programs.bounded_trigger(text))
    trigger = Trigger.read(text)

    assert (found["run_id"], found["payload"], found["omitted"]) == (118, {}, True)
    assert trigger is not None
    assert (trigger.run_id, trigger.error, trigger.payload) == (118, "no route", {})
