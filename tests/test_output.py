"""Output of handlers: its run, its limit, and the removal of secrets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from yamlsched.runs import ClaimedRun
from yamlsched.store.dsn import redactor
from yamlsched.worker.executors.processes.output import MAX_KEPT_BYTES, MAX_PASSED_ON_BYTES, Output

FIRST, SECOND = (ClaimedRun(n, "purge", None, None, 1, 5, "{}", False, 120.0, "A") for n in (1, 2))


class Printer:
    """The other end of a child's output."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        os.set_blocking(reading, False)
        self.output = Output(reading)

    def prints(self, content: bytes, run: ClaimedRun = FIRST) -> None:
        """Print, and make the parent read it."""
        while content:
            content = content[os.write(self.writing, content[:60_000]) :]
            self.output.read(run)


@pytest.fixture
def printer() -> Iterator[Printer]:
    printer = Printer()
    yield printer
    os.close(printer.writing)
    os.close(printer.output.descriptor)


def test_each_line_is_passed_on_with_its_run_and_the_end_is_stored(
    printer: Printer, capsys: pytest.CaptureFixture[str]
) -> None:
    printer.prints(b"one\ntw")
    printer.prints(b"o\x1b[31m\r\nthree")

    assert printer.output.take() == "one\ntwo\x1b[31m\r\nthree"
    assert capsys.readouterr().err == "[purge 1] one\n[purge 1] two\\x1b[31m\n[purge 1] three\n"


def test_output_of_one_run_is_not_stored_for_the_next(printer: Printer, capsys: pytest.CaptureFixture[str]) -> None:
    printer.prints(b"of the first", FIRST)
    printer.prints(b"of the second", SECOND)

    assert printer.output.take() == "of the second"
    assert capsys.readouterr().err == "[purge 1] of the first\n[purge 2] of the second\n"


@pytest.mark.parametrize("line", [b"\n", b"x" * 99 + b"\n", b"x" * 5_000 + b"\n", b"x" * 100_000 + b"\n"])
def test_output_of_an_attempt_is_passed_on_up_to_the_limit(
    printer: Printer, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    printer.prints(line * (3 * MAX_PASSED_ON_BYTES // len(line)))
    kept = printer.output.take()
    *passed_on, last = capsys.readouterr().err.splitlines(keepends=True)

    assert MAX_PASSED_ON_BYTES - len(line) - 100 <= len("".join(passed_on)) <= MAX_PASSED_ON_BYTES
    assert last.startswith("[purge 1] yamlsched: ")
    assert last.endswith(" MiB of output left out, the limit for one attempt is 1 MiB\n")
    assert len(kept) == MAX_KEPT_BYTES


@pytest.mark.parametrize("more, is_left_out", [(0, False), (1, True)])
def test_the_limit_is_exact(printer: Printer, capsys: pytest.CaptureFixture[str], more: int, is_left_out: bool) -> None:
    line = b"x" * (1024 - len("[purge 1] \n")) + b"\n"
    printer.prints(line * (MAX_PASSED_ON_BYTES // 1024) + line * more)
    printer.output.drop()

    assert ("left out" in capsys.readouterr().err) == is_left_out


def test_each_attempt_has_its_own_limit(printer: Printer, capsys: pytest.CaptureFixture[str]) -> None:
    printer.prints(b"x" * 99 + b"\n" * (2 * MAX_PASSED_ON_BYTES))
    printer.output.drop()
    capsys.readouterr()

    printer.prints(b"the next one\n")
    printer.output.drop()

    assert capsys.readouterr().err == "[purge 1] the next one\n"


# -- secrets

CONCEALED = [
    ("amqp://bob:hunter2@mq:5672/", "amqp://bob:***@mq:5672/"),
    ("amqp://bob:hun/ter:2@mq:5672/", "amqp://bob:***@mq:5672/"),
    ("http://a:80/x amqp://:hunter2@mq", "http://a:80/x amqp://:***@mq"),
    ("http://a:80,amqp://bob:hunter2@mq", "http://a:80,amqp://bob:***@mq"),
    ("host=db password=hunter2 user=x", "host=db password=*** user=x"),
    ("host=db PASSWORD = 'hunter 2' user=x", "host=db PASSWORD = *** user=x"),
    ("ratio 1:2 at 12:30", "ratio 1:2 at 12:30"),
]


@pytest.mark.parametrize("text, concealed", CONCEALED)
def test_passwords_are_removed_by_their_position(text: str, concealed: str) -> None:
    assert redactor("")(text) == concealed


HOSTILE = ["://:", "://a:b", "://", ":", "password", "password=", "password = '", "password\t", "x:y@", "://u:'"]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("before", ["", "://u:", "password="])
def test_the_time_to_remove_secrets_is_proportional_to_the_output(piece: str, before: str) -> None:
    conceal = redactor("postgresql://app:s3cret!!@db/app")

    def seconds(length: int) -> float:
        text = before + (piece * length)[:length]
        times = []
        for _ in range(5):
            started = time.process_time()
            conceal(text)
            times.append(time.process_time() - started)
        return min(times)

    # sixteen times as much output takes about sixteen times as long, and not 256 times
    assert seconds(1 << 16) < 80 * max(seconds(1 << 12), 0.0001)
