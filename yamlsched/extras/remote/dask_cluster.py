"""The connection of a gateway to a Dask scheduler, and the task there of each attempt.

Dask keeps none of our guarantees: it executes a task again when a worker dies, and code that was
cancelled runs to its end. The begin tickets keep them, so a task is simply submitted again after a
lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import logging
import secrets
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from yamlsched import log
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.remote import dask_task
from yamlsched.extras.remote.launcher import TERMINATED
from yamlsched.handler.programs import describe_exit

CHECK_INTERVAL_SECONDS = 0.1
CONNECT_TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = 1.0  # after a connection was refused
CLOSE_TIMEOUT_SECONDS = 2.0
MAX_ERROR_CHARS = 300
INSTALL = 'pip install "yamlsched[dask]"'
NOT_INSTALLED = f"Dask is not installed on this host: {INSTALL}"
CONNECTION_ERRORS = (Exception,)
"""What Dask raises if it cannot connect: refused, a wrong certificate, another protocol version,
and MemoryError and others for the answer of a foreign service.
"""


def is_installed() -> bool:
    """Return whether Dask is there, without importing it."""
    return importlib.util.find_spec("distributed") is not None


async def connect(address: str) -> Any:
    """Return a client that is connected. Raises one of CONNECTION_ERRORS."""
    from distributed import Client

    logging.disable()  # the events of this module are logged instead
    warnings.simplefilter("ignore")
    options = {"asynchronous": True, "set_as_default": False, "timeout": CONNECT_TIMEOUT_SECONDS}
    # Dask's own does not cover an address that never answers
    async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
        return await Client(address, **options)  # type: ignore[no-untyped-call]


async def ask(address: str, words: Sequence[str], seconds: float) -> tuple[int, str]:
    """Start an agent with ``words`` on a Dask worker; return its exit code and output. Raises
    EnvironmentFailed.
    """
    try:
        client = await connect(address)
    except CONNECTION_ERRORS as error:
        raise EnvironmentFailed(
            f"the scheduler at {address} cannot be reached: {why_not_connected(error)}"
        ) from error
    try:
        if not (await client.scheduler.identity())["workers"]:
            raise EnvironmentFailed(f"the scheduler at {address} has no workers")
        key = f"yamlsched-probe-{secrets.token_hex(6)}"
        future = client.submit(eval, dask_task.call("ask", *words), key=key, pure=False, retries=0)
        status, output = await asyncio.wait_for(future.result(), seconds)
        return int(status), str(output)
    except TimeoutError as error:
        raise EnvironmentFailed(
            f"no answer within {seconds:.0f} s: all workers may be busy"
        ) from error
    except CONNECTION_ERRORS as error:
        raise EnvironmentFailed(f"a Dask worker cannot start it: {first_line(error)}") from error
    finally:
        with contextlib.suppress(*CONNECTION_ERRORS):
            await client.close(CLOSE_TIMEOUT_SECONDS)


def first_line(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_SECONDS:.0f} s"
    text = str(error).strip()
    return text.splitlines()[0][:MAX_ERROR_CHARS] if text else type(error).__name__


def why_not_connected(error: BaseException) -> str:
    """Say why the scheduler cannot be reached, and what to look at if the network is not the
    reason.
    """
    version = importlib.metadata.version("distributed")
    if isinstance(error, TimeoutError):
        return f"{first_line(error)}: is it a Dask scheduler?"
    if isinstance(error, OSError):
        return first_line(error)
    if isinstance(error, ImportError):
        return f"{first_line(error)}: the scheduler needs Dask {version}, as here"
    answer = f"what answers there is not a Dask scheduler of version {version}, as here"
    return f"{answer}, or tls:// lacks certificates ({type(error).__name__}: {first_line(error)})"


class DaskLauncher:
    """The task of one attempt."""

    title = "its Dask task"

    def __init__(
        self, cluster: DaskCluster, key: str, argument: str, resources: Mapping[str, float]
    ) -> None:
        self.name, self.argument, self.resources = key, argument, resources
        # of the task: new for each submission, because Dask may not have forgotten the one before
        self.key = ""
        self.future: Any = None  # None: to be submitted
        self.status: int | None = None
        self.why = ""
        self._cluster = cluster

    def describe(self) -> str:
        """Say how it ended."""
        return self.why

    def terminate(self) -> None:
        """Forget the task; if it has not started, it never will."""
        self._cluster.forget(self)
        self.end(TERMINATED[0], "withdrawn")

    def leave(self) -> None:
        """Have the cluster keep the task when this process ends: Dask forgets tasks with their
        client.
        """
        from distributed import fire_and_forget

        if self.future is not None:
            with contextlib.suppress(*CONNECTION_ERRORS):
                fire_and_forget(self.future)  # type: ignore[no-untyped-call]
        self.terminate()

    def close(self, kills: bool = True) -> None:
        self._cluster.forget(self)

    def end(self, status: int, why: str) -> None:
        if self.status is None:
            self.status, self.why = status, why


class DaskCluster:
    """The tasks of the executor ``name`` on the cluster whose scheduler is at ``address``.

    ``note_fault`` is called with why the scheduler cannot be reached, and with "" when it can be.
    """

    def __init__(self, name: str, address: str, note_fault: Callable[[str], None]) -> None:
        self._name, self._address, self._note_fault = name, address, note_fault
        self._client: Any = None
        self._launchers: set[DaskLauncher] = set()
        self._task = asyncio.create_task(self._maintain())

    def start(self, key: str, argument: str, resources: Mapping[str, float]) -> DaskLauncher:
        """Have a task submitted as soon as the scheduler can be reached."""
        launcher = DaskLauncher(self, key, argument, resources)
        self._launchers.add(launcher)
        return launcher

    def forget(self, launcher: DaskLauncher) -> None:
        self._launchers.discard(launcher)
        if launcher.future is not None:
            launcher.future.release()

    def check(self) -> None:
        """Raise what has ended its own task."""
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._client is not None:
            with contextlib.suppress(*CONNECTION_ERRORS):
                await self._client.close(CLOSE_TIMEOUT_SECONDS)

    async def _maintain(self) -> None:
        """Stay connected, submit what is to be submitted, and note what has ended, until cancelled.

        When the scheduler is lost, the client forgets its tasks. It tries to reconnect, and closes
        itself if it cannot.
        """
        while True:
            self._client = await self._connect()
            while self._client.status != "closed":
                if self._client.status == "running":
                    for launcher in list(self._launchers):
                        await self._check(launcher)
                await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            for launcher in self._launchers:
                launcher.future = None

    async def _connect(self) -> Any:
        reported = ""
        while True:
            try:
                client = await connect(self._address)
            except CONNECTION_ERRORS as error:
                why = why_not_connected(error)
                if why != reported:
                    log.warning(
                        "executor.unreachable",
                        executor=self._name,
                        address=self._address,
                        error=why,
                    )
                    self._note_fault(f"the scheduler at {self._address} cannot be reached: {why}")
                reported = why
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if reported:
                log.info("executor.connected", executor=self._name, address=self._address)
            self._note_fault("")
            return client

    async def _check(self, launcher: DaskLauncher) -> None:
        state = "cancelled" if launcher.future is None else launcher.future.status
        if launcher.status is not None:
            return
        if state == "cancelled":
            self._submit(launcher)
        elif state == "finished":
            launcher.end(0, "exit code 0")
        elif state == "error":
            try:
                error = await launcher.future.exception()
            except CONNECTION_ERRORS as lost:
                error = lost
            if isinstance(error, subprocess.CalledProcessError):
                how = describe_exit(error.returncode)
                launcher.end(error.returncode, f"{how}: {error.output}" if error.output else how)
            else:
                launcher.end(1, f"{type(error).__name__}: {first_line(error)}")

    def _submit(self, launcher: DaskLauncher) -> None:
        launcher.key = f"{launcher.name}-{secrets.token_hex(4)}"
        launcher.future = self._client.submit(
            eval,
            dask_task.call("execute", launcher.argument),
            key=launcher.key,
            pure=False,
            retries=0,
            resources=dict(launcher.resources) or None,
        )
