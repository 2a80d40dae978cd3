"""Invoices: reminders in the morning, and a nightly check that payments equal their invoices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handlers import app, mail
from yamlsched import Discard

if TYPE_CHECKING:
    from yamlsched import Run

MAX_REMINDERS = 3


def remind_of_invoices(run: Run) -> None:
    """Enqueue ``send_invoice_reminder`` for each overdue invoice: the first at once, another after each week.

    A key identifies the reminder and not the day, so a morning that is missed or repeated neither loses nor repeats a
    reminder.
    """
    with run.transaction() as connection:
        app.ensure_tables(connection)
        today = app.day_of(run, connection)
        reminders = connection.execute(
            """
            select i.id, 1 + (%(today)s - i.due_on - 1) / 7 as number
            from app.invoices i
            where i.due_on < %(today)s and not exists (select from app.payments p where p.invoice_id = i.id)
            order by i.id
            """,
            {"today": today},
        ).fetchall()
        due = [(invoice, number) for invoice, number in reminders if number <= MAX_REMINDERS]
        run.enqueue_many(
            "send_invoice_reminder",
            [{"invoice_id": invoice, "number": number} for invoice, number in due],
            keys=[f"invoice_reminder:{invoice}:{number}" for invoice, number in due],
        )
        run.result = {"day": str(today), "overdue": len(reminders), "reminders": len(due)}


def send_invoice_reminder(run: Run, invoice_id: int, number: int) -> dict[str, str | None]:
    """Mail one reminder once, unless the invoice has been paid."""
    with app.connect(run) as connection:
        row = connection.execute(
            """
            select u.name, u.email, i.amount_cents, i.due_on
            from app.invoices i
            join app.users u on u.id = i.user_id
            where i.id = %s and not exists (select from app.payments p where p.invoice_id = i.id)
            """,
            [invoice_id],
        ).fetchone()
    if row is None:
        return {"message_id": None, "why": "the invoice was paid or deleted"}
    name, email, amount, due_on = row
    message = mail.text_to(
        name,
        email,
        f"Invoice {invoice_id}: reminder {number}",
        f"invoice {invoice_id} of {amount / 100:.2f} EUR was due on {due_on}.",
    )
    return {"message_id": mail.send_once(run, f"invoice_reminder:{invoice_id}:{number}", message)}


def check_billing(run: Run) -> dict[str, int]:
    """Compare each payment with its invoice. Raises Discard if they differ, because a retry cannot help."""
    with app.connect(run) as connection:
        [(payments, differences)] = connection.execute(
            """
            select count(*),
                   array_agg(p.invoice_id order by p.invoice_id)
                       filter (where i.amount_cents is distinct from p.amount_cents)
            from app.payments p
            left join app.invoices i on i.id = p.invoice_id
            """
        ).fetchall()
    if differences:
        shown = ", ".join(str(invoice) for invoice in differences[:10])
        raise Discard(f"{len(differences)} payments differ from their invoices: {shown}")
    run.log.info("checked %d payments", payments)
    return {"payments": payments}
