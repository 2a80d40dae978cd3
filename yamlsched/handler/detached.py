"""What is to outlive the run that starts it: a client or a pool that all runs of a
process share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")
is_detached: ContextVar[bool] = ContextVar("yamlsched_detached", default=False)


async def detached(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what ``await start()`` returns. Tasks that it creates belong to no run, and are not
    cancelled with one.

    In a queue with ``mode: async``, a run's tasks are cancelled when its handler ends. So open a
    pool or a client that has tasks of its own and is kept in a module by ``pool = await
    yamlsched.detached(open_pool)``. In a process that executes one run at a time, each run has an
    event loop of its own, and nothing outlives it.
    """
    loop = asyncio.get_running_loop()
    context = (
        getattr(loop, "base_context", None) or copy_context()
    ).copy()  # without what the run has set
    context.run(is_detached.set, True)
    return await loop.create_task(start(), context=context)
