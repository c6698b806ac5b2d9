"""An engine whose calls complete from another thread, as those of a device do.

Invariant: a call is complete once, after its result is in place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.engines import Collective, Memory, Ranks


class LateEngine:
    """Takes every sum of at least `smallest` bytes in host memory."""

    name: Final = "late"

    def __init__(self, smallest: int = 0) -> None:
        self._smallest: Final = smallest

    def accepts(self, collective: str, nbytes: int, memory: Memory, size: int) -> str | None:
        takes = collective == "allreduce" and memory.kind == "host" and nbytes >= self._smallest
        return "a thread of its own adds up" if takes else None

    def collective(self, call: Collective, memory: Memory) -> LateTask:
        if call.op != "sum":
            raise ValueError(f"engine late has no op {call.op!r}; there is sum")
        return LateTask()


class LateTask:
    """One sum."""

    def start(self, x: Any, out: Any, ranks: Ranks, complete: Callable[[Any, BaseException | None], None]) -> None:
        def work() -> None:
            try:
                total = np.sum(ranks.allgather(x), axis=0, dtype=x.dtype)
                if out is not None:
                    np.copyto(out, total)
            except BaseException as error:
                complete(None, error)
            else:
                complete(total if out is None else out, None)

        threading.Thread(target=work, name="engine-late", daemon=True).start()
