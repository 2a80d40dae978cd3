"""What ``doctor`` checks of the targets of notifications; with --notify, by a test
message to each.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec

from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.doctor import Check, fail, ok, warn
from yamlsched.extras.monitors.delivery import send_streams
from yamlsched.extras.monitors.targets import HEARTBEAT_VARIABLE
from yamlsched.extras.notify.sending import MAX_SECONDS, MISSING, Message, send_one
from yamlsched.schedule.load import Loaded
from yamlsched.worker.sessions import run_in_helper


def check(loaded: Loaded, sends: bool) -> Iterator[Check]:
    """Check the variables of the targets of a file, and send a test message to each if
    ``sends``.
    """
    set_here = {
        name: target.url_env
        for name, target in loaded.notify.items()
        if os.environ.get(target.url_env)
    }
    for name, target in loaded.notify.items():
        if name not in set_here:
            what = (
                f"target {name}: {target.url_env} is not set on this host, so only other hosts"
                " send its messages"
            )
            yield warn("notify", what, f"set {target.url_env} where ticks run, in the crontab too")
    if set_here and find_spec("apprise") is None:
        yield fail("notify", MISSING, "on at least one host that ticks")
    elif sends:
        for name, error in _send_tests(set_here, str(loaded.namespace)).items():
            what = (
                f"{name}: the test message was not sent: {error}"
                if error
                else f"{name} got a test message"
            )
            remedy = f"correct {set_here[name]}; see docs/notifications.md"
            yield Check("notify", "fail" if error else "ok", f"target {what}", remedy)
    elif set_here:
        what = (
            f"variables of {len(set_here)} of {len(loaded.notify)} targets are set; --notify tests"
            " them"
        )
        yield ok("notify", what)
    if loaded.notify and not os.environ.get(HEARTBEAT_VARIABLE):
        remedy = (
            f"set {HEARTBEAT_VARIABLE} to the URL of a service that alerts when pings stop: see"
            " docs/observability.md"
        )
        yield warn(
            "notify",
            "if ticks stop, no notification is sent",
            remedy,
        )


def _send_tests(variables: Mapping[str, str], namespace: str) -> dict[str, str]:
    """Send a test message to each target, side by side; return the errors."""
    text = f"yamlsched doctor --notify on {socket.gethostname()}, namespace {namespace}"
    messages = [
        Message(name, variable, "test of yamlsched", text, True, [])
        for name, variable in variables.items()
    ]
    deadline = time.monotonic() + MAX_SECONDS
    try:
        answers = asyncio.run(
            run_in_helper(partial(send_streams, [[msg] for msg in messages], send_one, deadline))
        )
    except EnvironmentFailed as error:
        return dict.fromkeys(variables, str(error))
    return {message.target: error for message, error in answers}
