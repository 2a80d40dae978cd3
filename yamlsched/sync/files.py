"""A schedules.yaml as a place has it, and the result of its sync."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import tzdata  # type: ignore[import-untyped]

from yamlsched import __version__
from yamlsched.schedule import file
from yamlsched.schedule.file import NOTHING, Included
from yamlsched.sync.in_use import APPLIED, REFUSED, FileVersion, Verdict

if TYPE_CHECKING:
    from yamlsched.schedule.job import Job, Queue
    from yamlsched.sync.due import Changes, DueResult
    from yamlsched.sync.slot_plan import Gap


def as_namespace(name: str) -> str | None:
    """Return ``name``, such as that of a host, as a namespace; None if that is not possible.

    >>> as_namespace("Web-1.example.com"), as_namespace("1st")
    ('web_1_example_com', None)
    """
    namespace = name.lower().replace(".", "_").replace("-", "_")
    return namespace if re.fullmatch("[a-z][a-z0-9_]{0,62}", namespace) else None


@dataclass(frozen=True)
class ScheduleFile:
    """A schedules.yaml and the place that has it. ``environment`` is empty if none is set.

    ``handler_path`` are folders, in addition to the file's, for checking handlers before the file
    is applied; None: they are not checked. ``is_manual``: an operator syncs, no tick.
    ``namespace_override`` replaces the namespace of the file. ``names_environment``: --env or
    YAMLSCHED_ENV is set, possibly to none. ``path`` is as given, with links. ``real_path`` is where
    they led when it was read, and ``folders`` are those of --path then: what is looked up there is
    of the same release. ``queues`` are those that this host serves; None: all that are not
    dedicated. ``syncs``: not that of a started worker, which is no place. ``included`` are the
    files that it includes.
    """

    data: bytes = field(repr=False)
    path: str
    environment: str = ""
    host: str = field(default_factory=socket.gethostname)
    handler_path: tuple[str, ...] | None = None
    is_manual: bool = False
    namespace_override: str | None = None
    names_environment: bool = True
    real_path: str = ""
    folders: tuple[str, ...] = ()
    queues: tuple[str, ...] | None = None
    syncs: bool = True
    included: Included = field(default=NOTHING, repr=False)

    @classmethod
    def read(
        cls,
        path: Path,
        environment: str | None,
        handler_path: tuple[str, ...] | None = (),
        namespace_override: str | None = None,
        *,
        find_patterns: Callable[[bytes], Sequence[str]],
    ) -> ScheduleFile:
        """Read the file, and what it includes by the patterns that ``find_patterns`` returns of its
        content: an idle tick knows them. Raises EnvironmentFailed if it cannot be read.
        """
        place, real_path = file.absolute(path), ""
        while real_path != os.path.realpath(place):  # a link may be switched meanwhile
            real_path = os.path.realpath(place)
            data = file.read(path, "; name the schedule with --file or YAMLSCHED_FILE")
            included = file.read_included(Path(real_path), find_patterns(data))
        return cls(
            data,
            str(place),
            environment or "",
            handler_path=handler_path,
            namespace_override=namespace_override,
            names_environment=environment is not None,
            real_path=real_path,
            included=included,
        )

    @property
    def real_file(self) -> Path:
        """The file without links. Handlers, and all else that belongs to it, are looked up in its
        directory.
        """
        return Path(self.real_path or self.path)

    @cached_property
    def sha256(self) -> str:
        return file.digest(self.data, self.included)

    @cached_property
    def version(self) -> FileVersion:
        return FileVersion(self.sha256, self.environment, __version__, tzdata.IANA_VERSION)

    def serves_now(self) -> list[str]:
        """Return what is stored of the queues that this sync serves; ``*`` are all that are not
        dedicated.
        """
        if self.is_manual:
            return []
        return ["*"] if self.queues is None else list(self.queues)

    def unknown_queues(self, known: Collection[str]) -> list[str]:
        """Return the queues of --queue that the file does not have."""
        return [name for name in self.queues or () if name not in known]

    def serves(self, name: str, queue: Queue) -> bool:
        """Return whether this host executes the runs of a queue."""
        return not queue.dedicated if self.queues is None else name in self.queues

    def served(self, queues: Mapping[str, Queue]) -> frozenset[str]:
        """Return which ``queues`` of the file this host serves."""
        return frozenset(name for name, queue in queues.items() if self.serves(name, queue))


@dataclass
class SyncResult:
    """What a sync did and found.

    ``jobs`` are those whose own entry in this host's file is valid, if the file had to be read;
    ``is_readable`` is false if it could not be parsed. ``queues`` are those that the
    file names, if it had to be read.
    """

    namespace: str | None
    verdict: Verdict | None = None
    changes: Changes | None = None
    due: DueResult | None = None
    messages: list[str] = field(default_factory=list)
    has_findings: bool = False
    jobs: dict[str, Job] | None = None
    queues: frozenset[str] | None = None
    is_readable: bool = True

    @property
    def may_claim(self) -> bool:
        """Return whether this host may create and claim runs: not those of another environment or
        namespace.
        """
        return self.namespace is not None and self.verdict not in REFUSED

    @property
    def is_in_use(self) -> bool:
        """Return whether the file of this host is the one in use."""
        return self.verdict in APPLIED

    def add_findings(self, *messages: str) -> None:
        """Add messages about what needs attention."""
        self.messages += messages
        self.has_findings |= bool(messages)

    @property
    def runs(self) -> int:
        """How many runs were created: owed ones of changed jobs, and due ones."""
        return (self.due.runs if self.due else 0) + (self.changes.owed.runs if self.changes else 0)

    @property
    def gaps(self) -> list[Gap]:
        """The slots that were recorded as skipped."""
        return (self.changes.owed.gaps if self.changes else []) + (
            self.due.gaps if self.due else []
        )

    @property
    def skipped(self) -> set[str]:
        """The jobs with slots that a calendar skips."""
        return {gap.job_type for gap in self.gaps if gap.reason == "calendar"}
