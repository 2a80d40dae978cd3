"""A server that stands for a monitoring service: it records what is requested, and may answer badly."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from json import loads
from typing import Any
from zoneinfo import ZoneInfo

from croniter import croniter

from support.http_server import QuietHandler, http_server


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.time)


@dataclass
class Service:
    """``received`` has the paths in order, ``requests`` everything. ``answers`` has a status and a Location by path."""

    url: str = ""
    requests: list[Received] = field(default_factory=list)
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    @property
    def received(self) -> list[str]:
        return [request.path for request in self.requests]


@contextmanager
def service() -> Iterator[Service]:
    service = Service()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            service.requests.append(
                Received(self.command, self.path, dict(self.headers), self.read_body())
            )
            service.may_answer.wait(60)
            status, location = service.answers.get(self.path, (200, ""))
            self.answer(status, {"Location": location} if location else {})

        do_POST = do_GET

    with http_server(Handler) as service.url:
        yield service


KEY, PROJECT = "0123456789abcdef0123456789abcdef", "4505"


@dataclass(frozen=True)
class Sentry:
    """Reads what a service received as Sentry does: strictly, and with its rules for monitors."""

    service: Service

    @property
    def dsn(self) -> str:
        return self.service.url.replace("//", f"//{KEY}@") + f"/{PROJECT}"

    @property
    def check_ins(self) -> list[dict[str, Any]]:
        return [_check_in(request) for request in self.service.requests]

    def statuses(self, slug: str) -> list[tuple[str, str]]:
        """Return the status and id of each check-in of a monitor."""
        return [
            (c["status"], c["check_in_id"]) for c in self.check_ins if c["monitor_slug"] == slug
        ]

    def is_missed(self, slug: str, at: datetime, last: datetime) -> bool:
        """Return whether Sentry reports a monitor, whose last check-in was at ``last``, as missed at ``at``."""
        config = [c["monitor_config"] for c in self.check_ins if c["monitor_slug"] == slug][-1]
        zone = ZoneInfo(config["timezone"])
        expected = croniter(config["schedule"]["value"], last.astimezone(zone)).get_next(datetime)
        return bool(at > expected + timedelta(minutes=config["checkin_margin"]))


def _check_in(request: Received) -> dict[str, Any]:
    assert (request.method, request.path) == ("POST", f"/api/{PROJECT}/envelope/")
    assert f"sentry_key={KEY}" in request.headers["X-Sentry-Auth"]
    assert "sentry_version=7" in request.headers["X-Sentry-Auth"]
    assert request.headers["Content-Type"] == "application/x-sentry-envelope"
    header, item, payload = request.body.decode().splitlines()
    assert loads(header) == {}
    assert loads(item)["type"] == "check_in"
    found: dict[str, Any] = loads(payload)
    assert re.fullmatch(r"[0-9a-f]{32}", found["check_in_id"])
    assert re.fullmatch(r"(?![0-9]+$)[a-z0-9_-]{1,50}", found["monitor_slug"])
    assert found["status"] in ("in_progress", "ok", "error")
    config = found["monitor_config"]
    assert config["schedule"]["type"] == "crontab"
    assert 1 <= config["checkin_margin"] <= 40_320
    assert 1 <= config["max_runtime"] <= 40_320
    return found
