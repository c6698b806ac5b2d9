"""Communicator: a group of ranks, and the collectives that they run together.

Invariant: invalid arguments are refused with TypeError or ValueError before anything is sent. Errors of communication
are CollectiveErrors. After an error that concerns other ranks the communicator is broken, and later calls raise that
error again.
"""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from collectives.arrays.array import Array, Dtype, check_number, check_shape, dtype_of
from collectives.arrays.on_device import DeviceArray, device_of
from collectives.arrays.wire import AUTO, FLOAT32, WireChoice, WireName, format_of
from collectives.calls import formats
from collectives.calls.hierarchical import HierarchicalCalls
from collectives.calls.leading import LeaderCalls
from collectives.calls.messages import MessageCalls
from collectives.calls.moves import Deadline
from collectives.calls.nccl import ENGINE
from collectives.calls.prepare import Preparer
from collectives.calls.repeated import install
from collectives.calls.runner import Runner
from collectives.calls.streamed import StreamCalls
from collectives.core import leader, recorded
from collectives.core.completion import Completion
from collectives.core.explaining import explain, explain_cuda, why_no_device, wire_lines
from collectives.core.family import Origin, separate
from collectives.core.hierarchy import levels
from collectives.core.links import Linked, Policy
from collectives.core.movements import Movements
from collectives.core.nccl import Former
from collectives.core.plans import Plans
from collectives.core.point_to_point import PointToPoint
from collectives.core.reductions import Reductions
from collectives.engines import Engine
from collectives.native import _engine
from collectives.native._engine import Group, Repeating
from collectives.native.errors import CollectiveError, TransportUnavailable, name_rank
from collectives.schedule.table import Table

Seconds: TypeAlias = "float | None"

_ENGINES: Final = "engines"  # in the name of a communicator for engines of other packages
_PADDED: Final = 64  # records that ranks exchange are padded to a multiple of so many bytes
_GRACE: Final = 1.0  # seconds that the end of a `with` block waits for ranks that have not made the last call


