"""What happens when a run is finally dead: somebody is told."""

from __future__ import annotations

from email.message import EmailMessage
from typing import TYPE_CHECKING

from handlers import mail

if TYPE_CHECKING:
    from yamlsched import Run

OPERATOR = "operator@example.org"


def mail_operator(run: Run) -> None:
    """Mail which run died, and of what."""
    message = EmailMessage()
    message["From"] = mail.SENDER
    message["To"] = OPERATOR
    message["Subject"] = f"{run.job_type}: run {run.id} is dead"
    message.set_content(
        f"Run {run.id} of {run.job_type} ({run.key or 'no key'}) used up its attempts or was discarded.\n"
        f"The last error: {run.last_error or 'none is recorded'}\n\n"
        f"See why:    yamlsched show {run.id}\n"
        f"Try again:  yamlsched retry {run.id}\n"
    )
    mail.deliver(message)
