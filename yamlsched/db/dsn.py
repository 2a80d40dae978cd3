"""Connection strings: their defaults, the settings inside them, and how passwords stay out of
messages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from yamlsched.errors import EnvironmentFailed
from yamlsched.secret_forms import MIN_SECRET_CHARS, masker

CONNECT_SECONDS = 5
"""The default connect_timeout, which applies to each host."""

DEFAULTS: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds: a dead network is noticed before usual leases end
    "target_session_attrs": "read-write",  # a server in recovery accepts no writes
}
SETTING_PATTERN = re.compile(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|\S)*)")
"""A setting in the ``options`` of a connection string, for example ``-c statement_timeout=5s``."""


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parameters of ``dsn``. Raises EnvironmentFailed if it is not valid."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError as error:
        raise EnvironmentFailed(_dsn_error(dsn, str(error))) from error


def _dsn_error(dsn: str, message: str) -> str:
    """Return what is wrong with a DSN that libpq rejects. No part of the DSN is shown: any may be a
    password.
    """
    if re.match(r"postgres(ql)?\+\w+://", dsn):
        return (
            "the DSN is a SQLAlchemy URL: leave out the driver, as in"
            " postgresql://user@host:5432/name"
        )
    if name := re.search(
        r'invalid (?:connection|URI query) (?:option|parameter:?) "([^"]*)"', message
    ):
        known = [option.keyword.decode() for option in Conninfo.get_defaults()]
        if matches := get_close_matches(name[1], known, n=1):
            return f'the DSN has a parameter that libpq does not know. Did you mean "{matches[0]}"?'
    return "the DSN cannot be parsed: write postgresql://user@host:5432/name or host=... dbname=..."


def conninfo(dsn: str, with_options: bool = True) -> str:
    """Return ``dsn`` with our defaults for the parameters that it does not set."""
    parameters = parse_dsn(dsn)
    if "application_name" not in parameters and "PGAPPNAME" not in os.environ:
        parameters["application_name"] = "yamlsched"
    if not with_options:
        parameters["options"] = ""
    parameters["client_encoding"] = "utf8"
    if "PGCONNECT_TIMEOUT" not in os.environ:
        parameters.setdefault("connect_timeout", CONNECT_SECONDS)
    return make_conninfo("", **{**DEFAULTS, **parameters})


def dsn_settings(dsn: str) -> dict[str, str]:
    """Return the server settings in the ``options`` of ``dsn``, or of PGOPTIONS."""
    options = str(parse_dsn(dsn).get("options") or os.environ.get("PGOPTIONS") or "")
    pairs = SETTING_PATTERN.findall(options)
    return {name.replace("-", "_"): re.sub(r"\\(.)", r"\1", value) for name, value in pairs}


def host_count(dsn: str) -> int:
    """Return how many hosts ``dsn`` names; one, if it names none."""
    parameters = parse_dsn(dsn)
    names = (("host", "PGHOST"), ("hostaddr", "PGHOSTADDR"))
    return max(
        len(str(parameters.get(name) or os.environ.get(variable) or "").split(","))
        for name, variable in names
    )


OWN_VARIABLES = (
    "YAMLSCHED_DSN",
    "YAMLSCHED_ACTIONS_DSN",
    "YAMLSCHED_WEB_USERS",
    "YAMLSCHED_HEARTBEAT_URL",
    "YAMLSCHED_SENTRY_DSN",
    *(f"OTEL_EXPORTER_OTLP_{name}HEADERS" for name in ("", "TRACES_", "METRICS_", "LOGS_")),
)
"""Variables of yamlsched itself whose values are secrets."""


def redactor(dsn: str, names: Iterable[str] = ()) -> Callable[[str], str]:
    """Return a function that removes what looks like a secret from a string, and the secrets of
    this process.

    These are the DSN and its password, and the values of yamlsched's variables and of the variables
    ``names``.

    >>> dsn = "postgresql://app:s3cret!!@db/app"
    >>> redactor(dsn)(f"bad password s3cret!! for {dsn}")
    'bad password *** for ***'
    >>> redactor("")("no answer from amqp://bob:hunter2@mq:5672/ with password=hunter2")
    'no answer from amqp://bob:***@mq:5672/ with password=***'
    """
    variables = {os.environ.get(name, "") for name in (*OWN_VARIABLES, *names)}
    secrets = {os.environ.get("PGPASSWORD", "")}
    for value in {dsn, *variables}:
        if "password" in value or "@" in value or value in variables:
            secrets.add(value)
        secrets |= _parts(value)
    return masker(
        form for secret in secrets for form in (secret, quote(secret), quote(secret, safe=""))
    )


def _parts(address: str) -> set[str]:
    """Return the parts of a DSN or an address that are secrets by themselves: the password, and a
    long path.
    """
    with suppress(psycopg.ProgrammingError):
        return {str(conninfo_to_dict(address).get("password") or "")}
    with suppress(ValueError):
        url = urlsplit(address)
        path = address.partition("://")[2].partition("/")[2]
        return {url.password or "", path if len(path) >= MIN_SECRET_CHARS else ""}
    return set()
