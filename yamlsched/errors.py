"""The errors of yamlsched.

    YamlschedError
    ├── Refused              what a file or the state of the database refuses         exit code 1
    │   └── ScheduleError    a schedule that this version or its time zone data cannot compute
    │       └── CronError    a cron expression that is not supported, and where it is wrong
    ├── EnvironmentFailed    database, file system or binaries are not as needed      exit code 3
    │   └── NoDatabase       nothing says which database to use
    ├── LeaseLost            an attempt that is not its run's any more: whatever it writes is refused
    ├── EffectInDoubt        nobody knows whether an effect happened: the run is dead, a person looks it up
    └── HandlerSignal        raised by a handler to say how its attempt ends
        ├── Discard          straight to ``dead``
        ├── RetryAfter       fail, and try again after this delay
        └── Snooze           come back later, at no cost of an attempt

A wrong command line is click's ``UsageError``, exit code 2. Anything else escapes, loudly.
"""

from __future__ import annotations

from datetime import timedelta


class YamlschedError(Exception):
    """Base of all errors of this package. Its text is made for people."""


class Refused(YamlschedError):
    """What was asked for cannot be done with this file or this state."""


class ScheduleError(Refused):
    """The slots of a job cannot be computed: its cron expression or its time zone is unknown here.

    Stored definitions raise it too: another version of yamlsched, or of the time zone data, may have written them.
    """


class CronError(ScheduleError):
    """A cron expression that is not supported.

    ``start`` and ``end`` are offsets into the text as it was given: the part that is wrong.
    ``remedy`` says what to write instead; it may be empty.
    """

    def __init__(self, message: str, start: int, end: int, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end
        self.remedy = remedy


class EnvironmentFailed(YamlschedError):
    """Something outside of us is not as it must be: the database, the disk, a missing program."""


class NoDatabase(EnvironmentFailed):
    """Neither a DSN is set nor can the embedded database be used."""


class LeaseLost(YamlschedError):
    """The run was taken over by another attempt, or cancelled; nothing of this one is written."""


class EffectInDoubt(YamlschedError):
    """Nobody knows whether an effect happened, and its ``in_doubt`` is "raise": the run is ``dead`` at once."""


class HandlerSignal(YamlschedError):
    """Base of what a handler raises to choose how its attempt ends."""


class Discard(HandlerSignal):
    """Give up at once: the run becomes ``dead``, whatever attempts are left."""


class _Later(HandlerSignal):
    """``delay`` is a timedelta, seconds, or a duration as in schedules.yaml.

    Raises ValueError for a text or number that is no duration, TypeError for anything else.
    """

    def __init__(self, delay: timedelta | float | str, reason: str = "") -> None:
        super().__init__(reason or f"asked for a retry after {delay}")
        self.delay = _duration(delay)


def _duration(delay: object) -> timedelta:
    if isinstance(delay, timedelta):
        return delay
    if isinstance(delay, str):
        from yamlsched import durations

        return durations.parse(delay)
    if isinstance(delay, bool) or not isinstance(delay, (int, float)):
        raise TypeError(f'delay is {_kind(delay)}: write a timedelta, seconds, or "90s"')
    try:
        return timedelta(seconds=delay)
    except (OverflowError, ValueError):
        raise ValueError(f"delay is {delay} seconds, which is out of range: write for example 90") from None


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


class RetryAfter(_Later):
    """Fail this attempt and retry after ``delay`` (a timedelta, seconds, or ``"90s"``) instead of the backoff."""


class Snooze(_Later):
    """Come back after ``delay`` (a timedelta, seconds, or ``"90s"``); the attempt is not counted."""
