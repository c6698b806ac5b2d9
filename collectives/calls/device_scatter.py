"""scatter and scatterv of an array in CUDA memory, by NCCL or in two levels.

Invariant: only the root has an array. It first tells the other ranks shape, dtype and memory, so they wait on the host
for the root. Then all ranks choose alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from collectives.arrays import cuda
from collectives.arrays.array import check_rank
from collectives.arrays.array import reading as reading_host
from collectives.arrays.array import with_rows as host_rows
from collectives.arrays.dtypes import name_of
from collectives.calls import pieces
from collectives.calls.call import Ready
from collectives.calls.device_checks import with_rows
from collectives.calls.hierarchical import HierarchicalCalls, is_named
from collectives.calls.moves import Calls
from collectives.calls.prepare import Shape
from collectives.calls.streamed import StreamCalls, is_own
from collectives.native import _engine


class FindLevels(Protocol):
    """See `DeviceCalls.levels`."""

    def __call__(self, name: str, nbytes: int, dtype: str, op: str, algorithm: object) -> HierarchicalCalls | None: ...


def scatter(
    streams: StreamCalls,
    calls: Calls,
    find_levels: FindLevels,
    refuse_host: Callable[[], None],
    name: str,
    x: Any,
    timeout: float | None,
    args: tuple[Any, ...],
    stream: Any,
) -> Ready:
    """Returns the call, also if it runs in host memory. `refuse_host` may raise an error about an array there."""
    counts, root, algorithm = args if name == "scatterv" else (None, *args)
    deadline = calls.limit(timeout)
    root = check_rank(root, calls.size, "root")
    if calls.outside is not None:
        calls.outside()
    named = is_named(algorithm)
    if named:
        find_levels("scatter", 0, "", "", algorithm)  # raises if two levels are impossible
    on_host = "auto" if named else algorithm

    def read() -> Any:
        if cuda.on_cuda(x):
            array = with_rows(cuda.reading(x, "x", moved=True), name)
            if find_levels("scatter", array.nbytes, name_of(array.dtype), "", algorithm) is not None:
                return array
            uneven = name == "scatterv"
            if streams.decide("scatter", array.nbytes, array.dtype, "", algorithm, stream, uneven=uneven):
                return array
        else:
            refuse_host()
        return host_rows(reading_host(x, moved=True), name)

    header, inp = calls.scatter_header(name, read, counts, root, on_host, deadline)
    if not header.library:
        return calls.scatter_data(header, name, inp, x, root, on_host, deadline)
    is_root = root == calls.rank
    device = inp.device if is_root else _engine.current_cuda_device()
    if device is None:
        device = streams.device
    wrong: Exception | None = None
    handle = cuda.LEGACY
    if device is None:
        wrong, device = ValueError("this rank uses no CUDA device yet: choose one before the call"), 0
    else:
        handle = cuda.current_stream(header.library, device) if stream is None else cuda.handle_of(stream)
    shape = (header.rows[calls.rank], *header.trailing) if name == "scatterv" else header.trailing
    new = partial(cuda.new, header.library, shape, header.dtype, device, handle)
    nbytes = sum(header.rows) * header.row_elements * header.dtype.itemsize
    levels = partial(find_levels, "scatter", nbytes, name_of(header.dtype), "", algorithm)
    against = "" if levels() is not None else streams.formed(device, handle, deadline, wrong)
    if (hierarchical := levels()) is not None:
        if wrong is not None:
            raise wrong
        given, made = inp if is_root else None, new()._replace(stream=handle)
        two_levels = hierarchical.scattered(given, made, header, root, deadline, must=named or stream is not None)
        if two_levels is not None:
            return two_levels
        against = hierarchical.why_not("scatter", name_of(header.dtype), "")
    if against:
        streams.check_staged(against, stream)
        host = host_rows(reading_host(x, moved=True), name) if is_root else None
        return calls.scatter_data(header, name, host, x, root, on_host, deadline)
    made = new()
    if is_own(algorithm):
        row = header.row_elements
        mine, everyone = header.rows[calls.rank] * row, tuple(r * row for r in header.rows)
        even = Shape("scatter", header.dtype, row * calls.size, row, row, root=root)
        whole = even if name == "scatter" else even._replace(inp=everyone, out=mine, agreed=0)
        return streams.scheduled(whole, inp if is_root else None, made, algorithm, handle, deadline)
    planned = pieces.scatterv(inp, made, header.rows, root)
    operation = streams.agreement("scatter", header.dtype, "", root, 0, f"rows {header.rows} {header.trailing}")
    producer = inp.stream if is_root else handle
    keeps = (inp if is_root else None, made)
    return streams.call(planned, [operation], handle, producer, [made], made.origin, keeps, deadline)
