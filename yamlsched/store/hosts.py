"""The order in which several hosts of a connection string are tried: the one that answered last comes first.

Otherwise each connection would first wait for every silent host. Processes of a user share this in a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import psycopg

SINGLE_HOST_TIMEOUT_SECONDS, MULTI_HOST_TIMEOUT_SECONDS = 10, 3
"""The default connect_timeout, which applies to each host."""

Host = tuple[str, str, str]
"""host, hostaddr and port, as in the connection string."""
_last: dict[tuple[Host, ...], Host] = {}


def in_order(given: Mapping[str, Any]) -> dict[str, Any]:
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


def seconds_to_connect(given: Mapping[str, Any]) -> float:
    """Return after how many seconds a connection has succeeded if any of its hosts answers in time."""
    timeout = in_order(given).get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
    try:
        each = max(2.0, float(str(timeout)))
    except ValueError:
        each = SINGLE_HOST_TIMEOUT_SECONDS
    return count(given) * each + 5


def count(given: Mapping[str, Any]) -> int:
    """Return how many hosts ``given`` names; one, if it names none."""
    return max(1, len(_hosts(given)))


def remember(given: Mapping[str, Any], info: psycopg.ConnectionInfo) -> None:
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
