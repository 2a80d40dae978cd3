"""Mail the operator when a run is dead."""

from __future__ import annotations

from email.message import EmailMessage
from typing import TYPE_CHECKING

from handlers import mail

if TYPE_CHECKING:
    from yamlsched import Run

OPERATOR = "operator@example.org"


def mail_operator(run: Run) -> None:
    """Mail which run died, and its last error."""
    message = EmailMessage()
    message["From"] = mail.SENDER
    message["To"] = OPERATOR
    message["Subject"] = f"{run.job_type}: run {run.id} is dead"
    message.set_content(
        f"Run {run.id} of {run.job_type} ({run.key or 'no key'}) exhausted its retries or was discarded.\n"
        f"The last error: {run.last_error or 'none is recorded'}\n\n"
        f"See why:    yamlsched show {run.id}\n"
        f"Retry:      yamlsched retry {run.id}\n"
    )
    mail.deliver(message)
