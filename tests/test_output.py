"""Output of handlers: its run, its limit, and the removal of secrets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from yamlsched.db.dsn import redactor
from yamlsched.runs.backoff import Backoff
from yamlsched.runs.lifecycle import (
    MAX_OUTPUT_BYTES,
    AttemptEnd,
    ClaimedRun,
    EndKind,
    after_attempt,
)
from yamlsched.text import show_bytes
from yamlsched.worker.local.output import (
    MAX_KEPT_BYTES,
    MAX_PASSED_ON_BYTES,
    MAX_WAIT_SECONDS,
    OutputPipe,
)
from yamlsched.worker.stderr import NonBlockingStderr

FIRST, SECOND = (ClaimedRun(n, "purge", None, None, 1, 5, "{}", False, 120.0, "A") for n in (1, 2))


class Printer:
    """The other end of a child's output."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        os.set_blocking(reading, False)
        self.output = OutputPipe(reading)

    def prints(self, content: bytes, run: ClaimedRun = FIRST) -> None:
        """Print, and make the parent read it."""
        while content:
            content = content[os.write(self.writing, content[:60_000]) :]
            self.output.add(run, self.output.read())


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

    assert printer.output.take(is_kept=True) == ("one\ntwo\x1b[31m\r\nthree", 0)
    assert capsys.readouterr().err == "[purge 1] one\n[purge 1] two\\x1b[31m\n[purge 1] three\n"


def test_output_of_one_run_is_not_stored_for_the_next(
    printer: Printer, capsys: pytest.CaptureFixture[str]
) -> None:
    printer.prints(b"of the first", FIRST)
    printer.prints(b"of the second", SECOND)

    assert printer.output.take(is_kept=True) == ("of the second", 0)
    assert capsys.readouterr().err == "[purge 1] of the first\n[purge 2] of the second\n"


