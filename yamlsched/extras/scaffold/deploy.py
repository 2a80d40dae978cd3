"""The files of ``init --deploy``, and the crontab line: how to start yamlsched on this
installation.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from yamlsched.schedule.file import absolute

TEMPLATES = {
    "cron": ("crontab",),
    "systemd": ("yamlsched.service", "yamlsched-tick.service", "yamlsched-tick.timer"),
    "monitoring": ("prometheus-alerts.yml", "grafana.json"),
    "kubernetes": (
        "kubernetes-migrate.yaml",
        "kubernetes-deployment.yaml",
        "kubernetes-cronjob.yaml",
        "kubernetes-web.yaml",
        "Containerfile",
    ),
}
NEXT_STEPS = {
    "cron": (
        """\
Then set MAILTO and YAMLSCHED_DSN in deploy/crontab, and add its lines as the user that runs the
jobs:
    crontab -e
    yamlsched doctor                   # two minutes later: reports the tick"""
    ),
    "systemd": (
        """\
Then write the DSN to a file that only root reads, and start either the service, which keeps
running, or the timer:
    sudo install -m 600 /dev/null /etc/yamlsched.env
    sudo sh -c 'echo YAMLSCHED_DSN=postgresql://app@db.internal/app >> /etc/yamlsched.env'
    sudo cp deploy/yamlsched*.service deploy/yamlsched-tick.timer /etc/systemd/system/
    sudo systemctl daemon-reload
    sudo systemctl enable --now yamlsched              # or: yamlsched-tick.timer
    yamlsched doctor                                   # reports the tick"""
    ),
    "monitoring": (
        """\
Then let one host write the metrics, load the alerts, and import the dashboard in Grafana
(Dashboards, New, Import):
    crontab -e    # * * * * * yamlsched metrics --textfile FILE.prom, in node_exporter's folder
    sudo cp deploy/prometheus-alerts.yml /etc/prometheus/rules/        # a folder of rule_files
    sudo systemctl reload prometheus"""
    ),
    "kubernetes": (
        """\
Then build and push an image, name it in the manifests, and write dsn=postgresql://... to
yamlsched.env, which is not in git. Create the tables, and apply either the Deployment, which keeps
running, or the CronJob:
    podman build -t registry.example.com/jobs:1 -f deploy/Containerfile .
    kubectl create secret generic yamlsched --from-env-file=yamlsched.env
    kubectl apply -f deploy/kubernetes-migrate.yaml
    kubectl wait --for=condition=complete --timeout=120s job/yamlsched-migrate
    kubectl apply -f deploy/kubernetes-deployment.yaml      # or: deploy/kubernetes-cronjob.yaml
The page: deploy/kubernetes-web.yaml."""
    ),
}
KINDS = tuple(TEMPLATES)
SCHEMA = "schedules.schema.json"


@dataclass(frozen=True)
class Installation:
    """Where yamlsched and the schedule are. ``program`` are the first words of a command.

    ``requirement`` is what pip installs in an image; ``vendor`` is the folder of a wheel that no
    index has. ``has_handlers``, ``has_schema``: there is a folder handlers, and a copy of the
    schema, beside the schedule.
    """

    program: tuple[str, ...]
    file: Path
    user: str
    environment: str | None = None
    namespace: str | None = None
    requirement: str = "yamlsched"
    vendor: str | None = None
    has_handlers: bool = True
    has_schema: bool = True

    @classmethod
    def here(cls, file: Path, environment: str | None, namespace: str | None) -> Installation:
        """Return this installation. Links in its paths are kept: they may lead to the current
        release of a project.
        """
        script = os.path.abspath(sys.argv[0])
        is_script = os.path.basename(script) == "yamlsched" and os.access(script, os.X_OK)
        program = (script,) if is_script else (sys.executable, "-m", "yamlsched")
        return cls(program, absolute(file), _user(), environment, namespace)

    @property
    def file_options(self) -> tuple[str, ...]:
        return () if self.file.name == "schedules.yaml" else ("--file", self.file.name)


