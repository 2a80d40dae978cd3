"""Start ``yamlsched`` quickly: for each line of JSON on stdin, fork a process that has everything imported.

A line contains the arguments, the directory, the environment, files for stdout and stderr, and a statement to execute
first (for example to make the process die at a named point); or the ids of processes to kill. Each line on stdout is
"started PID" or "ended PID STATUS".

Retries may be immediate here, so that no test waits for one. With ``as_program`` the process is in all that of
``python -m yamlsched``: its limits, its path of modules, and its end. An argument is the name that the host is given:
only for a process in a UTS namespace of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from datetime import timedelta
from typing import Any

import yamlsched
from yamlsched import cli, log
from yamlsched.cli import tick, work
from yamlsched.schedule import schema
from yamlsched.service import companions, loop, workers
from yamlsched.sync import due
from yamlsched.worker import leases

LIMITS = dict(schema.LIMITS)
IMMEDIATE = {name: (timedelta(0), schema.MAX_DURATION) for name in schema.RETRY_DELAYS}
IMPORTED = (loop, tick, work, workers, due, leases, companions)


def run_command(command: dict[str, Any]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    for descriptor, path in ((0, os.devnull), (1, command["stdout"]), (2, command["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.closerange(3, 64)
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    sys.argv = ["yamlsched", *command["argv"]]
    if command.get("as_program"):
        sys.modules["__main__"].__package__ = "yamlsched"  # how a usage message names the program
        sys.argv[0] = yamlsched.__path__[0] + "/__main__.py"
        sys.path[0] = command["cwd"]
        schema.LIMITS.update(LIMITS)
        cli.main()
    log.configure()
    exec(command["before"], {})
    try:
        cli.main()
    except SystemExit as error:
        sys.stdout.flush()
        os._exit(error.code if isinstance(error.code, int) else 1)


def main() -> None:
    # tests/ instead of this folder: its handlers are support.handlers
    sys.path[0] = os.path.dirname(sys.path[0])
    schema.LIMITS.update(IMMEDIATE)
    for name in sys.argv[1:]:
        socket.sethostname(name)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    children: set[int] = set()
    commands = b""
    while True:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 1024)
            for pid in list(children):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    children.discard(pid)
                    print("ended", pid, os.waitstatus_to_exitcode(status), flush=True)
        if 0 in ready:
            piece = os.read(0, 1 << 16)
            if not piece:
                break
            *lines, commands = (commands + piece).split(b"\n")
            for line in lines:
                command = json.loads(line)
                if "kill" in command:
                    kill(children.intersection(command["kill"]))
                    continue
                pid = os.fork()
                if pid == 0:
                    run_command(command)
                children.add(pid)
                print("started", pid, flush=True)
    kill(children)
    for pid in children:
        os.waitpid(pid, 0)


def kill(children: set[int]) -> None:
    """Kill processes that have not been waited for, and their process groups."""
    for pid in children:
        for send in (os.killpg, os.kill):
            try:
                send(pid, signal.SIGKILL)
                send(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


if __name__ == "__main__":
    main()
