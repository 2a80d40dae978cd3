"""Draw docs/images/recording.svg, an animation of the commands and outputs of docs/recording.md.

    python docs/recording.py

It needs nothing but Python. tests/test_readme.py executes the commands, and fails if they print something else or if
the picture is not that of the page.
"""

from __future__ import annotations

import textwrap
from html import escape
from itertools import accumulate
from pathlib import Path

PAGE = Path(__file__).with_name("recording.md")
PICTURE = Path(__file__).parent / "images" / "recording.svg"
COLUMNS, LINE_PX, COLUMN_PX, MARGIN_PX = 100, 19, 7.8, 16
TYPING_SECONDS, READING_SECONDS, END_SECONDS = 1.0, 0.6, 5.0
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">
<title>{title}</title>
<style>
text {{ fill: #d5d9de; white-space: pre }}
.command {{ fill: #7ee0c0 }}
.WARNING, .ERROR {{ fill: #f2b45c }}
@media (prefers-reduced-motion: no-preference) {{ g {{ animation: {total}s step-end infinite }} }}
{keyframes}
</style>
<rect width="100%" height="100%" rx="8" fill="#14181d"/>
"""


def commands() -> list[list[str]]:
    """Return each command of the page with its output, in lines of at most ``COLUMNS``."""
    block = PAGE.read_text("utf-8").split("```console\n")[1].split("```")[0]
    parts: list[list[str]] = []
    for line in (line for line in block.splitlines() if line != "..."):
        if line.startswith("$ "):
            parts.append([])
        parts[-1] += textwrap.wrap(line, COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
    return parts


def draw(parts: list[list[str]]) -> str:
    """Return the picture: the parts appear one after the other, stay for a while, and it starts anew."""
    waits = [TYPING_SECONDS + READING_SECONDS * len(part) for part in parts]
    total = sum(waits) + END_SECONDS
    keyframes, groups, row = [], [], 1
    for nth, (part, start) in enumerate(zip(parts, accumulate([0.0, *waits]), strict=False)):
        keyframes.append(
            f"@keyframes p{nth} {{ 0% {{ opacity: {int(nth == 0)} }}"
            f" {100 * start / total:.1f}% {{ opacity: 1 }} }}"
        )
        groups.append(f'<g style="animation-name: p{nth}">')
        for line in part:
            y = MARGIN_PX + row * LINE_PX
            groups.append(f'<text x="{MARGIN_PX}" y="{y}"{_kind(line)}>{escape(line)}</text>')
            row += 1
        groups.append("</g>")
    head = HEAD.format(
        width=round(2 * MARGIN_PX + COLUMNS * COLUMN_PX),
        height=2 * MARGIN_PX + row * LINE_PX,
        title="A tick in which a backup fails, why, a retry, and the tick that succeeds",
        total=round(total, 1),
        keyframes="\n".join(keyframes),
    )
    return "\n".join([head.rstrip(), *groups, "</svg>\n"])


def _kind(line: str) -> str:
    kinds = (name for name in ("WARNING", "ERROR") if f"Z {name}" in line)
    kind = "command" if line.startswith("$ ") else next(kinds, "")
    return f' class="{kind}"' if kind else ""


if __name__ == "__main__":
    PICTURE.write_text(draw(commands()), "utf-8")
