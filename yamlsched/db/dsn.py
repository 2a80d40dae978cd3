"""Connection strings: their defaults, the settings inside them, and how passwords stay out of messages.

Of several hosts, the one that answered last is tried first: otherwise each connection would first wait for every silent
host. Processes of a user share this in a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from yamlsched.errors import EnvironmentFailed

SINGLE_HOST_TIMEOUT_SECONDS, MULTI_HOST_TIMEOUT_SECONDS = 10, 3
"""The default connect_timeout, which applies to each host."""

Host = tuple[str, str, str]
"""host, hostaddr and port, as in the connection string."""
_last: dict[tuple[Host, ...], Host] = {}


def hosts_in_order(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters ``given`` with the host that answered last in first place, and a connect_timeout."""
    hosts = _hosts(given)
    parameters = dict(given)
    if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
        parameters["connect_timeout"] = SINGLE_HOST_TIMEOUT_SECONDS if len(hosts) < 2 else MULTI_HOST_TIMEOUT_SECONDS
    if len(hosts) > 1 and "load_balance_hosts" not in given:
        last = _recall(hosts)
        ordered = sorted(hosts, key=lambda host: host != last)
        for nth, name in enumerate(("host", "hostaddr", "port")):
            if any(host[nth] for host in hosts):
                parameters[name] = ",".join(host[nth] for host in ordered)
    return parameters


def _seconds_for_hosts(given: Mapping[str, Any]) -> float:
    """Return after how many seconds a connection has succeeded if any of its hosts answers in time."""
    timeout = hosts_in_order(given).get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
    try:
        each = max(2.0, float(str(timeout)))
    except ValueError:
        each = SINGLE_HOST_TIMEOUT_SECONDS
    return _count(given) * each + 5


def _count(given: Mapping[str, Any]) -> int:
    """Return how many hosts ``given`` names; one, if it names none."""
    return max(1, len(_hosts(given)))


def remember_host(given: Mapping[str, Any], info: psycopg.ConnectionInfo) -> None:
    """Store which of the hosts in ``given`` answered. If the file cannot be written, only this process knows."""
    hosts = _hosts(given)
    if len(hosts) < 2:
        return
    answered = next((h for h in hosts if (h[0] or h[1]) in (info.host, info.hostaddr) and _port(h) == info.port), None)
    if answered is None or answered == _recall(hosts):
        return
    _last[hosts] = answered
    with contextlib.suppress(OSError):
        file = _state_file(hosts)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if _is_ours(file.parent):
            new = file.with_suffix(f".{os.getpid()}")
            new.write_text("\n".join(answered))
            new.replace(file)


def _recall(hosts: tuple[Host, ...]) -> Host:
    """Return the host that answered last, by default the first."""
    if hosts not in _last:
        found: tuple[str, ...] = ()
        with contextlib.suppress(OSError, UnicodeDecodeError):
            file = _state_file(hosts)
            found = tuple(file.read_text().split("\n")) if _is_ours(file.parent) else ()
        _last[hosts] = next((host for host in hosts if host == found), hosts[0])
    return _last[hosts]


