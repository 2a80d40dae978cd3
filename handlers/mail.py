"""Sending a mail: by the SMTP server that EXAMPLE_SMTP names (``host:port``), else into a maildir, ``var/mail``."""

from __future__ import annotations

import mailbox
import os
import smtplib
from email.message import EmailMessage

from handlers import app
from yamlsched import Discard

SENDER = "reports@example.org"
TIMEOUT = 10  # seconds for each step of the conversation, far below the job's timeout


def deliver(message: EmailMessage) -> None:
    """Hand ``message`` over. Raises Discard when the server refuses the recipient for good: no retry would help."""
    server = os.environ.get("EXAMPLE_SMTP")
    if not server:
        keep(message)
        return
    host, _, port = server.partition(":")
    with smtplib.SMTP(host, int(port or 25), local_hostname="localhost", timeout=TIMEOUT) as smtp:
        try:
            smtp.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            if all(code >= 500 for code, _ in error.recipients.values()):
                raise Discard(f"the mail server refuses {message['To']} for good") from error
            raise


def keep(message: EmailMessage) -> None:
    """Put ``message`` into the maildir ``var/mail``, which any mail reader opens."""
    folder = app.VAR / "mail"
    for part in ("tmp", "new", "cur"):
        # by hand, because mailbox.Maildir fails when two processes make the same folder at once
        (folder / part).mkdir(parents=True, exist_ok=True)
    mailbox.Maildir(folder).add(message)
