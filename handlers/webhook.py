"""A webhook: notify another system of an event."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from handlers import web

if TYPE_CHECKING:
    from yamlsched import Run


def send(run: Run, url: str, event_id: str, event: str, data: dict[str, Any]) -> dict[str, int]:
    """Post an event to ``url`` once, however often it is enqueued.

    In doubt it is posted again with the same ``Idempotency-Key``, by which the receiver recognizes it.
    """
    with run.once(effect_name(event_id, url), scope="namespace", in_doubt="repeat") as effect:
        if effect.first:
            body = {"id": event_id, "event": event, "data": data}
            status, _ = web.call("POST", url, body, key=effect.key)
            effect.result = {"status": status}
    return dict(effect.result)


def effect_name(event_id: str, url: str) -> str:
    """Return the business key: the event and its receiver, because one event may have several receivers."""
    return f"webhook:{event_id}:{hashlib.sha256(url.encode()).hexdigest()[:12]}"
