"""The example handlers, whose workers are killed at named points; see crashes.py."""

from __future__ import annotations

from typing import Any

from handlers import mail, reports, web, webhook
from support import crashes
from yamlsched import Run

mail.TIMEOUT_SECONDS = web.TIMEOUT_SECONDS = 2  # seconds: do not wait long for a silent server

POINTS = (
    "before the claim of the key",
    "after the claim of the key",
    "inside the effect",
    "after the effect, before its result is stored",
    "before the finish",
    "before the commit",
)


def report(run: Run, user_id: int, week: str, point: str | None = None) -> Any:
    crashes._plan = (run, point, "both")
    return reports.send_weekly_report(run, user_id, week)


def hook(run: Run, point: str | None = None, **event: Any) -> Any:
    crashes._plan = (run, point, "both")
    return webhook.send(run, **event)


def die_after(module: Any, name: str) -> None:
    """Make the process die inside the effect: after each call of a function of ``module``."""
    real = getattr(module, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        crashes.die_at("inside the effect")
        return answer

    setattr(module, name, wrapped)


die_after(mail, "deliver")
die_after(web, "call")
