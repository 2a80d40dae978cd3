"""One request as a page sees it, and what a page can answer besides a view model."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import psycopg
from starlette.requests import Request
from starlette.responses import Response

from yamlsched.ask import history
from yamlsched.db.query import execute
from yamlsched.errors import ScheduleError
from yamlsched.extras.web.render import sentence
from yamlsched.timetable import times
from yamlsched.timetable.times import TimeInput
from yamlsched.timetable.zones import zone

MAX_RESULT_CHARS = 1_000
MAX_RESULT_SECONDS = 60
RESULT_PARAMETER = "result"
Row = TypeVar("Row")
CLOCK = "clock"
"""The parameter that chooses a time zone for all pages; its value is kept in a cookie."""
CLOCK_COOKIE = "yamlsched_clock"
CLOCK_SECONDS = 365 * 86_400


class BadRequest(Exception):
    """A parameter of the URL is not valid. ``remedy`` says what to write."""

    status = HTTPStatus.BAD_REQUEST

    def __init__(self, what: str, remedy: str = "", link: tuple[str, str] | None = None) -> None:
        super().__init__(what)
        self.remedy, self.link = remedy, link


class NotFound(BadRequest):
    """What the page is about does not exist. ``remedy`` says where to look instead."""

    status = HTTPStatus.NOT_FOUND


class SeeOther(Exception):
    """Another page shows what is asked for: its URL."""


class Download(Exception):
    """What is asked for is a text file, not a page."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self.name = name
        self.text = text


class Result(NamedTuple):
    """A sentence for the operator. ``is_partial``: not everything was done."""

    text: str
    is_partial: bool = False


