"""The connections of `yamlsched web`, which are limited before anybody has logged in.

uvicorn has no limit for the time of a request, and its limit of connections answers everyone with
503. A request that is rejected (no login, a foreign host) is answered with ``Connection: close``.
So a connection that is still open after an answer belongs to a user, and the others may be closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from yamlsched import log
from yamlsched.extras.web.options import WebOptions

REQUEST_SECONDS = 20.0
"""For a request to arrive, header and body: then the connection is closed."""
MAX_CONNECTIONS, MAX_PER_PEER = 512, 128
"""A trusted proxy, and the peers of a unix socket, have only the first limit."""
MIN_FILES = 4 * MAX_CONNECTIONS
LOG_INTERVAL_SECONDS = 60.0


def limited(options: WebOptions) -> type[H11Protocol]:
    """Return a protocol whose connections have limits, which it counts for all of them together."""
    peers: Counter[str] = Counter()

    class LimitedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _peer: str | None = None  # that is counted
        _is_user = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            strangers.append(self)
            peer = self.client[0] if self.client else None
            if peer is not None and not options.trusts(peer):
                peers[peer] += 1
                self._peer = peer
            if peers[self._peer or ""] > MAX_PER_PEER:
                # the oldest
                next(one for one in strangers if one._peer == self._peer).transport.abort()
            elif len(self.connections) > MAX_CONNECTIONS:
                strangers[0].transport.abort()
            self._await_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_timer()
            if not self._is_user:
                strangers.remove(self)
            if self._peer is not None:
                peers[self._peer] -= 1
                if not peers[self._peer]:
                    del peers[self._peer]
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
                self._await_request()
            else:
                self._forget_timer()

        def on_response_complete(self) -> None:
            if not self._is_user:
                self._is_user = True
                strangers.remove(self)
            super().on_response_complete()

        def _await_request(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

        def _forget_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    strangers: list[LimitedProtocol] = []
    return LimitedProtocol


def raise_file_limit() -> None:
    """Allow as many open files as the connections need, if the hard limit does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MIN_FILES if hard == resource.RLIM_INFINITY else min(hard, MIN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def exception_handler() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return what reports errors of the event loop; that no file is left, which comes up often,
    once a minute.
    """
    reported_at = -LOG_INTERVAL_SECONDS

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal reported_at
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif time.monotonic() - reported_at >= LOG_INTERVAL_SECONDS:
            reported_at = time.monotonic()
            log.error("web.no_files", error=error.strerror or str(error))

    return handle


def quiet_server() -> None:
    """Keep uvicorn's warnings out of the log: whoever connects can cause one for each malformed
    request.
    """
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.levelno >= logging.ERROR)
