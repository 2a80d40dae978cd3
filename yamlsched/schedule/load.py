"""From the bytes of schedules.yaml to its jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule import environments, include, schema_check
from yamlsched.schedule.build import build_entries, build_jobs, build_queues, build_retention
from yamlsched.schedule.file import NOTHING, Included
from yamlsched.schedule.findings import MAX_DIAGNOSTICS, Findings, decode
from yamlsched.schedule.following import follow
from yamlsched.schedule.job import Job, Limit, NotifyTarget, Queue, Retention
from yamlsched.schedule.node import Node, Spot
from yamlsched.schedule.parse import parse
from yamlsched.schedule.reader import Reader
from yamlsched.schedule.schema import HOOKS
from yamlsched.schedule.source import ERROR, Diagnostic, Source
from yamlsched.schedule.when import build_calendars


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The content of a file, and everything that is wrong with it, in the order of the file.

    ``namespace`` is None if it is invalid. ``paths`` are directories relative to the file.
    ``limits``, ``queues``, ``notify`` and ``jobs`` have those whose own entry is valid, with what
    they inherit, despite errors elsewhere. ``root``, the top-level mapping or None with the jobs
    of all files, and ``findings`` are for further checks. ``environments`` has what differs in
    each, as written; ``environment`` is that of the jobs, None without one that the file declares;
    ``in_environment`` returns the file in one of them, or without one.
    """

    namespace: str | None = None
    timezone: str = "UTC"
    environments: dict[str, Any] = field(default_factory=dict)
    environment: str | None = None
    retention: Retention = Retention()
    paths: tuple[str, ...] = ()
    limits: dict[str, Limit] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    notify: dict[str, NotifyTarget] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...]
    served: Collection[str] | None = (
        None  # queues whose handlers and programs are checked; None: all
    )
    root: Spot | None = field(default=None, repr=False, compare=False)
    findings: Findings = field(repr=False, compare=False)
    in_environment: Callable[[str | None], Loaded] = field(repr=False, compare=False)

    @property
    def source(self) -> Source:
        return self.findings.source

    @property
    def has_errors(self) -> bool:
        return any(diagnostic.severity == ERROR for diagnostic in self.diagnostics)

    @cached_property
    def _jobs(self) -> Spot | None:
        spot = self.root.get("jobs") if self.root is not None else None
        return spot if spot is not None and isinstance(spot.value, dict) else None

    @property
    def entries(self) -> dict[str, Node]:
        """The jobs as written, invalid ones included."""
        return self._jobs.value if self._jobs is not None else {}

    @property
    def is_readable(self) -> bool:
        """Return whether the jobs are known: not if the file is not YAML, or is written for another
        version.
        """
        return self._jobs is not None and self.is_known("version")

    def is_known(self, key: str) -> bool:
        """Return whether a top-level key is valid, or absent from a file whose top level is a
        mapping.
        """
        spot = self.root and self.root.get(key)
        return self.root is not None and (spot is None or self.findings.is_valid(spot))

    @property
    def served_jobs(self) -> list[Job]:
        """The jobs whose handlers and programs are checked."""
        return [
            job for job in self.jobs.values() if self.served is None or job.queue in self.served
        ]

    @cached_property
    def hooks(self) -> frozenset[str]:
        """The jobs that lists of hooks name."""
        jobs = self.jobs.values()
        return frozenset(name for job in jobs for key in HOOKS for name in getattr(job, key))

    def written(self, job: str, *keys: str) -> Spot | None:
        """Return where a key of a job is written, in its entry or in defaults; None if
        it is not.
        """
        return self.root.written(job, *keys) if self.root is not None else None

    def spot(self, job: str, *keys: str) -> Spot:
        """Return where a key of a job is written; its entry if it is not. Raises KeyError for an
        unknown job.
        """
        spot = self.written(job, *keys) or self.written(job)
        if spot is None:
            raise KeyError(job)
        return spot

    @property
    def path_spots(self) -> list[Spot]:
        """The valid items of ``paths``."""
        return _path_spots(self.root, self.findings)


