"""A webhook: tell another system that something happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handlers import web

if TYPE_CHECKING:
    from yamlsched import Run


def send(run: Run, url: str, event: str, data: dict[str, Any]) -> dict[str, int]:
    """Post the event to ``url``. The receiver may get it twice, and can tell by the ``Idempotency-Key``."""
    with run.once("post", in_doubt="repeat") as effect:
        if effect.first:
            status, _ = web.call("POST", url, {"event": event, "data": data}, key=effect.key)
            effect.result = {"status": status}
    return dict(effect.result)