def _state_file(hosts: tuple[Host, ...]) -> Path:
    import tempfile

    name = hashlib.sha256(repr(hosts).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"yamlsched-{os.getuid()}" / f"host-{name}"


def _is_ours(folder: Path) -> bool:
    return not folder.is_symlink() and folder.stat().st_uid == os.getuid()


def _hosts(given: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return the hosts, in the order of the connection string; a single port applies to all."""
    names, addresses, ports = (
        str(given.get(name) or os.environ.get(variable) or "").split(",")
        for name, variable in (("host", "PGHOST"), ("hostaddr", "PGHOSTADDR"), ("port", "PGPORT"))
    )
    count = max(len(names), len(addresses))
    if len(ports) == 1:
        ports *= count
    return tuple(zip_longest(names, addresses, ports[:count], fillvalue=""))


def _port(host: Host) -> int:
    return int(host[2]) if host[2].isdigit() else 5432


DEFAULTS: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds: a dead network is noticed before usual leases end
    "target_session_attrs": "read-write",  # a server in recovery accepts no writes
}
SETTING_PATTERN = re.compile(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|\S)*)")
"""A setting in the ``options`` of a connection string, for example ``-c statement_timeout=5s``."""
PASSWORD_PATTERN = re.compile(
    r"(://[^/\s:@]*:)(?:[^@\s:]|:(?!//))+(?=@)|(\bpassword\s*=\s*)(?:'[^']*'|[^\s'\"&]+)", re.IGNORECASE
)
"""Any password in a URL or in a connection string.

The search takes linear time on any text: no match attempt reads beyond the place where the next one can start.
"""
MIN_SECRET_CHARS = 8
"""A shorter password may be an ordinary word. It is replaced only where a password is expected."""


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parameters of ``dsn``. Raises EnvironmentFailed if it is not valid."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError as error:
        raise EnvironmentFailed(_dsn_error(dsn, str(error))) from error


def _dsn_error(dsn: str, message: str) -> str:
    """Return what is wrong with a DSN that libpq rejects. No part of the DSN is shown: any may be a password."""
    from difflib import get_close_matches

    if re.match(r"postgres(ql)?\+\w+://", dsn):
        return "the DSN is a SQLAlchemy URL: leave out the driver, as in postgresql://user@host:5432/name"
    if name := re.search(r'invalid (?:connection|URI query) (?:option|parameter:?) "([^"]*)"', message):
        known = [option.keyword.decode() for option in Conninfo.get_defaults()]
        if matches := get_close_matches(name[1], known, n=1):
            return f'the DSN has a parameter that libpq does not know. Did you mean "{matches[0]}"?'
    return "the DSN cannot be parsed: write postgresql://user@host:5432/name or host=... dbname=..."


def conninfo(dsn: str, with_options: bool = True) -> str:
    """Return ``dsn`` with our defaults for the parameters that it does not set."""
    given = parse_dsn(dsn)
    if "application_name" not in given and "PGAPPNAME" not in os.environ:
        given["application_name"] = "yamlsched"
    if not with_options:
        given["options"] = ""
    given["client_encoding"] = "utf8"
    return make_conninfo("", **{**DEFAULTS, **hosts_in_order(given)})


def settings_of(dsn: str) -> dict[str, str]:
    """Return the server settings in the ``options`` of ``dsn``, or of PGOPTIONS."""
    options = str(parse_dsn(dsn).get("options") or os.environ.get("PGOPTIONS") or "")
    found = SETTING_PATTERN.findall(options)
    return {name.replace("-", "_"): re.sub(r"\\(.)", r"\1", value) for name, value in found}


def seconds_to_connect(dsn: str) -> float:
    """Return the seconds within which a connection opens if any of the hosts in ``dsn`` answers in time."""
    return _seconds_for_hosts(parse_dsn(dsn))


def host_count(dsn: str) -> int:
    """Return how many hosts ``dsn`` names."""
    return _count(parse_dsn(dsn))


def redactor(dsn: str) -> Callable[[str], str]:
    """Return a function that removes the DSN, its password, and anything like another password from a string.

    >>> redactor("postgresql://app:s3cret!!@db/app")("bad password s3cret!! for postgresql://app:s3cret!!@db/app")
    'bad password *** for ***'
    >>> redactor("")("no answer from amqp://bob:hunter2@mq:5672/ with password=hunter2")
    'no answer from amqp://bob:***@mq:5672/ with password=***'
    """
    try:
        password = str(conninfo_to_dict(dsn).get("password") or os.environ.get("PGPASSWORD") or "")
    except psycopg.ProgrammingError:
        password = ""
    secrets = {dsn} if "password" in dsn or "@" in dsn else set()
    for form in {password, quote(password), quote(password, safe="")} - {""}:
        secrets |= {form} if len(form) >= MIN_SECRET_CHARS else {f":{form}@", f"password={form}"}
    longest_first = sorted(secrets, key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, "***")
        if "://" not in text and "password" not in text.casefold():
            return text  # as most output is: a search by pattern takes milliseconds
        return PASSWORD_PATTERN.sub(lambda found: f"{found[1] or found[2]}***", text)

    return redact
