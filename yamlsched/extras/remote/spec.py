"""What an agent is told on its command line: which attempt it is for, and what the job calls.

It is one argument of letters, digits, dashes and underscores, so that no shell in between changes
it. It contains neither the payload nor a DSN: others can read a command line.
"""

from __future__ import annotations

import base64
import json
import zlib
from datetime import timedelta
from typing import Any

from yamlsched import __version__
from yamlsched.errors import Refused
from yamlsched.extras.remote.tickets import Ticket
from yamlsched.runs.lifecycle import ClaimedRun, Keep
from yamlsched.schedule.job import ExitCodes, Job, Output
from yamlsched.worker.attempt import Attempt

FORMAT = 2  # it changes with what an agent has to do: one that does not know it begins nothing
MAX_SPEC_BYTES = 1 << 20  # uncompressed: an agent reads no more


def ticket_of(run: ClaimedRun) -> Ticket:
    """Return the ticket of an attempt."""
    return Ticket(run.id, run.attempt, run.locked_by)


def encode(attempt: Attempt, namespace: str) -> str:
    """Return the argument for the agent of ``attempt``."""
    job, codes = attempt.job, attempt.job.exit_codes
    plain = {
        "format": FORMAT,
        "yamlsched": __version__,
        "namespace": namespace,
        "run": attempt.run._replace(payload=""),
        "handler": job.handler,
        "on_dead": job.on_dead,
        "command": job.command,
        "env": job.env,
        "cwd": job.cwd,
        "stdin": job.stdin,
        "success": codes.success,
        "discard": codes.discard,
        "retry_after": {
            str(code): delay.total_seconds() for code, delay in codes.retry_after.items()
        },
        "timeout": job.timeout.total_seconds(),
        "kill_after": job.kill_after.total_seconds(),
        "keep": job.output.keep,
        "paths": job.paths,
        "requires_env": job.requires_env,
    }
    content = zlib.compress(json.dumps(plain, separators=(",", ":")).encode(), 9)
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def decode(argument: str) -> tuple[ClaimedRun, Job, str]:
    """Return the run, without its payload, the job and the namespace. Raises Refused for what is
    not of ``encode``.
    """
    try:
        content = base64.urlsafe_b64decode(argument + "=" * (-len(argument) % 4))
        plain: dict[str, Any] = json.loads(zlib.decompressobj().decompress(content, MAX_SPEC_BYTES))
        if plain["format"] != FORMAT:
            raise Refused(
                f"yamlsched {plain.get('yamlsched', 'of another version')} of the worker describes"
                f" attempts in format {plain['format']}, yamlsched {__version__} here reads"
                f" {FORMAT}: install the same version on both"
            )
        run = ClaimedRun(*plain["run"])
        delays = {
            int(code): timedelta(seconds=delay) for code, delay in plain["retry_after"].items()
        }
        job = Job(
            run.job_type,
            handler=plain["handler"],
            on_dead=plain["on_dead"],
            command=tuple(plain["command"]),
            env=plain["env"],
            cwd=plain["cwd"],
            stdin=plain["stdin"],
            exit_codes=ExitCodes(tuple(plain["success"]), tuple(plain["discard"]), delays),
            timeout=timedelta(seconds=plain["timeout"]),
            kill_after=timedelta(seconds=plain["kill_after"]),
            output=Output(Keep(plain["keep"])),
            paths=tuple(plain["paths"]),
            requires_env=tuple(plain["requires_env"]),
        )
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise Refused(
            "this is not the description of an attempt: only a worker starts this verb"
        ) from error
    return run, job, plain["namespace"]
