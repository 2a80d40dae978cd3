"""Engines that start workers, on the loopback interface: sshd, Slurm from Debian's packages, and Dask.

They need no systemd: each daemon is a process of the test, with its configuration, keys and state in a folder. How workers
are started there is what docs/started-workers.md says, with the paths of the test.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import yaml

from support.project import TESTS, Project, until

ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "started-workers.md").read_text("utf-8")
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
DASK = ROOT / "examples" / "dask"
SSHD_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
StrictModes no
PidFile none
"""
SSH_CONFIG = """\
Host gpu-1
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
"""
SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0
KillWait=5
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=65536 Gres=gpu:8
PartitionName=all Nodes={host} Default=YES DefMemPerCPU=100
"""


def section(heading: str) -> str:
    """Return what the page says below a heading."""
    return re.split(r"(?m)^##+ ", PAGE.partition(f"# {heading}\n")[2])[0]


def blocks(heading: str, language: str) -> list[str]:
    """Return the code of a language below a heading."""
    return re.findall(rf"(?s)```{language}\n(.*?)```", section(heading))


def queue_of(heading: str) -> dict[str, Any]:
    """Return the queue ``gpu`` as the page describes it for an engine."""
    queue: dict[str, Any] = yaml.safe_load(blocks(heading, "yaml")[0])["queues"]["gpu"]
    return queue


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in listeners]


def write_worker(project: Project, *options: str) -> Path:
    """Write the program of the page that is executed where a worker works, and return its path."""
    worker, program = project.folder / "worker", project.folder / "bin" / "yamlsched"
    environment = project.folder / "yamlsched.env"
    variables = {
        "YAMLSCHED_DSN": project.dsn,
        "TEST_FOLDER": str(project.folder),
        "PYTHONPATH": str(TESTS),
    }
    environment.write_text("".join(f"{k}={shlex.quote(v)}\n" for k, v in variables.items()))
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m yamlsched "$@"\n')
    [script] = [text for text in blocks("The command", "sh") if text.startswith("#!")]
    for shown, real in {
        "/etc/yamlsched.env": environment,
        "/srv/app/.venv/bin/yamlsched": program,
        "/srv/app/schedules.yaml": project.file,
    }.items():
        assert shown in script
        script = script.replace(shown, str(real))
    worker.write_text(script.replace('"$1"', f'"$1" {shlex.join(options)}'))
    for path in (worker, program):
        path.chmod(0o755)
    return worker


def _replace_paths(word: str, worker: Path) -> str:
    """Replace the folder of logs and the program in a word of a command of the page."""
    return word.replace("/tmp", str(worker.parent)).replace("/srv/app/worker", str(worker))


class Engine:
    """Daemons in the foreground, with their logs in ``folder``."""

    heading: ClassVar[str]
    daemon: ClassVar[str]  # that takes what a start command asks for
    programs: ClassVar[tuple[str, ...]]
    package: ClassVar[str]  # what to install, if a program is missing
    error: ClassVar[str]  # in what a start command prints while the daemon is down

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: Mapping[str, str] = {}
        self._words: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def why_not(cls) -> str:
        """Return why the engine cannot be started here; empty if it can."""
        missing = [name for name in cls.programs if shutil.which(name, path=PATH) is None]
        if missing:
            return f"no {', '.join(missing)}: {cls.package}"
        return "" if os.geteuid() == 0 else "engines of the test's own need root"

    def set_up(self) -> None:
        """Start the daemons."""
        raise NotImplementedError

    def until_ready(self) -> None:
        """Wait until what was started answers."""
        raise NotImplementedError

    def queue(self, worker: Path) -> dict[str, Any]:
        """Return the queue of the page, whose workers are the program ``worker``."""
        raise NotImplementedError

    def hold(self, is_held: bool = True) -> None:
        """Let nothing begin of what is submitted, or let it begin."""
        raise NotImplementedError

    def stop_worker(self, id: str, pid: int) -> None:
        """Stop a worker as the engine does that takes its place away."""
        raise NotImplementedError

    def clear(self) -> None:
        """End all that is left in the engine."""

    def start(self, name: str, *words: str | Path, **environment: str) -> None:
        """Start a daemon, which dies with this process; as before if there are no ``words``."""
        if words:
            found = str(shutil.which(str(words[0]), path=PATH))
            self._words[name] = ["setpriv", "--pdeathsig=KILL", found, *map(str, words[1:])]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                self._words[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, **environment},
            )

    def send(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait()

    def stop_all(self) -> None:
        for name in reversed(list(self._processes)):
            self.send(name, signal.SIGCONT)
            self.stop(name, signal.SIGKILL)

    def is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def call(self, *words: str, is_checked: bool = True) -> str:
        """Return what a client prints."""
        env = {**os.environ, **self.environment}
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0 or not is_checked, (words, done.stderr)
        return done.stdout


class Sshd(Engine):
    """An sshd that accepts one key. Its client knows it as gpu-1."""

    heading, daemon = "ssh", "sshd"
    programs = ("sshd", "ssh", "ssh-keygen", "setpriv")
    package = "apt-get install openssh-server openssh-client"
    error = "exit code 255\nssh: connect to host 127.0.0.1 port"

    def set_up(self) -> None:
        [port] = free_ports(1)
        for name in ("host_key", "key"):
            self.call("ssh-keygen", "-qt", "ed25519", "-N", "", "-f", str(self.folder / name))
        shutil.copy(self.folder / "key.pub", self.folder / "authorized_keys")
        host_key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
        names = {"port": port, "folder": self.folder}
        (self.folder / "sshd_config").write_text(SSHD_CONFIG.format(**names))
        (self.folder / "config").write_text(SSH_CONFIG.format(**names))
        real = shutil.which("ssh")
        client = self.folder / "ssh"  # for ~/.ssh/config
        client.write_text(f'#!/bin/sh\nexec {real} -F {self.folder}/config "$@"\n')
        client.chmod(0o755)
        self.environment = {"PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}"}
        # the empty folder of a process without rights
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.start("sshd", "sshd", "-D", "-e", "-f", self.folder / "sshd_config")

    def until_ready(self) -> None:
        until(lambda: self.call("ssh", "gpu-1", "echo", "ready", is_checked=False), "sshd answers")

    def queue(self, worker: Path) -> dict[str, Any]:
        queue = queue_of("ssh")
        program, host, words = queue["start"]["command"]
        assert (program, host) == ("ssh", "gpu-1")
        queue["start"]["command"] = [program, host, _replace_paths(words, worker)]
        return queue

    def stop_worker(self, id: str, pid: int) -> None:
        self.call("ssh", "gpu-1", "kill", str(pid))


class Slurm(Engine):
    """A cluster whose only node is this host."""

    heading, daemon = "Slurm", "slurmctld"
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "setpriv")
    package = "apt-get install slurmctld slurmd slurm-client munge"
    error = "exit code 1\nsbatch: error: "

    def set_up(self) -> None:
        controller, node = free_ports(2)
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        names = {"host": host, "controller": controller, "node": node, "folder": self.folder}
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(**names))
        for number in range(8):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-7]\n")
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        paths = [f"--{option}={self.folder}/munge.{ending}" for option, ending in files.items()]
        self.start("munged", "munged", "--foreground", "--force", *paths)
        until(lambda: (self.folder / "munge.socket").exists(), "munged listens")
        for name in ("slurmctld", "slurmd"):
            self.start(name, name, "-D", "-f", self.folder / "slurm.conf")

    def until_ready(self) -> None:
        words = ("sinfo", "--noheader", "--format=%T")
        states = ("idle", "mixed")
        until(lambda: self.call(*words, is_checked=False).strip() in states, "the node is there")

    def queue(self, worker: Path) -> dict[str, Any]:
        queue = queue_of("Slurm")
        words = [_replace_paths(word, worker) for word in queue["start"]["command"]]
        assert str(worker) in words
        queue["start"]["command"] = words
        return queue

    def hold(self, is_held: bool = True) -> None:
        self.call("scontrol", "update", "PartitionName=all", f"State={'DOWN' if is_held else 'UP'}")

    def stop_worker(self, id: str, pid: int) -> None:
        self.call("scancel", f"--name={id}")

    def jobs(self, column: str = "%T") -> list[str]:
        """Return the states, or another column, of the jobs that have not ended."""
        return self.call("squeue", "--noheader", f"--format={column}").split()

    def clear(self) -> None:
        self.call("scancel", "--user=root")
        until(lambda: not self.jobs(), "the queue is empty")
        self.hold(False)


class Dask(Engine):
    """A scheduler and a Dask worker with a nanny, with TLS."""

    heading, daemon = "Dask", "scheduler"
    programs = (str(DASK / ".venv" / "bin" / "dask"), "openssl", "setpriv")
    package = "make examples/dask/.venv/ready; apt-get install openssl"
    error = "Timed out trying to connect to tls://127.0.0.1:"

    def set_up(self) -> None:
        [self._port] = free_ports(1)
        key, certificate = self.folder / "key.pem", self.folder / "cert.pem"
        request = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=dask")
        self.call(*request, "-keyout", str(key), "-out", str(certificate))
        text = blocks("Dask", "yaml")[1].replace("dask.internal:8786", f"127.0.0.1:{self._port}")
        for name, path in {"ca": certificate, "cert": certificate, "key": key}.items():
            assert f"/etc/dask/{name}.pem" in text
            text = text.replace(f"/etc/dask/{name}.pem", str(path))
        configuration = yaml.safe_load(text)
        tls = configuration["distributed"]["comm"]["tls"]
        tls["scheduler"] = tls["worker"] = tls["client"]
        (self.folder / "dask.yaml").write_text(yaml.safe_dump(configuration))
        self.environment = {"DASK_CONFIG": str(self.folder / "dask.yaml")}
        place = ("--host", "127.0.0.1", "--no-dashboard")
        dask = DASK / ".venv" / "bin" / "dask"
        self.start("scheduler", dask, "scheduler", *place, "--port", str(self._port))
        local = ("--local-directory", self.folder, "--resources", "GPU=8", "--nthreads", "8")
        self.start("worker", dask, "worker", *place, *local)

    def until_ready(self) -> None:
        for name in ("scheduler", "worker"):
            if not self.is_running(name):
                self.start(name)
        log = self.folder / "worker.log"
        until(lambda: "Registered to" in log.read_text(), "the Dask worker is there")

    def queue(self, worker: Path) -> dict[str, Any]:
        queue = queue_of("Dask")
        python, program, path, id = queue["start"]["command"]
        assert (python, path) == (".venv/bin/python", "/srv/app/worker")
        shutil.copy(DASK / program, worker.parent / program)
        (worker.parent / ".venv").unlink(missing_ok=True)
        (worker.parent / ".venv").symlink_to(DASK / ".venv")
        queue["start"]["command"] = [python, program, str(worker), id]
        return queue

    def hold(self, is_held: bool = True) -> None:
        if is_held:
            self.stop("worker")
        else:
            self.start("worker")

    def stop_worker(self, id: str, pid: int) -> None:
        self.stop("worker")


ENGINES = {engine.heading: engine for engine in (Sshd, Slurm, Dask)}


@contextmanager
def an_engine(name: str, folder: Path) -> Iterator[Engine]:
    """Yield an engine that is ready; its daemons are stopped afterwards."""
    engine = ENGINES[name](folder)
    try:
        engine.set_up()
        engine.until_ready()
        yield engine
    finally:
        engine.stop_all()
