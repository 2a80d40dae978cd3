"""Send a mail once, through the SMTP server of EXAMPLE_SMTP (``host:port``), or into the maildir ``var/mail``."""

from __future__ import annotations

import mailbox
import os
import smtplib
from contextlib import suppress
from email.headerregistry import Address
from email.message import EmailMessage
from typing import TYPE_CHECKING

from handlers import app
from yamlsched import Discard

if TYPE_CHECKING:
    from yamlsched import Run

SENDER = "reports@example.org"
TIMEOUT_SECONDS = 10  # for each step of the protocol, far below the job's timeout


class NotSent(Exception):
    """The mail was not sent, so another attempt may send it."""


def send_once(run: Run, key: str, message: EmailMessage) -> str | None:
    """Send ``message`` once for ``key``, across all runs and attempts; return its Message-ID.

    Return None if an earlier attempt may have sent it: it is not sent again, because no mail is better than two. Do not
    call this while a transaction is open: it would hold its locks until the mail server responds.
    """
    with run.once(key, scope="namespace", in_doubt="skip", release_on=(NotSent, Discard)) as effect:
        if effect.first:
            # derived from the key, so that it is the same in each attempt
            message["Message-ID"] = f"<{effect.key}@example.org>"
            deliver(message)
            effect.result = message["Message-ID"]
    return str(effect.result) if effect.result else None


def deliver(message: EmailMessage) -> None:
    """Send ``message`` to one recipient.

    Raises NotSent if the server cannot be reached or refuses it temporarily, Discard if it refuses the recipient
    permanently. After any other exception (a broken connection, a timeout) it is unknown whether the mail was sent.
    """
    server = os.environ.get("EXAMPLE_SMTP")
    if not server:
        store_in_maildir(message)
        return
    host, _, port = server.partition(":")
    try:
        smtp = smtplib.SMTP(
            host, int(port or 25), local_hostname="localhost", timeout=TIMEOUT_SECONDS
        )
    except OSError as error:  # nothing was sent yet; the errors of smtplib are OSErrors as well
        raise NotSent(f"no mail server at {server}: {error}") from error
    try:
        smtp.send_message(message)
        with suppress(OSError):  # the mail was accepted, so the response to QUIT does not matter
            smtp.quit()
    except smtplib.SMTPRecipientsRefused as error:
        if all(code >= 500 for code, _ in error.recipients.values()):
            raise Discard(f"the mail server refuses {message['To']} permanently") from error
        raise NotSent(f"the mail server refuses {message['To']} temporarily") from error
    except smtplib.SMTPResponseException as error:
        # the server responded, and did not accept the mail
        raise NotSent(
            f"the mail server refuses the mail: {error.smtp_code} {error.smtp_error!r}"
        ) from error
    finally:
        smtp.close()


def store_in_maildir(message: EmailMessage) -> None:
    """Store ``message`` in the maildir ``var/mail``, which mail readers can open."""
    folder = app.VAR / "mail"
    for part in ("tmp", "new", "cur"):
        # because mailbox.Maildir fails if two processes create the same folder at once
        (folder / part).mkdir(parents=True, exist_ok=True)
    mailbox.Maildir(folder).add(message)


def text_to(name: str, email: str, subject: str, *lines: str) -> EmailMessage:
    """Return a mail with ``lines`` and no Message-ID."""
    message = EmailMessage()
    message["From"] = SENDER
    message["To"] = Address(display_name=name, addr_spec=email)
    message["Subject"] = subject
    message.set_content("\n".join([f"Hello {name},", "", *lines, ""]))
    return message
