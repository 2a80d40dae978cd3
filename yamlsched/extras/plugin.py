"""What our extras add to yamlsched, as a plugin. Each extra is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yamlsched.errors import EnvironmentFailed
from yamlsched.extras import monitors, notify, otel
from yamlsched.plugins import WorkerTask, hookimpl

if TYPE_CHECKING:
    from yamlsched.worker.worker import Worker

VERBS = {
    "db": "yamlsched.extras.embedded.cli",
    "diff": "yamlsched.extras.preview.cli_diff",
    "doctor": "yamlsched.extras.doctor.cli",
    "import": "yamlsched.extras.importing.cli",
    "init": "yamlsched.extras.scaffold.cli",
    "invoke": "yamlsched.extras.testing.cli",
    "mcp": "yamlsched.extras.mcp.cli",
    "metrics": "yamlsched.extras.metrics.cli",
    "plan": "yamlsched.extras.preview.cli_plan",
    "web": "yamlsched.extras.web.cli",
}


@hookimpl
def register_verbs() -> dict[str, str]:
    """Return the commands of extras. Each module defines ``command``."""
    return {name: f"{module}:command" for name, module in VERBS.items()}


@hookimpl
def worker_started(worker: Worker, environment: str | None) -> list[WorkerTask]:
    """Prepare traces, and return what reports runs to monitoring services and sends messages."""
    otel.preload()
    tasks: list[WorkerTask] = []
    if monitors.are_set():
        tasks.append(_module("monitors.outbox").listen(worker, environment))
    if worker.is_continuous or notify.own_variables(worker.workload.jobs):
        tasks.append(_module("notify.sending").send_continually)
    return tasks


@hookimpl
def tick_ended(
    environment: str | None, namespace: str | None, is_healthy: bool, skipped: Collection[str]
) -> Callable[[], None] | None:
    """Return what tells monitoring services of a tick, if there are any."""
    if not monitors.are_set():
        return None
    outbox = _module("monitors.outbox")
    return partial(outbox.report_tick, environment, namespace, is_healthy, skipped)


@hookimpl
def messages_due(dsn: str, namespace: str, variables: Mapping[str, str]) -> None:
    """Send the notifications that are due."""
    _module("notify.sending").send(dsn, namespace, variables)


run_enqueued = hookimpl(otel.send)
handler_started = hookimpl(otel.process)
trace_context = hookimpl(otel.context)
process_exiting = hookimpl(otel.flush)


@hookimpl
def database(file: Path, is_requested: bool) -> AbstractContextManager[str]:
    """Return a context in which the embedded database beside ``file`` runs."""
    embedded = _module("embedded")
    if not file.exists() and not embedded.data_folder(file).exists():
        raise EnvironmentFailed(
            f"there is no {file}, and no embedded database beside it: change to the project's "
            "directory, pass --file, or set YAMLSCHED_DSN"
        )
    running: AbstractContextManager[str] = embedded.running(file, by_name=is_requested)
    return running


def _module(name: str) -> Any:
    return import_module(f"yamlsched.extras.{name}")
