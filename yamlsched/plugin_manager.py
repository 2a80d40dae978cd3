"""Loads plugins, and calls their hooks: what one of them fails with is logged, and stops nothing.
See ``plugins``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click
import pluggy

from yamlsched import log
from yamlsched.entry_points import may_have_plugins
from yamlsched.errors import EnvironmentFailed, NoDatabase, YamlschedError
from yamlsched.plugins import GROUP, FileFinding, Hooks, WorkerTask
from yamlsched.text import PLUGIN_CODE

if TYPE_CHECKING:
    from yamlsched.runs.lifecycle import ClaimedRun
    from yamlsched.schedule.load import Loaded
    from yamlsched.worker.worker import Worker

OWN_PLUGIN = "yamlsched.extras.plugin"
"""The plugin of our extras. It has no entry point: a checkout that is not installed has none."""
MAX_FINDINGS = 1_000
"""Of one plugin: a generator may have no end."""
MAX_ERROR_CHARS = 1_000
MAX_NAME_CHARS = 100
VERB = re.compile(r"[a-z][a-z0-9-]{0,39}")
PLACE = re.compile(r"[a-z_][\w.]*:[a-z_]\w*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class PluginVerb:
    """A command of a plugin, and its place."""

    name: str
    place: str
    plugin: str

    def load(self) -> click.Command:
        """Import the command. Raises EnvironmentFailed if an installed plugin has no
        such command.
        """
        label = f'the command "{self.name}" of the plugin {self.plugin} cannot be loaded'
        try:
            command = resolve_name(self.place)
        except (Exception, SystemExit) as error:
            if self.plugin == OWN_PLUGIN:
                raise
            raise EnvironmentFailed(f"{label}: {_describe(error)}") from error
        if not isinstance(command, click.Command):
            raise EnvironmentFailed(f"{label}: {self.place} is not a click command")
        return command


@dataclass
class Plugin:
    """A plugin with a manager of its own, so that no plugin can affect another.

    ``errors`` are what it has failed with in this process.
    """

    name: str
    version: str
    errors: list[str] = field(default_factory=list)
    manager: pluggy.PluginManager = field(default_factory=lambda: pluggy.PluginManager(GROUP))

    def load(self, entry: metadata.EntryPoint) -> None:
        """Import what ``entry`` names, and register its hooks. A failure is logged."""
        self.manager.add_hookspecs(Hooks)
        with self.guard("import"):
            self.manager.register(entry.load(), self.name)
            self.manager.check_pending()

    @cached_property
    def hooks(self) -> dict[str, Callable[..., list[Any]]]:
        """What calls the hooks that it implements, by name."""
        callers = {name: getattr(self.manager.hook, name) for name in vars(Hooks) if name[0] != "_"}
        return {name: _quick(caller) for name, caller in callers.items() if caller.get_hookimpls()}

    def answers(self, hook: str, **arguments: Any) -> list[Any]:
        """Call a hook, and return what is not None; nothing if it fails."""
        try:
            return self.hooks[hook](**arguments) if hook in self.hooks else []
        except (Exception, SystemExit) as error:
            self._refuse(hook, error)
        return []

    def note_start(self, run: ClaimedRun) -> None:
        """Call ``attempt_started``, unless the plugin has failed: it may fail for each run."""
        if not self.errors:
            self.answers("attempt_started", run=run)

    def note_end(
        self, run: ClaimedRun, status: str, seconds: float | None, error_type: str | None
    ) -> None:
        """Call ``attempt_ended``, unless the plugin has failed."""
        outcome = {"status": str(status), "seconds": seconds, "error_type": error_type}
        if not self.errors:
            self.answers("attempt_ended", run=run, **outcome)

    @contextmanager
    def guard(self, hook: str) -> Iterator[None]:
        """Log what is raised, and continue. An error of our own extras is raised: it is a bug."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self._refuse(hook, error)

    def _refuse(self, hook: str, error: BaseException) -> None:
        is_answer = hook == "database" and isinstance(error, YamlschedError)
        if self.name == OWN_PLUGIN or is_answer:
            raise error
        self.fail(hook, _describe(error))

    def fail(self, hook: str, error: str) -> None:
        """Log a failure."""
        self.errors.append(error)
        log.error("plugin.failed", plugin=self.name, version=self.version, hook=hook, error=error)


def _quick(caller: pluggy.HookCaller) -> Callable[..., list[Any]]:
    """Return ``caller``, or what calls its only function directly: pluggy takes as long as a quick
    handler.
    """
    [function, *others] = caller.get_hookimpls()
    if others or function.hookwrapper or function.wrapper or function.kwargnames:
        return caller

    def call(**arguments: Any) -> list[Any]:
        answer = function.function(*[arguments[name] for name in function.argnames])
        return [] if answer is None else [answer]

    return call


def _describe(error: BaseException) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_ERROR_CHARS]


@cache
def own() -> Plugin:
    """Return the plugin of our extras."""
    plugin = Plugin(OWN_PLUGIN, "")
    plugin.load(metadata.EntryPoint(OWN_PLUGIN, OWN_PLUGIN, GROUP))
    return plugin


