"""A sign-up, and a follow-up mail three days later."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import yamlsched
from handlers import app, mail

if TYPE_CHECKING:
    import psycopg

    from yamlsched import Run

FOLLOW_UP_AFTER = timedelta(days=3)


def sign_up(connection: psycopg.Connection[Any], user_id: int, name: str, email: str) -> None:
    """Add a user. As in a web application, both rows are committed together, or neither is."""
    with connection.transaction():
        connection.execute(
            "insert into app.users (id, name, email, active) values (%s, %s, %s, true)",
            [user_id, name, email],
        )
        yamlsched.enqueue(
            connection,
            "send_follow_up",
            {"user_id": user_id},
            key=f"follow_up:{user_id}",
            delay=FOLLOW_UP_AFTER,
        )


def send_follow_up(run: Run, user_id: int) -> dict[str, str | None]:
    """Mail, once, a user who signed up and has had no activity since."""
    with app.connect(run) as connection:
        row = connection.execute(
            """
            select u.name, u.email from app.users u
            where u.id = %s and u.active and not exists (select from app.events e where e.user_id = u.id)
            """,
            [user_id],
        ).fetchone()
    if row is None:
        return {"message_id": None, "why": "the user is already active, or was deleted"}
    name, email = row
    message = mail.text_to(
        name, email, "Can we help?", "you signed up three days ago. Here is how to start."
    )
    return {"message_id": mail.send_once(run, f"follow_up:{user_id}", message)}
