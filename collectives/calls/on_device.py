"""Turns the arguments of calls on arrays in CUDA memory into operations of NCCL: a method for each kind of call.

Invariant: arguments are checked before anything is issued. A call that NCCL does not run is left to the methods for
host memory, on all ranks alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from collectives.arrays import cuda
from collectives.arrays.array import check_counts, check_rank
from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import name_of
from collectives.calls import pieces
from collectives.calls.call import Ready
from collectives.calls.device_checks import check_apart, check_devices, check_formed, results_of, with_rows
from collectives.calls.device_messages import message
from collectives.calls.device_scatter import scatter
from collectives.calls.external import ARGUMENTS
from collectives.calls.hierarchical import HierarchicalCalls, is_named
from collectives.calls.moves import Calls, Deadline
from collectives.calls.nccl import COLLECTIVES, ENGINE, HIERARCHY
from collectives.calls.pieces import Piece
from collectives.calls.prepare import Shape
from collectives.calls.scheduled import even_shape
from collectives.calls.streamed import StreamCall, StreamCalls, is_own
from collectives.calls.targets import only_on_devices, output, reduced, target
from collectives.native import _engine

_SCATTERS: Final = ("scatter", "scatterv")
_MESSAGES: Final = ("send", "recv", "sendrecv")


class DeviceCalls:
    """Prepares the calls of one communicator on arrays in CUDA memory."""

    def __init__(self, streams: StreamCalls, calls: Calls, hierarchical: HierarchicalCalls | None = None) -> None:
        self._streams: Final = streams
        self._calls: Final = calls
        self._hierarchical: Final = hierarchical
        self._uneven: Final[dict[str, Callable[..., Ready | None]]] = {
            "allgatherv": self._allgatherv,
            "gatherv": self._gatherv,
            "alltoallv": self._alltoallv,
            "reduce_scatterv": self._reduce_scatterv,
        }

    @property
    def alone(self) -> bool:
        """Whether NCCL is the only engine that may run, so that arrays in host memory are refused."""
        return self._streams.alone

    def prepare(
        self, name: str, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...], stream: Any
    ) -> Ready | None:
        """Returns the call, ready to be issued, if NCCL runs it; None if the call runs on host memory.

        Raises TypeError or ValueError for invalid arguments. Raises TransportUnavailable if only NCCL may run calls and
        cannot run this one.
        """
        if name in _SCATTERS:  # only the root has an array
            refuse_host = partial(self._refuse_host, "scatter", None, stream)
            return scatter(self._streams, self._calls, self.levels, refuse_host, name, x, timeout, args, stream)
        if name == "sendrecv" and cuda.on_cuda(x) != cuda.on_cuda(out):
            raise ValueError("x and out are in different memory: give both on the device, or both in host memory")
        if not cuda.on_cuda(x):
            self._refuse_host(name, out, stream)
            return None
        if out is not None and not cuda.on_cuda(out):
            raise ValueError("x is on a CUDA device and out is in host memory: give out on the same device")
        if name in _MESSAGES:
            return message(self._streams, self._calls, name, x, out, timeout, args, stream)
        if name in self._uneven:
            return self._uneven[name](x, out, timeout, *args, stream=stream)
        if name not in COLLECTIVES and not (name == "scan" and is_own(args[-1])):
            own = f"schedules of {name} do not run on devices" if is_own(args[-1]) else f"NCCL does not run {name}"
            self._streams.check_staged(own, stream)
            return None
        return self._collective(name, x, out, timeout, args, stream)

    def many(
        self, arrays: Sequence[Any], out: Any, timeout: float | None, op: Any, algorithm: object, stream: Any
    ) -> StreamCall | None:
        """Returns an allreduce of each array, as one operation; None if it has to run on copies in host memory."""
        deadline = self._calls.limit(timeout)
        inputs = [reduced(x, f"array {i} of the list") for i, x in enumerate(arrays)]
        check_devices(inputs, self._calls.rank)
        nbytes = sum(x.nbytes for x in inputs)
        if not all(self._streams.decide("allreduce", nbytes, x.dtype, op, algorithm, stream) for x in inputs):
            return None
        given = results_of(arrays, out)
        check_formed(self._streams, self._calls)
        handle = inputs[0].stream if stream is None else cuda.handle_of(stream)
        outputs = []
        for i, (x, y) in enumerate(zip(inputs, given, strict=True)):
            try:
                outputs.append(output("allreduce", x, y, x.shape, handle))
            except (TypeError, ValueError) as error:
                raise type(error)(f"array {i} of the list: {error}") from None
        pairs = list(zip(inputs, outputs, strict=True))
        check_apart(pairs)
        if self._staged(inputs[0], handle, stream, deadline):
            return None
        for x in inputs:  # now NCCL's version is known
            self._streams.decide("allreduce", nbytes, x.dtype, op, algorithm, stream)
        form = [(x.shape, name_of(x.dtype)) for x in inputs]
        operation = self._streams.agreement("allreduce", inputs[0].dtype, op, 0, 0, f"many {form}")
        return self._streams.call(
            pieces.many(pairs, op),
            [operation],
            handle,
            inputs[0].stream,
            [y for _, y in pairs],
            [y.origin for _, y in pairs],
            inputs,
            deadline,
        )

    # --- equal parts

    def _collective(
        self, name: str, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...], stream: Any
    ) -> Ready | None:
        op, root = (args[place] if place >= 0 else None for place in ARGUMENTS[name])
        if op is not None and not isinstance(op, str):
            self._streams.check_staged("op is a function", stream)
            return None
        if name == "scan" and op == "avg":
            return None  # which is refused like in host memory
        at = -1 if root is None else check_rank(root, self._calls.size, "root")
        writes_x = name == "broadcast" and at != self._calls.rank
        array = cuda.writing(x, "x", moved=True) if writes_x else reduced(x) if op else cuda.reading(x, moved=True)
        streams, algorithm = self._streams, args[-1]
        in_two_levels = partial(self._in_two_levels, name, array, out, timeout, op or "", at, algorithm, stream)
        if (two_levels := in_two_levels()) is not None:
            return two_levels
        if not streams.decide(name, array.nbytes, array.dtype, op or "", algorithm, stream, schedules=True):
            return None
        check_formed(self._streams, self._calls)
        deadline = self._calls.limit(timeout)
        handle = array.stream if stream is None else cuda.handle_of(stream)
        made = target(name, array, out, at, handle, self._calls.rank, self._calls.size)
        if streams.formed(array.device, handle, deadline) and (two_levels := in_two_levels()) is not None:
            return two_levels
        # Now with what is known of NCCL and of all ranks.
        chosen = streams.decide(name, array.nbytes, array.dtype, op or "", algorithm, stream, schedules=True)
        if not chosen:
            return None
        if chosen != ENGINE:
            shape = even_shape(name, array.size, array.dtype, op or "", max(at, 0), self._calls.size)
            return streams.scheduled(shape, array, made, chosen, handle, deadline)
        operation = self._streams.agreement(name, array.dtype, op or "", at, array.size)
        planned = pieces.collective(name, array, made, self._calls.size, op or "", at)
        return self._ready(planned, operation, array, made, handle, deadline)

    def _in_two_levels(
        self,
        name: str,
        array: CudaArray,
        out: Any,
        timeout: float | None,
        op: str,
        root: int,
        algorithm: object,
        stream: Any,
    ) -> Ready | None:
        """A call that NCCL runs only inside hosts, if the table chooses that, or the call names it; else None."""
        hierarchical = self.levels(name, array.nbytes, name_of(array.dtype), op, algorithm)
        if hierarchical is None:
            return None
        return hierarchical.prepare(name, array, out, timeout, op, root, stream, named=is_named(algorithm))

    def levels(self, name: str, nbytes: int, dtype: str, op: str, algorithm: object) -> HierarchicalCalls | None:
        """What prepares such a call for two levels, if the table chooses these, or the call names them; else None.

        Raises ValueError if the call names them and they cannot run it, or are inside a `group()` block.
        """
        hierarchical = self._hierarchical
        if is_named(algorithm):
            against = "all ranks are on one host"
            if hierarchical is not None:
                against = hierarchical.why_not(name, dtype, op)
            if against:
                raise ValueError(f"algorithm={HIERARCHY!r} cannot run this call: {against}")
            if self._calls.outside is not None:
                self._calls.outside()
            return hierarchical
        if hierarchical is None or algorithm != "auto" or self._calls.outside is not None:
            return None
        choice, _ = self._streams.choose(name, nbytes, dtype, op, schedules=True)
        return hierarchical if choice is not None and choice.algorithm == HIERARCHY else None

    # --- parts of different lengths

    def _allgatherv(self, x: Any, _out: Any, timeout: float | None, algorithm: object, *, stream: Any) -> Any:
        return self._gathered("allgather", x, timeout, -1, algorithm, stream)

    def _gatherv(self, x: Any, _out: Any, timeout: float | None, root: Any, algorithm: object, *, stream: Any) -> Any:
        return self._gathered("gather", x, timeout, check_rank(root, self._calls.size, "root"), algorithm, stream)

    def _gathered(
        self, name: str, x: Any, timeout: float | None, root: int, algorithm: object, stream: Any
    ) -> Ready | None:
        deadline = self._calls.limit(timeout)
        array = with_rows(cuda.reading(x, "x", moved=True), f"{name}v")
        levels = partial(self.levels, name, array.nbytes, name_of(array.dtype), "", algorithm)
        handle, chosen = (0, "") if levels() else self._handle(name, array, algorithm, stream, deadline, levels)
        if not chosen and (hierarchical := levels()) is not None:
            return hierarchical.gathered(name, array, root, stream, deadline, named=is_named(algorithm))
        if not chosen:
            return None
        rows = self._calls.rows_of_all(array, name, deadline)
        receives = name == "allgather" or root == self._calls.rank
        made = cuda.fresh(array, (sum(rows), *array.shape[1:]), handle) if receives else None
        if chosen != ENGINE:
            shape = Shape(name, array.dtype, array.size, _elements(array, rows), 0, root=max(root, 0))
            return self._streams.scheduled(shape, array, made, chosen, handle, deadline)
        if name == "allgather":
            assert made is not None
            planned = pieces.allgatherv(array, made, rows, self._calls.rank)
        else:
            planned = pieces.gatherv(array, made, rows, root)
        operation = self._streams.agreement(name, array.dtype, "", root, 0, f"rows {rows} {array.shape[1:]}")
        return self._ready(planned, operation, array, made, handle, deadline)

    def _alltoallv(
        self, x: Any, _out: Any, timeout: float | None, counts: Any, algorithm: object, *, stream: Any
    ) -> StreamCall | None:
        deadline = self._calls.limit(timeout)
        array = with_rows(cuda.reading(x, "x", moved=True), "alltoallv")
        leaving = check_counts(counts, self._calls.size, array.shape[0])
        handle, chosen = self._handle("alltoall", array, algorithm, stream, deadline)
        if not chosen:
            return None
        coming = self._calls.rows_for_me(array, leaving, deadline)
        made = cuda.fresh(array, (sum(coming), *array.shape[1:]), handle)
        if chosen != ENGINE:
            shape = Shape("alltoall", array.dtype, _elements(array, leaving.tolist()), _elements(array, coming), 0)
            return self._streams.scheduled(shape, array, made, chosen, handle, deadline)
        planned = pieces.alltoallv(array, made, leaving.tolist(), coming)
        operation = self._streams.agreement("alltoall", array.dtype, "", 0, 0, f"rows {array.shape[1:]}")
        return self._ready(planned, operation, array, made, handle, deadline)

    def _reduce_scatterv(
        self, x: Any, out: Any, timeout: float | None, counts: Any, op: Any, algorithm: object, *, stream: Any
    ) -> Ready | None:
        if not isinstance(op, str):
            self._streams.check_staged("op is a function", stream)
            return None
        deadline = self._calls.limit(timeout)
        array = with_rows(reduced(x), "reduce_scatterv")
        rows = check_counts(counts, self._calls.size, array.shape[0]).tolist()

        def in_two_levels() -> Ready | None:
            hierarchical = self.levels("reduce_scatter", array.nbytes, name_of(array.dtype), op, algorithm)
            if hierarchical is None:
                return None
            named = is_named(algorithm)
            return hierarchical.reduce_scattered(array, out, rows, op, stream, deadline, named=named)

        if (two_levels := in_two_levels()) is not None:
            return two_levels
        decide = partial(
            self._streams.decide, "reduce_scatter", array.nbytes, array.dtype, op, algorithm, stream, uneven=True
        )
        if not decide():
            return None
        check_formed(self._streams, self._calls)
        handle = array.stream if stream is None else cuda.handle_of(stream)
        shape = (rows[self._calls.rank], *array.shape[1:])
        made = output("reduce_scatterv", array, out, shape, handle)
        if against := self._streams.formed(array.device, handle, deadline):
            if (two_levels := in_two_levels()) is not None:
                return two_levels
            self._streams.check_staged(against, stream)
            return None
        chosen = decide()
        if not chosen:
            return None
        if chosen != ENGINE:
            parts = _elements(array, rows)
            shape = Shape("reduce_scatter", array.dtype, parts, made.size, array.size, op, purpose=f"counts {rows}")
            return self._streams.scheduled(shape, array, made, chosen, handle, deadline)
        planned = pieces.reduce_scatterv(array, made, rows, self._calls.rank, op)
        operation = self._streams.agreement("reduce_scatter", array.dtype, op, 0, array.size, f"counts {rows}")
        return self._ready(planned, operation, array, made, handle, deadline)

    # --- common parts

    def _handle(
        self,
        name: str,
        array: CudaArray,
        algorithm: object,
        stream: Any,
        deadline: Deadline,
        levels: Callable[[], object] = lambda: None,
    ) -> tuple[int, str]:
        """The stream of a call whose lengths differ, and "nccl" or the algorithm that runs it; "" for another place.

        `levels`: returns what runs the call if NCCL's communicator cannot be made, or None.
        """
        decide = partial(self._streams.decide, name, array.nbytes, array.dtype, "", algorithm, stream, uneven=True)
        if not decide():
            return 0, ""
        check_formed(self._streams, self._calls)
        handle = array.stream if stream is None else cuda.handle_of(stream)
        return (0, "") if self._staged(array, handle, stream, deadline, levels) else (handle, decide())

    def _staged(
        self,
        array: CudaArray,
        handle: int,
        stream: Any,
        deadline: Deadline,
        levels: Callable[[], object] = lambda: None,
    ) -> bool:
        """Make NCCL's communicator; whether the call cannot run by NCCL alone, since that was not possible."""
        against = self._streams.formed(array.device, handle, deadline)
        if against and levels() is None:
            self._streams.check_staged(against, stream)
        return bool(against)

    def _ready(
        self,
        planned: Sequence[Piece],
        operation: _engine.Operation,
        x: CudaArray,
        made: CudaArray | None,
        handle: int,
        deadline: Deadline,
    ) -> StreamCall:
        written = [] if made is None else [made]
        result = None if made is None else made.origin
        return self._streams.call(planned, [operation], handle, x.stream, written, result, (x, made), deadline)

    def _refuse_host(self, name: str, out: Any, stream: Any) -> None:
        if stream is not None:
            raise ValueError("stream is given, but x is not on a CUDA device")
        if self._streams.alone and name != "barrier":
            raise only_on_devices(ENGINE, self._calls.rank)
        if not self._streams.without and out is not None and cuda.on_cuda(out):
            raise ValueError("out is on a CUDA device and x is in host memory: give x on the same device")


def _elements(array: CudaArray, rows: Sequence[int]) -> tuple[int, ...]:
    """The elements of the rows of each rank."""
    row = math.prod(array.shape[1:])
    return tuple(count * row for count in rows)
