"""What ``run.transaction()``, ``run.once()`` and ``run.enqueue()`` return: for ``with``, and for an ``async def``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from yamlsched.errors import YamlschedError
from yamlsched.handling.backends import Backend
from yamlsched.handling.once import Effect, NothingHappened

S = TypeVar("S")
A = TypeVar("A")


class Block(Generic[S, A]):
    """A block of a handler, entered by ``with``, or by ``async with``, which does not block the event loop."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        create: Callable[[], AbstractContextManager[S]],
        create_async: Callable[[], AbstractAsyncContextManager[A]],
    ) -> None:
        self._name, self._backend, self._create, self._create_async = name, backend, create, create_async
        self._entered: AbstractContextManager[S] | None = None
        self._entered_async: AbstractAsyncContextManager[A] | None = None

    def __enter__(self) -> S:
        if self._backend.is_shared:
            raise YamlschedError(
                f"with {self._name}: would block the other runs of this process: write async with {self._name}:"
            )
        self._entered = self._create()
        return self._entered.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._entered is not None
        return self._entered.__exit__(kind, error, traceback)

    async def __aenter__(self) -> A:
        self._entered_async = self._create_async()
        return await self._entered_async.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._entered_async is not None
        return await self._entered_async.__aexit__(kind, error, traceback)


class Done:
    """What ``run.enqueue()`` returns: an ``async def`` may await it, as it may await ``yamlsched.enqueue()``."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


DONE = Done()


@asynccontextmanager
async def perform_async(backend: Backend, perform: AbstractContextManager[Effect]) -> AsyncIterator[Effect]:
    """Yield the effect of ``perform``, whose statements do not block the event loop."""
    entered: list[Effect] = []
    try:
        await backend.offload(lambda: entered.append(perform.__enter__()))
    except asyncio.CancelledError:
        if entered:  # meanwhile; the handler has not seen it
            error = NothingHappened()
            with suppress(NothingHappened):
                await backend.offload(partial(perform.__exit__, NothingHappened, error, None), must_finish=True)
        raise
    try:
        yield entered[0]
    except BaseException as error:
        leave = partial(perform.__exit__, type(error), error, error.__traceback__)
        if not await backend.offload(leave, must_finish=True):
            raise
    else:
        await backend.offload(partial(perform.__exit__, None, None, None), must_finish=True)
