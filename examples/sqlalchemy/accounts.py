"""What the application does, in the transaction of its caller."""

from models import Account
from sqlalchemy.orm import Session

import yamlsched


def open_account(session: Session, email: str) -> Account:
    account = Account(email=email)
    session.add(account)
    session.flush()  # gives it an id
    yamlsched.enqueue(
        session, "book_bonus", {"account_id": account.id}, key=f"book_bonus:{account.id}"
    )
    return account
