"""The errors of yamlsched.

    YamlschedError
    ├── Refused              the file or the state of the database does not allow it   exit code 1
    │   └── ScheduleError    a schedule that this release or its time zone data cannot compute
    │       └── CronError    a cron expression that is not supported, and the part that is wrong
    ├── EnvironmentFailed    the database, the file system or a program fails          exit code 3
    │   └── NoDatabase       no database is configured
    ├── LeaseLost            the run belongs to another attempt: this one can write nothing
    ├── EffectInDoubt        it is unknown whether an effect happened: an operator must check
    └── HandlerSignal        raised by a handler to choose how its attempt ends
        ├── Discard          the run is dead at once
        ├── RetryAfter       the attempt fails and is retried after this delay
        └── Snooze           the run continues later; the attempt is not counted

A wrong command line is click's ``UsageError``, exit code 2. Any other exception is a bug and ends
with a traceback.
"""

from __future__ import annotations

from datetime import timedelta

from yamlsched import durations


class YamlschedError(Exception):
    """Base of all errors of this package. The message is written for users."""


class Refused(YamlschedError):
    """The request cannot be fulfilled with this file or this state of the database."""


class ScheduleError(Refused):
    """The slots of a job cannot be computed: its cron expression or its time zone is unknown here.

    Stored definitions can raise it too, if another release, or other time zone data, wrote them.
    """


class CronError(ScheduleError):
    """A cron expression that is not supported.

    ``start`` and ``end`` are the offsets of the wrong part in the expression as it was passed.
    ``remedy`` says what to write instead; it may be empty.
    """

    def __init__(self, message: str, start: int, end: int, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end
        self.remedy = remedy

    def moved(self, by: int) -> CronError:
        """Return the error about a part of an expression as one about the whole."""
        return CronError(self.message, self.start + by, self.end + by, self.remedy)


class EnvironmentFailed(YamlschedError):
    """Something outside of yamlsched fails: the database, the file system, a missing program."""


class NoDatabase(EnvironmentFailed):
    """No DSN is set, and the embedded database cannot be used."""


class LeaseLost(YamlschedError):
    """The run was cancelled or belongs to another attempt; this one can write nothing."""


class EffectInDoubt(YamlschedError):
    """It is unknown whether an effect happened, and its ``in_doubt`` is "raise": the run is
    ``dead`` at once.
    """


class HandlerSignal(YamlschedError):
    """Base of the exceptions with which a handler chooses how its attempt ends."""


class Discard(HandlerSignal):
    """Mark the run ``dead`` at once, even if attempts are left."""


class _Delayed(HandlerSignal):
    """``delay`` is a timedelta, seconds, or a duration as in schedules.yaml.

    Raises ValueError for a string or number that is not a valid duration, TypeError for other
    types.
    """

    def __init__(self, delay: timedelta | float | str, reason: str = "") -> None:
        super().__init__(reason or f"asked for a retry after {delay}")
        self.delay = _duration(delay)


def _duration(delay: object) -> timedelta:
    if isinstance(delay, timedelta):
        return delay
    if isinstance(delay, str):
        return durations.parse(delay)
    if isinstance(delay, bool) or not isinstance(delay, (int, float)):
        raise TypeError(f'delay is {delay!r}: write a timedelta, seconds, or "90s"')
    try:
        return timedelta(seconds=delay)
    except (OverflowError, ValueError):
        raise ValueError(
            f"delay is {delay} seconds, which is out of range: write for example 90"
        ) from None


class RetryAfter(_Delayed):
    """Fail this attempt and retry after ``delay`` (a timedelta, seconds, or ``"90s"``) instead of
    the backoff.
    """


class Snooze(_Delayed):
    """Continue the run after ``delay`` (a timedelta, seconds, or ``"90s"``); the attempt is not
    counted.
    """
