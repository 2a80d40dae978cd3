"""Reading the body of a form. Whatever a browser would not send is refused, with what is wrong."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

MAX_BODY_BYTES = 262_144
"""A payload of 64 KiB, in which each byte may be written as three, and the other fields."""
MAX_FIELDS = 40
FORM_TYPE = "application/x-www-form-urlencoded"
IS_NOT_A_FORM = "This is not a form of a page of yamlsched"


class FormError(Exception):
    """A body that is not a form of ours, and the status of the answer."""

    def __init__(self, what: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(what)
        self.status = status


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises FormError; a body over the limit is not read
    to its end.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != FORM_TYPE or charset not in ("", "utf-8"):
        raise FormError(
            f"{IS_NOT_A_FORM}: its type is not {FORM_TYPE}.", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        )
    return parse_form(await _body(request))


async def _body(request: Request) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise _too_large()
    except ClientDisconnect:
        raise FormError("The form did not arrive completely.") from None
    return bytes(body)


def _too_large() -> FormError:
    limit = f"This form has over {MAX_BODY_BYTES // 1024} KiB. A payload can have 64 KiB."
    return FormError(limit, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def parse_form(body: bytes) -> dict[str, str]:
    """Parse a form.

    >>> parse_form(b"run=118&reason=a+b%C3%A9")
    {'run': '118', 'reason': 'a bé'}
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
            separator="&",
        )
    except ValueError:  # also UnicodeDecodeError
        raise FormError(f"{IS_NOT_A_FORM}: its fields cannot be read.") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FormError(f'{IS_NOT_A_FORM}: the field "{twice}" occurs twice.')
    return fields
