"""OpenSSH's server, and a Slurm cluster of one node, from Debian's packages, on the loopback interface.

They need no systemd: each daemon is a process of the test, with its configuration, keys and state in a folder.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.project import until

PATH = f"{os.environ['PATH']}:/usr/sbin"
PROGRAMS = {
    "gpu1": ("sshd", "ssh", "ssh-keygen", "setpriv"),
    "slurm": ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "setpriv"),
}
SSHD_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
StrictModes no
PidFile none
"""
SSH_CONFIG = """\
Host gpu1
  HostName 127.0.0.1
  Port {port}
  User root
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
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=65536
PartitionName=all Nodes={host} Default=YES
"""


def why_not(name: str) -> str:
    """Return why the engine ``name`` cannot be started here; empty if it can."""
    missing = [program for program in PROGRAMS[name] if shutil.which(program, path=PATH) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install openssh-server slurmctld slurmd slurm-client munge util-linux"
    return "" if os.geteuid() == 0 else "engines of the test's own need root"


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in listeners]


@dataclass
class Engine:
    """Daemons in the foreground, with their logs in ``folder``; ``path`` and ``environment`` are those of clients."""

    folder: Path
    path: str = "/usr/bin:/bin"
    environment: dict[str, str] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *words: str) -> None:
        """Start a daemon, which dies with this process; as before if there are no ``words``."""
        if words:
            self.words[name] = [
                "setpriv",
                "--pdeathsig=KILL",
                shutil.which(name, path=PATH) or name,
                *words,
            ]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.words[name], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        process.wait()

    def call(self, *words: str, is_checked: bool = True) -> str:
        """Return what a client prints."""
        env = {**os.environ, "PATH": self.path, **self.environment}
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0 or not is_checked, (words, done.stderr)
        return done.stdout

    def until_ready(self) -> None:
        """Wait until what was started answers."""

    def jobs(self) -> list[str]:
        """Return the states of the jobs that have not ended."""
        return []

    def clear(self) -> None:
        """End all jobs."""


class Sshd(Engine):
    """An sshd that accepts one key. Its client knows it as gpu1."""

    def until_ready(self) -> None:
        until(lambda: self.call("ssh", "gpu1", "echo", "ready", is_checked=False), "sshd answers")


class Slurm(Engine):
    """A cluster whose only node is this host."""

    def until_ready(self) -> None:
        words = ("sinfo", "--noheader", "--format=%T")
        until(lambda: self.call(*words, is_checked=False).strip() == "idle", "the node is idle")

    def jobs(self) -> list[str]:
        return self.call("squeue", "--noheader", "--format=%T").split()

    def hold(self, is_held: bool = True) -> None:
        """Start nothing that is in the queue, or start it now."""
        self.call("scontrol", "update", "PartitionName=all", f"State={'DOWN' if is_held else 'UP'}")

    def clear(self) -> None:
        self.call("scancel", "--user=root")
        until(lambda: not self.jobs(), "the queue is empty")
        self.hold(False)


def an_sshd(folder: Path) -> Sshd:
    [port] = free_ports(1)
    sshd = Sshd(folder, f"{folder}:/usr/bin:/bin")
    for name in ("host_key", "key"):
        sshd.call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    (folder / "known_hosts").write_text(
        f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}"
    )
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(port=port, folder=folder))
    (folder / "config").write_text(SSH_CONFIG.format(port=port, folder=folder))
    (folder / "ssh").write_text(
        f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n'
    )  # as ~/.ssh/config
    (folder / "ssh").chmod(0o755)
    # the empty folder of a process without rights
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    sshd.start("sshd", "-D", "-e", "-f", str(folder / "sshd_config"))
    return sshd


def a_slurm(folder: Path) -> Slurm:
    controller, node = free_ports(2)
    slurm = Slurm(folder, environment={"SLURM_CONF": str(folder / "slurm.conf")})
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(host=host, controller=controller, node=node, folder=folder)
    )
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
    paths = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
    slurm.start("munged", "--foreground", "--force", *paths)
    until(lambda: (folder / "munge.socket").exists(), "munged listens")
    for name in ("slurmctld", "slurmd"):
        slurm.start(name, "-D", "-f", str(folder / "slurm.conf"))
    return slurm


@contextmanager
def an_engine(name: str, folder: Path) -> Iterator[Engine]:
    """Yield the engine that the page calls ``name``; its daemons are stopped afterwards."""
    engine = {"gpu1": an_sshd, "slurm": a_slurm}[name](folder)
    try:
        engine.until_ready()
        yield engine
    finally:
        for daemon in reversed(list(engine.processes)):
            engine.stop(daemon)
