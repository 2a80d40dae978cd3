"""The pages of actions: they read a form, show what will happen, and carry out what was confirmed.
See ``flow``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus

import psycopg
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from yamlsched import log
from yamlsched.ask.why import TrailEntry
from yamlsched.db.connection import reason
from yamlsched.db.dsn import redactor
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.web.actions import ACTIONS
from yamlsched.extras.web.ask import audit
from yamlsched.extras.web.ask.audit import sentence as say
from yamlsched.extras.web.flow import (
    MAX_TEXT_CHARS,
    RESERVED,
    Action,
    AlreadyDone,
    Conflict,
    Doing,
    Given,
    Invalid,
    Redirect,
    anonymous,
    is_request,
    new_request,
    path_of,
)
from yamlsched.extras.web.forms import IS_NOT_A_FORM, FormError, read_form
from yamlsched.extras.web.options import WebOptions
from yamlsched.extras.web.pool import ACTION_SETTINGS, Pool
from yamlsched.extras.web.render import bounded, sentence
from yamlsched.extras.web.security import SAFE_METHODS, Rejection, no_actions
from yamlsched.extras.web.visit import RESULT_PARAMETER, Result, Visit, sign_result

ACTION_SESSIONS = 2
MAX_COUNTED = 1_000
"""Entries of the audit trail by one form that are counted."""
LACKS_PRIVILEGE = (
    'Grant it yamlsched_worker: "yamlsched migrate --roles" prints the script that creates the'
    " roles. yamlsched doctor lists what a role lacks."
)
NO_STORE = {"Cache-Control": "no-store"}
Answer = Callable[..., Response]


class ActionPages:
    """``open_visit`` reads for a request, ``show`` renders a template, ``reject``
    renders an error.
    """

    def __init__(
        self,
        options: WebOptions,
        open_visit: Callable[[Request], AbstractContextManager[Visit]],
        show: Answer,
        reject: Callable[[Request, Rejection], Response],
        guarded: Callable[[Request, Callable[[], Response]], Response],
    ) -> None:
        self._options = options
        self._open_visit = open_visit
        self._show = show
        self._reject = reject
        self._guarded = guarded
        self._pool = Pool(options.actions_dsn or "", ACTION_SESSIONS, ACTION_SETTINGS)
        self._redact = redactor(options.actions_dsn or "")

    def close(self) -> None:
        self._pool.close()

    async def endpoint(self, request: Request) -> Response:
        action = ACTIONS.get(request.path_params["name"])
        if action is None:
            return self._reject(
                request, Rejection(HTTPStatus.NOT_FOUND, "There is no such action.")
            )
        if rejection := no_actions(self._options):
            return self._reject(request, rejection)
        is_form = request.method not in SAFE_METHODS
        try:
            fields = await read_form(request) if is_form else _of_link(request)
            values = _given(action, fields, is_form)
        except FormError as error:
            return self._reject(request, Rejection(error.status, str(error), "Nothing was done."))
        answer = self._confirmed if is_form and fields.get("confirm") else self._asked
        return await run_in_threadpool(
            self._guarded, request, lambda: answer(request, action, values, fields, is_form)
        )

    def _asked(
        self,
        request: Request,
        action: Action,
        values: Given,
        fields: Mapping[str, str],
        is_form: bool,
    ) -> Response:
        """Show what will happen, or the form if something is missing or not valid."""
        with self._open_visit(request) as visit:
            is_complete = all(values[name] for name in action.required)
            if action.asks_first and not is_form:
                is_complete = is_complete and any(values[name] for name in action.one_of)
            errors = {}
            if is_form and not is_complete and not fields.get("edit"):
                errors = {name: "This is needed." for name in action.required if not values[name]}
            form = _form_id(fields) if is_form else new_request()
            if done := audit.of_request(visit.connection, form, MAX_COUNTED + 1) if is_form else []:
                return self._already_done(request, visit, action, values, done)
            if is_complete and not fields.get("edit"):
                try:
                    return self._review(request, visit, action, values, form)
                except Invalid as error:
                    errors = {error.name: str(error)}
            return self._form(request, visit, action, values, form, errors)

    def _already_done(
        self,
        request: Request,
        visit: Visit,
        action: Action,
        values: Given,
        entries: Sequence[TrailEntry],
    ) -> Response:
        """Say what the form has done: a browser that goes back sends it again."""
        return self._show(
            request,
            "action_done.html",
            HTTPStatus.OK,
            visit=visit,
            view=sentence(say(entries[0], visit.now, visit.user)),
            more=bounded(len(entries) - 1, MAX_COUNTED, "other") if len(entries) > 1 else "",
            path=path_of(entries[0]) if len(entries) == 1 else "/actions",
            again=self._again(visit, action, values),
        )

    def _again(self, visit: Visit, action: Action, values: Given) -> str:
        """Return the URL of a new form."""
        return visit.url(
            "actions",
            action.name,
            **{name: values[name] for name in (*action.required, *action.one_of)},
        )

    def _form(
        self,
        request: Request,
        visit: Visit,
        action: Action,
        values: Given,
        form: str,
        errors: Mapping[str, str],
    ) -> Response:
        try:
            view = action.ask(visit, values)
        except Invalid as error:
            errors, values = {error.name: str(error), **errors}, Given({**values, error.name: ""})
            view = action.ask(visit, values)
        values = Given({**view.values, **{name: value for name, value in values.items() if value}})
        status = HTTPStatus.UNPROCESSABLE_ENTITY if errors else HTTPStatus.OK
        return self._show(
            request,
            "action_form.html",
            status,
            visit=visit,
            view=view,
            action=action,
            given=values,
            form=form,
            errors=errors,
        )

    def _review(
        self,
        request: Request,
        visit: Visit,
        action: Action,
        values: Given,
        form: str,
        errors: Mapping[str, str] | None = None,
    ) -> Response:
        """Show what will happen, or again what was confirmed with ``errors``."""
        view = action.review(visit, values)
        latest = (
            audit.latest(visit.connection, visit.namespace, view.target) if view.target else None
        )
        asked = {field.name for field in view.asks}
        hidden = {name: value for name, value in values.items() if value and name not in asked}
        hidden |= {**view.carried, "seen": str(latest.id if latest else 0), "request": form}
        status = HTTPStatus.UNPROCESSABLE_ENTITY if errors else HTTPStatus.OK
        return self._show(
            request,
            "action_review.html",
            status,
            visit=visit,
            view=view,
            action=action,
            given=values,
            hidden=hidden,
            who=visit.user or anonymous(),
            errors=errors or {},
        )

    def _confirmed(
        self,
        request: Request,
        action: Action,
        values: Given,
        fields: Mapping[str, str],
        is_form: bool,
    ) -> Response:
        """Carry out a form, and redirect to what it was about."""
        seen = fields.get("seen", "")
        if not is_request(fields.get("request", "")) or not (
            seen.isascii() and seen.isdigit() and len(seen) < 19
        ):
            return self._reject(
                request, Rejection(HTTPStatus.BAD_REQUEST, f"{IS_NOT_A_FORM}.", "Nothing was done.")
            )
        with self._open_visit(request) as visit:
            namespace = visit.namespace
        doing = Doing(
            self._pool, namespace, visit.user, fields["request"], int(seen), self._options.file
        )
        try:
            try:
                done = action.perform(doing, values)
            except psycopg.OperationalError as error:
                if isinstance(
                    error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable
                ):
                    raise
                # the session was lost; what was committed is found by the form
                done = action.perform(doing, values)
        except AlreadyDone as error:
            with self._open_visit(request) as visit:
                what = (
                    "Done already, and not repeated:"
                    f" {doing.say(visit.connection, error.entries[0])}."
                )
                return self._redirect(
                    request, visit, Redirect(path_of(error.entries[0]), Result(what))
                )
        except Invalid as error:
            wrong = {error.name: str(error)}
            with self._open_visit(request) as visit:
                try:
                    return self._review(request, visit, action, values, fields["request"], wrong)
                except Invalid:
                    return self._form(request, visit, action, values, fields["request"], wrong)
        except Conflict as error:
            return self._conflict(request, action, values, str(error))
        except Refused as error:
            return self._conflict(
                request, action, values, f"{str(error)[:1].upper()}{str(error)[1:]}."
            )
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
            what = (
                "The database needed longer than its time limit, or another session holds what this"
                " would change."
            )
            how = (
                "Nothing was done; of an action on many runs, the rest was not. The form can be"
                " sent again."
            )
            return self._reject(request, Rejection(HTTPStatus.GATEWAY_TIMEOUT, what, how))
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.ReadOnlySqlTransaction,
        ) as error:
            what = (
                f"The role of the actions DSN may not do this: {self._redact(reason(error))}."
                " Nothing was done."
            )
            return self._reject(request, Rejection(HTTPStatus.FORBIDDEN, what, LACKS_PRIVILEGE))
        except (psycopg.Error, EnvironmentFailed) as error:
            why = self._redact(reason(error) if isinstance(error, psycopg.Error) else str(error))
            log.warning("web.action_failed", action=action.name, error=why)
            how = (
                "The audit trail shows whether anything was done. The form can be sent again: it is"
                " carried out once."
            )
            what = f"The action failed: {why}."
            return self._reject(request, Rejection(HTTPStatus.SERVICE_UNAVAILABLE, what, how))
        with self._open_visit(request) as visit:
            return self._redirect(request, visit, done)

    def _redirect(self, request: Request, visit: Visit, done: Redirect) -> Response:
        path, _, query = done.path.partition("?")
        parameter = sign_result(self._options.result_key, path, done.result, visit.now)
        url = f"{request.scope['root_path']}{path}?{query + '&' if query else ''}{RESULT_PARAMETER}={parameter}"
        return RedirectResponse(url, HTTPStatus.SEE_OTHER, NO_STORE)

    def _conflict(self, request: Request, action: Action, values: Given, what: str) -> Response:
        with self._open_visit(request) as visit:
            again = self._again(visit, action, values)
            return self._show(
                request,
                "action_conflict.html",
                HTTPStatus.CONFLICT,
                visit=visit,
                view=what,
                action=action,
                again=again,
            )


def _of_link(request: Request) -> dict[str, str]:
    """Return the parameters of a link; one that occurs several times, as boxes that are ticked, is
    a list of words.
    """
    parameters = request.query_params
    return {name: " ".join(parameters.getlist(name)) for name in parameters}


def _form_id(fields: Mapping[str, str]) -> str:
    """Return the id of a form: it keeps the one that it was shown with first, so that it is carried
    out once.
    """
    id = fields.get("request", "")
    return id if is_request(id) else new_request()


def _given(action: Action, fields: Mapping[str, str], is_form: bool) -> Given:
    """Return the fields of the action. A form may have no others; a link may."""
    values = Given()
    for name, value in fields.items():
        if name in action.fields:
            limit = action.limits.get(name, MAX_TEXT_CHARS)
            if len(value) > limit:
                raise FormError(f"The field {name} is longer than {limit} characters.")
            if "\0" in value:
                raise FormError(f"The field {name} contains a NUL character.")
            values[name] = value.strip()
        elif is_form and name not in RESERVED:
            raise FormError(f'{IS_NOT_A_FORM}: it has no field "{name[:100]}".')
    return values
