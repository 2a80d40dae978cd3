"""The part of ``doctor`` about the variables of monitoring services and traces: what is set must be valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from yamlsched import tracing
from yamlsched.operations.doctor import Check
from yamlsched.operations.monitors import heartbeat, sentry
from yamlsched.operations.monitors.delivery import is_valid_url


def check(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the variables that are set. No check contains a part of their values."""
    if urls := heartbeat.urls(environ):
        wrong = sorted(name for name, url in urls.items() if not is_valid_url(url))
        for name in wrong:
            yield Check("heartbeats", "fail", f"{name} is not a valid URL", "see docs/observability.md, Heartbeats")
        if not wrong:
            yield Check("heartbeats", "ok", f"{len(urls)} URLs" if len(urls) > 1 else "1 URL")
    if dsn := environ.get(sentry.VARIABLE, "").strip():
        error = sentry.Project.of(dsn, None).error
        if error:
            yield Check("sentry", "fail", f"{sentry.VARIABLE} is {error}", "copy it from the project's client keys")
        else:
            yield Check("sentry", "ok", "its DSN is valid")
    if tracing.is_requested(environ):
        if tracing.is_installed():
            yield Check("traces", "ok", "are exported by workers")
        else:
            what = "the variables of OpenTelemetry ask for traces, but its packages are not installed"
            yield Check("traces", "warn", what, 'pip install "yamlsched[otel]"')
