"""What our extras add to yamlsched, as a plugin. Each extra is imported when it is used."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path

from yamlsched.errors import EnvironmentFailed
from yamlsched.plugins import hookimpl

VERBS = {
    "db": "yamlsched.extras.embedded.cli",
    "diff": "yamlsched.extras.preview.cli_diff",
    "doctor": "yamlsched.extras.doctor.cli",
    "import": "yamlsched.extras.importing.cli",
    "init": "yamlsched.extras.scaffold.cli",
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
def database(file: Path, is_requested: bool) -> AbstractContextManager[str]:
    """Return a context in which the embedded database beside ``file`` runs."""
    embedded = import_module("yamlsched.extras.embedded")
    if not file.exists() and not embedded.data_folder(file).exists():
        raise EnvironmentFailed(
            f"there is no {file}, and no embedded database beside it: change to the project's "
            "directory, pass --file, or set YAMLSCHED_DSN"
        )
    running: AbstractContextManager[str] = embedded.running(file, by_name=is_requested)
    return running
