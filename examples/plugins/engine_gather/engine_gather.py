"""An engine that runs whole allreduces by itself: rank 0 gathers all arrays, adds them up and broadcasts the sum.

Invariant: operands are taken in the order of ranks.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from collectives.engines import Collective, Memory, Ranks

_OPS: Final = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class GatherEngine:
    """Takes every allreduce of host memory."""

    name: Final = "gather"

    def accepts(self, collective: str, nbytes: int, memory: Memory, size: int) -> str | None:
        return "rank 0 adds up for all" if collective == "allreduce" and memory.kind == "host" else None

    def collective(self, call: Collective, memory: Memory) -> GatherTask:
        if call.op not in _OPS:
            raise ValueError(f"engine gather has no op {call.op!r}; there are {', '.join(_OPS)}")
        return GatherTask(call)


class GatherTask:
    """One allreduce."""

    def __init__(self, call: Collective) -> None:
        self._op = _OPS[call.op]

    def run(self, x: Any, out: Any, ranks: Ranks) -> Any:
        brought = ranks.gather(x)
        total = np.array(x) if brought is None else np.asarray(self._op.reduce(brought, axis=0, dtype=brought.dtype))
        ranks.broadcast(total)
        if out is None:
            return total
        np.copyto(out, total)
        return out
