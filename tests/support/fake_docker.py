#!/usr/bin/env python3
"""``docker run`` as its command line is documented, for an image ``jobs`` with the entry point ``yamlsched``: no container.

What is started has the variables of --env-file and no others but PATH, and the folder of the image.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

HOST = Path(os.environ["FAKE_DOCKER"])
"""A folder with image.json (folder and words of the entry point) and a file for each container."""


def fail(reason: str) -> None:
    print(f"docker: {reason}", file=sys.stderr)
    sys.exit(125)


def main() -> None:
    command = argparse.ArgumentParser(prog="docker run", allow_abbrev=False, exit_on_error=False)
    for flag in ("--detach", "--rm", "--init"):
        command.add_argument(flag, action="store_true")
    for option in ("--name", "--env-file", "--gpus"):
        command.add_argument(option)
    command.add_argument("--stop-timeout", type=int)
    command.add_argument("image")
    command.add_argument("words", nargs=argparse.REMAINDER)
    if sys.argv[1] != "run":
        fail(f"'{sys.argv[1]}' is not a docker command")
    try:
        options = command.parse_args(sys.argv[2:])
    except argparse.ArgumentError as error:
        fail(str(error))
    if not (HOST / "image.json").exists():
        fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?")
    if options.image != "jobs":
        fail(f"Unable to find image '{options.image}:latest' locally")
    container = HOST / f"container-{options.name}"
    try:
        container.touch(exist_ok=False)
    except FileExistsError:
        fail(f'Conflict. The container name "/{options.name}" is already in use')
    image = json.loads((HOST / "image.json").read_text())
    variables = {"PATH": os.defpath}
    for line in Path(options.env_file).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, value = line.partition("=")  # as it is: quotes are part of it
            variables[name] = value
    words = [*image["entrypoint"], *options.words]
    with container.open("wb") as log:
        process = subprocess.Popen(
            words,
            cwd=image["folder"],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if not options.detach:
        sys.exit(process.wait())
    print(secrets.token_hex(32))


if __name__ == "__main__":
    main()
