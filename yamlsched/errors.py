"""The errors of yamlsched.

    YamlschedError
    ├── Refused              what a file or the state of the database refuses         exit code 1
    │   └── CronError        a cron expression that cannot be taken, and where it is wrong
    ├── EnvironmentFailed    database, file system or binaries are not as needed      exit code 3
    │   └── NoDatabase       nothing says which database to use
    ├── LeaseLost            an attempt that is not its run's any more: whatever it writes is refused
    ├── EffectInDoubt        nobody knows whether an effect happened: a person looks it up
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


class CronError(Refused):
    """A cron expression that is not taken.

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
    """A process died inside ``run.once()``: whether the effect happened is not known."""


class HandlerSignal(YamlschedError):
    """Base of what a handler raises to choose how its attempt ends."""


class Discard(HandlerSignal):
    """Give up at once: the run becomes ``dead``, whatever attempts are left."""


class _Later(HandlerSignal):
    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        super().__init__(reason or f"asked to come back after {delay}")
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)


class RetryAfter(_Later):
    """Fail this attempt and retry after ``delay`` (a timedelta, or seconds) instead of the backoff."""


class Snooze(_Later):
    """Come back after ``delay`` (a timedelta, or seconds); the attempt is not counted."""