@cache
def installed() -> list[Plugin]:
    """Return the installed plugins by package, also those that cannot be imported."""
    if not may_have_plugins():
        return []
    plugins = []
    entries = metadata.entry_points(group=GROUP)
    for entry in sorted(entries, key=lambda entry: (_package(entry), entry.name)):
        plugins.append(plugin := Plugin(*_package(entry)))
        plugin.load(entry)
    return plugins


def _package(entry: metadata.EntryPoint) -> tuple[str, str]:
    """Return the name and the version of the package of an entry point, as far as they
    are known.
    """
    name = version = None
    with suppress(Exception):  # the metadata is incomplete: which error that is depends on Python
        name, version = entry.dist and entry.dist.name, entry.dist and entry.dist.version
    return str(name or entry.name)[:MAX_NAME_CHARS], str(version or "?")[:MAX_NAME_CHARS]


def _call(hook: str, **arguments: Any) -> Iterator[tuple[Plugin, Any]]:
    """Call a hook of all plugins, and yield each answer that is not None with its plugin."""
    for plugin in (*installed(), own()):
        for answer in plugin.answers(hook, **arguments):
            yield plugin, answer


def answers(hook: str, **arguments: Any) -> list[Any]:
    """Call a hook of all plugins, and return what is not None."""
    return [answer for _, answer in _call(hook, **arguments)]


def start(hook: str, **arguments: Any) -> Callable[..., None] | None:
    """Call a hook whose answers are functions to call at the end; return one that calls them all,
    or None. A function that fails is logged.
    """
    if not (ends := list(_call(hook, **arguments))):
        return None

    def end(*results: Any) -> None:
        for plugin, function in ends:
            with plugin.guard(hook):
                function(*results)

    return end


def worker_tasks(worker: Worker, environment: str | None) -> list[WorkerTask]:
    """Return what plugins execute beside a worker."""
    tasks: list[WorkerTask] = []
    for plugin, answer in _call("worker_started", worker=worker, environment=environment):
        with plugin.guard("worker_started"):
            tasks += [partial(_execute, plugin, task) for task in answer]
    return tasks


async def _execute(plugin: Plugin, task: WorkerTask, worker: Worker) -> None:
    with plugin.guard("worker_started"):
        await task(worker)


def trace_context() -> str | None:
    """Return the trace context of the current span, if a plugin knows of one."""
    return next(iter(answers("trace_context")), None)


def own_verbs() -> dict[str, PluginVerb]:
    """Return the commands of our extras."""
    [places] = own().answers("register_verbs")
    return {name: PluginVerb(name, place, OWN_PLUGIN) for name, place in places.items()}


def installed_verbs(taken: Collection[str]) -> dict[str, PluginVerb]:
    """Return the commands of installed plugins. One that exists already is left out, and logged."""
    verbs: dict[str, PluginVerb] = {}
    for plugin in installed():
        for answer in plugin.answers("register_verbs"):
            with plugin.guard("register_verbs"):
                for name, place in dict(answer).items():
                    owner = "yamlsched" if name in taken else None
                    owner = verbs[name].plugin if name in verbs else owner
                    if error := _verb_error(name, place, owner):
                        plugin.fail("register_verbs", error)
                    else:
                        verbs[name] = PluginVerb(name, place, plugin.name)
    return verbs


def _verb_error(name: object, place: object, owner: str | None) -> str:
    if not isinstance(name, str) or not VERB.fullmatch(name):
        return f"the name of a command is {name!r}: use lower-case letters, digits and dashes"
    if not isinstance(place, str) or not PLACE.fullmatch(place):
        return f'the place of the command "{name}" is {place!r}: write "module:attribute"'
    return f'{owner} already has a command "{name}"' if owner else ""


def check_file(schedule: Loaded) -> Iterator[FileFinding]:
    """Yield what installed plugins find in a valid file."""
    for plugin in installed():
        for answer in plugin.answers("check_file", schedule=schedule):
            with plugin.guard("check_file"):
                for finding in islice(answer, MAX_FINDINGS):
                    if _is_finding(finding):
                        yield finding
                    else:
                        error = (
                            f"{finding!r} is not a FileFinding of strings with a code like ACME001"
                        )
                        plugin.fail("check_file", error[:MAX_ERROR_CHARS])


def _is_finding(value: object) -> bool:
    if not isinstance(value, FileFinding):
        return False
    is_typed = all(isinstance(text, str) for text in vars(value).values())
    return is_typed and PLUGIN_CODE.fullmatch(value.code) is not None


def listeners() -> list[Plugin]:
    """Return the installed plugins with a hook about attempts."""
    hooks = {"attempt_started", "attempt_ended"}
    return [plugin for plugin in installed() if hooks.intersection(plugin.hooks)]


@contextmanager
def database(file: Path, is_requested: bool) -> Iterator[str]:
    """Yield the DSN of the first plugin that has one. Raises EnvironmentFailed if there is none."""
    with ExitStack() as opened:
        yield next(_dsns(file, is_requested, opened))


def _dsns(file: Path, is_requested: bool, opened: ExitStack) -> Iterator[str]:
    for plugin, answer in _call("database", file=file, is_requested=is_requested):
        with plugin.guard("database"):
            yield str(opened.enter_context(answer))
    raise NoDatabase("no DSN is set: set YAMLSCHED_DSN")
