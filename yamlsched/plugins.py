"""Plugins: what our extras and installed packages add to yamlsched. See docs/plugins.md.

``Hooks`` has everything that a plugin can do. A package is a plugin if it has an entry point in the
group ``yamlsched``, which names a module with functions marked ``@hookimpl``. A plugin that fails
is logged and stops nothing.

The engine names no extra: it calls these hooks through ``plugin_manager``, and
``extras/plugin.py`` implements them for our extras.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pluggy

if TYPE_CHECKING:
    from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun
    from yamlsched.schedule.load import Loaded
    from yamlsched.worker.worker import Worker

GROUP = "yamlsched"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)
WorkerTask: TypeAlias = "Callable[[Worker], Coroutine[Any, Any, None]]"
"""Is executed beside a worker until the worker ends."""


@dataclass(frozen=True)
class FileFinding:
    """What a check finds: ``FileFinding("ACME001", "it has no owner", "Add one.", "purge")``.

    ``code`` has 2 to 12 capital letters and up to 4 digits. Codes that start with YS are those of
    yamlsched. The position is that of ``key``, or of the job if neither it nor ``defaults`` has the
    key. Without a ``job`` the finding is about the file.
    """

    code: str
    message: str
    remedy: str = ""
    job: str = ""
    key: str = ""


class Hooks:
    """The hooks. A plugin implements any of them, each with the parameters that it needs."""

    @hookspec
    def register_verbs(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Return commands and their places: ``{"owners": "acme_rules:owners"}``.

        A place is a module and the name of a click command in it. The module is imported when the
        command is used or listed. A command of yamlsched cannot be replaced.
        """

    @hookspec
    def check_file(self, schedule: Loaded) -> Iterable[FileFinding]:  # type: ignore[empty-body]
        """Yield what is wrong with a valid file.

        ``validate`` and ``diff`` report findings as errors. ``sync`` and ``tick`` log them and
        apply the file. ``schedule.jobs`` has the jobs by name, with their defaults.
        ``schedule.written("purge", "owner")`` is None if neither the job nor ``defaults`` has it.
        """

    @hookspec
    def attempt_started(self, run: ClaimedRun) -> None:
        """Note that the worker hands an attempt of ``run`` to a process.

        Return at once: the worker waits.
        """

    @hookspec
    def attempt_ended(
        self,
        run: ClaimedRun,
        status: str,
        seconds: float | None,
        error_type: str | None,
    ) -> None:
        """Note the outcome of an attempt, once it is in the database. Return at once.

        ``status`` is the state of the run: succeeded, failed if it is retried, dead, or queued if
        it was released. ``seconds`` is how long the attempt executed; None if that is unknown.
        """

    @hookspec
    def worker_started(  # type: ignore[empty-body]
        self, worker: Worker, environment: str | None
    ) -> Iterable[WorkerTask]:
        """Return what is executed beside ``worker``, and cancelled when that ends.

        Each is an ``async def`` with the worker as its argument. The worker has claimed nothing
        yet, and has no processes. ``environment`` is that of --env.
        """

    @hookspec
    def tick_ended(
        self,
        environment: str | None,
        namespace: str | None,
        is_healthy: bool,
        skipped: Collection[str],
    ) -> Callable[[], None] | None:
        """Return a function that reports a tick, or a sync of ``work --loop``; None: nothing to do.

        It is called at once, in a loop by a process of its own, which has 20 seconds. A tick with
        findings is not healthy. ``skipped`` are jobs with slots that a calendar skips.
        ``namespace`` is None if it is not known.
        """

    @hookspec
    def messages_due(self, dsn: str, namespace: str, variables: Mapping[str, str]) -> None:
        """Send the notifications that are due at the end of a tick.

        ``variables`` are those that this host has, by the names of their targets.
        """

    @hookspec
    def run_enqueued(
        self, job: str, count: int, namespace: str | None, key: str | None
    ) -> Callable[[Sequence[int | None], BaseException | None], None] | None:
        """Note that ``count`` runs of ``job`` are to be enqueued, by an application or a handler.

        A function, if that is returned, is called afterwards, in the same thread or task, with the
        ids of the runs, as far as they are known, and with the error.
        """

    @hookspec
    def handler_started(
        self, run: ClaimedRun, namespace: str, redact: Callable[[str], str]
    ) -> Callable[[AttemptEnd | None], None] | None:
        """Note that an attempt is to be executed, in its own process and task.

        The handler's module has been imported. A function, if that is returned, is called with the
        end of the attempt; None: the handler returned nothing. ``redact`` masks passwords.
        """

    @hookspec
    def trace_context(self) -> str | None:
        """Return the W3C trace context of the current span: traceparent, perhaps with tracestate.

        Runs that are enqueued keep it, and commands get it.
        """

    @hookspec
    def process_exiting(self) -> None:
        """Export what is left: this process, which has executed handlers, is about to exit."""

    @hookspec
    def database(self, file: Path, is_requested: bool) -> AbstractContextManager[str] | None:
        """Return a context whose value is the DSN for ``file``, or None.

        It is called if no DSN is set, and with ``is_requested`` if the DSN is "embedded". The
        embedded database is asked last. An error of yamlsched, such as ``EnvironmentFailed``,
        is the reason why there is no database.
        """
