"""The bytes of schedules.yaml as text."""

from __future__ import annotations

import re

from yamlsched.definitions.findings import Findings
from yamlsched.definitions.schedule_file import MAX_FILE_BYTES
from yamlsched.definitions.source import Source

FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x85\x86-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""The characters that YAML 1.2 forbids, and the line breaks of YAML 1.1 that it does not recognize."""
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
UTF8_MARK = b"\xef\xbb\xbf"


def decode(data: bytes, file: str) -> Findings:
    """Return the text of a file as the source of its findings. They have one error if it cannot be read."""
    found = Findings(Source(file, ""))
    if len(data) > MAX_FILE_BYTES:
        message = f"the file has more than {MAX_FILE_BYTES:,} bytes"
        found.error_at((0, 0), "YS013", message, "Split it into several namespaces.")
    elif data.startswith(UTF16_MARKS):
        found.error_at((0, 0), "YS002", "the file is in UTF-16", "Save it as UTF-8.")
    elif data.startswith(UTF8_MARK):
        found.error_at((0, 0), "YS002", "the file starts with a byte order mark", "Save it as UTF-8 without BOM.")
    else:
        try:
            found = Findings(Source(file, data.decode()))
        except UnicodeDecodeError as error:
            text = data[: error.start].decode()
            found = Findings(Source(file, text + "\ufffd"))
            message = f"the byte 0x{data[error.start]:02x} is not UTF-8"
            found.error_at((len(text), len(text) + 1), "YS002", message, "Save the file as UTF-8.")
        else:
            _check_characters(found)
    return found


def _check_characters(found: Findings) -> None:
    text = found.source.text
    bad = FORBIDDEN.search(text)
    if bad is None:
        return
    code = ord(bad[0])
    if code == 0 and text.count("\0") * 4 > len(text):
        found.error_at(bad.span(), "YS002", "the file is in UTF-16", "Save it as UTF-8.")
        return
    name = "NUL" if code == 0 else f"U+{code:04X}"
    remedy = "Remove it." if code < 0x20 else f'Remove it, or write "\\u{code:04x}" in double quotes.'
    found.error_at(bad.span(), "YS003", f"the character {name} is not allowed", remedy)
