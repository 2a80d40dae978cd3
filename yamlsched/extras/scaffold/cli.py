"""``yamlsched init``: start a project."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.scaffold import deploy as _deploy

WHEEL = "vendor/yamlsched-*.whl"
"""Where CI finds yamlsched if it was installed here from a checkout or a file, which no index has.
"""


@verb(
    "Start a project: schedules.yaml, a handler, a CI step, a crontab line. The schedule is"
    " commented and comes with its schema. With --deploy, write the files that start yamlsched"
    " on this installation to the folder deploy, also beside an existing schedule. Existing"
    " files are never overwritten.",
    uses="file env namespace",
    formats=("text",),
)
@click.option(
    "--deploy",
    type=click.Choice(_deploy.KINDS),
    help="Write a crontab, systemd units, or Kubernetes manifests and a Containerfile.",
)
def command(settings: Settings, deploy: str | None) -> int:
    root = _repository(settings.file) or settings.file.resolve().parent
    source = _installed_from()
    here = _deploy.Installation.here(settings.file, settings.env, settings.namespace)
    is_new = deploy is None or not settings.file.exists()
    if is_new:
        _write(_contents(settings.file, root, source))
    if deploy is not None:
        requirement = _requirement(source)
        vendor = str(Path(WHEEL).parent) if requirement == WHEEL else None
        folder = settings.file.parent / "deploy"
        beside = here.file.parent
        here = replace(
            here,
            requirement=requirement,
            vendor=vendor,
            has_handlers=(beside / "handlers").is_dir(),
            has_schema=(beside / _deploy.SCHEMA).is_file(),
        )
        files = _deploy.contents(deploy, here)
        _write({folder / name: text for name, text in files.items()})
    if is_new:
        file = (
            ""
            if settings.file == Path("schedules.yaml")
            else f" --file {shlex.quote(str(settings.file))}"
        )
        click.echo("\nTry it:")
        click.echo(f"    yamlsched validate{file} && yamlsched tick{file} && yamlsched next{file}")
    if is_new and (wheel := _wheel_command(source, root)):
        click.echo(
            "\nThe CI step installs yamlsched from a wheel in the repository. Build it, and"
            " commit it:"
        )
        click.echo(f"    {wheel}")
    if deploy == "kubernetes" and (wheel := _wheel_command(source, here.file.parent)):
        click.echo("\nThe image installs yamlsched from a wheel beside the schedule. Build it:")
        click.echo(f"    {wheel}")
    if deploy is not None:
        click.echo(f"\n{_deploy.next_steps(deploy, here, os.path.relpath(folder))}")
        return 0
    click.echo("\nThen add this line to crontab (crontab -e):")
    if settings.dsn:
        click.echo("    # the DSN that you use here; cron does not read your shell's configuration")
        click.echo("    YAMLSCHED_DSN=...")
    flags = (("--env", settings.env), ("--namespace", settings.namespace))
    options = [word for name, value in flags if value for word in (name, value)]
    click.echo(f"    {_deploy.tick_line(here, *options)}")
    return 0


def _write(contents: dict[Path, str]) -> None:
    """Write the files that do not exist, and report each."""
    for path, text in contents.items():
        name = os.path.relpath(path)
        if os.path.lexists(path):
            click.echo(f"kept     {name}")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            raise EnvironmentFailed(f"{name} cannot be written: {error.strerror}") from error
        click.echo(f"written  {name}")


def _contents(file: Path, root: Path, source: dict[str, Any] | None) -> dict[Path, str]:
    """Return the content of each file, by path."""
    templates, folder = files("yamlsched.templates"), file.parent
    schema = files("yamlsched.schedule").joinpath("schedules.schema.json").read_text("utf-8")
    schedule = templates.joinpath("schedules.yaml").read_text("utf-8")
    handler = templates.joinpath("hello.py").read_text("utf-8")
    contents = {file: schedule, folder / "schedules.schema.json": schema}
    if file.exists():
        pass  # it names its own handlers
    elif (folder / "handlers.py").exists():
        # a package of that name would shadow the module
        schedule = schedule.replace("handlers.hello.run ", "hello_job.run      ")
        contents[file] = schedule.replace("handlers/hello.py", "hello_job.py")
        contents[folder / "hello_job.py"] = handler
    else:
        # else it may be a part of a namespace package
        if not any((folder / "handlers").glob("*.py")):
            contents[folder / "handlers" / "__init__.py"] = ""
        contents[folder / "handlers" / "hello.py"] = handler
    workflow, text = _workflow(file, root, source)
    return {**contents, workflow: text}


def _repository(file: Path) -> Path | None:
    """Return the root of the git repository that contains ``file``, where GitHub looks for
    workflows.
    """
    return next((folder for folder in file.resolve().parents if (folder / ".git").exists()), None)


def _workflow(file: Path, root: Path, source: dict[str, Any] | None) -> tuple[Path, str]:
    """Return path and content of the workflow. Each schedule of a repository has its own."""
    place = file.resolve().relative_to(root.resolve())
    name = re.sub("[^A-Za-z0-9]+", "-", str(place.with_suffix(""))).strip("-")
    path = root / ".github" / "workflows" / f"{name}.yml"
    folder = "" if place.parent == Path(".") else f"{place.parent}/"
    watched = [
        _escaped(str(place)),
        _escaped(folder) + "**.yaml",
        _escaped(folder) + "**.py",
        _escaped(str(path.relative_to(root))),
    ]
    text = files("yamlsched.templates").joinpath("ci.yml").read_text("utf-8")
    install = _requirement(source)
    before, wheel, index, after = re.split(
        r"(?m)^(?=      (?:# the wheel|- run: pip|- run: yamlsched validate))", text
    )
    text = before + (wheel if install == WHEEL else index) + after
    marks = {
        "@NAME@": json.dumps(name),
        "@PATHS@": json.dumps(watched),
        "@VENDOR@": str(Path(WHEEL).parent),
        "@WHEEL@": WHEEL,
        "@INSTALL@": shlex.quote(install),
        # a folder's name is no expression
        "@FILE@": shlex.quote(str(place)).replace("${{", "${{ '${{' }}"),
    }
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return path, text


def _escaped(path: str) -> str:
    """Return a path, escaped for a filter of a workflow."""
    return re.sub(r"([*?+\[\]!\\])", r"\\\1", path)


def _installed_from() -> dict[str, Any] | None:
    """Return the source from which pip installed yamlsched (direct_url.json); None for an index."""
    try:
        recorded = metadata.distribution("yamlsched").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {"url": Path(__file__).parents[2].as_uri()}
    return json.loads(recorded) if recorded else None


def _requirement(source: dict[str, Any] | None) -> str:
    """Return the requirement that installs in CI what is installed here."""
    if source is None:
        return f"yamlsched=={metadata.version('yamlsched')}"
    if "vcs_info" in source:
        return (
            "yamlsched @"
            f" {source['vcs_info']['vcs']}+{source['url']}@{source['vcs_info']['commit_id']}"
        )
    return WHEEL if source["url"].startswith("file:") else f"yamlsched @ {source['url']}"


def _wheel_command(source: dict[str, Any] | None, root: Path) -> str:
    """Return the command that builds or copies the wheel for CI; empty if CI needs none."""
    if source is None or _requirement(source) != WHEEL:
        return ""
    origin, target = unquote(urlsplit(source["url"]).path), str(root / Path(WHEEL).parent)
    if "archive_info" in source:
        return f"mkdir -p {shlex.quote(target)} && cp {shlex.quote(origin)} {shlex.quote(target)}"
    if shutil.which("uv"):
        return shlex.join(["uv", "build", "--wheel", "--out-dir", target, origin])
    return shlex.join(["python3", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", target, origin])
