"""A sitecustomize.py that shifts every clock of Python by SHIFT seconds, except the monotonic ones."""

from __future__ import annotations

WRONG_CLOCK = """
import copyreg, datetime, os, time

SHIFT = int(os.environ["SHIFT"])
real_time, real_time_ns = time.time, time.time_ns
real_get, real_get_ns, real_datetime = time.clock_gettime, time.clock_gettime_ns, datetime.datetime
time.time = lambda: real_time() + SHIFT
time.time_ns = lambda: real_time_ns() + SHIFT * 10**9
time.clock_gettime = lambda clock: real_get(clock) + (SHIFT if clock == time.CLOCK_REALTIME else 0)
time.clock_gettime_ns = lambda clock: real_get_ns(clock) + (SHIFT * 10**9 if clock == time.CLOCK_REALTIME else 0)


class Alike(type):
    # an instant that C code makes is of the real class
    def __instancecheck__(cls, value):
        return isinstance(value, real_datetime)


class Shifted(real_datetime, metaclass=Alike):
    __slots__ = ()

    @classmethod
    def now(cls, tz=None):
        return real_datetime.now(tz) + datetime.timedelta(seconds=SHIFT)

    @classmethod
    def utcnow(cls):
        return real_datetime.utcnow() + datetime.timedelta(seconds=SHIFT)

    @classmethod
    def today(cls):
        return cls.now()


def revive(text):
    return real_datetime.fromisoformat(text)


datetime.datetime = Shifted
copyreg.pickle(real_datetime, lambda value: (revive, (value.isoformat(),)))  # by its name, pickle would find Shifted
"""