class Communicator(Reductions, Movements, PointToPoint, Completion, Plans, Repeating):
    """A group of ranks that communicate. Made by `collectives.init`, and by `split` and `dup` from another one.

    Close a communicator at the end, or use it in a `with` statement. Every rank of the group makes the same calls in
    the same order.

    `x`, the input of a call, may be a NumPy array (bfloat16 is `ml_dtypes.bfloat16`) or an array on a CUDA device. It
    may also be any object with the buffer protocol or DLPack in host memory. If `x` is not C-contiguous, it is copied
    first. Arrays that a call writes to (`out`, the arrays of `recv` and `broadcast`) have to be C-contiguous. If `out`
    is None, results are new NumPy arrays, or new arrays of CuPy, PyTorch or Numba on the device of `x`.

    If this library or NCCL runs a call on a CUDA device, the call returns as soon as it is in a stream. `stream` is
    this stream: a stream of CuPy, PyTorch or Numba, or a stream's handle. None means the current stream of the library
    of `x`. If `stream` is given for a call on host memory, ValueError is raised.

    `op`, the reduction, is one of sum prod min max avg band bor bxor land lor lxor. avg is for all dtypes except bool,
    min and max for all dtypes except complex ones. The names that begin with b or l are for integers and bool. Sums and
    products of integers wrap around. The average of integers is their sum, divided by the number of ranks and rounded
    towards zero.
    `op` may also be a function of two arrays, see `collectives.Op`. This function runs in the calling thread, so the
    `_async` variant then returns only when the call is complete.

    `timeout` is in seconds; None means the `timeout` that the communicator got from `init`. `algorithm` is "auto" or a
    name that `explain` lists, the same on every rank.

    Each call has an `_async` variant, which runs in the background and returns a `Work`, a handle to wait for. Some
    calls exchange the lengths of arrays first: scatter, allgatherv, gatherv, scatterv and alltoallv. Their `_async`
    variants return after that exchange. Each call also has a `_plan` variant, which returns a `Plan`: the call prepared
    for many runs on the same arrays.

    Every call may raise these errors:

    - TypeError and ValueError: an argument is invalid
    - PeerLost: another rank's process or its connection ended
    - OpTimeout: the time limit has passed
    - DesyncError: ranks made different calls
    - Aborted: the communicator was closed during the call
    - RuntimeError: two threads made calls at once. Use `dup` to give each thread a communicator of its own.
    """

    def __init__(
        self,
        rank: int,
        linked: Linked,
        origin: Origin,
        name: str,
        timeout: float,
        closing: Callable[[], None],
        prepare: Preparer | None = None,
    ) -> None:
        """Users call `collectives.init` instead. Owns `linked`; calls `closing` once, when the communicator is closed.

        `prepare`: the cache of operations of a communicator with the same rank, situation, layout and table, if this
        communicator is to share it.
        """
        self._rank: Final = rank
        self._linked: Final = linked
        self._origin: Final = origin
        self._children = 0
        self._attached: Final[list[Callable[[], object]]] = []
        self._runner = Runner(
            linked.group,
            rank,
            linked.situation,
            linked.layout,
            name,
            timeout,
            partial(_memory, linked.group),
            _REPEATED,
            prepare,
        )
        self._calls = self._runner.calls
        self._reductions = self._runner.reductions
        self._messages = MessageCalls(self._calls)
        self._repeaters = self._runner.repeaters
        self._shut: Final = weakref.finalize(self, _shut, linked, closing, os.getpid())

    # --- properties and state

    @property
    def rank(self) -> int:
        """This process's number in the group, from 0 to `size - 1`."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._linked.situation.size

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host, from 0."""
        return self._linked.local_rank

    @property
    def local_size(self) -> int:
        """The number of ranks on this rank's host. Network namespaces of one machine count as different hosts."""
        return self._linked.local_size

    @property
    def epoch(self) -> int:
        """How many times this group has formed anew since `collectives.init`. Always 0: it cannot form anew yet."""
        return self._origin.epoch

    @property
    def name(self) -> str:
        """The name passed to `collectives.init`; `split` and `dup` append a part such as ".dup1" to it."""
        return self._runner.gate.name

    @property
    def closed(self) -> bool:
        """Whether this rank has closed the communicator, by `close` or at the end of a `with` statement."""
        return not self._shut.alive

    @property
    def timeout(self) -> float:
        """The number of seconds that a call waits for other ranks, unless the call has a `timeout` of its own."""
        return self._runner.timeout

    def __repr__(self) -> str:
        links = self._linked.situation.kind
        return f"<Communicator {self.name!r}: rank {self.rank} of {self.size} over {links}, epoch {self.epoch}>"

    def explain(
        self,
        collective: str,
        nbytes: int,
        dtype: Any = "float32",
        *,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
    ) -> str:
        """Returns a text that says which algorithm and engine a call would use, and why, and lists this rank's steps.

        An engine is the code that runs a call: this library's own, or that of another package. `collective`: the call's
        name, such as "allreduce". `nbytes`: the size in bytes of its input or output array, whichever is larger.
        `algorithm`: as in the call, "auto" or the name of an algorithm. `wire`: as in the call; the text then describes
        how a section of a float32 array is sent, and how much rounding may change a sum. With "auto", it also says
        which format is chosen, and why. Raises ValueError for an unknown collective, algorithm or format, and for a
        negative size.
        """
        linked, kind, prepare = self._linked, dtype_of(dtype), self._calls.prepare
        form, because = wire, list[str]()
        if wire == AUTO:
            form, because = wire_lines(prepare, collective, nbytes, kind)
        if form is not None:
            if kind != FLOAT32:
                raise TypeError(f"wire={form!r} is for float32 arrays, not {kind}")
            return explain(prepare, linked, collective, nbytes, kind, algorithm, form=format_of(form), because=because)
        others = self._runner.engines.explain(collective, nbytes) if algorithm == "auto" else ""
        on_devices = explain_cuda(
            self._runner.leading,
            self._runner.streams,
            prepare,
            linked,
            collective,
            nbytes,
            kind,
            algorithm,
        )
        return others + explain(prepare, linked, collective, nbytes, kind, algorithm, on_devices, because=because)

    def _wire(self, collective: str, nbytes: int) -> WireName | None:
        """The format that wire="auto" stands for, for float32 arrays that a call passes; None to send them as is."""
        return formats.found(self._calls.prepare, collective, nbytes)

    @overload
    def empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, where: Literal["host"] = "host"
    ) -> npt.NDArray[Any]: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: Any = "float32", *, where: Literal["cuda"]) -> DeviceArray: ...
    @overload
    def empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, where: str
    ) -> npt.NDArray[Any] | DeviceArray: ...
    def empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, where: str = "host"
    ) -> npt.NDArray[Any] | DeviceArray:
        """Returns an uninitialised array in memory that other ranks on this machine can read directly.

        With `where="host"` it is a NumPy array. Collectives on such arrays need one copy less. The memory is freed with
        the last reference to the array, even after `close`. If no rank shares memory with this rank, the array is an
        ordinary one.

        With `where="cuda"` it is a DeviceArray on the CUDA device that this thread uses; "cuda:1" selects device 1. It
        has `__cuda_array_interface__`, so `cupy.asarray` and `torch.as_tensor(device="cuda")` use its memory without a
        copy. Once nothing refers to the array any more, the process keeps the memory for further arrays.

        TypeError for an unknown dtype, ValueError for a negative shape or an unknown place, TransportUnavailable if the
        device's memory is full.
        """
        kind = dtype_of(dtype)
        extents = check_shape(shape)
        self._runner.gate.check()
        if where != "host":
            try:
                return DeviceArray(extents, kind, device_of(where))
            except TransportUnavailable as error:
                name_rank(self._rank, error)
                raise
        return _memory(self._linked.group, math.prod(extents), kind).reshape(extents)

    def dump(self) -> dict[str, Any]:
        """Returns the last 1 000 operations of this communicator on this rank, with their times, ready for json.dumps.

        `dump` never waits for other ranks. It works at any time and from any thread: while a call waits, after an
        error, and when the communicator is closed. In a forked child there are no operations.

        The returned dict has the keys `version` (1), `rank`, `size`, `host`, `pid`, `name`, `epoch` and `closed`, and
        these:

        - `error`: the error after which the communicator cannot be used, or None
        - `clock`: a dict with the keys `name`, `now` (the clock's time when `dump` is called), `unix` (seconds since
          1970 at the same moment) and `resolution`. All times are in seconds
        - `links`: a list of dicts, one for each open connection to another rank (see below)
        - `operations`: a list of dicts, one for each operation, oldest first

        The dict of an operation has these keys:

        - `sequence`: the operation's number among the collectives of the communicator, the same on all ranks, from 0.
          For `send` and `recv`, its number among the messages with this peer. None if the number is not known yet
        - `collective`, `dtype` (of the elements as they are sent), `count` (of elements; 0 if it may differ between
          ranks), `op`, `root`, `peer`, `algorithm`: None if not applicable
        - `engine`: "schedule" (runs the algorithm's steps); "board" (for short messages in shared memory); "pool" (for
          reductions in shared memory); or the name of another package's engine
        - `state`: "queued" (waits for connections to open, or for earlier operations in the background), "started",
          "done" or "failed"
        - `queued`, `begin`, `first`, `end`: the times at which the operation was called, was started, moved data for
          the first time, and ended. A time is None if its event has not happened yet. `first` equals `begin` if data
          moved at the first attempt
        - `waited`: seconds in which the operation moved no data, because it waited for another rank
        - `sent`, `received`: bytes of payload, to and from all ranks; None unless the operation is done
        - `error`: why the operation failed, or None

        The dict of a connection has these keys:

        - `peer`, and `kind`, the transport's name
        - `path`: for verbs, the RDMA ports at both ends, such as "mlx5_0 port 1 to mlx5_2 port 1"; else ""
        - `counts`: for verbs, a dict with numbers of work requests and of bytes (docs/verbs.md); else an empty dict
        """
        broken = self._linked.group.broken
        return {
            "version": recorded.VERSION,
            "rank": self.rank,
            "size": self.size,
            **recorded.here(),
            "name": self.name,
            "epoch": self.epoch,
            "closed": self.closed,
            "error": None if broken is None else f"{type(broken).__name__}: {broken}",
            "clock": recorded.clock(),
            "links": recorded.links(self._linked.group, self.size),
            "operations": recorded.operations(self._linked.group, self._calls.prepare),
        }

    def memory(self) -> dict[str, int]:
        """Returns how many bytes of memory this communicator uses on this rank, by kind, as a dict.

        `memory` can be called from any thread and at any time: while a call waits, after an error, and after `close`.

        - `arena_mapped`: address space of the communicator's shared memory, without `heap`; 0 without shared memory
        - `arena_touched`: the part of `arena_mapped` that occupies physical memory
        - `staging`: the part of `arena_mapped` that is reserved for messages that are copied through shared memory
        - `heap`: arrays from `empty` that are in use, each rounded up to whole cache lines or pages
        - `inboxes`: receive buffers of connections over TCP
        - `schedules`: cached operations, which a communicator shares with those that `dup` makes from it
        - `records`: the last 1 000 operations with their times, which `dump` returns
        - `encoded`: memory for arrays of calls with `wire`, kept for later calls; not that of calls in progress. If
          ranks share memory, `heap` includes it
        - `nccl`: memory of the device that NCCL's communicator holds, as NCCL counts it (from NCCL 2.29.7 on). With an
          older NCCL: the device's free memory before NCCL's communicator was made, minus the free memory afterwards.
          The difference includes memory that other programs took meanwhile
        - `leader`: memory of the device for calls that one rank runs for all ranks ("leader"), on this rank: control
          words, and copies of arrays that captured graphs use
        - `device_heap`: memory of the device that this process has allocated for all its leaders, for copies of arrays,
          and for arrays of `empty(where="cuda")`. All communicators use this memory; it is used again, not given back
        """
        streams, leading = self._runner.streams, self._runner.leading
        devices = {calls.device for calls in (streams, leading) if calls is not None and calls.device is not None}
        return {
            **recorded.memory(self._linked.group, self._calls.prepare.kept()),
            "encoded": self._runner.encoded,
            "nccl": 0 if streams is None else streams.memory,
            "leader": 0 if leading is None else leading.memory,
            "device_heap": sum(_engine.cuda_heap_bytes(device) for device in devices),
        }

    def prepare(
        self,
        *collectives: str,
        device: int | None = None,
        dtype: Any = "float32",
        op: str = "sum",
        timeout: Seconds = None,
    ) -> None:
        """Makes NCCL's communicator and its connections, which otherwise the first calls on a CUDA device make.

        If ranks share a device, `prepare` makes rank 0 ready to run the calls of all ranks instead. It also compiles
        the kernels that move elements, and those that reduce elements of `dtype` by `op`. Kernels for other dtypes and
        ops are compiled in their first calls, or in further calls of `prepare`. NCCL's communicator is then made only
        for `collectives` that rank 0 does not run, if ranks can use NCCL. All ranks call `prepare` before they capture
        a CUDA graph. Messages between devices go through host memory until NCCL's communicator is made, and by NCCL
        from then on. `prepare` waits for the other ranks. `collectives`: the names of NCCL's functions that will be
        used: allreduce (if no name is given), reduce, reduce_scatter, broadcast, allgather, gather, scatter, alltoall,
        send, recv. `device`: the number of this rank's device; None for the device that this thread uses now.

        ValueError for an unknown name or op, or if there is no device; TypeError for an unknown dtype.
        TransportUnavailable if only host memory can be used.
        """
        self._runner.prepare_devices(collectives or ("allreduce",), device, dtype_of(dtype), op, timeout)

    def _prepare_messages(self, device: int | None = None) -> None:
        """Makes NCCL's communicator for messages on devices, also if one rank runs the collectives of all.

        All ranks call it. `device`: as in `prepare`. TransportUnavailable on all ranks if NCCL cannot be used.
        """
        if self._runner.streams is None:
            against = self._linked.without.get(ENGINE) or "it is closed"
            raise TransportUnavailable(f"rank {self._rank} cannot send messages by NCCL: {against}")
        self._runner.prepare_messages(device, None)

    # --- creating and closing

    def dup(self) -> Communicator:
        """Returns a new communicator of the same ranks, independent of this one: for another thread, or for a library.

        All ranks have to call `dup`. Raises CollectiveError if a rank cannot open its connections.
        """
        self._children += 1
        child = self._child(0, self._rank, f"dup{self._children}")
        assert child is not None
        return child

    def attached(self) -> Communicator:
        """Returns a new communicator of the same ranks, as `dup` does, but closed together with this communicator.

        The new one is for code that works for the user of this communicator, such as gradient hooks.
        """
        child = self.dup()
        self._attached.append(weakref.finalize(self, child.close))
        return child

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Makes a communicator of the ranks that pass the same `color`, numbered by `key`, then by their rank here.

        All ranks have to call `split`. It returns None on ranks that pass None as `color`. If `key` is None, this
        rank's number is the key.
        """
        chosen = None if color is None else check_number(color, "color")
        place = self._rank if key is None else check_number(key, "key")
        self._children += 1
        return self._child(chosen, place, f"split{self._children}.{chosen}")

    def _child(self, color: int | None, key: int, path: str, policy: Policy | None = None) -> Communicator | None:
        runner = self._runner
        runner.gate.check_outside()
        child = self._bare_child(color, key, path, self._everyones, Deadline(runner.timeout), policy)
        if child is not None and path != _ENGINES:
            try:
                child._use_streams()
                child._use_engines(runner.engines.all)
            except BaseException:
                child.close()
                raise
        return child

    def _bare_child(
        self,
        color: int | None,
        key: int,
        path: str,
        everyones: Callable[[bytes], Sequence[bytes]],
        deadline: Deadline,
        policy: Policy | None = None,
    ) -> Communicator | None:
        """A communicator of the ranks with the same `color`, which runs calls in host memory only."""
        runner = self._runner
        origin = self._origin.child(path, policy)
        found = separate(self._rank, color, key, origin, everyones, deadline, self._linked)
        if found is None:
            return None
        number, linked = found
        prepare = self._calls.prepare
        same = number == self._rank and linked.situation == prepare.situation and linked.layout == prepare.layout
        name = f"{self.name}.{path}"
        child = Communicator(number, linked, origin, name, runner.timeout, _nothing, prepare if same else None)
        if not same:
            child._choose_by(prepare.table)
        return child

    def _use_engines(self, engines: Sequence[Engine]) -> None:
        """Use `engines`, the same on every rank, besides the C++ engine; these get a communicator of their own."""
        if engines:
            side = self._child(0, self._rank, _ENGINES)
            assert side is not None
            self._attached.append(weakref.finalize(self, side.close))
            self._runner.use_engines(engines, side._runner)

    def _use_streams(self) -> None:
        """Let NCCL, or a leader, run calls on arrays in CUDA memory, if all ranks can use it."""
        self._runner.why_no_device = partial(why_no_device, self._linked)
        if not self._linked.without.get(ENGINE, "unknown"):
            former = Former(self._linked, self._calls, self._origin)
            alone = self._origin.policy.transport == ENGINE
            hierarchical = None
            if not alone and self._linked.situation.hosts > 1:
                hierarchical = HierarchicalCalls(self._calls, self._linked.layout, partial(levels, self))
            streams = StreamCalls(self._linked.group, self._calls, "", alone, former)
            self._runner.use_streams(streams, hierarchical)
        if not self._linked.without.get(leader.ENGINE, "unknown"):
            leads = leader.Former(self._linked, self._calls, self._origin)
            alone = self._origin.policy.transport == leader.ENGINE
            self._runner.leading = LeaderCalls(self._calls, "", alone, leads, self._runner.streams)

    def _choose_by(self, table: Table) -> None:
        """Choose algorithms by `table`, the same on every rank, here and in communicators made from this one."""
        self._calls.prepare.use(table)

    def _everyones(self, data: bytes, within: Deadline | None = None) -> list[bytes]:
        """The bytes of each rank, which may differ in length. `within`: the deadline of the call that needs them."""
        sizes = self._gathered(np.array(len(data)), within).tolist()
        # Of few lengths, because operations are cached, and short: small messages need no staging memory.
        padded = np.zeros(-(-max(sizes) // _PADDED) * _PADDED, np.uint8)
        if padded.size == 0:
            return [b""] * self.size
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        return [row[:n].tobytes() for row, n in zip(self._gathered(padded, within), sizes, strict=True)]

    def _gathered(self, x: Array, within: Deadline | None = None) -> Array:
        """`allgather` in host memory, also if the user's arrays have to be on a device."""
        gather = self._calls.allgather
        if within is None:
            found: Array = self._runner.run(gather, x, None, None, "auto")
        else:  # the call has begun, so no other one can
            found = gather(x, None, within.left, "auto").run(self._linked.group, within.left)
        return found

    def close(self) -> None:
        """Releases the communicator's connections, threads and memory; never waits for other ranks, and never raises.

        Calls in progress raise Aborted on this rank; ranks that wait for this one raise errors too. `close` may be
        called again, and from any thread. It warns (RuntimeWarning) if ranks of this host called other collectives than
        this rank, and no call has raised an error about this yet.
        """
        self._runner.gate.close()
        self._shut()
        for calls in (self._runner.streams, self._runner.leading):
            if calls is not None:
                calls.close()
        self._runner.forget_staging()
        for close in self._attached:
            close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the communicator. Raises DesyncError if a rank of this host made other calls than this rank.

        Waits for operations on device memory that are not complete, and raises their error; `close` aborts them.

        This check finds mistakes that this rank could not see when it made the call: a root, for example, completes a
        broadcast without waiting for the other ranks. The check waits up to a second for ranks that have not made this
        rank's last call. If the `with` block raised an error, nothing is checked.
        """
        group = self._linked.group
        try:
            if kind is None and not self.closed and group.broken is None:
                for calls in (self._runner.streams, self._runner.leading):
                    if calls is not None:
                        calls.synchronize(None, None)
            # If the block raised an error, that error is enough.
            group.confirm(_GRACE) if kind is None else group.close()
        finally:
            self.close()


_REPEATED: Final = install(Communicator)  # of each repeated method, the form


def _shut(linked: Linked, closing: Callable[[], None], pid: int) -> None:
    if os.getpid() != pid:  # a forked child has no threads, and all else belongs to the parent
        return
    unseen: CollectiveError | None = None
    try:
        linked.group.confirm(0.0)
    except CollectiveError as error:
        unseen = error
    linked.close()
    closing()
    if unseen is not None:
        warnings.warn(f"a communicator was closed before it could raise {unseen!r}", RuntimeWarning, stacklevel=3)


def _memory(group: Group, elements: int, dtype: Dtype) -> Array:
    """A new array of `elements` elements. If other ranks are on this host, they can read this memory directly."""
    memory = group.empty(elements * dtype.itemsize) if elements else None
    return np.empty(elements, dtype) if memory is None else memory.view(dtype)


def _nothing() -> None: ...
