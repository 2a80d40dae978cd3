"""Messages between parent and child at and around every limit of pipes, pages, frames and messages."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.project import Project, a_project, until
from yamlsched.runs.lifecycle import MAX_ERROR_CHARS, MAX_OUTPUT_BYTES, MAX_STACK_CHARS
from yamlsched.worker.local.protocol import MAX_FRAME_BYTES, Frames, frame

pytestmark = pytest.mark.story

PAGE, PIPE = 4_096, 65_536
EDGES = [0, 1] + [edge + off for edge in (PAGE, PIPE - 128, PIPE - 64) for off in (-1, 0, 1)]
LARGEST_PAYLOAD = PIPE - len('{"text": ""}')
DONE = ("succeeded", 1, 1, 1, 0)


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


# -- frames


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_are_reassembled_however_a_pipe_splits_them(
    contents: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join([frame(0, content) for content in contents])
    frames, received = Frames(), list[tuple[int, bytes]]()

    while stream:
        length = data.draw(st.integers(1, len(stream)))
        received += frames.feed(stream[:length])
        stream = stream[length:]

    assert received == [(0, content) for content in contents]


def test_a_frame_is_complete_only_with_its_last_byte() -> None:
    whole = frame(0, b"x" * PIPE)
    frames = Frames()

    assert [list(frames.feed(whole[at : at + 1])) for at in range(8)] == [[]] * 8
    assert list(frames.feed(whole[8:-1])) == []
    assert list(frames.feed(whole[-1:])) == [(0, b"x" * PIPE)]


@pytest.mark.parametrize("length, content", [(MAX_FRAME_BYTES + 1, b""), (3, b"xyz"), (0, b"")])
def test_invalid_frames_are_refused(length: int, content: bytes) -> None:
    with pytest.raises(ValueError, match="frame"):
        list(Frames().feed(length.to_bytes(4, "little") + content))

    assert marshal.loads(marshal.dumps(length)) == length


def test_frames_before_an_invalid_one_in_the_same_piece_are_read() -> None:
    received = list[tuple[int, bytes]]()

    with pytest.raises(ValueError, match="frame"):
        received.extend(Frames().feed(frame(0, b"a report") + b"garbage, and more garbage"))

    assert received == [(0, b"a report")]


# -- payloads


def test_payloads_of_any_allowed_size_reach_their_handlers(project: Project) -> None:
    project.sync(measures={"lease": "1m"})
    sizes = [*EDGES, LARGEST_PAYLOAD - 1, LARGEST_PAYLOAD]
    runs = {size: project.enqueue("measures", {"text": "x" * size})[0] for size in sizes}

    project.work()

    assert {size: project.row(run).result for size, run in runs.items()} == {
        size: size for size in sizes
    }
    assert {project.summary(run) for run in runs.values()} == {DONE}


@pytest.mark.parametrize("count, size", [(12, 40_000), (3_000, 300), (100, LARGEST_PAYLOAD)])
def test_many_payloads_at_once_cost_no_attempt(project: Project, count: int, size: int) -> None:
    project.sync(measures={"lease": "1m"})
    runs = project.enqueue("measures", {"text": "x" * size}, count=count)

    process = project.work()

    assert project.statuses() == {"succeeded": count}
    assert {(project.row(run).attempts, project.row(run).result) for run in runs} == {(1, size)}
    assert project.calls("started") == count
    assert process.text.count("attempt.succeeded") == count


def test_a_worker_holds_a_limited_part_of_a_backlog_of_large_payloads(project: Project) -> None:
    # given a worker with 120 MB of due payloads for fast handlers
    project.sync(waits_for_file={"lease": "1m"}, measures={"lease": "1m"})
    [waits] = project.enqueue("waits_for_file")
    project.enqueue("measures", {"text": "x" * 60_000}, count=2_000)
    worker = project.start("work", "-q", "--concurrency", "4")

    until(lambda: project.statuses().get("succeeded") == 2_000, "they have succeeded")
    status = Path(f"/proc/{worker.pid}/status").read_text()
    project.touch("go")

    # then it never held most of them at once, which would take over 200 MiB
    [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    assert peak < 130 * 1024
    assert worker.wait() == 0
    assert project.summary(waits) == DONE


# -- results, errors, output and fan-outs


def test_results_are_stored_up_to_64_kib_and_refused_above(project: Project) -> None:
    project.sync(returns_text={"lease": "1m", "max_attempts": 1})
    largest = PIPE - len('""')
    sizes = [*EDGES, largest - 1, largest]
    runs = {size: project.enqueue("returns_text", {"size": size})[0] for size in sizes}
    [refused] = project.enqueue("returns_text", {"size": largest + 1})

    project.work(code=1)

    assert {size: len(project.row(run).result) for size, run in runs.items()} == {
        size: size for size in sizes
    }
    assert project.summary(refused) == ("dead", 1, 1, 1, 1)


def test_errors_of_any_size_are_stored_within_their_limits(project: Project) -> None:
    project.sync(raises_text={"lease": "1m", "max_attempts": 1})
    sizes = [*EDGES, MAX_ERROR_CHARS - 1, MAX_ERROR_CHARS, MAX_ERROR_CHARS + 1, 1_000_000]
    runs = {size: project.enqueue("raises_text", {"size": size})[0] for size in sizes}

    project.work(code=1)

    for size, run in runs.items():
        row = project.row(run)
        assert project.summary(run) == ("dead", 1, 1, 0, 1)
        assert len(row.last_error) == (min(size, MAX_ERROR_CHARS) or len("RuntimeError('')"))
        [failure] = project.failures(run)
        assert len(failure.stack) <= MAX_STACK_CHARS
        assert failure.stack.endswith("e" * min(size, MAX_STACK_CHARS - 1) + "\n")


def test_the_end_of_output_of_any_size_is_stored(project: Project) -> None:
    project.sync(prints_text={"lease": "1m", "max_attempts": 1})
    sizes = [*EDGES, *(edge + off for edge in (MAX_OUTPUT_BYTES, 1 << 20) for off in (-1, 0, 1))]
    runs = {size: project.enqueue("prints_text", {"size": size})[0] for size in sizes}

    project.work(code=1)

    for size, run in runs.items():
        [failure] = project.failures(run)
        assert len(failure.output or "") == min(size, MAX_OUTPUT_BYTES)
        if size > 1:
            assert failure.output.endswith("p>")
            assert failure.output.startswith("<p") == (size <= MAX_OUTPUT_BYTES)


def test_fan_outs_of_any_size_are_written_completely(project: Project) -> None:
    project.sync(fans_out={"lease": "1m"}, nothing={"enabled": True})
    project.db.execute(
        "update yamlsched.job_definitions set paused_at = now() where job_type = 'nothing'"
    )
    counts = [0, 1, 2, 99, 100, 101, 999, 1_000, 1_001, 10_000]
    runs = {count: project.enqueue("fans_out", {"count": count})[0] for count in counts}
    [large] = project.enqueue("fans_out", {"count": 100, "size": LARGEST_PAYLOAD})

    project.work()

    made = dict(
        project.db.execute(
            "select parent_id, count(*) from yamlsched.job_runs where job_type = 'nothing' group by 1"
        ).fetchall()
    )
    assert {count: made.get(run, 0) for count, run in runs.items()} == {
        count: count for count in counts
    }
    assert made[large] == 100
    assert {project.summary(run) for run in (*runs.values(), large)} == {DONE}


def test_a_fan_out_above_the_limit_fails_its_attempt_and_is_not_written(project: Project) -> None:
    project.sync(fans_out={"lease": "1m", "max_attempts": 1}, nothing={}, nap={})
    count = MAX_FRAME_BYTES // LARGEST_PAYLOAD + 1
    [large] = project.enqueue("fans_out", {"count": count, "size": LARGEST_PAYLOAD})
    naps = project.enqueue("nap", count=20)

    project.work(code=1)

    assert project.summary(large) == ("dead", 1, 1, 1, 1)
    assert project.row(large).error_type == "EnqueueRefused"
    assert project.row(large).last_error.startswith(
        f"it enqueued {count} runs, over the limit of 64 MiB: "
    )
    assert {project.summary(run) for run in naps} == {DONE}
    assert project.statuses() == {"dead": 1, "succeeded": 20}


# -- a child that dies while it holds runs

POISON = """
import os
from yamlsched.worker.local import protocol, runner
class Frames(protocol.Frames):
    def feed(self, piece):
        if b"poison" in piece:
            os._exit(9)
        return super().feed(piece)
