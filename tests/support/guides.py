"""A page of the docs as a script: its files are written, its commands executed in order, and their output compared.

- A block whose first line is a comment with a path, such as ``# handlers/rates.py``, is a file. ``<!-- add -->`` before
  it appends it to the file.
- A ``console`` block has commands behind ``$``, each followed by its output. A line ``...`` stands for any lines.
  Times, durations, hashes and hosts may differ.
- ``<!-- not run -->`` before a block leaves it out.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(<!-- [\w ]+ -->\n)?( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+)\n")
VARYING = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?Z", "TIME"),
    (r"\w{3} \d{4}-\d\d-\d\d (\d\d:\d\d) CES?T", r"LOCAL \1"),
    (r"(\w:)\d{4}-\d\d-\d\d\b", r"\1DATE"),
    (r"\b(\d+(\.\d+)?(ms|[dhms]))+\b", "DURATION"),
    (r"\b[0-9a-f]{8}\b", "HASH"),
    (r"(PostgreSQL|CPython|yamlsched|data of) +\d[\w.]*", r"\1 VERSION"),
    (r"extras: .*", "extras"),
    (r"http://127.0.0.1:\d+/", "URL"),
    (r" +", " "),
    (r" $", ""),
]
"""What differs from one execution to the next, and what it is compared as."""


class Step(NamedTuple):
    """A file to write, or a command with the output that the page shows."""

    kind: str  # write, add or run
    what: str
    lines: list[str]


def steps(page: str, language_of_commands: str = "console") -> list[Step]:
    """Return the files and commands of a page, in order; with "sh" only its commands, of which no output is shown."""
    found = []
    for mark, indentation, language, text in BLOCK.findall(
        (ROOT / "docs" / page).read_text("utf-8")
    ):
        text = re.sub(f"(?m)^{indentation}", "", text)
        if "not run" in mark:
            continue
        if language == language_of_commands == "sh":
            found += [Step("run", line, ["..."]) for line in text.splitlines()]
        elif language_of_commands == "sh":
            continue
        elif language == "console":
            for command, *output in (one.splitlines() for one in re.split(r"(?m)^\$ ", text)[1:]):
                found.append(Step("run", command, output))
        elif named := FILE.match(text):
            found.append(Step("add" if "add" in mark else "write", named[1], text.splitlines()))
    return found


def problems(
    page: str,
    folder: Path,
    environment: Mapping[str, str],
    replaced: Mapping[str, str],
    language_of_commands: str = "console",
) -> list[str]:
    """Carry out a page in ``folder``, with parts of its commands ``replaced``, and return what differs from it."""
    todo = steps(page, language_of_commands)
    done = subprocess.run(
        ["bash"],
        cwd=folder,
        input=_script(todo, replaced),
        env={"LANG": "C.UTF-8", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    printed = dict(re.findall(r"(?ms)^=== (\d+)\n(.*?)(?=^=== |\Z)", done.stdout))
    wrong = []
    for number, step in enumerate(todo):
        if step.kind != "run":
            continue
        *output, code = printed.get(str(number), "nothing").splitlines()
        # the page shows what a command that failed printed
        is_failure = any(
            re.match(r"fail |\S+ error\[|.*, [1-9]\d* left out$", line) for line in step.lines
        )
        if code != f"--- {int(is_failure)}" or _differs(
            _plain(step.lines, folder), _plain(output, folder)
        ):
            wrong.append(
                "\n".join([f"$ {step.what}", *output, code, "but the page shows:", *step.lines])
            )
    return wrong


def _script(todo: list[Step], replaced: Mapping[str, str]) -> str:
    """Return the steps as a script, which prints a mark before the output of each command, and its exit code behind."""
    lines = []
    for number, step in enumerate(todo):
        if step.kind != "run":
            arrow = ">" if step.kind == "write" else ">>"
            lines += [
                f"mkdir -p $(dirname {step.what})",
                f"cat {arrow} {step.what} <<'EOF'",
                *step.lines,
                "EOF",
            ]
            continue
        command = step.what
        for shown, real in replaced.items():
            command = command.replace(shown, real)
        lines.append(f"echo '=== {number}'")
        if command.endswith("&"):
            lines += _in_background(command.removesuffix("&"))
        else:
            lines.append(f"{command}; wait" if command.startswith("kill") else command)
        lines.append('echo "--- $?"')
    return "\n".join(lines) + "\n"


def _in_background(command: str) -> list[str]:
    """Return the lines that start ``yamlsched web`` on a free port, and fetch its page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fetch = f"from urllib.request import urlopen; assert urlopen('http://127.0.0.1:{port}/').status == 200"
    return [
        f"{command} --listen 127.0.0.1:{port} > background.log 2>&1 &",
        "until grep -qs http background.log; do sleep 0.1; done",
        f'{sys.executable} -c "{fetch}"',
        "cat background.log",
    ]


def _plain(lines: list[str], folder: Path) -> list[str]:
    text = (
        "\n".join(lines)
        .rstrip()
        .replace(str(folder), "/home/you/app")
        .replace(socket.gethostname(), "myhost")
    )
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text.splitlines()


def _differs(shown: list[str], printed: list[str]) -> bool:
    pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in shown)
    return not re.fullmatch(pattern, "".join(f"{line}\n" for line in printed))