def load(data: bytes, file: str, environment: str | None, included: Included = NOTHING) -> Loaded:
    """Return the jobs of a schedule as they apply in ``environment``, and every error. Raises for
    no input.

    ``file`` is the name that diagnostics show. Without the files that it includes, only what the
    main file says outside of its jobs is right.
    """
    others = [(include.beside(file, each.path), each.data) for each in included.files]
    findings = decode(data, file, others)
    document = parse(findings)
    if document is not None:
        schema_check.check(Spot(document), findings)
    if document is None or not isinstance(document.value, dict):
        loaded = Loaded(
            diagnostics=_diagnostics(findings),
            findings=findings,
            in_environment=lambda name: loaded,
        )
        return loaded

    root = include.merge(Spot(document), included, findings)
    names = environments.declared(root)
    limits = build_entries(root, "limits", Limit, findings)
    queues = build_queues(root, findings)
    targets = build_entries(root, "notify", NotifyTarget, findings)
    declared: dict[str, Mapping[str, Any]] = {
        "calendars": build_calendars(root, findings),
        "environments": dict.fromkeys(names, True),
        "jobs": dict.fromkeys((str(entry.path[-1]) for entry in root.entries("jobs")), True),
        "limits": limits,
        "notify": targets,
        "queues": queues,
    }
    reader = Reader(root, findings, declared)
    environments.check(reader, environment)
    namespace, zone = root.get("namespace"), root.get("timezone")
    timezone = reader.read(zone) if zone else "UTC"
    paths = tuple(spot.value for spot in _path_spots(root, findings))
    base = build_jobs(reader, timezone, paths, {})

    def complete(environment: str | None) -> Loaded:
        merged, changed = environments.merge(reader, environment)
        kept = {name: job for name, job in base.items() if name not in changed}
        built = build_jobs(merged, timezone, paths, kept)
        enabled = {name: _enabled(job, environment) for name, job in built.items() if job}
        jobs = follow(enabled, merged)
        return Loaded(
            namespace=reader.read(namespace) if namespace else "default",
            timezone=timezone or "UTC",
            environments={
                str(entry.path[-1]): entry.node.plain() for entry in root.entries("environments")
            },
            environment=environment,
            retention=build_retention(root, findings),
            paths=paths,
            queues=_valid_entries(queues),
            limits=_valid_entries(limits),
            notify=_valid_entries(targets),
            # in another version, a job may mean something else
            jobs=jobs if ("version",) not in findings.invalid else {},
            diagnostics=_diagnostics(merged.findings),
            root=merged.root,
            findings=merged.findings,
            in_environment=complete,
        )

    return complete(environment if environment in names else None)


def _enabled(job: Job, environment: str | None) -> Job:
    """Return a job as it is in an environment: disabled if it names others."""
    is_elsewhere = job.environments is not None and environment not in job.environments
    return replace(job, enabled=False) if is_elsewhere else job


Entry = TypeVar("Entry")


def _valid_entries(entries: dict[str, Entry | None]) -> dict[str, Entry]:
    return {name: entry for name, entry in entries.items() if entry is not None}


def _path_spots(root: Spot | None, findings: Findings) -> list[Spot]:
    paths = root.get("paths") if root else None
    items = paths.children() if paths and isinstance(paths.value, list) else ()
    return [
        item for item in items if isinstance(item.value, str) and item.path not in findings.invalid
    ]


def _diagnostics(findings: Findings) -> tuple[Diagnostic, ...]:
    diagnostics = findings.diagnostics()
    if findings.is_full:
        end = len(findings.source.text)
        message = f"only the first {MAX_DIAGNOSTICS:,} errors are reported"
        remedy = "Fix these, then run the command again."
        diagnostics.append(
            findings.source.diagnostic((end, end), "YS016", message, remedy, (), ERROR)
        )
    return tuple(diagnostics)


def load_file(
    file: Path, environment: str | None, remedy: str = "", is_reviewed: bool = False
) -> Loaded:
    """Return the jobs of a file with all that it includes, as ``include.read`` reads it. Raises
    EnvironmentFailed.
    """
    data, included = include.read(file, remedy, is_reviewed)
    return load(data, str(file), environment, included)


def timezone_of_file(file: Path) -> str:
    """Return the time zone of ``file``; UTC if it cannot be read."""
    try:
        return load_file(file, None).timezone
    except EnvironmentFailed:
        return "UTC"