@pytest.mark.parametrize(
    "line", [b"\n", b"x" * 99 + b"\n", b"x" * 5_000 + b"\n", b"x" * 100_000 + b"\n"]
)
def test_output_of_an_attempt_is_passed_on_up_to_the_limit(
    printer: Printer, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    printer.prints(line * (3 * MAX_PASSED_ON_BYTES // len(line)))
    printed = 3 * MAX_PASSED_ON_BYTES // len(line) * len(line)
    kept, forgotten_bytes = printer.output.take(is_kept=True)
    *passed_on, last = capsys.readouterr().err.splitlines(keepends=True)

    assert MAX_PASSED_ON_BYTES - len(line) - 100 <= len("".join(passed_on)) <= MAX_PASSED_ON_BYTES
    left_out = printed - sum(len(text) - len("[purge 1] ") for text in passed_on)
    lines = -(-left_out // len(line))  # that of which a part was left out included
    assert last == (
        f"[purge 1] yamlsched: {show_bytes(left_out)} of output ({lines:,} lines) left out here, "
        "the limit for one attempt is 1 MiB. The end of it: yamlsched show 1 --output\n"
    )
    assert (len(kept), forgotten_bytes) == (MAX_KEPT_BYTES, printed - MAX_KEPT_BYTES)


def test_a_line_without_an_end_is_passed_on_in_pieces_of_whole_characters(
    printer: Printer, capsys: pytest.CaptureFixture[str]
) -> None:
    printer.prints("x€".encode() * (2 * MAX_PASSED_ON_BYTES // 4))
    printer.output.take(is_kept=False)
    *pieces, last = capsys.readouterr().err.splitlines()

    assert {piece.removeprefix("[purge 1] ").replace("x€", "") for piece in pieces[:-1]} <= {
        "",
        "x",
        "€",
    }
    assert "\ufffd" not in "".join(pieces[:-1])
    assert last.startswith("[purge 1] yamlsched: 1.0 MiB of output left out here, the limit")
    assert "show" not in last  # nothing of it is kept


@pytest.mark.parametrize("size", [1, 7, 60_000])
def test_a_progress_bar_is_kept_and_passed_on_as_it_ended(
    printer: Printer, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    printed = b"start\r\n" + b"".join(b"\r%d%%" % n for n in range(101)) + b"\r\ndone\r\n\rlast\r"
    for start in range(0, len(printed), size):
        printer.prints(printed[start : start + size])

    assert printer.output.take(is_kept=True) == ("start\r\n100%\r\ndone\r\nlast\r", 0)
    assert (
        capsys.readouterr().err
        == "[purge 1] start\n[purge 1] 100%\n[purge 1] done\n[purge 1] last\n"
    )


def test_a_long_progress_bar_does_not_displace_what_was_printed_before(printer: Printer) -> None:
    printer.prints(b"the reason\n")
    for n in range(20_000):
        printer.prints(b"\r" + b"#" * 60 + b"%d" % n)

    assert printer.output.take(is_kept=True) == (f"the reason\n{'#' * 60}19999", 0)


def test_a_character_that_is_cut_in_the_pipe_is_whole_in_what_is_kept(printer: Printer) -> None:
    printer.prints("é".encode()[:1])
    printer.prints("é".encode()[1:])

    assert printer.output.take(is_kept=True) == ("é", 0)


class Stuck(NonBlockingStderr):
    """A stderr that nobody reads."""

    def __init__(self, is_stuck: bool) -> None:
        self.written, self.stuck = "", is_stuck

    is_full = True  # type: ignore[assignment]

    @property
    def is_stuck(self) -> bool:
        return self.stuck

    def write(self, text: str) -> int:
        self.written += text
        return len(text)


def test_an_attempt_waits_for_a_slow_reader_only_for_a_moment(
    printer: Printer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", stderr := Stuck(is_stuck=False))

    # when the reader is slow, then the child waits for a second in all
    waits = 0.0
    printer.prints(b"one\n")
    while seconds := printer.output.wait_seconds():
        waits += seconds
        printer.prints(b"more\n")
    assert waits == pytest.approx(MAX_WAIT_SECONDS)
    assert stderr.written.startswith("[purge 1] one\n[purge 1] more\n")

    # then what it prints is left out there, and kept
    printer.prints(b"the last line\n")
    kept, _ = printer.output.take(is_kept=True)
    assert kept.endswith("more\nthe last line\n")
    assert "the last line" not in stderr.written
    assert stderr.written.endswith(
        "yamlsched: 19 bytes of output (2 lines) left out here, the worker's stderr is not read fast enough. "
        "The end of it: yamlsched show 1 --output\n"
    )


def test_no_attempt_waits_for_a_reader_that_is_gone(
    printer: Printer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Stuck(is_stuck=True))
    printer.prints(b"one\n")

    assert printer.output.wait_seconds() == 0


def test_a_secret_at_the_place_where_the_output_is_cut_is_removed() -> None:
    secret = "postgresql://app:s3cret!!@db/app"
    for offset in range(len(secret) + 1):
        output = ("x" * 5_000 + secret + "y" * MAX_OUTPUT_BYTES)[-MAX_KEPT_BYTES:][
            : 4_096 + MAX_OUTPUT_BYTES - offset
        ]
        end = AttemptEnd(EndKind.RETURNED, output=output)

        outcome = after_attempt(FIRST, end, Backoff(), 0.0, redactor(secret))

        assert outcome.output is not None
        assert not any(part in outcome.output for part in ("s3cret", "cret!!", "ret!!@", "@db/app"))


@pytest.mark.parametrize("more, is_left_out", [(0, False), (1, True)])
def test_the_limit_is_exact(
    printer: Printer, capsys: pytest.CaptureFixture[str], more: int, is_left_out: bool
) -> None:
    line = b"x" * (1024 - len("[purge 1] \n")) + b"\n"
    printer.prints(line * (MAX_PASSED_ON_BYTES // 1024) + line * more)
    printer.output.take(is_kept=False)

    assert ("left out here" in capsys.readouterr().err) == is_left_out


def test_each_attempt_has_its_own_limit(
    printer: Printer, capsys: pytest.CaptureFixture[str]
) -> None:
    printer.prints(b"x" * 99 + b"\n" * (2 * MAX_PASSED_ON_BYTES))
    printer.output.take(is_kept=False)
    capsys.readouterr()

    printer.prints(b"the next one\n")
    printer.output.take(is_kept=False)

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


HOSTILE = [
    "://:",
    "://a:b",
    "://",
    ":",
    "password",
    "password=",
    "password = '",
    "password\t",
    "x:y@",
    "://u:'",
]


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
