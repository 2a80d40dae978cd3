"""What can be set, and which combinations are refused. Raises ValueError with a message that says
what to pass.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
AUTH_MODES = ("none", "basic", "header")
APPLICATION = "application"
"""Of a page that is mounted in an application: it serves only users whom the application has
authenticated.
"""
DEFAULT_LISTEN = "127.0.0.1:8040"
DEFAULT_USER_HEADER = "X-Forwarded-User"
SCRYPT = "$scrypt$"
SCRYPT_HASH = re.compile(r"\$scrypt\$(?:[0-9a-f]{2}){8,}\$[0-9a-f]{128}")
"""A salt and a key of 64 bytes, with n=16384, r=8, p=1."""
BASE_PATH = re.compile(r"(?:/[._-]*[A-Za-z0-9][A-Za-z0-9._-]*)+")
PAGE_NAMES = (
    "report",
    "nights",
    "jobs",
    "runs",
    "dead",
    "why",
    "durations",
    "graph",
    "calendar",
    "files",
    "workers",
    "actions",
    "namespaces",
    "help",
    "static",
)
"""First parts of the paths of pages. They are no base paths: whether a proxy has stripped it would
not be clear.
"""


@dataclass(frozen=True)
class WebOptions:
    """How the page is served. Secrets are not shown by ``repr``."""

    dsn: str = field(repr=False)
    actions_dsn: str | None = field(default=None, repr=False)
    namespace: str | None = None
    file: Path = Path("schedules.yaml")
    hosts: tuple[str, ...] = ()
    base_path: str = ""
    external_url: str | None = None
    read_only: bool = False
    auth: str = "none"
    # passwords or hashes by name, for auth "basic"
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    users_file: Path | None = None  # from which they come
    user_header: str = DEFAULT_USER_HEADER
    trust_proxy: tuple[str, ...] = ()  # addresses, networks, or "unix" for the socket's peer
    sessions: int = 4

    def __post_init__(self) -> None:
        if self.auth not in (*AUTH_MODES, APPLICATION):
            raise ValueError(f'--auth "{self.auth}" is not supported: write none, basic or header')
        if self.auth == "basic" and not self.users:
            raise ValueError(
                "--auth basic needs users: set YAMLSCHED_WEB_USERS to name:password, or pass"
                " --users-file FILE"
            )
        if self.auth == "header" and not self.trust_proxy:
            raise ValueError(
                "--auth header needs --trust-proxy: the address of the proxy that sets the header,"
                " or unix if it connects to a unix socket"
            )
        for proxy in self.trust_proxy:
            if proxy != "unix":
                _network(proxy)
        if self.base_path:
            _check_base_path(self.base_path)
        if self.external_url is not None:
            _check_external_url(self.external_url)

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The names, in lower case and without a port, that a request may have in its
        Host header.
        """
        external = urlsplit(self.external_url).hostname if self.external_url else None
        names = (*LOOPBACK_HOSTS, *self.hosts, *([external] if external else []))
        return frozenset(name.lower().strip("[]") for name in names)

    @property
    def has_actions(self) -> bool:
        return self.actions_dsn is not None and not self.read_only

    @property
    def result_key(self) -> bytes:
        """What signs the results of actions: each process of the page has it, and no reader of the
        database.
        """
        return hashlib.sha256(f"result {self.dsn} {self.actions_dsn}".encode()).digest()

    def reached_by(self, listen: Listen) -> WebOptions:
        """Return the options with the address that is listened on as a host that
        requests may name.
        """
        return (
            self
            if listen.path or listen.is_any_address
            else replace(self, hosts=(*self.hosts, listen.host))
        )

    def trusts(self, client: str | None) -> bool:
        """Return whether a peer may set the user header; None is the peer of a unix socket."""
        if client is None:
            return "unix" in self.trust_proxy
        try:
            address = ipaddress.ip_address(client.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any(
            _holds(proxy, mapped or address) for proxy in self.trust_proxy if proxy != "unix"
        )


class Listen(NamedTuple):
    """Where to listen: a path of a unix socket, or a host and a port."""

    path: str | None
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether only this host can connect."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_any_address(self) -> bool:
        return self.path is None and self.host in ("0.0.0.0", "::", "")


def parse_listen(text: str) -> Listen:
    """Parse ``HOST:PORT`` or ``unix:PATH``.

    >>> parse_listen("[::1]:8040"), parse_listen("unix:/run/yamlsched.sock").path
    (Listen(path=None, host='::1', port=8040), '/run/yamlsched.sock')
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path:
            raise ValueError(
                f'--listen "{text}" has no path: write for example unix:/run/yamlsched/web.sock'
            )
        return Listen(path)
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    if (
        not colon
        or not host
        or not is_port
        or (":" in host and not (host[0] == "[" and host[-1] == "]"))
    ):
        raise ValueError(
            f'--listen "{text}" is not an address: write HOST:PORT such as {DEFAULT_LISTEN}, or'
            " unix:PATH"
        )
    return Listen(None, host.strip("[]"), int(port))


def check_bind(listen: Listen, options: WebOptions) -> None:
    """Refuse to serve everyone without authentication, or without knowing the name by which
    browsers reach it.
    """
    if not listen.is_local and options.auth == "none":
        raise ValueError(
            f"--listen {listen.host}:{listen.port} can be reached from other hosts, and --auth none"
            " lets everyone in: listen on 127.0.0.1 or unix:PATH behind a proxy, or pass --auth"
            " basic or --auth header"
        )
    if listen.is_any_address and options.external_url is None and not options.hosts:
        raise ValueError(
            f"--listen {listen.host}:{listen.port} needs the name by which browsers reach it: pass"
            " --external-url https://NAME, or --allow-host NAME"
        )


def parse_users(text: str, source: str) -> dict[str, str]:
    """Parse lines of ``name:password``, or of a name and a hash of scrypt. Raises ValueError, which
    shows neither.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not colon or not name or not password or not name.isprintable():
            raise ValueError(f"{source}, line {number}: write name:password")
        if password.startswith(SCRYPT) and not SCRYPT_HASH.fullmatch(password):
            raise ValueError(f"{source}, line {number}: the hash is not valid. See docs/web.md")
        if name in users:
            raise ValueError(f"{source}, line {number}: this name has been used above")
        users[name] = password
    if not users:
        raise ValueError(f"{source} has no users: write name:password on a line for each")
    return users


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f'--trust-proxy "{text}" is not an address: write for example 127.0.0.1, 10.0.0.0/8, or'
            " unix"
        ) from None


def _holds(proxy: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    network = _network(proxy)
    return network.version == address.version and address in network


def _check_base_path(path: str) -> None:
    if not BASE_PATH.fullmatch(path):
        raise ValueError(f'--base-path "{path}" is not a path: write for example /scheduler')
    if path.split("/")[1] in PAGE_NAMES:
        raise ValueError(
            f'--base-path "{path}" starts like a page of its own: write for example /scheduler'
        )


def _check_external_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not parts.query
            and not parts.fragment
        )
        is_valid = is_valid and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            f'--external-url "{url}" is not a URL: write for example'
            " https://ops.example.com/scheduler"
        )
