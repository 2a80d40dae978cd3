"""The web page: what the command line answers, to look at. See docs/web.md.

    application   the ASGI application: routes, errors, ETags    <- start reading here
    security      who may ask for what: hosts, users, forms, headers
    options       what can be set, and which combinations are refused
    serve         the server of `yamlsched web`: sockets and signals
    pool          a few read-only sessions
    visit         one request: its session, its parameters, its links
    flow          how an action goes, from the form to its result; actions/ has a module per action
    pages/        one module per page: query, view model; templates/ has the template of each
    charts/       what templates draw as inline SVG
    render        the templates: times, numbers, the names of static files, elements

Importing this package is cheap. It needs the extra `web`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.web.options import WebOptions

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["app"]


def app(
    dsn: str, *, hosts: Sequence[str] = (), auth: str = "application", **options: Any
) -> ASGIApp:
    """Return the page as an ASGI application, to mount into another one or to serve.

    It serves only requests whose user the application around it has authenticated:
    ``scope["user"]``, as of Starlette's AuthenticationMiddleware or of Django. ``auth="none"``
    serves everyone, and lets everyone act. ``dsn`` needs the role yamlsched_reader. ``hosts`` are
    the names under which browsers reach the page, besides localhost and that of ``external_url``.
    ``options`` are the fields of ``options.Options``. Raises ValueError for options that cannot be
    combined, EnvironmentFailed if the extra ``web`` is not installed.
    """
    require_extra()
    from yamlsched.extras.web.application import build  # its libraries are optional

    return build(WebOptions(dsn=dsn, hosts=tuple(hosts), auth=auth, **options))


def require_extra() -> None:
    """Raise EnvironmentFailed if a package of the extra ``web`` is not installed."""
    missing = [
        name
        for name in ("jinja2", "psycopg_pool", "starlette", "uvicorn")
        if find_spec(name) is None
    ]
    if missing:
        raise EnvironmentFailed(
            f"the web page needs {', '.join(missing)}: install the extra with: pip install"
            " 'yamlsched[web]'"
        )
