"""What an edit of schedules.yaml will do, from the two files: the one to compare with is a git revision or a file."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from yamlsched import times
from yamlsched.definitions import schedule_file
from yamlsched.definitions.base import read_base
from yamlsched.definitions.load import Loaded, load
from yamlsched.preview.diff import base_side, compare, file_side
from yamlsched.preview.model import Preview
from yamlsched.times import TimeInput
from yamlsched.zones import zone

MISSING_FILE = "; name the schedule with --file or YAMLSCHED_FILE"


def read(file: Path, environment: str | None) -> Loaded:
    """Return the edited file, which may have errors."""
    return load(schedule_file.read_reviewed(file, MISSING_FILE), str(file), environment)


def instant(at: TimeInput | None, edited: Loaded, now: datetime) -> datetime:
    """Return the instant of the edit: ``at`` in the file's time zone, or now."""
    return now if at is None else times.resolve(at, lambda: zone(edited.timezone), now, is_future=True)


def preview(
    base: str, file: Path, edited: Loaded, environment: str | None, at: datetime, duration: timedelta
) -> Preview:
    """Return what the valid file ``edited`` changes compared with ``base``, in the time after the edit."""
    name, data = read_base(base, file)
    after = file_side(str(file), edited, environment)
    before = base_side(name, None if data is None else load(data, name, environment), environment, after)
    return compare(before, after, at, at + duration, environment)
