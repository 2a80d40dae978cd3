"""The handlers that schedules.yaml names."""

from database import Session
from models import Account, Booking
from sqlalchemy import delete, update

from yamlsched import Run


def delete_closed(run: Run) -> int:
    """To do it again does no harm, so it needs nothing else."""
    with Session.begin() as session:
        return session.execute(delete(Account).where(Account.is_closed)).rowcount


def book_bonus(run: Run, account_id: int, cents: int = 500) -> None:
    """Book exactly once: the rows are committed together with the success of the run."""
    with Session.begin() as session:
        session.add(Booking(account_id=account_id, cents=cents))
        session.flush()
        session.execute(
            update(Account).where(Account.id == account_id).values(balance=Account.balance + cents)
        )
        run.succeed_in(session)