runner.Frames = Frames
"""


def test_a_run_whose_payload_kills_each_child_becomes_dead_and_blocks_nothing(
    project: Project,
) -> None:
    project.sync(measures={"lease": "1m", "max_attempts": 2}, waits_for_file={"lease": "1m"})
    [waits] = project.enqueue("waits_for_file")
    before = project.enqueue("measures", count=50)
    [poisonous] = project.enqueue("measures", {"text": "poison"})
    after = project.enqueue("measures", count=50)
    worker = project.start("work", before=POISON)

    # when it has killed enough children for all its attempts
    project.until_status(poisonous, "dead")
    project.touch("go")

    # then it is dead, with the cause, and the other runs are not affected, not even the one that was executing
    assert worker.wait() == 1
    assert project.summary(poisonous) == ("dead", 2, 0, 0, 2)
    assert project.row(poisonous).last_error == (
        "its process died before it could start it: the process exited with status 9"
    )
    assert project.row(poisonous).error_type == "WorkerDied"
    assert {project.summary(run) for run in (waits, *before, *after)} == {DONE}


def test_unstarted_runs_of_a_dying_child_cost_nothing(project: Project) -> None:
    # given a child that receives many runs in one message, because they are fast, and dies while executing them
    project.sync(measures={"lease": "1m"}, is_killed={"lease": "1m", "max_attempts": 1})
    project.enqueue("measures", count=200)
    [killer] = project.enqueue("is_killed")
    project.db.execute(
        "update yamlsched.job_runs set job_type = 'measures' where id = %s", [killer]
    )
    after = project.enqueue("measures", count=200)

    project.work("--concurrency", "1", before=KILLER.format(run=killer), code=1)

    # then one run has failed because of its death
    assert project.summary(killer) == ("dead", 1, 0, 0, 1)
    assert project.row(killer).last_error.startswith("killed by SIGKILL")
    assert {project.summary(run) for run in after} == {DONE}
    assert project.statuses() == {"succeeded": 400, "dead": 1}


KILLER = """
import os, signal
from yamlsched.worker.local import runner
real = runner.ProcessRunner._attempt
def attempt(self, call, target):
    if call.values[0] == {run}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, call, target)
runner.ProcessRunner._attempt = attempt
"""


def test_if_no_child_becomes_ready_runs_are_released_and_the_worker_reports_why(
    project: Project,
) -> None:
    project.sync(nothing={})
    runs = project.enqueue("nothing", count=10)

    before = "import os; from yamlsched.worker import forking; forking.detach = "
    process = project.work(before=f"{before}lambda *_, **__: os._exit(4)", code=3)

    assert (
        "child processes die before they are ready for a run: the process exited with status 4"
        in process.text
    )
    assert {project.summary(run) for run in runs} == {("queued", 0, 0, 0, 0)}
