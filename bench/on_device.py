"""Makes the call for a benchmark case on arrays in CUDA memory, so that the call can be repeated and timed.

Invariant: the call is one that a user would write, on CuPy arrays in CuPy's current stream. Test data are made and
compared in host memory, by the code that also does it for calls there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collectives import Communicator
from collectives.arrays.array import dtype_of
from collectives.bench.calls import WITH_OUT, call_of
from collectives.bench.cases import IN_PLACE, OUT_OF_PLACE, Case
from collectives.bench.data import Data
from collectives.bench.device import Device, host_copy
from collectives.bench.plan import Plan, places


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A collective on arrays in CUDA memory, ready to be run and timed. Has the methods of `bench.calls.Bound`."""

    case: Case
    rank: int
    device: Device
    inp: Any
    out: Any
    in_place: bool
    call: Callable[[], Any]

    def settle(self) -> None:
        """Wait until all calls are complete. A timed iteration ends with this wait."""
        self.device.settle()

    def renew(self) -> None:
        """Write the input anew, as if a kernel had just computed it."""
        self.inp.fill(1)
        self.device.settle()

    def wrong(self, salt: int) -> int:
        """Run the collective once on test data; return the number of wrong elements in this rank's result."""
        data = Data(self.case, dtype_of(self.case.dtype), self.rank, salt)
        values = np.ones(self.inp.shape, data.dtype)
        if self.case.collective == "broadcast":
            data.spoil(values)
        elif not self.in_place and self.out is not self.inp:
            spoilt = np.ones(self.out.shape, data.dtype)
            data.spoil(spoilt)
            self.out.set(spoilt)
        data.fill(values)
        self.inp.set(values)
        result = self.call()
        self.settle()
        return data.wrong(host_copy(result) if data.receives and result is not None else None)


class DeviceMemory:
    """The input and output arrays on the device, allocated once for all measurements of a case."""

    def __init__(self, comm: Communicator, plan: Plan, device: Device) -> None:
        self._comm: Final = comm  # that is measured
        self._plan: Final = plan
        self._device: Final = device
        self._case: Case | None = None
        self._arrays: tuple[Any, Any] = (None, None)

    def bind(self, case: Case, place: str) -> OnDevice:
        """Return the collective `case` with its arrays. Raises: ValueError if CuPy does not have the dtype."""
        if self._case != case:
            self.free()  # before new arrays are made
            try:
                self._arrays = self._made(case)
            except TypeError as error:
                raise ValueError(f"CuPy has no {case.dtype}: {error}") from None
            self._case = case
        inp, out = self._arrays
        out = inp if place == IN_PLACE else out
        call = call_of(self._comm, case, inp, out)
        return OnDevice(case, self._comm.rank, self._device, inp, out, place == IN_PLACE, call)

    def free(self) -> None:
        self._case, self._arrays = None, (None, None)

    def _made(self, case: Case) -> tuple[Any, Any]:
        dtype, ranks = dtype_of(case.dtype), case.ranks

        def array(elements: int, parts: bool) -> Any:
            shape = (ranks, elements // ranks) if parts else (elements,)
            if self._plan.buffers == "shared":
                made = self._device.cupy.asarray(self._comm.empty(shape, dtype, where=f"cuda:{self._device.number}"))
            else:
                made = self._device.empty(shape, dtype)
            made.fill(1)
            return made

        inp = array(case.elements_in, case.collective == "scatter")
        needs_out = OUT_OF_PLACE in places(self._plan, case.kind) and case.collective in WITH_OUT
        return inp, array(case.elements_out, case.collective == "allgather") if needs_out else inp
