"""What a child does between its fork and its first task."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TextIO

from yamlsched.schedule.paths import search_path
from yamlsched.worker import forking
from yamlsched.worker.attempt import Kind
from yamlsched.worker.local.coroutines import CoroutineRunner
from yamlsched.worker.local.loop import streams
from yamlsched.worker.local.protocol import Channel
from yamlsched.worker.local.runner import ProcessRunner, Runner, standard_streams

if TYPE_CHECKING:
    from yamlsched.worker.local.child import Environment

GARBAGE_THRESHOLDS = gc.get_threshold()  # as handlers expect them: the worker collects less often
SETUP_EXIT = 72  # the exit status of a child that cannot be set up


def run(parent: int, channel: Channel, environment: Environment, kind: Kind) -> NoReturn:
    """Become a child that executes runs. ``parent`` is the worker's process id."""
    try:
        if kind is Kind.COROUTINE:
            set_up(parent, channel, environment, streams)
            child: Runner = CoroutineRunner(channel, environment.workload, parent)
        else:
            set_up(parent, channel, environment, standard_streams)
            child = ProcessRunner(channel, environment.workload, parent)
    except BaseException as error:
        # by os._exit, so that nothing of the parent's is cleaned up here
        os.write(2, f"yamlsched: a child process cannot start: {error}\n".encode())
        os._exit(SETUP_EXIT)
    child.main()


def set_up(
    parent: int,
    channel: Channel,
    environment: Environment,
    streams: Callable[[], tuple[TextIO, TextIO]],
) -> None:
    """Detach from the worker, and prepare for handlers. ``streams`` write to stdout and stderr."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    workload = environment.workload
    for descriptor in (1, 2):
        os.dup2(channel.output, descriptor)
    sys.stdout, sys.stderr = streams()
    forking.detach(parent, keep=(0, 1, 2, *channel[:3]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")  # when memory is short, a handler is killed and not the worker
    os.setpgid(0, 0)  # a signal to the group reaches what handlers start, and not the parent
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if environment.pgtz is None:
        os.environ.pop("PGTZ", None)
    else:
        os.environ["PGTZ"] = environment.pgtz
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    paths = next((job.paths for job in workload.jobs.values()), ())  # those of the file
    folders = map(str, search_path(workload.file, paths, workload.path))
    sys.path[:0] = [folder for folder in folders if folder not in sys.path[:1]]
