"""The pages of actions: they read a form, show what will happen, and carry out what was confirmed.
See ``flow``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import psycopg
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from yamlsched import log
from yamlsched.ask.trail import TrailEntry, trail
from yamlsched.db.connection import reason
from yamlsched.db.dsn import redactor
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.web.actions import ACTIONS
from yamlsched.extras.web.ask import audit
from yamlsched.extras.web.ask.audit import sentence as say
from yamlsched.extras.web.flow import (
    MAX_TEXT_CHARS,
    PICKED,
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
    timezone_of,
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
TOO_SLOW = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)
LACKS_PRIVILEGE = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)
GRANT = (
    'Grant it yamlsched_worker: "yamlsched migrate --roles" prints the script that creates the'
    " roles. yamlsched doctor lists what a role is missing."
)
NO_STORE = {"Cache-Control": "no-store"}
Answer = Callable[..., Response]


class Form(NamedTuple):
    """A form, or a link to it. ``id`` is that which it had first, so that it is carried out once;
    ``seen`` the latest action on its target that its review has seen.
    """

    request: Request
    action: Action
    values: Given
    id: str
    seen: int = 0

    def again(self, visit: Visit) -> str:
        """Return the URL of a new form."""
        names = (*self.action.required, *self.action.one_of)
        values = {name: self.values[name] for name in names}
        return visit.url("actions", self.action.name, **values)


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
            if is_form and fields.get("confirm"):
                form = Form(request, action, values, _seen_form(fields), int(fields["seen"]))
                answer = partial(self._confirmed, form)
            else:
                id = fields.get("request", "")
                form = Form(request, action, values, id if is_request(id) else new_request())
                answer = partial(self._asked, form, is_form, bool(fields.get("edit")))
        except FormError as error:
            return self._reject(request, Rejection(error.status, str(error), "Nothing was done."))
        return await run_in_threadpool(self._guarded, request, answer)

    def _asked(self, form: Form, is_form: bool, is_edit: bool) -> Response:
        """Show what will happen, or the form if something is missing or not valid."""
        action, values = form.action, form.values
        missing = [name for name in action.required if not values[name]]
        asks_first = action.asks_first and not is_form
        is_complete = not missing and (
            not asks_first or any(values[name] for name in action.one_of)
        )
        errors = dict.fromkeys(missing, "This is needed.") if is_form and not is_edit else {}
        with self._open_visit(form.request) as visit:
            if is_form:
                most = MAX_COUNTED + 1
                done = trail(visit.connection, visit.namespace, request=form.id, limit=most)
                if done:
                    return self._already_done(form, visit, done[::-1])
            if is_complete and not is_edit:
                try:
                    return self._review(form, visit)
                except Invalid as error:
                    errors = {error.name: str(error)}
            return self._form(form, visit, errors)

    def _already_done(self, form: Form, visit: Visit, entries: Sequence[TrailEntry]) -> Response:
        """Say what the form has done: a browser that goes back sends it again."""
        is_one = len(entries) == 1
        return self._show(
            form.request,
            "action_done.html",
            HTTPStatus.OK,
            visit=visit,
            view=sentence(say(entries[0], visit.now, visit.user)),
            more="" if is_one else bounded(len(entries) - 1, MAX_COUNTED, "other"),
            path=path_of(entries[0]) if is_one else "/actions",
            again=form.again(visit),
        )

    def _form(self, form: Form, visit: Visit, errors: Mapping[str, str]) -> Response:
        values = form.values
        try:
            view = form.action.ask(visit, values)
        except Invalid as error:
            errors, values = {error.name: str(error), **errors}, Given({**values, error.name: ""})
            view = form.action.ask(visit, values)
        values = Given({**view.values, **{name: value for name, value in values.items() if value}})
        status = HTTPStatus.UNPROCESSABLE_ENTITY if errors else HTTPStatus.OK
        context = {"view": view, "action": form.action, "given": values, "form": form.id}
        if "time" in {field.kind for field in view.fields}:
            context["timezone"] = timezone_of(visit, form.action, values)
        return self._show(
            form.request, "action_form.html", status, visit=visit, errors=errors, **context
        )

    def _review(
        self, form: Form, visit: Visit, errors: Mapping[str, str] | None = None
    ) -> Response:
        """Show what will happen, or again what was confirmed with ``errors``."""
        view = form.action.review(visit, form.values)
        latest = (
            audit.latest(visit.connection, visit.namespace, view.target) if view.target else None
        )
        asked = {field.name for field in view.asks}
        hidden = {name: value for name, value in form.values.items() if value and name not in asked}
        hidden |= {**view.carried, "seen": str(latest.id if latest else 0), "request": form.id}
        return self._show(
            form.request,
            "action_review.html",
            HTTPStatus.UNPROCESSABLE_ENTITY if errors else HTTPStatus.OK,
            visit=visit,
            view=view,
            action=form.action,
            given=form.values,
            hidden=hidden,
            who=visit.user or anonymous(),
            errors=errors or {},
        )

    def _confirmed(self, form: Form) -> Response:
        """Carry out a form, and redirect to what it was about."""
        request = form.request
        with self._open_visit(request) as visit:
            namespace = visit.namespace
        doing = Doing(self._pool, namespace, visit.user, form.id, form.seen, self._options.file)
        try:
            done = self._perform(form, doing)
        except AlreadyDone as error:
            with self._open_visit(request) as visit:
                said = doing.say(visit.connection, error.entries[0])
            result = Result(f"Done already, and not repeated: {said}.")
            done = Redirect(path_of(error.entries[0]), result)
        except Invalid as error:
            wrong = {error.name: str(error)}
            with self._open_visit(request) as visit:
                try:
                    return self._review(form, visit, wrong)
                except Invalid:
                    return self._form(form, visit, wrong)
        except (Conflict, Refused) as error:
            said = str(error) if isinstance(error, Conflict) else sentence(str(error))
            with self._open_visit(request) as visit:
                context = {"view": said, "action": form.action}
                return self._show(
                    form.request,
                    "action_conflict.html",
                    HTTPStatus.CONFLICT,
                    visit=visit,
                    again=form.again(visit),
                    **context,
                )
        except (psycopg.Error, EnvironmentFailed) as error:
            return self._reject(request, self._failure(form, error))
        with self._open_visit(request) as visit:
            return self._redirect(request, visit, done)

    def _perform(self, form: Form, doing: Doing) -> Redirect:
        try:
            return form.action.perform(doing, form.values)
        except TOO_SLOW:
            raise
        except psycopg.OperationalError:
            # the session was lost; what was committed is found by the form
            return form.action.perform(doing, form.values)

    def _failure(self, form: Form, error: psycopg.Error | EnvironmentFailed) -> Rejection:
        """Return what is said about a database that did not carry out a form."""
        if isinstance(error, TOO_SLOW):
            what = (
                "The database needed longer than its time limit, or another session holds what this"
                " would change."
            )
            how = (
                "Nothing was done; of an action on many runs, the rest was not. The form can be"
                " sent again."
            )
            return Rejection(HTTPStatus.GATEWAY_TIMEOUT, what, how)
        why = self._redact(reason(error) if isinstance(error, psycopg.Error) else str(error))
        if isinstance(error, LACKS_PRIVILEGE):
            what = f"The role of the actions DSN may not do this: {why}. Nothing was done."
            return Rejection(HTTPStatus.FORBIDDEN, what, GRANT)
        log.warning("web.action_failed", action=form.action.name, error=why)
        how = (
            "The audit trail shows whether anything was done. The form can be sent again: it is"
            " carried out once."
        )
        return Rejection(HTTPStatus.SERVICE_UNAVAILABLE, f"The action failed: {why}.", how)

    def _redirect(self, request: Request, visit: Visit, done: Redirect) -> Response:
        path, _, query = done.path.partition("?")
        signed = sign_result(self._options.result_key, path, done.result, visit.now)
        query = f"{query}&" if query else ""
        url = f"{request.scope['root_path']}{path}?{query}{RESULT_PARAMETER}={signed}"
        return RedirectResponse(url, HTTPStatus.SEE_OTHER, NO_STORE)


def _of_link(request: Request) -> dict[str, str]:
    """Return the parameters of a link; one that occurs several times, as boxes that are ticked, is
    a list of words.
    """
    parameters = request.query_params
    return {name: " ".join(parameters.getlist(name)) for name in parameters}


def _seen_form(fields: Mapping[str, str]) -> str:
    """Return the id of a form that is confirmed, which also has what its review has seen."""
    id, seen = fields.get("request", ""), fields.get("seen", "")
    if not is_request(id) or not (seen.isascii() and seen.isdigit() and len(seen) < 19):
        raise FormError(f"{IS_NOT_A_FORM}.")
    return id


def _given(action: Action, fields: Mapping[str, str], is_form: bool) -> Given:
    """Return the fields of the action. A form may have no others; a link may."""
    values = Given()
    for name, value in fields.items():
        name = name.removesuffix(PICKED)
        if name in action.fields:
            limit = action.limits.get(name, MAX_TEXT_CHARS)
            if len(value) > limit:
                raise FormError(f"The field {name} is longer than {limit} characters.")
            if "\0" in value:
                raise FormError(f"The field {name} contains a NUL character.")
            values[name] = value.strip() or values[name]  # what is written replaces what is picked
        elif is_form and name not in RESERVED:
            raise FormError(f'{IS_NOT_A_FORM}: it has no field "{name[:100]}".')
    return values
