#!/usr/bin/env python3
"""Small programs that behave as ssh, srun, sbatch, scancel, docker, kubectl and ray are documented to behave.

The name of the link decides which one it is. The folder of the link is their state: what they refuse is an error on
stderr and an exit code as that of the real one. While there is a file ``held``, queues and clusters start nothing. What
is started gets the environment of its engine, never that of the submitting process, unless the real one passes it on.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

STATE = Path(sys.argv[0]).absolute().parent
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": "/"}


def fail(text: str, code: int = 1) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(code)


def options(
    words: list[str], flags: set[str], valued: set[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the options before the first operand, as getopt reads them, and what follows."""
    found: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] != "-":
        word, *words = words
        if word == "--":
            break
        name, has_value, value = word.partition("=")
        if name in flags and not has_value:
            found[name] = ""
        elif name in valued and ((has_value and name.startswith("--")) or words):
            if not has_value:
                value, *words = words
            found[name] = value
        else:
            fail(f"unknown option {word}", 2 if name.startswith("--") else 255)
    return found, words


def detached(do: Callable[[], int]) -> None:
    """Call ``do`` in a process that no signal to this one reaches, as a daemon of the engine does."""
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os._exit(do())


def start(
    name: str, words: list[str], env: dict[str, str], cwd: str, output: Any, isolates: str = ""
) -> int:
    """Wait in the queue, then run ``words`` in a session of its own; return its exit code, 130 if it was cancelled."""
    job = STATE / f"job-{name}"
    while (STATE / "held").exists() and not (job / "cancelled").exists():
        time.sleep(0.01)
    if (job / "cancelled").exists():
        (job / "ended").write_text("130")
        return 130
    # a PID namespace of its own, whose init is the program, or one that reaps
    if isolates and os.getuid() == 0:
        init = ["sh", "-c", '"$@" & wait $!', "pause"] if isolates == "init" else []
        words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *init, *words]
    with (STATE / "started").open("a") as started:
        started.write(f"{name}\n")
    process = subprocess.Popen(
        words,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    (job / "pid").write_text(str(process.pid))
    status = process.wait()
    (job / "ended").write_text(str(status))
    return status if status >= 0 else 128 - status


def new_job(name: str) -> None:
    (STATE / f"job-{name}").mkdir()


def cancel(name: str, number: int = signal.SIGTERM) -> bool:
    job = STATE / f"job-{name}"
    if not job.exists() or (job / "ended").exists():
        return False
    (job / "cancelled").touch()
    if (job / "pid").exists():
        os.killpg(int((job / "pid").read_text()), number)
    return True


def ssh(words: list[str]) -> int:
    _, (host, *command) = options(words, {"-T", "-q", "-n"}, {"-o", "-p", "-i", "-l"})
    if (STATE / "unreachable").exists():
        fail(f"ssh: connect to host {host} port 22: Connection refused", 255)
    # the words are joined by spaces, and read by the shell of the user there
    process = subprocess.Popen(
        ["sh", "-c", " ".join(command)],
        env=CLEAN,
        cwd="/",
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    status = process.wait()
    return status if status >= 0 else 255


SLURM = {"--job-name", "--mem", "--export", "--output", "--time", "--partition"}


def slurm_environment(given: dict[str, str]) -> dict[str, str]:
    return CLEAN if given.get("--export") == "NONE" else dict(os.environ)


def sbatch(words: list[str]) -> int:
    given, operands = options(words, {"--parsable"}, SLURM | {"--wrap"})
    if "--wrap" in given:
        script, arguments = f"#!/bin/sh\n{given['--wrap']}\n", []
    elif not operands:
        fail("sbatch: error: Batch script is empty!")
    else:
        try:
            script, arguments = Path(operands[0]).read_text(), operands[1:]
        except OSError:
            fail(f"sbatch: error: Unable to open file {operands[0]}")
    if not script.startswith("#!"):
        fail(
            "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must start with #!"
        )
    number = str(len(list(STATE.glob("slurm-*"))) + 1)
    name = given.get("--job-name", "sbatch")
    new_job(name)
    copy = STATE / f"slurm-{number}"  # the script is copied when it is submitted
    copy.write_text(script)
    copy.chmod(0o755)
    output = given.get("--output", "slurm-%j.out").replace("%x", name).replace("%j", number)
    cwd, env = os.getcwd(), slurm_environment(given)

    def run() -> int:
        with open(os.path.join(cwd, output), "wb") as log:
            return start(name, [str(copy), *arguments], env, cwd, log)

    detached(run)
    print(f"Submitted batch job {number}")
    return 0


def srun(words: list[str]) -> int:
    given, command = options(words, set(), SLURM)
    name = given.get("--job-name", "srun")
    new_job(name)
    signal.signal(signal.SIGTERM, lambda *_: cancel(name))
    return start(name, command, slurm_environment(given), os.getcwd(), None)


def scancel(words: list[str]) -> int:
    given, ids = options(words, {"--quiet"}, {"--name", "--user"})
    if not given and not ids:
        fail("scancel: error: No job identification provided")
    cancel(given["--name"])
    return 0


def docker(words: list[str]) -> int:
    verb, *words = words
    if verb == "rm":
        given, names = options(words, {"--force", "-f"}, set())
        if not all(cancel(name, signal.SIGKILL) for name in names):
            fail(f"Error response from daemon: No such container: {names[0]}")
        return 0
    given, (image, *command) = options(
        words, {"--detach", "-d", "--rm", "--init"}, {"--name", "--env-file", "--workdir", "--env"}
    )
    if "/" not in image:
        fail(f"Unable to find image '{image}' locally", 125)
    lines = Path(given["--env-file"]).read_text().splitlines() if "--env-file" in given else []
    env = dict(
        line.split("=", 1) for line in lines if line and not line.startswith("#")
    )  # no quotes, as docker does
    new_job(given["--name"])
    kind = "init" if "--init" in given else "program"
    run = lambda: start(  # noqa: E731
        given["--name"], command, image_environment() | env, given["--workdir"], None, kind
    )
    if "--detach" not in given:
        return run()
    detached(run)
    print("9f86d081884c7d659a2feaa0c55ad015")
    return 0


def image_environment() -> dict[str, str]:
    """Return the variables that the image has."""
    return CLEAN | json.loads((STATE / "image").read_text())


POD = {
    "restartPolicy",
    "serviceAccountName",
    "shareProcessNamespace",
    "containers",
    "activeDeadlineSeconds",
}
CONTAINER = {"name", "image", "command", "args", "envFrom", "env", "workingDir", "resources"}
JOB = {"backoffLimit", "ttlSecondsAfterFinished", "template", "activeDeadlineSeconds"}


def allow(verb: str) -> None:
    """Refuse what the role of the account of the workers does not allow."""
    import yaml

    role = yaml.safe_load((STATE / "role.yaml").read_text())
    assert (role["kind"], role["apiVersion"]) == ("Role", "rbac.authorization.k8s.io/v1")
    if not any(
        "batch" in r["apiGroups"] and "jobs" in r["resources"] and verb in r["verbs"]
        for r in role["rules"]
    ):
        fail(
            f'Error from server (Forbidden): jobs.batch is forbidden: User cannot {verb} resource "jobs"'
        )


def kubectl(words: list[str]) -> int:
    verb, *words = words
    if verb == "delete":
        given, (kind, name) = options(words[2:], {"--ignore-not-found"}, {"--wait"})[0], words[:2]
        allow("delete")
        if kind != "job" or (not cancel(name) and "--ignore-not-found" not in given):
            fail(f'Error from server (NotFound): jobs.batch "{name}" not found')
        return 0
    given, rest = options(words, set(), {"-f", "--filename"})
    if verb != "create" or given != {"-f": "-"} or rest:
        fail(f"error: unknown command {verb}")
    allow("create")
    import yaml

    job = yaml.safe_load(sys.stdin)
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    unknown = (
        {*job} - {"apiVersion", "kind", "metadata", "spec"} | {*job["spec"]} - JOB | {*pod} - POD
    )
    unknown |= {*container} - CONTAINER
    if unknown:
        fail(
            f'error: error when creating "STDIN": strict decoding error: unknown field "{unknown.pop()}"'
        )
    name = job["metadata"]["name"]
    if not re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        fail(
            f'The Job "{name}" is invalid: metadata.name: a lowercase RFC 1123 subdomain must consist of lower case'
        )
    if (job["apiVersion"], job["kind"]) != ("batch/v1", "Job") or pod["restartPolicy"] not in (
        "Never",
        "OnFailure",
    ):
        fail(f'The Job "{name}" is invalid: spec.template.spec.restartPolicy: Required value')
    command = [*container.get("command", []), *container.get("args", [])]
    assert all(isinstance(word, str) for word in command), (
        "json: cannot unmarshal number into Go struct field"
    )
    if (STATE / f"job-{name}").exists():
        fail(f'Error from server (AlreadyExists): jobs.batch "{name}" already exists')
    new_job(name)
    env = image_environment()
    for source in container.get("envFrom", []):
        env |= json.loads((STATE / f"secret-{source['secretRef']['name']}").read_text())
    kind = "init" if pod.get("shareProcessNamespace") else "program"
    detached(lambda: start(name, command, env, container["workingDir"], subprocess.DEVNULL, kind))
    print(f"job.batch/{name} created")
    return 0


def ray(words: list[str]) -> int:
    if words[:2] != ["job", "submit"]:
        fail("Usage: ray job [OPTIONS] COMMAND [ARGS]...", 2)
    given, entrypoint = options(
        words[2:],
        {"--no-wait"},
        {"--address", "--submission-id", "--entrypoint-num-gpus", "--entrypoint-num-cpus"},
    )
    float(given.get("--entrypoint-num-gpus", 0))
    new_job(given["--submission-id"])
    # the head node has the words quoted and read by a shell
    return start(given["--submission-id"], ["sh", "-c", shlex.join(entrypoint)], CLEAN, "/", None)


PROGRAMS = {one.__name__: one for one in (ssh, sbatch, srun, scancel, docker, kubectl, ray)}

if __name__ == "__main__":
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps([Path(sys.argv[0]).name, *sys.argv[1:]]) + "\n")
    if any(name.startswith(("YAMLSCHED_DSN", "PG")) for name in os.environ):
        fail("the DSN of the worker reached the engine", 99)
    sys.exit(PROGRAMS[Path(sys.argv[0]).name](sys.argv[1:]))
