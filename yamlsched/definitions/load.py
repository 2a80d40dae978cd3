"""From the bytes of schedules.yaml to its jobs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

from yamlsched.definitions import build, parse
from yamlsched.definitions.diagnostic import ERROR, Diagnostic
from yamlsched.definitions.findings import MAX_DIAGNOSTICS, Findings
from yamlsched.definitions.job import Job, Retention
from yamlsched.definitions.node import Node
from yamlsched.definitions.schema import JOB_KEYS
from yamlsched.definitions.schema import check as schema_check
from yamlsched.definitions.source import Source
from yamlsched.definitions.wording import Path, quoted


@dataclass(frozen=True)
class Calls:
    """What a job's entry says of the functions it calls, whether its other keys are valid or not.

    ``handler`` and ``on_dead`` are None where nothing valid is written, and so is ``payload``. ``is_whole`` says that
    no key of the entry is misspelt or lost, so that what is not here is nowhere.
    """

    job: str
    handler: str | None
    on_dead: str | None
    payload: dict[str, Any] | None
    has_cron: bool
    is_whole: bool


@dataclass(frozen=True)
class Loaded:
    """What a file says, and all that is wrong with it, in the order of the file.

    ``namespace`` is None where it cannot be told. ``paths`` are directories relative to the file. ``jobs`` has the
    jobs whose own entry is valid, with what they inherit, whatever is wrong elsewhere. ``source``, ``root`` and
    ``wrong``, the paths of what is invalid, are for further checks.
    """

    namespace: str | None
    timezone: str
    environments: tuple[str, ...]
    retention: Retention
    paths: tuple[str, ...]
    jobs: dict[str, Job]
    diagnostics: tuple[Diagnostic, ...]
    source: Source = field(repr=False, compare=False)
    root: Node | None = field(repr=False, compare=False)
    wrong: Set[Path] = field(repr=False, compare=False)

    @property
    def entries(self) -> dict[str, Node]:
        """The jobs as they are written, invalid ones included."""
        top = self.root.value if self.root is not None else None
        jobs = top["jobs"].value if isinstance(top, dict) and "jobs" in top else None
        return jobs if isinstance(jobs, dict) else {}

    @property
    def is_readable(self) -> bool:
        """Return whether the jobs are known: not if the text is not YAML, or is written for another version."""
        top = self.root.value if self.root is not None else None
        if not isinstance(top, dict) or self._is_of_another_version(top):
            return False
        return "jobs" in top and isinstance(top["jobs"].value, dict)

    def calls(self) -> Iterator[Calls]:
        """Yield what each job calls. Of a file for another version nothing is known."""
        if self.root is None or (isinstance(self.root.value, dict) and self._is_of_another_version(self.root.value)):
            return
        for name, entry in self.entries.items():
            if not isinstance(entry.value, dict):
                continue
            yield Calls(
                name,
                self._valid(name, "handler"),
                self._valid(name, "on_dead"),
                self._valid(name, "payload") if "payload" in entry.value else {},
                "cron" in entry.value,
                not entry.flawed and entry.value.keys() <= JOB_KEYS.keys(),
            )

    def _is_of_another_version(self, top: dict[str, Node]) -> bool:
        return "version" in top and (("version",) in self.wrong or top["version"].flawed)

    def _valid(self, job: str, key: str) -> Any:
        """Return the plain value of a job's key, None if it has none or there is a mistake in it."""
        node, path, _ = self.value(job, key)
        is_written = path != ("jobs", job)
        return node.plain() if is_written and path not in self.wrong and not node.flawed else None

    @property
    def path_nodes(self) -> dict[int, tuple[Node, int | None]]:
        """The valid items of ``paths`` by their number, each with the alias through which it is reached."""
        return _path_nodes(self.root, self.wrong)

    @property
    def has_errors(self) -> bool:
        return any(diagnostic.severity == ERROR for diagnostic in self.diagnostics)

    def value(self, job: str, *keys: str) -> tuple[Node, Path, int | None]:
        """Return the node of a value of a job, its path, and where it is used if it is reached by an alias.

        A key that the job does not have itself is looked up in defaults; the job's own node stands for one that is
        nowhere.
        """
        assert self.root is not None
        for path in (("jobs", job, *keys), ("defaults", *keys), ("jobs", job)):
            node: Node | None = self.root
            use = None
            for key in path:
                node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
                use = node.use if node is not None and node.use is not None else use
            if node is not None:
                return node, path, use
        raise KeyError(job)


