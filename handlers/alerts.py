"""Mail the operator when a run of another job is dead."""

from __future__ import annotations

from email.message import EmailMessage
from typing import TYPE_CHECKING

from handlers import mail

if TYPE_CHECKING:
    from yamlsched import Run

OPERATOR = "operator@example.org"


def mail_operator(run: Run) -> None:
    """Mail which run died, and its last error."""
    dead = run.trigger
    if dead is None:
        return  # it was pruned, or somebody enqueued this run
    message = EmailMessage()
    message["From"] = mail.SENDER
    message["To"] = OPERATOR
    message["Subject"] = f"{dead.job_type}: run {dead.run_id} is dead"
    message.set_content(
        f"Run {dead.run_id} of {dead.job_type} ({dead.key or 'no key'}) exhausted its retries or was discarded.\n"
        f"The last error: {dead.error or 'none is recorded'}\n\n"
        f"See why:    yamlsched show {dead.run_id}\n"
        f"Retry:      yamlsched retry {dead.run_id}\n"
    )
    mail.deliver(message)
