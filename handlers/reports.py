"""Weekly reports: one run enqueues a run for each active user."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any

import psycopg

from handlers import app, mail
from yamlsched import Discard

if TYPE_CHECKING:
    from yamlsched import Run


def weekly_activity(run: Run, week: str | None = None) -> None:
    """Enqueue ``send_weekly_report`` for each active user, for ``week``, by default the one before this run's slot."""
    with run.transaction() as connection:
        app.ensure_tables(connection)
        [(now,)] = connection.execute("select now()").fetchall()
        # the slot, not the clock: a retry after midnight is for the same week
        week = week or week_before(run.scheduled_for or now)
        users = [
            id for (id,) in connection.execute("select id from app.users where active order by id")
        ]
        run.enqueue_many(
            "send_weekly_report",
            [{"user_id": user, "week": week} for user in users],
            keys=[f"weekly_report:{user}:{week}" for user in users],
        )
        run.result = {"week": week, "users": len(users)}
    run.log.info("enqueued %d reports for %s", len(users), week)


def send_weekly_report(run: Run, user_id: int, week: str) -> dict[str, str | None] | None:
    """Mail one user what they did in ``week`` (``2026-W03``), once, across all runs."""
    # not run.transaction(): no transaction is open while the mail is sent
    with app.connect(run) as connection:
        user = connection.execute(
            "select name, email from app.users where id = %s", [user_id]
        ).fetchone()
        done = activity(connection, user_id, week)
    if user is None:
        return {"message_id": None, "why": "the user does not exist"}
    message_id = mail.send_once(run, f"weekly_report:{user_id}:{week}", compose(user, week, done))
    with run.transaction() as connection:
        if message_id:
            connection.execute(
                """
                insert into app.sent_reports (user_id, week, message_id) values (%s, %s, %s)
                on conflict (user_id, week) do nothing
                """,
                [user_id, week, message_id],
            )
        run.result = {"message_id": message_id}
    if message_id:
        run.log.info("sent the report of %s to user %d", week, user_id)
    return None


def activity(connection: psycopg.Connection[Any], user_id: int, week: str) -> list[tuple[str, int]]:
    """Return what the user did in ``week``, UTC, as (kind, number) pairs, the most frequent first."""
    start = first_day(week)
    return connection.execute(
        """
        select kind, count(*)
        from app.events
        where user_id = %s and happened_at >= %s and happened_at < %s
        group by kind
        order by count(*) desc, kind
        """,
        [user_id, start, start + timedelta(days=7)],
    ).fetchall()


def compose(user: tuple[str, str], week: str, done: list[tuple[str, int]]) -> EmailMessage:
    """Return the report as a mail without Message-ID."""
    name, email = user
    lines = [f"{kind:<10} {number:>5}" for kind, number in done] or ["no activity"]
    return mail.text_to(
        name, email, f"Your activity in week {week}", f"your events in {week}:", "", *lines
    )


def week_before(instant: datetime) -> str:
    """Return the ISO week before that of ``instant``, in UTC.

    >>> week_before(datetime(2026, 1, 19, 6, tzinfo=UTC)), week_before(datetime(2026, 1, 1, tzinfo=UTC))
    ('2026-W03', '2025-W52')
    """
    return (instant.astimezone(UTC) - timedelta(days=7)).strftime("%G-W%V")


def first_day(week: str) -> datetime:
    """Return the start of an ISO week, in UTC. Raises Discard for an invalid week, because a retry cannot help."""
    try:
        return datetime.strptime(f"{week}-1", "%G-W%V-%u").replace(tzinfo=UTC)
    except ValueError as error:
        raise Discard(f'"{week}" is not a valid week: write for example 2026-W03') from error
