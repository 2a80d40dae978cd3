"""Send a mail once: by the SMTP server that EXAMPLE_SMTP names (``host:port``), else into a maildir, ``var/mail``."""

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
TIMEOUT = 10  # seconds for each step of the conversation, far below the job's timeout


class NotSent(Exception):
    """The mail was certainly not sent: another attempt may send it."""


def send_once(run: Run, key: str, message: EmailMessage) -> str | None:
    """Send ``message`` once for ``key``, whichever runs and attempts come to it; return its Message-ID.

    None: an earlier attempt may have sent it, and nobody knows. Rather no mail than two: it is not sent again. Do not
    call this with a transaction open: it would hold its locks while the mail server thinks.
    """
    with run.once(key, scope="namespace", in_doubt="skip", release_on=(NotSent, Discard)) as effect:
        if effect.first:
            # made of the key, so that it is the same in each attempt
            message["Message-ID"] = f"<{effect.key}@example.org>"
            deliver(message)
            effect.result = message["Message-ID"]
    return str(effect.result) if effect.result else None


def deliver(message: EmailMessage) -> None:
    """Hand ``message`` over, to one recipient.

    Raises NotSent if the server cannot be reached or refuses it for now, Discard if it refuses the recipient for good.
    Any other exception (a connection that broke, a server that fell silent) leaves open whether it was sent.
    """
    server = os.environ.get("EXAMPLE_SMTP")
    if not server:
        keep(message)
        return
    host, _, port = server.partition(":")
    try:
        smtp = smtplib.SMTP(host, int(port or 25), local_hostname="localhost", timeout=TIMEOUT)
    except OSError as error:  # nothing was sent yet, whatever it is: smtplib's own errors are OSErrors as well
        raise NotSent(f"no mail server at {server}: {error}") from error
    try:
        smtp.send_message(message)
        with suppress(OSError):  # the mail is accepted: what the server says to QUIT changes nothing
            smtp.quit()
    except smtplib.SMTPRecipientsRefused as error:
        if all(code >= 500 for code, _ in error.recipients.values()):
            raise Discard(f"the mail server refuses {message['To']} for good") from error
        raise NotSent(f"the mail server refuses {message['To']} for now") from error
    except smtplib.SMTPResponseException as error:  # an answer, and the answer was no
        raise NotSent(f"the mail server refuses the mail: {error.smtp_code} {error.smtp_error!r}") from error
    finally:
        smtp.close()


def keep(message: EmailMessage) -> None:
    """Put ``message`` into the maildir ``var/mail``, which any mail reader opens."""
    folder = app.VAR / "mail"
    for part in ("tmp", "new", "cur"):
        # by hand, because mailbox.Maildir fails when two processes make the same folder at once
        (folder / part).mkdir(parents=True, exist_ok=True)
    mailbox.Maildir(folder).add(message)


def text_to(name: str, email: str, subject: str, *lines: str) -> EmailMessage:
    """Return a mail of ``lines``, without Message-ID."""
    message = EmailMessage()
    message["From"] = SENDER
    message["To"] = Address(display_name=name, addr_spec=email)
    message["Subject"] = subject
    message.set_content("\n".join([f"Hello {name},", "", *lines, ""]))
    return message
