"""What the site has besides the pages of docs/: pages of other folders, and those that are made from the code.

mkdocs calls ``on_files`` and ``on_page_markdown``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

import yamlsched
import yamlsched.testing
from yamlsched.cli import GROUPS, cli

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository outside docs/, and what they are on the site."""
LINK = re.compile(r"""(\]\(|(?:src|srcset|href)=")([^)"#\s:]+)(?=[)"#])""")
TEXT_SUFFIX = ".txt"
"""Of the copies of files that are no pages: a browser shows them, and does not run or unpack them."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere, those made from the code, and copies of the files that pages link to."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "verbs.md", content=verbs()))
    files.append(File.generated(config, "python.md", content=python()))
    linked = {
        target for file in list(files) if file.is_documentation_page() for target in _outside(file)
    }
    for target in sorted(linked):
        files.append(
            File.generated(
                config, f"files/{target}{TEXT_SUFFIX}", content=(ROOT / target).read_text("utf-8")
            )
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at where the site has what they lead to."""

    def link(match: re.Match[str]) -> str:
        target = _target(page.file, match[2])
        here = posixpath.dirname(page.file.src_uri)
        return match[1] + posixpath.relpath(_on_site(target), here or ".") if target else match[0]

    return LINK.sub(link, markdown)


def _on_site(target: str) -> str:
    """Return the path in the site of a file of the repository."""
    if target in PAGES:
        return PAGES[target]
    return (
        target.removeprefix("docs/")
        if target.startswith("docs/")
        else f"files/{target}{TEXT_SUFFIX}"
    )


def _target(file: File, link: str) -> str | None:
    """Return the file of the repository that a link of a page leads to, None for what is made from the code.

    A link to a folder leads to its README or, as that of handlers/, to what it is.
    """
    source = next(
        (path for path, name in PAGES.items() if name == file.src_uri), f"docs/{file.src_uri}"
    )
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if (ROOT / target).is_dir():
        target = next(
            (
                f"{target}/{name}"
                for name in ("README.md", "__init__.py")
                if (ROOT / target / name).exists()
            ),
            "",
        )
    return target if target and (ROOT / target).is_file() else None


def _outside(file: File) -> set[str]:
    """Return the files of the repository that a page links to and that are no pages of the site."""
    targets = {_target(file, match[2]) for match in LINK.finditer(file.content_string)}
    return {
        target
        for target in targets
        if target and not target.startswith("docs/") and target not in PAGES
    }


def verbs() -> str:
    """Return the page of all verbs: what ``--help`` prints."""
    context = click.Context(cli, info_name="yamlsched", max_content_width=100)
    parts = [
        "# Commands and options",
        "What `yamlsched COMMAND --help` prints. [The command line](cli.md) explains what commands share.",
    ]
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None
            parts += [f"### {name}", f"```text\n{_help(command, context, name)}\n```"]
            if isinstance(command, click.Group):
                own = click.Context(command, info_name=name, parent=context, max_content_width=100)
                for sub in command.list_commands(own):
                    inner = command.get_command(own, sub)
                    assert inner is not None
                    parts += [f"#### {name} {sub}", f"```text\n{_help(inner, own, sub)}\n```"]
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command, parent: click.Context, name: str) -> str:
    return command.get_help(
        click.Context(command, info_name=name, parent=parent, max_content_width=100)
    )


def python() -> str:
    """Return the page of the public Python names, from their docstrings."""
    parts = [
        "# Python",
        "What `import yamlsched` has for handlers and applications. [Handlers](handlers.md) shows it at work.",
    ]
    for name in sorted(
        set(yamlsched.__all__) - {"__version__", "DEFAULT_RELEASE_ON"},
        key=lambda name: (name != "Run", name[0].isupper(), name),
    ):
        home = getattr(yamlsched, name).__module__
        parts.append(f"::: {home}.{name}\n    options: {{heading_level: 2}}")
    parts += ["## yamlsched.testing", "For tests of handlers and commands."]
    for name in yamlsched.testing.__all__:
        parts.append(f"::: yamlsched.testing.{name}\n    options: {{heading_level: 3}}")
    return "\n\n".join(parts) + "\n"
