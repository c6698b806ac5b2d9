"""Entries in torch's profiler for operations that begin in one thread and end in another.

Invariant: nothing is done while no profiler runs. A profiler belongs to the thread that started it. If an operation
ends in another thread, the profiler learns of the end only from a torch future.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._C._autograd import _record_function_with_args_enter
from torch.autograd import _profiler_enabled

NAME: Final = "collectives"

profiles: Final = _profiler_enabled
"""Whether this thread's operations are profiled."""


class Entry:
    """An entry for one operation in torch's profiler; it begins when this object is made."""

    def __init__(self, title: str, inputs: Sequence[Any]) -> None:
        """`title`: as in torch's own backends, such as "all_reduce". `inputs`: tensors, whose shapes are shown."""
        handle = _record_function_with_args_enter(f"{NAME}:{title}", *inputs)
        self._end: Final = torch.futures.Future()
        torch.ops.profiler._call_end_callbacks_on_jit_fut(handle, self._end)

    def end(self) -> None:
        """Ends the operation's entry in torch's profiler; called once, from any thread."""
        self._end.set_result(None)


@contextmanager
def recorded(title: str, inputs: Sequence[Any]) -> Iterator[Entry | None]:
    """A context manager in which an operation is started; yields the operation's entry in torch's profiler.

    Yields None if no profiler runs. The operation ends the entry; the context manager ends it only on an error.
    `title`: the entry's name. `inputs`: the tensors that the entry shows.
    """
    if not profiles():
        yield None
        return
    entry = Entry(title, inputs)
    try:
        yield entry
    except BaseException:
        entry.end()
        raise