def load(data: bytes, file: str, environment: str | None, is_validated: bool = False) -> Loaded:
    """Return the jobs of a schedule as they hold in ``environment``, and every mistake. Never raises for its input.

    ``file`` is the name that diagnostics show. ``is_validated`` skips the schema: this version of yamlsched has
    applied exactly these bytes before.
    """
    collects = gc.isenabled()
    gc.disable()  # a tree of a million nodes has no garbage; looking for it took a third of the time
    try:
        return _load(data, file, environment, is_validated)
    finally:
        if collects:
            gc.enable()


def _load(data: bytes, file: str, environment: str | None, is_validated: bool) -> Loaded:
    source, root, diagnostics = parse.parse(data, file)
    found = Findings(source)
    if root is not None and not is_validated:
        schema_check.check(root, found)
    if root is None or not isinstance(root.value, dict):
        return _loaded(None, "UTC", (), Retention(), (), {}, diagnostics, found, root)

    top = root.value
    environments = _environments(top.get("environments"), environment, found)
    reader = build.Reader(found, environments)
    reader.has_environment_list = "environments" in top
    reader.is_environment_list_closed = ("environments",) not in found.wrong | found.meant and not _flawed(
        top, "environments"
    )
    namespace = top["namespace"].value if "namespace" in top else "default"
    if ("namespace",) in found.wrong or _flawed(top, "namespace"):
        namespace = None
    timezone = reader.read("timezone", top["timezone"], ("timezone",), None) if "timezone" in top else "UTC"
    retention = build.build_retention(root, reader)
    paths = tuple(node.value for node, _ in _path_nodes(root, found.wrong).values())
    jobs = build.build_jobs(root, reader, timezone, environment, paths)
    if "version" in top and (("version",) in found.wrong or _flawed(top, "version")):
        jobs = {}  # written for another version, a job may mean something else
    return _loaded(namespace, timezone or "UTC", environments, retention, paths, jobs, diagnostics, found, root)


def _path_nodes(root: Node | None, wrong: Set[Path]) -> dict[int, tuple[Node, int | None]]:
    top = root.value if root is not None else None
    node = top.get("paths") if isinstance(top, dict) else None
    if node is None or not isinstance(node.value, list):
        return {}
    return {
        number: (item, node.use if item.use is None else item.use)
        for number, item in enumerate(node.value)
        if isinstance(item.value, str) and ("paths", number) not in wrong
    }


def _flawed(top: dict[str, Node], key: str) -> bool:
    return key in top and top[key].flawed


def _environments(node: Node | None, environment: str | None, found: Findings) -> tuple[str, ...]:
    if node is None or not isinstance(node.value, list):
        return ()
    names = tuple(item.value for item in node.value if isinstance(item.value, str))
    if environment is not None and environment not in names:
        message = f"environment {quoted(environment)} is not in the environments of the file"
        remedy = found.source.did_you_mean(environment, names, "Add it here, or fix --env or YAMLSCHED_ENV.")
        found.add("YS116", node.key or node, ("environments",), None, message, remedy)
    return names


def _loaded(
    namespace: str | None,
    timezone: str,
    environments: tuple[str, ...],
    retention: Retention,
    paths: tuple[str, ...],
    jobs: dict[str, Job],
    diagnostics: list[Diagnostic],
    found: Findings,
    root: Node | None,
) -> Loaded:
    all_of_them = sorted([*diagnostics, *found.diagnostics()], key=lambda diagnostic: diagnostic.order)
    ordered = tuple(all_of_them[:MAX_DIAGNOSTICS])
    if len(all_of_them) >= MAX_DIAGNOSTICS:
        end = len(found.source.text)
        message = f"only the first {MAX_DIAGNOSTICS:,} errors are reported"
        ordered += (found.source.diagnostic("YS016", end, end, message, "Fix them, and run it again."),)
    return Loaded(namespace, timezone, environments, retention, paths, jobs, ordered, found.source, root, found.wrong)
