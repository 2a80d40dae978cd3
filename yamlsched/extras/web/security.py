"""Who may ask for what. A request passes here before it reaches a page.

In this order: the prefix of the URL, the Host header, the user, and for a POST its origin. Every
response gets the headers that keep other sites out.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from time import monotonic as _monotonic
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yamlsched import log
from yamlsched.extras.web.documents import FRAGMENT_HEADER
from yamlsched.extras.web.options import SCRYPT, WebOptions, parse_users

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # not no-referrer: browsers would then send "Origin: null" with our own forms
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SAFE_METHODS = ("GET", "HEAD")
FORBIDDEN = HTTPStatus.FORBIDDEN
MAX_USER_CHARS = 200
FREE_FAILURES, FREE_FAILURES_OF_NAME = 5, 20
MAX_LOGIN_DELAY_SECONDS, MAX_LOGINS = 60.0, 10_000
NAMESPACE_PART = re.compile(r"/@([a-z][a-z0-9_]{0,62})(?=/|$)")
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@/?#\s]+))(?::[0-9]{1,5})?")
Reject = Callable[[Scope, Receive, Send, "Rejection"], Awaitable[None]]


class Rejection(NamedTuple):
    """Why a request is not served: a status, what happened, what to do, and a button's text and
    address.
    """

    status: HTTPStatus
    what: str
    remedy: str = ""
    headers: Mapping[str, str] = {}
    link: tuple[str, str] | None = None


NO_LOGIN = "This page asks for a name and a password."
WRONG_LOGIN = "The name or the password is wrong."
OLD_LOGIN = "This password is no longer valid."


class Logins:
    """Wrong passwords: after a few for a name from one address, each next one must wait, twice as
    long each time.

    Many for a name, from any addresses, wait as well. A name that logs in clears only its own
    failures.
    """

    def __init__(self) -> None:
        self._failures: dict[
            tuple[str, str], tuple[int, float]
        ] = {}  # how many in a row, and until when the next waits

    def wait_seconds(self, client: str, name: str) -> int:
        """Return for how many seconds no password for ``name`` from ``client`` is checked."""
        until = max(self._failures.get(key, (0, 0.0))[1] for key in ((client, name), ("", name)))
        return math.ceil(until - _monotonic())

    def failed(self, client: str, name: str) -> None:
        for key, free in (((client, name), FREE_FAILURES), (("", name), FREE_FAILURES_OF_NAME)):
            count = self._failures.pop(key, (0, 0.0))[0] + 1
            delay = 2.0 ** min(count - free, 10) if count > free else 0.0
            self._failures[key] = count, _monotonic() + min(delay, MAX_LOGIN_DELAY_SECONDS)
            if len(self._failures) > MAX_LOGINS:
                # the one that has failed least recently
                del self._failures[next(iter(self._failures))]

    def succeeded(self, client: str, name: str) -> None:
        self._failures.pop((client, name), None)
        self._failures.pop(("", name), None)


class Passwords:
    """The users of ``--auth basic``. Their file is read again when it has changed."""

    def __init__(self, options: WebOptions) -> None:
        self._file, self._users, self._version = options.users_file, options.users, -1
        # what has been verified, and against what
        self._verified: dict[tuple[str, bytes], str] = {}
        # scrypt is slow on purpose, and must not take all processors
        self.one_at_a_time = asyncio.Semaphore(1)

    def is_verified(self, name: str, password: str) -> bool:
        """Return whether this password was verified before: browsers send it each time."""
        self._read_again()
        return name in self._users and self._users[name] == self._verified.get(
            (name, _digest(password))
        )

    async def verify(self, name: str, password: str) -> str:
        """Return why it is not the password of ``name``; "" if it is. An unknown name takes as long
        as a wrong password. A tab that is open sends one that was replaced, which is no guess.
        """
        expected, sent = self._users.get(name, ""), (name, _digest(password))
        if await asyncio.to_thread(_matches, expected, password) and expected:
            self._verified[sent] = expected
            return ""
        return OLD_LOGIN if sent in self._verified else WRONG_LOGIN

    def _read_again(self) -> None:
        if self._file is None:
            return
        version = 0
        try:
            version = self._file.stat().st_mtime_ns
            if version != self._version:
                self._users = parse_users(self._file.read_text("utf-8"), str(self._file))
        except (
            OSError,
            ValueError,
        ) as error:  # until it is valid again, the users are those before
            if version != self._version:
                log.error("web.users_not_read", file=self._file, error=error)
        self._version = version


class Guard:
    """An ASGI application that passes on the requests that are allowed; ``reject`` answers the
    others.
    """

    def __init__(self, app: ASGIApp, options: WebOptions, reject: Reject) -> None:
        self._app = app
        self._options = options
        self._reject = reject
        self._hosts = options.allowed_hosts
        self._logins = Logins()
        self._passwords = Passwords(options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        scope = self._under_base_path(scope)
        headers = Headers(scope=scope)
        rejection = _framing(headers) or self._host(headers)
        user: str | None = None
        if rejection is None:
            user, rejection = await self._user(scope, headers)
        scope["state"] = {**scope.get("state", {}), "user": user}
        if rejection is None and scope["method"] not in SAFE_METHODS:
            rejection = self._form(scope, headers)
        if rejection is not None:
            # a stranger keeps no connection, and what is left of the body is not read
            answer = {**rejection.headers, "Connection": "close"}
            if FRAGMENT_HEADER in headers:  # a refresh must not open a dialog over what is written
                answer.pop("WWW-Authenticate", None)
            await self._reject(scope, receive, with_headers, rejection._replace(headers=answer))
        elif scope["path"] == scope["root_path"]:
            await RedirectResponse(scope["root_path"] + "/")(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)

    def _under_base_path(self, scope: Scope) -> Scope:
        """Return a scope whose path starts with the base path, whether the proxy kept the prefix or
        stripped it.

        A namespace in the URL, as in /@shop/runs, belongs to the prefix: so links and forms keep
        it.
        """
        mounted_at = scope.get("root_path", "")
        base = mounted_at + self._options.base_path
        path = scope["path"]
        if path != base and not path.startswith(base + "/"):
            path = base + path.removeprefix(mounted_at)
        chosen = None if self._options.namespace else NAMESPACE_PART.match(path, len(base))
        root = base + (chosen[0] if chosen else "")
        state = {**scope.get("state", {}), "base": base, "namespace": chosen[1] if chosen else None}
        return {**scope, "path": path, "root_path": root, "state": state}

    def _host(self, headers: Headers) -> Rejection | None:
        host = headers.get("host", "")
        if _host_name(host) in self._hosts:
            return None
        return Rejection(
            HTTPStatus.MISDIRECTED_REQUEST,
            f'This page does not answer for the host "{host}".',
            "If that is its name, start yamlsched web with --external-url https://NAME, or"
            " --allow-host NAME.",
        )

    async def _user(self, scope: Scope, headers: Headers) -> tuple[str | None, Rejection | None]:
        match self._options.auth:
            case "basic":
                return await self._basic(scope, headers)
            case "header":
                return self._header(scope, headers)
            case "application":
                if (user := _user_of_application(scope)) is not None:
                    return user, None
                return None, Rejection(
                    FORBIDDEN,
                    "This page is for users whom the application around it has authenticated.",
                    "Sign in there. The application mounts this page behind its login, or passes"
                    ' auth="none".',
                )
            case _:
                return _user_of_application(scope), None

    async def _basic(self, scope: Scope, headers: Headers) -> tuple[str | None, Rejection | None]:
        name, password = _credentials(headers.get("authorization", ""))
        client = scope["client"][0] if scope.get("client") else "unix"
        if self._passwords.is_verified(name, password):
            return name, None
        if name or password:
            async with self._passwords.one_at_a_time:
                return await self._first_login(name, password, client)
        return None, self._no_login(NO_LOGIN)

    async def _first_login(
        self, name: str, password: str, client: str
    ) -> tuple[str | None, Rejection | None]:
        if self._passwords.is_verified(name, password):  # meanwhile
            return name, None
        if (seconds := self._logins.wait_seconds(client, name)) > 0:
            return None, Rejection(
                HTTPStatus.TOO_MANY_REQUESTS,
                "There were too many wrong passwords for this name.",
                f"Try again in {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )
        fault = await self._passwords.verify(name, password)
        if not fault:
            self._logins.succeeded(client, name)
            return name, None
        if fault == WRONG_LOGIN:
            self._logins.failed(client, name)
            log.warning("web.login_failed", user=name[:MAX_USER_CHARS], client=client)
        return None, self._no_login(fault)

    def _no_login(self, what: str) -> Rejection:
        """Return a rejection that lets browsers ask. They keep a password for each realm: pages of
        one host have several.
        """
        realm = f'Basic realm="yamlsched{self._options.base_path}", charset="UTF-8"'
        return Rejection(
            HTTPStatus.UNAUTHORIZED,
            what,
            "Reload the page to sign in.",
            {"WWW-Authenticate": realm},
        )

    def _header(self, scope: Scope, headers: Headers) -> tuple[str | None, Rejection | None]:
        name = self._options.user_header
        client = scope["client"][0] if scope.get("client") else None
        if not self._options.trusts(client):
            return None, Rejection(
                FORBIDDEN,
                f"The user comes from a proxy, and {client or 'a unix socket'} is not a trusted"
                " one.",
                "Open this page through the proxy. If this is the proxy, name it with"
                " --trust-proxy.",
            )
        values = headers.getlist(name)
        if len(values) != 1:
            how = "has not set" if not values else "has set more than once"
            return None, Rejection(
                FORBIDDEN, f"The proxy {how} the header {name}, which names the user."
            )
        user = _utf8(values[0]).strip()
        # a comma joins two headers of one name: a proxy that adds its own to a client's
        if not user or len(user) > MAX_USER_CHARS or not user.isprintable() or "," in user:
            return None, Rejection(
                FORBIDDEN, f"The header {name} does not have a valid name of a user."
            )
        return user, None

    def _form(self, scope: Scope, headers: Headers) -> Rejection | None:
        """Reject a request that changes something unless it is allowed and comes from a page of our
        own.
        """
        if not _is_same_origin(self._options.external_url, scope["scheme"], headers):
            return Rejection(
                FORBIDDEN,
                "This request does not come from a page of yamlsched, so nothing was done.",
                "Behind a proxy, pass --external-url with the address that browsers show.",
            )
        return no_actions(self._options)


def no_actions(options: WebOptions) -> Rejection | None:
    """Return why the page changes nothing; None if it can."""
    if options.read_only:
        return Rejection(FORBIDDEN, "This page is read-only: it was started with --read-only.")
    if options.actions_dsn is None:
        return Rejection(
            FORBIDDEN,
            "This page is read-only: it has no database session that may change anything.",
            "To allow actions, set YAMLSCHED_ACTIONS_DSN to a DSN with the role yamlsched_worker.",
        )
    return None


def _framing(headers: Headers) -> Rejection | None:
    """Reject a request with two lengths: a proxy may read the other one, and take the rest for a
    request.
    """
    if "transfer-encoding" in headers and "content-length" in headers:
        return Rejection(
            HTTPStatus.BAD_REQUEST, "This request has both Transfer-Encoding and Content-Length."
        )
    return None


def _user_of_application(scope: Scope) -> str | None:
    """Return the user whom an application around this one has authenticated: one of Starlette's, or
    of Django's.
    """
    user = scope.get("user")
    name = (
        str(getattr(user, "display_name", user)) if getattr(user, "is_authenticated", False) else ""
    )
    return name if name and name.isprintable() else None


def _is_same_origin(external_url: str | None, scheme: str, headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    own = _origin(external_url) if external_url else f"{scheme}://{headers.get('host', '')}".lower()
    return headers.get("origin", "").lower() == own


def _origin(url: str) -> str:
    """Return the origin of a URL as browsers write it: without the scheme's own port.

    >>> _origin("https://Ops.example.com:443/scheduler"), _origin("http://[::1]:8040")
    ('https://ops.example.com', 'http://[::1]:8040')
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    is_default = parts.port in (None, {"http": 80, "https": 443}[parts.scheme])
    return f"{parts.scheme}://{host}" + ("" if is_default else f":{parts.port}")


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port; "" for what is not a name and a port.

    >>> _host_name("Ops.example.com:8040"), _host_name("[::1]:8040"), _host_name("a:1@evil.com")
    ('ops.example.com', '::1', '')
    """
    match = HOST.fullmatch(host)
    return (match[1] or match[2]).lower() if match else ""


def _credentials(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        decoded = _utf8(base64.b64decode(encoded.strip(), validate=True).decode("latin-1"))
    except ValueError:
        return "", ""
    name, _, password = decoded.partition(":")
    return name, password


def _matches(expected: str, password: str) -> bool:
    """Return whether ``password`` is the expected one. Takes one scrypt, whatever is expected."""
    is_hash = expected.startswith(SCRYPT)
    salt, _, key = expected.removeprefix(SCRYPT).partition("$") if is_hash else ("00" * 16, "", "")
    content = password.encode("utf-8", "surrogateescape")
    computed = hashlib.scrypt(content, salt=bytes.fromhex(salt), n=16384, r=8, p=1).hex()
    return (
        hmac.compare_digest(computed, key)
        if is_hash
        else hmac.compare_digest(_digest(password), _digest(expected))
    )


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogateescape")).digest()


def _utf8(value: str) -> str:
    """Return what was decoded as Latin-1, as ASGI frameworks do, as the UTF-8 that it may be."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
