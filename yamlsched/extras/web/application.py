"""The ASGI application. A request passes ``Guard``, gets a session in a transaction, and its page
reads a view model, which a template shows. Every failure has a page that says what happened and
what to do.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import psycopg
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from yamlsched import __version__, log
from yamlsched.ask import history
from yamlsched.ask.runs import namespaces as known_namespaces
from yamlsched.db.connection import reason
from yamlsched.db.dsn import redactor
from yamlsched.db.migrations import WrongTables
from yamlsched.db.query import now
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.web import render
from yamlsched.extras.web.action_pages import TOO_SLOW, ActionPages
from yamlsched.extras.web.documents import DOCUMENTS, FRAGMENT_HEADER, if_changed, wants_json
from yamlsched.extras.web.options import WebOptions
from yamlsched.extras.web.pages import NAVIGATION, PAGES, namespaces
from yamlsched.extras.web.pool import READER_SETTINGS, Pool
from yamlsched.extras.web.security import Guard, Rejection
from yamlsched.extras.web.visit import (
    BadRequest,
    Download,
    NotFound,
    Page,
    SeeOther,
    Visit,
    chosen_clock,
    keep_clock,
    read_result,
    url_under,
)
from yamlsched.show import terminal

MAX_NAMESPACES = 20
"""Namespaces that each page lists; a page of its own lists more."""
FOREVER = "public, max-age=31536000, immutable"
TIMED_OUT = Rejection(
    HTTPStatus.GATEWAY_TIMEOUT,
    "The database needed longer than the time limit of this page.",
    "The server may be overloaded, or an analyze of yamlsched's tables is due. yamlsched doctor"
    " checks the setup.",
)
LACKS_PRIVILEGE = (
    'Grant it yamlsched_reader: "yamlsched migrate --roles" prints the script that creates the'
    ' roles, "yamlsched doctor" lists what the role is missing.'
)
IS_DOWN = "The database is down or cannot be reached."
AFTERWARDS = (
    "No job starts until it is back; then hosts catch up. Start it if it has stopped. yamlsched"
    " doctor checks the connection of a host."
)
RETRY = {"Retry-After": "10"}
REPORT_SECONDS = 10.0
NO_PAGE = "There is no such page."
MISTYPED = "The link is old or mistyped. The menu has all pages; the box finds jobs and runs."
IS_A_BUG = "This is a bug in yamlsched. Its log has the details; please report them."


def build(options: WebOptions) -> ASGIApp:
    """Return the application."""
    return Application(options).guarded()


class Application:
    """The pages with what they share: sessions, templates, static files."""

    def __init__(self, options: WebOptions) -> None:
        self._options = options
        self._pool = Pool(options.dsn, options.sessions, READER_SETTINGS)
        self._templates = render.environment()
        self._redact = redactor(options.dsn)
        self._reported_at = float("-inf")
        self._actions = ActionPages(
            options, self._visit, self._response, self._error, self._guarded
        )

    def guarded(self) -> ASGIApp:
        async def static(request: Request) -> Response:
            file = render.STATIC.get(request.path_params["name"])
            if file is None:
                raise HTTPException(HTTPStatus.NOT_FOUND)
            return FileResponse(file, headers={"Cache-Control": FOREVER})

        routes = [Route(page.path, self._endpoint(page)) for page in PAGES]
        pages = Starlette(
            routes=[
                *routes,
                Route("/actions/{name}", self._actions.endpoint, methods=["GET", "POST"]),
                Route("/static/{name}", static),
            ],
            middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._http_error, Exception: self._bug},
        )
        # it would redirect to the scheme and host of the proxy's request
        pages.router.redirect_slashes = False
        return Guard(pages, self._options, self._reject)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        self._pool.close()
        self._actions.close()

    def _endpoint(self, page: Page) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await run_in_threadpool(self._answer, page, request)

        return endpoint

    def _answer(self, page: Page, request: Request) -> Response:
        def answer() -> Response:
            if any("\0" in part for part in request.path_params.values()):
                raise NotFound(NO_PAGE)
            with self._visit(request) as visit:
                target = page if visit.namespace else namespaces.PAGE
                view = target.show(visit)
                clock = render.Clock(visit.timezone(view), visit.now, bool(visit.clock))
            caching = "private, no-cache" if self._options.auth == "none" else "no-store"
            if wants_json(request):
                parts = {"namespace": visit.namespace, **DOCUMENTS[target.path](view)}
                return if_changed(
                    request, terminal.document(**parts).encode(), caching, "application/json"
                )
            context = {"here": page.path, "visit": visit, "view": view, "clock": clock}
            response = if_changed(
                request, self._html(request, target.template, HTTPStatus.OK, **context), caching
            )
            keep_clock(request, response)
            return response

        return self._guarded(request, answer)

    def _guarded(self, request: Request, answer: Callable[[], Response]) -> Response:
        """Return the answer, or the page of an error. It is tried again with another session if one
        is lost.
        """
        try:
            try:
                return answer()
            except TOO_SLOW:
                raise
            except psycopg.OperationalError:
                return answer()  # the server was restarted: another session may work
        except TOO_SLOW:
            return self._error(request, TIMED_OUT)
        except psycopg.errors.InsufficientPrivilege as error:
            what = (
                f"The role of the page's DSN is missing a privilege: {self._redact(reason(error))}."
            )
            return self._error(
                request, Rejection(HTTPStatus.SERVICE_UNAVAILABLE, what, LACKS_PRIVILEGE)
            )
        except (psycopg.Error, EnvironmentFailed) as error:
            why = self._redact(reason(error) if isinstance(error, psycopg.Error) else str(error))
            self._report(request, why)
            what, remedy = render.sentence(why), ""
            is_down = isinstance(error, psycopg.OperationalError | EnvironmentFailed)
            if is_down and not isinstance(error, WrongTables):
                what, remedy = IS_DOWN, f"{what} {AFTERWARDS}"
            return self._error(
                request, Rejection(HTTPStatus.SERVICE_UNAVAILABLE, what, remedy, RETRY)
            )
        except SeeOther as other:
            return Response(
                status_code=HTTPStatus.SEE_OTHER,
                headers={"Location": str(other), "Cache-Control": "no-store"},
            )
        except Download as file:
            headers = {
                "Content-Disposition": f'attachment; filename="{file.name}"',
                "Cache-Control": "no-store",
            }
            return Response(file.text, media_type="text/plain", headers=headers)
        except BadRequest as error:
            return self._error(
                request, Rejection(error.status, str(error), error.remedy, link=error.link)
            )
        except Refused as error:
            return self._error(
                request, Rejection(HTTPStatus.BAD_REQUEST, render.sentence(str(error)))
            )

    def _report(self, request: Request, error: str) -> None:
        """Log that the database cannot be used, but not for each tab that is open meanwhile."""
        if time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = time.monotonic()
            log.warning("web.unavailable", path=request.url.path, error=error)

    @contextmanager
    def _visit(self, request: Request) -> Iterator[Visit]:
        """Yield a visit, whose session is in a read-only transaction."""
        with self._pool.transaction() as connection:
            at = now(connection)
            path = request.scope["path"].removeprefix(request.scope["root_path"])
            names = (
                [] if self._options.namespace else known_namespaces(connection, MAX_NAMESPACES + 1)
            )
            is_document = wants_json(request) or path.startswith("/actions/")
            may_choose = path in ("/", namespaces.PAGE.path) or not is_document
            yield Visit(
                connection=connection,
                namespace=self._namespace(connection, request, names, may_choose),
                namespaces=names,
                address=quote(request.scope["path"]),
                base=request.state.base,
                now=at,
                path=request.path_params,
                query=request.query_params,
                url=url_under(request.scope["root_path"]),
                user=request.state.user,
                has_actions=self._options.has_actions,
                file=self._options.file,
                clock=chosen_clock(request),
                result=read_result(self._options.result_key, path, request.query_params, at),
            )

    def _namespace(
        self,
        connection: psycopg.Connection[Any],
        request: Request,
        names: list[str],
        may_choose: bool,
    ) -> str:
        """Return the namespace that the URL or the options choose; "" if none does, where
        ``may_choose``.
        """
        chosen: str | None = request.state.namespace
        if chosen is None:
            try:
                return history.namespace_of(connection, self._options.namespace, self._options.file)
            except Refused:
                if may_choose and len(names) > 1:
                    return ""
                raise
        if chosen not in names and chosen not in known_namespaces(connection):
            raise NotFound(
                f'There is no namespace "{chosen}".',
                "It may have no jobs any more, or be misspelt.",
            )
        return chosen

    def _response(
        self, request: Request, template: str, status: HTTPStatus, **context: Any
    ) -> Response:
        """Return a page that is made for one request, which browsers do not keep."""
        visit = context["visit"]
        clock = render.Clock(visit.timezone(context["view"]), visit.now, bool(visit.clock))
        html = self._html(request, template, status, here=None, clock=clock, **context)
        return HTMLResponse(html, status, {"Cache-Control": "no-store"})

    def _html(self, request: Request, template: str, status: HTTPStatus, **context: Any) -> bytes:
        is_fragment = FRAGMENT_HEADER in request.headers
        return (
            self._templates.get_template(template)
            .render(
                layout="fragment.html" if is_fragment else "base.html",
                url=url_under(request.scope["root_path"]),
                prefix=request.scope["root_path"],
                base=request.scope["state"]["base"],
                max_namespaces=MAX_NAMESPACES,
                navigation=NAVIGATION,
                user=request.state.user,
                has_actions=self._options.has_actions,
                version=__version__,
                status=status,
                **{"is_stranger": False, "clock": render.Clock("UTC", datetime.min), **context},
            )
            .encode()
        )

    def _error(self, request: Request, rejection: Rejection, is_stranger: bool = False) -> Response:
        """Return the page of an error. A stranger is shown neither the other pages nor
        the version.
        """
        if wants_json(request):
            document = terminal.document(error=rejection.what, remedy=rejection.remedy)
            headers = {"Cache-Control": "no-store", **rejection.headers}
            return Response(document, rejection.status, headers, "application/json")
        context = {"here": None, "visit": None, "view": rejection, "is_stranger": is_stranger}
        context["is_retried"] = rejection.headers is RETRY and request.method == "GET"
        html = self._html(request, "error.html", rejection.status, **context)
        headers = {"Cache-Control": "no-store", **rejection.headers}
        return HTMLResponse(html, rejection.status, headers)

    async def _reject(
        self, scope: Scope, receive: Receive, send: Send, rejection: Rejection
    ) -> None:
        response = self._error(
            Request(scope), rejection, is_stranger=scope["state"]["user"] is None
        )
        await response(scope, receive, send)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = {
            HTTPStatus.NOT_FOUND: NO_PAGE,
            HTTPStatus.METHOD_NOT_ALLOWED: "This page has no such action.",
        }.get(HTTPStatus(error.status_code), render.sentence(error.detail))
        remedy = MISTYPED if what == NO_PAGE else ""
        return self._error(
            request,
            Rejection(HTTPStatus(error.status_code), what, remedy, error.headers or {}),
        )

    async def _bug(self, request: Request, _: Exception) -> Response:
        return self._error(
            request, Rejection(HTTPStatus.INTERNAL_SERVER_ERROR, "This page failed.", IS_A_BUG)
        )
