"""Output of handlers: its run, its limit, and the removal of secrets."""

from __future__ import annotations

import time

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
from yamlsched.worker.output import (
    MAX_KEPT_BYTES,
    MAX_PASSED_ON_BYTES,
    AttemptOutput,
)

FIRST = ClaimedRun(1, "purge", None, None, 1, 5, "{}", False, 120.0, "A")


class Printer:
    """An attempt that prints."""

    def __init__(self) -> None:
        self.output = AttemptOutput(FIRST)

    def prints(self, content: bytes) -> None:
        """Print, in the pieces in which a pipe is read."""
        for start in range(0, len(content), 60_000):
            self.output.add(content[start : start + 60_000])


@pytest.fixture
def printer() -> Printer:
    return Printer()


def test_each_line_is_passed_on_with_its_run_and_the_end_is_stored(
    printer: Printer, capsys: pytest.CaptureFixture[str]
) -> None:
    printer.prints(b"one\ntw")
    printer.prints(b"o\x1b[31m\r\nthree")

    assert printer.output.take(is_kept=True) == ("one\ntwo\x1b[31m\r\nthree", 0)
    assert capsys.readouterr().err == "[purge 1] one\n[purge 1] two\\x1b[31m\n[purge 1] three\n"


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
    assert last == (
        f"[purge 1] yamlsched: {show_bytes(left_out)} of output left out here, "
        "the limit for one attempt is 1 MiB. To see the end: yamlsched show 1 --output\n"
    )
    assert (len(kept), forgotten_bytes) == (MAX_KEPT_BYTES, printed - MAX_KEPT_BYTES)


def test_a_long_line_without_an_end_is_passed_on_up_to_the_limit(
    printer: Printer, capsys: pytest.CaptureFixture[str]
) -> None:
    printer.prints(b"x" * 2 * MAX_PASSED_ON_BYTES)
    printer.output.take(is_kept=False)
    *pieces, last = capsys.readouterr().err.splitlines()

    assert {piece.removeprefix("[purge 1] ").replace("x", "") for piece in pieces} == {""}
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


@pytest.mark.parametrize("before", ["", "://u:", "password="])
def test_the_time_to_remove_secrets_is_proportional_to_the_output(before: str) -> None:
    conceal = redactor("postgresql://app:s3cret!!@db/app")

    def seconds(piece: str, length: int) -> float:
        text = before + (piece * length)[:length]
        times = []
        for _ in range(3):
            started = time.process_time()
            conceal(text)
            times.append(time.process_time() - started)
        return min(times)

    # sixteen times as much output takes about sixteen times as long, and not 256 times
    for piece in HOSTILE:
        assert seconds(piece, 1 << 14) < 80 * max(seconds(piece, 1 << 10), 0.0001), piece
