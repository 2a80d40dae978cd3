"""The stacks of exceptions as the module ``traceback`` formats them, and much faster when the same stack comes again.

When much fails, it mostly fails at the same place.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import CodeType, TracebackType
from typing import Any

MAX_FRAMES = 50  # of one exception: the last ones
MAX_CACHED_STACKS = 100
OWN_FILES = {__file__}
"""Files whose frames are left out at the start of stacks; modules that call handlers add their own."""


class _Formatted(traceback.StackSummary):
    """A stack whose elements are lines, as they are shown."""

    def format(self, **options: Any) -> list[str]:
        lines: list[Any] = list(self)
        return lines


_cache: dict[tuple[int, ...], tuple[list[CodeType], list[str]]] = {}
"""Lines by the positions of their frames. The code is kept too, so that its id stays its own."""


def format_stack(error: BaseException) -> str:
    """Return the traceback of ``error``, without our own frames before the handler's."""
    whole = traceback.TracebackException.from_exception(error, limit=0)  # all but the frames
    for formatted, raised in _all(whole, error):
        if raised.__traceback__ is not None:
            lines: list[Any] = _lines(raised.__traceback__, is_outermost=formatted is whole)
            formatted.stack = _Formatted(lines)
    return "".join(whole.format())


def _all(
    whole: traceback.TracebackException, error: BaseException
) -> Iterator[tuple[traceback.TracebackException, BaseException]]:
    """Yield ``error`` and the exceptions that are shown with it."""
    pairs: list[tuple[traceback.TracebackException | None, BaseException | None]] = [(whole, error)]
    while pairs:
        formatted, raised = pairs.pop()
        if formatted is not None and raised is not None:
            yield formatted, raised
            pairs += ((formatted.__cause__, raised.__cause__), (formatted.__context__, raised.__context__))
            if isinstance(raised, BaseExceptionGroup):
                pairs += zip(formatted.exceptions or (), raised.exceptions, strict=False)


def _lines(start: TracebackType, is_outermost: bool) -> list[str]:
    frames, following = [start], start.tb_next
    while following is not None:
        frames.append(following)
        following = following.tb_next
    del frames[:-MAX_FRAMES]
    own = 0
    if is_outermost:
        while own < len(frames) and frames[own].tb_frame.f_code.co_filename in OWN_FILES:
            own += 1
    codes = [frame.tb_frame.f_code for frame in frames[own:]]
    positions = [value for frame in frames[own:] for value in (frame.tb_lasti, frame.tb_lineno)]
    key = (*map(id, codes), *positions)
    if (cached := _cache.get(key)) is not None:
        return cached[1]
    stack = traceback.TracebackException(Exception, Exception(), start, limit=-MAX_FRAMES).stack
    del stack[:own]
    lines = stack.format()
    if len(_cache) >= MAX_CACHED_STACKS:
        _cache.clear()
    _cache[key] = codes, lines
    return lines