def _user() -> str:
    """Return the user of this process; the number of one without a name, as in containers. systemd
    accepts both.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def tick_line(here: Installation, *options: str) -> str:
    """Return a crontab line that works in cron's minimal environment."""
    words = [*here.program, "tick", "--cron", "--file", str(here.file), *options]
    return _crontab("* * * * *", shlex.join(words))


def _report_line(here: Installation) -> str:
    """Return a crontab line that prints the report of the last day, if something needs
    attention.
    """
    words = shlex.join([*here.program, "report", "--since", "1d", *here.file_options])
    line = (
        f"{_change_folder(here)} && out=$({words} 2>&1) || {{ code=$?; printf '%s\\n' \"$out\";"
        " exit $code; }"
    )
    return _crontab("0 8 * * *", line)


def _change_folder(here: Installation) -> str:
    return f"cd {shlex.quote(str(here.file.parent))}"


def _crontab(when: str, command: str) -> str:
    return f"{when} {command}".replace("%", r"\%")  # in a crontab a bare % ends the command


def _systemd_command(words: tuple[str, ...]) -> str:
    """Return a command for ExecStart, which accepts no quotes in the name of the program itself."""
    is_plain = re.fullmatch(r"[\w@%+=:,./-]+", words[0]) is not None
    return " ".join(map(_systemd_word, words if is_plain else ("/usr/bin/env", *words)))


def _systemd_word(word: str) -> str:
    word = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def contents(kind: str, here: Installation) -> dict[str, str]:
    """Return the content of each file for ``kind``, by name."""
    return {name: _render(name, here) for name in TEMPLATES[kind]}


def next_steps(kind: str, here: Installation, folder: str) -> str:
    """Return what to do with the files, which are in ``folder``."""
    steps = NEXT_STEPS[kind].replace("deploy/", f"{shlex.quote(folder)}/")
    if kind == "systemd" and here.user == "root":
        steps += (
            "\nThe units run the jobs as root: to run them as another user, change User= in both"
            " services."
        )
    return steps


def _image_requirement(here: Installation) -> str:
    """Return what pip installs in an image, for double quotes, with the extras of the build
    argument EXTRAS.
    """
    if here.vendor:
        return f"$(echo {here.requirement})$EXTRAS"
    name, rest = here.requirement[: len("yamlsched")], here.requirement[len("yamlsched") :]
    return name + "$EXTRAS" + re.sub(r'([$"`\\])', r"\\\1", rest)


def _render(name: str, here: Installation) -> str:
    """Return a template with its marks replaced. A line whose mark has no value is omitted."""
    values = {
        "@TICK@": tick_line(here),
        "@REPORT@": _report_line(here),
        "@PROGRAM@": _systemd_command(here.program),
        "@OPTIONS@": f"--file {_systemd_word(str(here.file))} ",
        "@FOLDER@": str(here.file.parent).replace("%", "%%"),
        "@FILE@": here.file.name,
        "@USER@": here.user,
        "@ENVIRONMENT@": here.environment,
        "@ENV_OPTION@": f" --env {shlex.quote(here.environment)}" if here.environment else "",
        "@NAMESPACE@": here.namespace,
        "@REQUIREMENT@": _image_requirement(here),
        "@VENDOR@": here.vendor,
        "@HANDLERS@": "handlers" if here.has_handlers else None,
        "@SCHEMA@": SCHEMA if here.has_schema else None,
    }
    template = files("yamlsched.templates").joinpath("deploy").joinpath(name).read_text("utf-8")
    omitted = [mark for mark, value in values.items() if value is None]
    text = "".join(
        line
        for line in template.splitlines(keepends=True)
        if not any(mark in line for mark in omitted)
    )
    return re.sub("@[A-Z_]+@", lambda mark: values[mark[0]] or "", text)
