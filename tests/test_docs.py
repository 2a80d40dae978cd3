"""Links between pages lead to existing files, folders and headings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tomllib
from functools import cache
from pathlib import Path

import yaml

from yamlsched import __version__
from yamlsched.ask.gaps import REASONS
from yamlsched.plugins import Hooks

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
]
SCREENSHOTS = ROOT / "tests" / "screenshots.py"
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that forges derive from the headings of ``page``."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or (bool(anchor) and anchor not in anchors(target))


def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading() -> None:
    links = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text("utf-8")))
    ]

    assert [
        (page, link) for page, link in links if "://" not in link and is_broken(page, link)
    ] == []


def test_every_picture_is_one_that_a_script_makes_and_is_described() -> None:
    names = re.findall(r'Picture\("([^"]+)"', SCREENSHOTS.read_text("utf-8"))
    taken = {ROOT / "docs" / "images" / name for name in [*names, "recording.svg"]}
    shown = {
        (page.parent / source).resolve()
        for page in PAGES
        for source in re.findall(
            r'<(?:img|source)\b[^>]*\bsrc(?:set)?="([^"]+)"', page.read_text("utf-8")
        )
    }

    assert shown == taken == set((ROOT / "docs" / "images").iterdir())
    for page in PAGES:
        for image in re.findall(r"<img\b[^>]*>", page.read_text("utf-8")):
            assert re.search(r'\balt="[^"]{10,}"', image), image


def test_a_link_to_a_missing_file_or_heading_is_found() -> None:
    page = ROOT / "README.md"

    assert is_broken(page, "docs/missing.md")
    assert is_broken(page, "docs/worker.md#no-such-heading")
    assert not is_broken(page, "docs/worker.md#connections")


def test_every_link_from_the_code_into_a_page_leads_to_a_heading() -> None:
    source = "".join(path.read_text("utf-8") for path in sorted((ROOT / "yamlsched").rglob("*.py")))
    links = re.findall(r"\bdocs/[\w/]+\.md(?:#[\w-]+)?", source)

    assert links
    assert [link for link in links if is_broken(ROOT / "README.md", link)] == []


def test_no_page_installs_yamlsched_from_an_index_which_has_no_release() -> None:
    installs = re.compile(r"pip install (?:-\S+ )*[\"']?yamlsched(?!\[)")

    assert [str(page) for page in PAGES if installs.search(page.read_text("utf-8"))] == []


def test_the_python_of_a_page_has_no_syntax_error() -> None:
    for page in PAGES:
        for block in re.findall(r"(?ms)^ *```python\n(.*?)^ *```$", page.read_text("utf-8")):
            # below the name of the file that it is from
            code = textwrap.dedent(re.sub(r"^ *#.*\n", "", block))
            ast.parse(code, str(page.relative_to(ROOT)))


def test_the_list_of_pages_and_the_navigation_of_the_site_have_every_page() -> None:
    docs = ROOT / "docs"
    listed, site = (docs / "README.md").read_text("utf-8"), (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = [
        str(page.relative_to(docs))
        for page in sorted(docs.rglob("*.md"))
        if not page.name.startswith("0")  # a decision
        and page not in (docs / "README.md", docs / "recording.md")
    ]

    assert [page for page in pages if f"({page})" not in listed] == []
    assert [page for page in pages if f" {page}\n" not in site] == []


def test_the_architecture_names_what_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    package = ROOT / "yamlsched"
    files = set(re.findall(r"[\w/]+\.(?:py|sql)\b", text))
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").exists()} - {
        "templates"
    }
    tables = re.findall(
        r"(?m)^create table yamlsched\.(\w+)", (ROOT / "sql" / "schema.sql").read_text("utf-8")
    )

    assert [
        name
        for name in sorted(files)
        if not (ROOT / name).exists() and not any(package.rglob(name))
    ] == []
    assert [room for room in sorted(rooms) if f"`{room}/`" not in text] == []
    assert [name for name in tables if f"`{name}`" not in text] == []


def test_every_hook_of_plugins_is_on_their_page_with_its_parameters() -> None:
    hooks = {name: hook for name, hook in vars(Hooks).items() if name[0] != "_"}
    page = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    signatures = [
        f"`{name}({', '.join(list(inspect.signature(hook).parameters)[1:])})`"
        for name, hook in hooks.items()
    ]

    missing = [signature for signature in signatures if signature not in page]

    assert missing == [], "each hook needs a row in docs/plugins.md"


def test_every_reason_of_a_gap_is_explained() -> None:
    page = (ROOT / "docs" / "catchup.md").read_text("utf-8")
    table = page.split("## Which slots are run")[1].split("###")[0]
    schema = (ROOT / "sql" / "schema.sql").read_text("utf-8")
    [stored] = re.findall(r"check \(reason in \(([^)]*)\)\)", schema)

    assert set(re.findall(r"\w+", stored)) == REASONS.keys(), "REASONS is in ask/gaps.py"
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == REASONS.keys(), "docs/catchup.md"


def test_every_decision_has_a_date_and_a_status_and_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(folder.glob("0*.md"))
    listed = (folder / "README.md").read_text("utf-8")

    for number, page in enumerate(pages, 1):
        title, _, status, *_ = page.read_text("utf-8").splitlines()
        match = re.fullmatch(r"(\d{4}-\d\d-\d\d) · (accepted|replaced)\b.*", status)
        assert match, page
        assert page.name.startswith(f"{number:04d}-")
        assert f"[{number}]({page.name}) | {title.partition('. ')[2]} | {match[1]} |" in listed


def test_the_page_of_guarantees_counts_them() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    numbers = [int(number) for number in re.findall(r"(?m)^## G(\d+) ", text)]

    assert numbers == list(range(1, 11))
    assert "yamlsched makes ten guarantees." in text


def test_every_address_of_the_repository_is_the_one_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    repository = project["urls"]["Repository"]
    owner = repository.split("/")[-2]
    text = "\n".join(page.read_text("utf-8") for page in PAGES)

    assert all(address.startswith(repository) for address in project["urls"].values())
    repos = re.findall(r"repo: (\S*/yamlsched\S*)\s.*\n +rev: (\S+)", text)
    assert set(repos) == {(repository, f"v{__version__}")}
    uses = re.findall(r"uses: (\S+/yamlsched@[\w.]+)", text)
    assert set(uses) == {f"{owner}/yamlsched@v{__version__}"}
    assert set(re.findall(r"attestation verify \S+ --owner (\w+)", text)) == {owner}


def test_the_hook_and_the_owners_of_the_review_page_fit_the_file() -> None:
    page = (ROOT / "docs" / "review.md").read_text("utf-8")
    blocks = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", page, re.DOTALL))
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    [repo] = yaml.safe_load(blocks[".pre-commit-config.yaml"])["repos"]

    assert repo["hooks"] == [{"id": hook["id"]}]
    assert re.search(hook["files"], "schedules.yaml")
    owned = [line.split()[0] for line in blocks["CODEOWNERS"].splitlines()]
    assert owned == ["/schedules.yaml", "/CODEOWNERS"]


def test_the_pages_have_at_most_45_000_words() -> None:
    words = {page: len(page.read_text("utf-8").split()) for page in (ROOT / "docs").rglob("*.md")}
    assert sum(words.values()) <= 45_000, sorted(words.items(), key=lambda item: -item[1])[:10]
