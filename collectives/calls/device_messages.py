"""Messages between two ranks on arrays in CUDA memory, as operations of NCCL: send, recv and sendrecv.

Invariant: arguments are checked before anything is issued.
"""

from __future__ import annotations

from typing import Any

from collectives.arrays import cuda
from collectives.arrays.array import check_rank
from collectives.calls import pieces
from collectives.calls.device_checks import check_devices, check_formed
from collectives.calls.moves import Calls
from collectives.calls.pieces import Piece
from collectives.calls.status import Status
from collectives.calls.streamed import StreamCall, StreamCalls
from collectives.calls.targets import overlap


def message(
    streams: StreamCalls,
    calls: Calls,
    name: str,
    x: Any,
    out: Any,
    timeout: float | None,
    args: tuple[Any, ...],
    stream: Any,
) -> StreamCall | None:
    """Messages between two ranks, once NCCL's communicator exists: it is made by all ranks together."""
    deadline = calls.limit(timeout)
    status = args[-1] if name != "send" and isinstance(args[-1], Status) else None
    if streams.device is None:
        streams.check_staged(streams.without or "no communicator of NCCL exists: call comm.prepare() first", stream)
        return None
    check_formed(streams, calls)
    dest = source = None
    if name != "recv":
        dest = check_rank(args[0], calls.size, "dest")
    if name != "send":
        if args[name == "sendrecv"] is None:
            raise ValueError("on a device, a message is received from a rank that is named: give source")
        source = check_rank(args[name == "sendrecv"], calls.size, "source")
    if calls.rank in (dest, source):
        if name == "sendrecv" and dest != source:
            raise ValueError("on a device, sendrecv with this rank itself needs it as both dest and source")
        streams.check_staged("a message to this rank itself is copied in host memory", stream)
        return None
    into = None if source is None else cuda.writing(x if name == "recv" else out, "out", moved=True)
    given = None if dest is None else cuda.reading(x, "x", moved=True)
    one = given or into
    assert one is not None
    if given is not None and into is not None:
        check_devices([given, into], calls.rank)
        if overlap(given, into):
            raise ValueError(
                "x and out share memory, but sendrecv on a device does not work like that: give separate arrays"
            )
    handle = one.stream if stream is None else cuda.handle_of(stream)
    streams.formed(one.device, handle, deadline)  # raises for another device
    operations, planned = [], list[Piece]()
    if given is not None and dest is not None:
        operations.append(calls.prepare.sending(dest, given.dtype, given.size))
        planned += pieces.send(given, dest)
    if into is not None and source is not None:
        operations.append(calls.prepare.receiving(source, into.dtype, into.size))
        planned += pieces.recv(into, source)
    written = [] if into is None else [into]
    result = None if into is None else into.origin
    call = streams.call(planned, operations, handle, one.stream, written, result, (given, into), deadline)
    call = call._replace(is_message=True, read=() if given is None else (given,))
    if into is None:
        return call
    return call._replace(status=status, received=(source if source is not None else -1, into.size))