@dataclass(frozen=True)
class Visit:
    """A request for a page. ``connection`` is in a read-only transaction; ``now`` is the database's
    time.

    ``namespace`` is "" if none is chosen; only the list of namespaces is shown then.
    """

    connection: psycopg.Connection[Any]
    namespace: str
    now: datetime
    path: Mapping[str, str]
    query: Mapping[str, str]
    url: Callable[..., str]
    user: str | None
    has_actions: bool
    file: Path  # schedules.yaml on the host of the page, which may not be there
    address: str = ""  # the path of the URL
    base: str = ""  # the prefix without a namespace
    namespaces: Sequence[str] = ()  # the first ones that the visitor can choose
    result: Result | None = None  # of the action that led here
    clock: str = ""  # the time zone that the viewer has chosen; "" is that of the jobs

    def timezone(self, view: object) -> str:
        """Return the time zone of the page that shows ``view``: that of its job, else that of most
        jobs.
        """
        if name := getattr(view, "timezone", "") or self.clock:
            return str(name)
        [counts] = execute(self.connection, "hosts.job_counts", namespace=self.namespace)
        return str(counts.timezone or "UTC")

    def timezone_of(self, job: str) -> str:
        """Return the time zone of times without one: that of ``job``, or of the file if it is
        "".
        """
        jobs = [job] if job else []
        return history.timezone_of(self.connection, self.namespace, jobs, self.file)

    def with_clock(self, clock: str) -> str:
        """Return the link to this page in another time zone. The choice is kept, see
        docs/web.md.
        """
        left_out = (CLOCK, RESULT_PARAMETER)
        kept = [(name, value) for name, value in self.query.items() if name not in left_out]
        return f"{self.address}?{urlencode([*kept, (CLOCK, clock)])}"

    def text(self, name: str, max_chars: int = 200) -> str:
        """Return a parameter of the query without surrounding spaces; "" if it is missing."""
        value = self.query.get(name, "").strip()
        if len(value) > max_chars or "\0" in value:
            raise BadRequest(
                f"The parameter {name} is not valid.", f"Write at most {max_chars} characters."
            )
        return value

    def number(self, name: str, default: int, lowest: int = 1, highest: int = 10**15) -> int:
        """Return a whole number of the query."""
        value = self.text(name)
        if not value:
            return default
        if not (value.isascii() and value.isdigit()) or not lowest <= int(value[:20]) <= highest:
            raise BadRequest(
                f'"{value}" is not valid for {name}.', f"Write a number from {lowest} to {highest}."
            )
        return int(value)

    def instant(self, name: str) -> datetime | None:
        """Return an instant of the query; None if it is missing."""
        text = self.text(name)
        try:
            instant = datetime.fromisoformat(text) if text else None
            if instant is not None and (instant.tzinfo is None or not 1970 < instant.year < 9000):
                raise ValueError(text)
        except ValueError:
            raise BadRequest(
                f'"{text}" is not a valid time.', "Write an instant such as 2026-01-14T01:00Z."
            ) from None
        return instant

    def time(self, name: str) -> TimeInput | None:
        """Return a time of the query in any form, as options have it; None if it is missing."""
        try:
            # an age may have a minus sign
            return times.parse(self.text(name).removeprefix("-")) if self.text(name) else None
        except (ValueError, OverflowError) as error:
            raise BadRequest(sentence(str(error))) from None

    def page_of(self, rows: Sequence[Row], size: int) -> tuple[Sequence[Row], int, int]:
        """Return the rows of the page that the query asks for, its number, and how many pages there
        are.
        """
        pages = max(1, -(-len(rows) // size))
        number = min(self.number("page", 1), pages)
        return rows[(number - 1) * size : number * size], number, pages

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return a parameter that has one of few values."""
        value = self.text(name)
        if value and value not in choices:
            raise BadRequest(
                f'"{value}" is not valid for {name}.', f"Write one of: {', '.join(choices)}."
            )
        return value or default


class Page(NamedTuple):
    """A page: its path, its template, and the function that reads its view model. In a path,
    ``{name}`` is a part that ``Visit.path`` has.
    """

    path: str
    template: str
    show: Callable[[Visit], Any]


def chosen_clock(request: Request) -> str:
    """Return the time zone that the URL or else the cookie chooses; "" for that of the jobs."""
    asked = request.query_params.get(CLOCK)
    name = request.cookies.get(CLOCK_COOKIE, "") if asked is None else asked
    try:
        return "" if name in ("", "job") else zone(name).key
    except ScheduleError:
        if asked is None:
            return ""
        raise BadRequest(
            f'There is no time zone "{name}".', "Write a name such as Europe/Berlin, or job."
        ) from None


def keep_clock(request: Request, response: Response) -> None:
    """Keep the time zone that the URL has chosen for all pages of this browser."""
    if (name := request.query_params.get(CLOCK)) is not None:
        path = request.state.base or "/"
        response.set_cookie(
            CLOCK_COOKIE, name, CLOCK_SECONDS, path=path, httponly=True, samesite="lax"
        )


def finder(text: str) -> Callable[..., bool]:
    """Return the function that says whether every word of ``text`` occurs in what is shown, in any
    case.
    """
    words = text.lower().split()

    def finds(*texts: str) -> bool:
        text = " ".join(texts).lower()
        return not [word for word in words if word not in text]

    return finds


def url_under(prefix: str) -> Callable[..., str]:
    """Return the function that makes links: ``url("jobs", name, span="7d")``. Parts and values are
    quoted.
    """

    def url(*parts: object, **query: object) -> str:
        path = "/".join(quote(str(part), safe="") for part in parts)
        parameters = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return f"{prefix}/{path}" + (f"?{urlencode(parameters)}" if parameters else "")

    return url


def sign_result(key: bytes, path: str, result: Result, now: datetime) -> str:
    """Return the parameter that shows ``result`` on the page ``path``: signed, so that no link
    speaks for the page.
    """
    text = (
        result.text
        if len(result.text) <= MAX_RESULT_CHARS
        else result.text[: MAX_RESULT_CHARS - 2] + " …"
    )
    content = json.dumps(
        [text, result.is_partial, int(now.timestamp())], ensure_ascii=False
    ).encode()
    encoded = base64.urlsafe_b64encode(content).decode().rstrip("=")
    return f"{encoded}.{_signature(key, path, encoded)}"


def read_result(key: bytes, path: str, query: Mapping[str, str], now: datetime) -> Result | None:
    """Return the result that a URL shows on the page ``path``; None if it has none, or it is not
    ours, or old.
    """
    parameter = query.get(RESULT_PARAMETER, "")
    encoded, _, signature = parameter.partition(".")
    if (
        not parameter
        or len(parameter) > MAX_RESULT_CHARS * 9
        or not encoded.isascii()
        or not signature.isascii()
    ):
        return None
    if not hmac.compare_digest(signature, _signature(key, path, encoded)):
        return None
    try:
        text, is_partial, at = json.loads(
            base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        )
    except (ValueError, binascii.Error):
        return None
    return Result(text, is_partial) if abs(now.timestamp() - at) < MAX_RESULT_SECONDS else None


def _signature(key: bytes, path: str, encoded: str) -> str:
    return hmac.new(key, f"{path} {encoded}".encode(), hashlib.sha256).hexdigest()[:32]
