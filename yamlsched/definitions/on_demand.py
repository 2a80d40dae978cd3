"""The jobs of a valid schedules.yaml, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from yamlsched.definitions.job import Job

if TYPE_CHECKING:
    from yamlsched.definitions.excerpt import Excerpts
    from yamlsched.definitions.load import Loaded

MIN_BYTES = 8_192
"""Smaller files are parsed as a whole: that takes less than looking for entries."""


class JobsOnDemand(Mapping[str, Job]):
    """The jobs of a file that this version of yamlsched has applied, as they apply in ``environment``.

    Of a large file only the entries of jobs that are asked for are parsed, if its text allows that. The whole file is
    parsed for a name that is not found at the start of a line, and to list all names.
    """

    def __init__(self, data: bytes, file: str, environment: str | None) -> None:
        self._data, self._file, self._environment = data, file, environment
        self._jobs: dict[str, Job] = {}  # that have been read
        self._excerpts: Excerpts | None = None
        if len(data) >= MIN_BYTES:
            from yamlsched.definitions.excerpt import Excerpts

            self._excerpts = Excerpts.of(data.decode())
        self._is_complete = False

    def prepare(self) -> None:
        """Import what parses the file, and parse one that is to be parsed as a whole."""
        from yamlsched.definitions import load  # noqa: F401

        if self._excerpts is None:
            self._read_all()

    def read(self, names: Iterable[str]) -> None:
        """Read these jobs, together, which costs less than one by one."""
        missing = set(names) - self._jobs.keys()
        if self._is_complete or not missing:
            return
        text = None if self._excerpts is None else self._excerpts.with_jobs(missing)
        loaded = None if text is None else self._load(text.encode())
        if loaded is None or loaded.has_errors or loaded.jobs.keys() != missing:
            self._read_all()
        else:
            self._jobs |= loaded.jobs

    def __getitem__(self, name: str) -> Job:
        if name not in self._jobs:
            self.read([name])
        return self._jobs[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of jobs that have been read, and then of all others."""
        known = list(self._jobs)
        yield from known
        self._read_all()
        yield from (name for name in self._jobs if name not in known)

    def __len__(self) -> int:
        self._read_all()
        return len(self._jobs)

    def __bool__(self) -> bool:
        return not self._is_complete or bool(self._jobs)  # until it is read, it may have some

    def _read_all(self) -> None:
        if not self._is_complete:
            self._jobs |= self._load(self._data).jobs
            self._is_complete = True

    def _load(self, data: bytes) -> Loaded:
        from yamlsched.definitions.load import load  # when a job is asked for, as it reads YAML

        return load(data, self._file, self._environment, is_validated=True)
