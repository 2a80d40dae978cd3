"""What a child does between its fork and its first task."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn, TextIO

from yamlsched.db.connection import leave_utc
from yamlsched.schedule.paths import search_path
from yamlsched.worker import forking
from yamlsched.worker.attempt import Kind, Workload
from yamlsched.worker.local.coroutines import CoroutineRunner
from yamlsched.worker.local.loop import streams
from yamlsched.worker.local.protocol import Channel
from yamlsched.worker.local.runner import ProcessRunner, Runner, set_descriptors, standard_streams

GARBAGE_THRESHOLDS = gc.get_threshold()  # as handlers expect them: the worker collects less often
SETUP_EXIT = 72  # the exit status of a child that cannot be set up


def run(parent: int, channel: Channel, workload: Workload, kind: Kind) -> NoReturn:
    """Become a child that executes runs. ``parent`` is the worker's process id."""
    is_loop = kind is Kind.COROUTINE
    create: Callable[..., Runner] = CoroutineRunner if is_loop else ProcessRunner
    try:
        set_up(parent, channel, workload, streams if is_loop else standard_streams)
        child = create(channel, workload, parent)
    except BaseException as error:
        # by os._exit, so that nothing of the parent's is cleaned up here
        os.write(2, f"yamlsched: a child process cannot start: {error}\n".encode())
        os._exit(SETUP_EXIT)
    child.main()


def set_up(
    parent: int,
    channel: Channel,
    workload: Workload,
    streams: Callable[[], list[TextIO]],
) -> None:
    """Detach from the worker, and prepare for handlers. ``streams`` write to stdout and stderr."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    set_descriptors(channel.output)
    sys.stdout, sys.stderr = streams()
    forking.detach(parent, keep=(0, 1, 2, *channel[:4]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")  # when memory is short, a handler is killed and not the worker
    os.setpgid(0, 0)  # a signal to the group reaches what handlers start, and not the parent
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    leave_utc()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    paths = next((job.paths for job in workload.jobs.values()), ())  # those of the file
    folders = map(str, search_path(workload.file, paths, workload.path))
    sys.path[:0] = [folder for folder in folders if folder not in sys.path[:1]]
