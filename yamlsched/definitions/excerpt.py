"""Parts of a large schedules.yaml: its text without the entries of all jobs but some.

A worker executes a few jobs of a file, and parsing a file of thousands takes a second. Its text is cut where entries
of jobs start, and what is left is parsed like any file. This is right only if lines show where an entry starts. So each
line is checked: quoted strings and flow collections must end on their line, no job may contain an anchor, and there may
be no tabs, tags, complex keys or second document. The text must be a valid schedule.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

MAX_FLOW_LEVELS = 4
MANY_JOBS = 16
"""For more, all lines are read once instead of once for each."""

# Repetitions are possessive: nothing is tried twice, so that the time is linear.
QUOTED = r"""(?:"(?:[^"\\\n]++|\\[^\n])*+"|'(?:[^'\n]++|'')*+')"""
FLOW_PART = rf"""(?:[^"'\[\]{{}}#&!\n]++|(?<=[ ,\[{{]){QUOTED})*+"""
FLOW = rf"[\[{{]{FLOW_PART}[\]}}]"
for _ in range(MAX_FLOW_LEVELS - 1):
    FLOW = rf"[\[{{]{FLOW_PART}(?:{FLOW}{FLOW_PART})*+[\]}}]"
PLAIN_FIRST = r"""(?:[^\s\-?:,\[\]{}#&*!|>'"%@`]|[-?:](?=[^\s,\[\]{}]))"""
PLAIN = rf"{PLAIN_FIRST}(?:[^\s:#]++(?: ++[^\s:#]++)*+|:(?=\S)|(?<=\S)#| ++(?=[^\s#]))*+"
KEY = rf"(?:{QUOTED}|{PLAIN}) *+:(?=[ \n])"
END = r" *+(?:(?:^|(?<= ))#[^\n]*+)?\n"
"""The end of a line, perhaps with a comment."""
ANCHOR = r"(?:&[^\s,\[\]{}]++(?=[ \n]) *+)?"
LINE = rf" *+(?:- ++)*+(?:{KEY} *+)?{ANCHOR}(?:\*[^\s,\[\]{{}}]++|{QUOTED}|{FLOW}|{PLAIN}|-)?{END}"
BLOCK_SCALAR = rf"( *+){KEY} ++{ANCHOR}[|>][-+1-9]*+{END}(?: *+\n|\1 [^\n]*+\n)*+"
LINES = rf"(?:(?!(?:---|\.\.\.)[ \n])(?:{LINE}|{BLOCK_SCALAR}))*+"
"""Lines that stand for themselves, and block scalars, without a second document."""
FIRST_LINES = r"(?:(?:#[^\n]*+)?\n)*+(?:---\n)?"
JOBS = rf"^jobs:{END}"
NEXT_KEY = r"\n[^ \n#]"
FIRST_ENTRY = r"(?: *+(?:#[^\n]*+)?\n)*+( ++)"
ANY_ANCHOR = r"[ \n]&[^\s&]"


@dataclass(frozen=True, slots=True)
class Excerpts:
    """The text of a schedule, whose jobs are between ``start`` and ``end``, each indented by ``indent``."""

    text: str
    start: int
    end: int
    indent: str

    @classmethod
    def of(cls, text: str) -> Excerpts | None:
        """Return the excerpts of a valid schedule; None if its lines do not show where its jobs start."""
        text = text if text.endswith("\n") else f"{text}\n"
        jobs = re.search(JOBS, text, re.MULTILINE)
        if jobs is None or "\r" in text or "\t" in text:
            return None
        first = re.match(FIRST_LINES, text)
        if first is None or re.compile(LINES, re.MULTILINE).fullmatch(text, first.end()) is None:
            return None
        start = jobs.end()
        after = re.compile(NEXT_KEY).search(text, start - 1)
        end = after.start() + 1 if after else len(text)
        entry = re.compile(FIRST_ENTRY).match(text, start, end)
        if entry is None or (text.find("&", start, end) >= 0 and re.compile(ANY_ANCHOR).search(text, start, end)):
            return None
        return cls(text, start, end, entry[1])

    def with_jobs(self, names: Collection[str]) -> str | None:
        """Return the text with the entries of these jobs only; None if one of them is not found."""
        starts = self._starts() if len(names) > MANY_JOBS else {name: self._start(name) for name in names}
        next_entry = re.compile(rf"\n {{0,{len(self.indent)}}}[^ \n#]")
        parts = [self.text[: self.start]]
        for name in names:
            start = starts.get(name, -1)
            if start < 0:
                return None
            after = next_entry.search(self.text, start, self.end)
            parts.append(self.text[start : after.start() + 1 if after else self.end])
        return "".join([*parts, self.text[self.end :]])

    def _start(self, name: str) -> int:
        """Return where the entry of a job starts; -1 if it is not found."""
        line = f"\n{self.indent}{name}:"
        at = self.text.find(line, self.start - 1, self.end)
        return at + 1 if at >= 0 and self.text[at + len(line)] in " \n" else -1

    def _starts(self) -> dict[str, int]:
        """Return where each entry starts."""
        names = re.compile(rf"\n{self.indent}([a-z][a-z0-9_]*+):(?=[ \n])")
        return {found[1]: found.start() + 1 for found in names.finditer(self.text, self.start - 1, self.end)}
