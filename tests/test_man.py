"""The man page, which the wheel installs, is what the help of the verbs makes, and is valid roff."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from yamlsched.cli import FAILED, FINDINGS, OK, USAGE, cli

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "yamlsched.1"
OF_COMMANDS = re.compile("_(RUN_ID|JOB|KEY|SCHEDULED_FOR|ATTEMPT|MAX_ATTEMPTS|PAYLOAD|UPSTREAM|COMPLETE)$")
"""Variables that yamlsched sets for commands, and click for completion."""


def test_the_man_page_is_the_help_of_the_verbs() -> None:
    made = subprocess.run([sys.executable, ROOT / "docs/site/man.py"], capture_output=True, text=True, check=True)

    assert PAGE.read_text("utf-8") == made.stdout, "run: make man"


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
def test_the_man_page_renders_without_warnings_and_shows_every_verb_and_option() -> None:
    words = ["groff", "-man", "-ww", "-Tascii", "-P-cbou", PAGE]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""

    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert re.search(rf"(?m)^ +yamlsched {name}\b", done.stdout), name
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in done.stdout, (name, option.opts)


def test_the_exit_codes_of_the_command_line_are_in_the_docs_and_in_the_man_page() -> None:
    table = (ROOT / "docs" / "cli.md").read_text("utf-8").partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    section = PAGE.read_text("utf-8").partition("\n.SH EXIT STATUS\n")[2].partition("\n.SH ")[0]

    codes = [str(code) for code in (OK, FINDINGS, USAGE, FAILED)]
    assert re.findall(r"(?m)^\| (\d+) \|", table) == codes
    assert re.findall(r"(?m)^\\fB(\d+)\\fR$", section) == codes


def test_every_environment_variable_is_in_the_man_page_and_in_the_docs() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "yamlsched").rglob("*.py"))
    read = {name for name in re.findall(r"\bYAMLSCHED_[A-Z_]*[A-Z]\b", source) if not OF_COMMANDS.search(name)}
    read = {name for name in read if not name.startswith("YAMLSCHED_HEARTBEAT_URL_")}

    assert {"YAMLSCHED_DSN", "YAMLSCHED_PG_BIN"} <= read
    for page in (PAGE, ROOT / "docs" / "cli.md"):
        text = page.read_text("utf-8")
        assert [name for name in sorted(read) if name not in text] == [], page
