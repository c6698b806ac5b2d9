"""The conformance cases of tests/collectives/conformance with arrays on a device, run by one rank.

The collectives are the arguments. A rank prints which engines have run calls. Cases whose arrays have gaps, which calls
on a device refuse, are left out, and so are dtypes that CuPy lacks.

Invariant: the cases themselves use NumPy arrays; every array that they pass to a call is copied to the device before
the call, and arrays that the call writes are copied back. The algorithm is always "auto". A rank with the variable
WORKER_HOST has no device: its arrays stay in host memory.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import numpy as np

import collectives
from collectives import Communicator
from tests.collectives.conformance.cases import cases, run
from tests.collectives.cuda.led.common import array, start
from tests.collectives.cuda.runs_on import ON_STAND_IN

_WRITE_X = ("broadcast", "recv")  # calls that write their first argument
_HOST = ("reduce_scatterv", "scatterv", "alltoallv")  # calls whose second argument, counts, is in host memory


class OnDevice:
    """A communicator to whose calls all arrays are passed on the device."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        return self._calling(name, found) if callable(found) else found

    def _calling(self, name: str, call: Any) -> Any:
        collective = name.removesuffix("_async")

        def made(*args: Any, **options: Any) -> Any:
            pairs: list[tuple[Any, Any]] = []

            def moved(value: Any) -> Any:
                if not isinstance(value, np.ndarray):
                    return value
                known = next((there for here, there in pairs if here is value), None)
                if known is None:
                    known = array(np.array(value, order="C"))
                    pairs.append((value, known))
                return known

            given = [a if i == 1 and collective in _HOST else moved(a) for i, a in enumerate(args)]
            written = [args[0]] if collective in _WRITE_X else []
            if "out" in options:
                written.append(options["out"])
                options = {**options, "out": moved(options["out"])}
            result = call(*given, **options)
            work, result = (result, None) if name.endswith("_async") else (None, result)

            def delivered(result: Any) -> Any:
                for here, there in pairs:
                    if any(here is one for one in written):
                        here[...] = there.get()
                if hasattr(result, "__cuda_array_interface__"):
                    same = next((here for here, there in pairs if there is result), None)
                    return result.get() if same is None else same
                return result

            return Delivered(work, delivered) if work is not None else delivered(result)

        return made


class Delivered:
    """A `Work` whose result is copied to the host."""

    def __init__(self, work: Any, delivered: Any) -> None:
        self._work, self._delivered = work, delivered

    def wait(self) -> Any:
        return self._delivered(self._work.wait())

    result = wait


def main(*names: str) -> None:
    made: Counter[str] = Counter()
    on_host, transport = "WORKER_HOST" in os.environ, os.environ.get("TRANSPORT", "auto")
    with collectives.init(timeout=30.0, transport=transport) if on_host else start(transport=transport) as comm:
        called: Any = comm if on_host else OnDevice(comm)
        for collective in names:
            for one in cases(collective, comm.size, thorough=True):
                if one.place == "strided" or (one.dtype == "bfloat16" and not ON_STAND_IN) or one.algorithm != "auto":
                    continue
                if "SHORT" in os.environ and one.shape == (5,) and one.dtype not in ("float32", "int16", "bool"):
                    continue
                wrong = run(called, one)
                assert not wrong, f"rank {comm.rank}: {one}: {wrong}"
                made[str(comm.dump()["operations"][-1]["engine"])] += 1
        comm.barrier()
    print(f"engines: {dict(made)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
