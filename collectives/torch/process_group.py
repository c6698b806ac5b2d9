"""The backend "collectives" of torch.distributed: a process group whose operations run on a communicator.

Invariant: operations are started in the order of the calls, whichever threads make them; messages between two ranks
have an order of their own. A call that is not asynchronous runs on the calling thread and returns when it is done.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from collectives.arrays import Array
from collectives.communicator import Communicator
from collectives.torch.checks import check_fit, fill, form, rows_of
from collectives.torch.meeting import Channel, Options, Place
from collectives.torch.reductions import factor_of, reduction
from collectives.torch.tensors import filling, flat, joined, one, pour, reading, same, spread, writing
from collectives.torch.works import Completer, Done, Pending
from native.errors import Aborted

_DONE: Final = Done()


class CollectivesProcessGroup(dist.ProcessGroup):
    """Made by `init_process_group("collectives")` and `new_group`; for tensors in host memory.

    Errors of all calls are those of `collectives`; TypeError and ValueError come before anything is sent.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float, options: Options, name: str) -> None:
        super().__init__(rank, size)  # the only way torch lets Python have
        self._place: Final = Place(store, timeout, options)
        self._rank: Final = rank
        self._size: Final = size
        self._name = name
        self._description = "undefined"
        self._timeout: float | None = None
        self._lock: Final = threading.Lock()
        self._completer: Final = Completer("collectives futures")
        self._channels: Final[dict[tuple[int, int, int], tuple[Channel, Completer]]] = {}
        self._together: list[Pending] | None = None
        self._comm: Final = self._place.meet(rank, size, "torch")

    # --- all ranks

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or AllreduceOptions()
        tensor = one(tensors, "all_reduce")
        array, finish = writing(tensor)
        op = reduction(opts, array)
        return self._start(opts, (tensor,), _last(finish), "allreduce", array, op, out=array)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or AllreduceCoalescedOptions()
        written = [writing(tensor) for tensor in tensors]
        arrays = [array for array, _ in written]
        op = reduction(opts, *arrays)
        finish = _last(*(finish for _, finish in written))
        return self._start(opts, tensors, finish, "allreduce_many", arrays, op, out=arrays)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or BroadcastOptions()
        tensor = one(tensors, "broadcast")
        array, finish = (writing if opts.rootRank == self._rank else filling)(tensor, moved=True)
        return self._start(opts, (tensor,), _last(finish), "broadcast", array, opts.rootRank)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or ReduceOptions()
        tensor = one(tensors, "reduce")
        receives = opts.rootRank == self._rank
        factor = factor_of(opts.reduceOp)
        if receives:
            array, finish = writing(tensor)
            op = reduction(opts, array)
        else:
            array, finish = reading(tensor if factor is None else tensor * factor), None
            op = reduction(opts)
        out = array if receives else None
        return self._start(opts, (tensor,), _last(finish), "reduce", array, op, opts.rootRank, out=out)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = opts or AllgatherOptions()
        outputs, tensor = self._everyones(output_tensors, "all_gather"), one(input_tensors, "all_gather")
        check_fit(tensor, outputs[self._rank], "all_gather", f"the output of rank {self._rank}")
        if not same(outputs):

            def finish(result: Any) -> None:
                fill(result, outputs, "all_gather")

            return self._start(opts, outputs, finish, "allgatherv", reading(tensor, moved=True).reshape(-1))
        written, after = spread(outputs, moved=True)
        return self._gathered(opts, outputs, tensor, written, after)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        opts = opts or AllgatherOptions()
        if output.numel() != self._size * input.numel() or output.dtype != input.dtype:
            raise ValueError(
                f"all_gather_into_tensor: the output needs {self._size} times the elements of the input and its dtype, "
                f"but they are {form(output)} and {form(input)}"
            )
        written, after = filling(output, moved=True)
        return self._gathered(opts, (output,), input, written, after)

    def _gathered(self, opts: Any, outputs: Sequence[Any], tensor: Any, array: Array, finish: Any) -> Any:
        out = array.reshape(self._size, -1)
        inp = reading(tensor, moved=True).reshape(-1)
        if np.may_share_memory(inp, out):  # a rank's part lies where it will be in the whole
            inp = inp.copy()
        return self._start(opts, outputs, _last(finish), "allgather", inp, out=out)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or AllgatherOptions()
        return self._several([self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or AllgatherOptions()
        turned = zip(*output_lists, strict=True)  # a list for each rank
        return self._several([self.allgather([list(o)], [i], opts) for o, i in zip(turned, inputs, strict=True)])

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = opts or ReduceScatterOptions()
        tensor, inputs = one(output_tensors, "reduce_scatter"), self._everyones(input_tensors, "reduce_scatter")
        check_fit(tensor, inputs[self._rank], "reduce_scatter", f"the input for rank {self._rank}")
        if same(inputs):
            return self._scattered(opts, tensor, joined(inputs))
        whole = flat(inputs)
        op = reduction(opts, whole)
        start = sum(part.numel() for part in inputs[: self._rank])

        def finish(result: Any) -> None:
            pour(result[start : start + tensor.numel()], (tensor,))

        return self._start(opts, (tensor,), finish, "allreduce", whole, op, out=whole)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        opts = opts or ReduceScatterOptions()
        if input.numel() != self._size * output.numel() or output.dtype != input.dtype:
            raise ValueError(
                f"reduce_scatter_tensor: the input needs {self._size} times the elements of the output and its dtype, "
                f"but they are {form(input)} and {form(output)}"
            )
        return self._scattered(opts, output, reading(input))

    def _scattered(self, opts: Any, output: Any, array: Array) -> Any:
        inp = array.reshape(-1)
        if factor_of(opts.reduceOp) is not None:
            inp = inp.copy()
        op = reduction(opts, inp)
        out, finish = filling(output)
        if np.may_share_memory(inp, out):  # the result replaces a rank's own part
            inp = inp.copy()
        return self._start(opts, (output,), _last(finish), "reduce_scatter", inp, op, out=out.reshape(-1))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or ReduceScatterOptions()
        return self._several([self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = opts or GatherOptions()
        tensor = one(input_tensors, "gather")
        outputs: Sequence[Any] = ()
        if opts.rootRank == self._rank:
            outputs = self._everyones(output_tensors, "gather")
            for rank, output in enumerate(outputs):
                check_fit(tensor, output, "gather", f"the output for rank {rank}")

        def finish(result: Any) -> None:
            if outputs:
                pour(result.reshape(-1), outputs)

        return self._start(opts, outputs, finish, "gather", reading(tensor, moved=True), opts.rootRank)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = opts or ScatterOptions()
        tensor = one(output_tensors, "scatter")
        whole = None
        if opts.rootRank == self._rank:
            inputs = self._everyones(input_tensors, "scatter")
            for rank, part in enumerate(inputs):
                check_fit(tensor, part, "scatter", f"the input for rank {rank}")
            whole = joined(inputs, moved=True)

        def finish(result: Any) -> None:
            fill(result.reshape(-1), (tensor,), "scatter")

        return self._start(opts, (tensor,), finish, "scatter", whole, opts.rootRank)

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = opts or AllToAllOptions()
        outputs, inputs = list(output_tensors), list(input_tensors)
        for what, tensors in (("outputs", outputs), ("inputs", inputs)):
            if len(tensors) != self._size:
                raise ValueError(f"all_to_all: {len(tensors)} {what} were given for {self._size} ranks")
        counts = [tensor.numel() for tensor in inputs]
        return self._exchanged(opts, outputs, flat(inputs, moved=True), counts)

    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, opts: Any = None
    ) -> Any:
        opts = opts or AllToAllOptions()
        receives = rows_of(output, output_split_sizes, self._size, "output")
        sends = rows_of(input, input_split_sizes, self._size, "input")
        inp = reading(input, moved=True).reshape(-1)
        if output_split_sizes or input_split_sizes:
            row = math.prod(input.shape[1:])
            if row != math.prod(output.shape[1:]) or input.dtype != output.dtype:
                raise ValueError(f"all_to_all_single: rows of {form(input)} do not fit into those of {form(output)}")
            if receives[self._rank] != sends[self._rank]:
                raise ValueError(
                    f"all_to_all_single: rank {self._rank} sends itself {sends[self._rank]} rows, but expects "
                    f"{receives[self._rank]}"
                )
            return self._exchanged(opts, (output,), inp, [rows * row for rows in sends])
        check_fit(input, output, "all_to_all_single", "the output")
        out, finish = filling(output, moved=True)
        if np.may_share_memory(inp, out):
            inp = inp.copy()
        return self._start(opts, (output,), _last(finish), "alltoall", inp, out=out.reshape(-1))

    def _exchanged(self, opts: Any, outputs: Sequence[Any], array: Array, counts: list[int]) -> Any:
        def finish(result: Any) -> None:
            fill(result, outputs, "all_to_all")

        return self._start(opts, outputs, finish, "alltoallv", array, counts)

    def barrier(self, opts: Any = None) -> Any:
        return self._start(opts or BarrierOptions(), (), None, "barrier")

    # --- two ranks

    def send(self, tensors: Any, dst_rank: int, tag: int = 0) -> Any:
        tensor = one(tensors, "send")
        array = reading(tensor, moved=True)
        return self._message(self._rank, dst_rank, tag, tensor, None, lambda comm: comm.send_async(array, 1))

    def recv(self, tensors: Any, src_rank: int, tag: int = 0) -> Any:
        tensor = one(tensors, "recv")
        array, finish = filling(tensor, moved=True)
        start: Callable[[Communicator], Any] = lambda comm: comm.recv_async(array, 0)  # noqa: E731
        return self._message(src_rank, self._rank, tag, tensor, _last(finish), start)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        raise NotImplementedError(
            "recv from any rank: ranks of this backend receive from whom they name, so give src= (a rank that does not "
            "know who sends can gather a flag first)"
        )

    def _message(self, source: int, dest: int, tag: int, tensor: Any, finish: Any, start: Any) -> Any:
        with self._lock:
            if self._comm.closed:
                raise Aborted(f"process group {self._name!r} is closed: it was destroyed")
            found = self._channels.get((source, dest, tag))
            if found is None:
                name = f"{source} {dest} {tag}"
                channel = self._place.channel(source, dest, tag, sends=source == self._rank)
                found = self._channels[source, dest, tag] = channel, Completer(f"collectives futures {name}")
        channel, completer = found
        return self._noted(Pending(channel.start(start), (tensor,), finish, completer, source))

    # --- its life

    def shutdown(self) -> None:
        """End it; works under way fail with Aborted. Does not wait for other ranks."""
        self._comm.close()
        self._completer.close()
        with self._lock:
            channels, completers = zip(*self._channels.values(), strict=True) if self._channels else ((), ())
            self._channels.clear()
        for end in (*channels, *completers):
            end.close()

    abort = shutdown

    def set_timeout(self, timeout: Any) -> None:
        """For operations that give none of their own."""
        self._timeout = timeout.total_seconds()

    def get_group_store(self) -> Any:
        return self._place.store

    def name(self) -> str:
        return "collectives"

    getBackendName = name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def __repr__(self) -> str:
        return f"<CollectivesProcessGroup {self._name!r}: {self._comm!r}>"

    @property
    def communicator(self) -> Communicator:
        """The group's own: operations of the group use it, from whichever thread. For others: its `dup`."""
        return self._comm

    # --- what all have in common

    def _start(
        self,
        opts: Any,
        tensors: Sequence[Any],
        finish: Callable[[Any], None] | None,
        name: str,
        *args: Any,
        **more: Any,
    ) -> Any:
        given = opts.timeout.total_seconds()
        limit = given if given > 0 else self._timeout
        if limit is not None:  # a call that says nothing of it is repeated sooner
            more["timeout"] = limit
        if not opts.asyncOp and self._together is None:
            with self._lock:
                result = getattr(self._comm, name)(*args, **more)
            if finish is not None:
                finish(result)
            return _DONE
        return self._noted(self.started(name, *args, tensors=tensors, finish=finish, **more))

    def started(
        self, name: str, *args: Any, tensors: Sequence[Any], finish: Callable[[Any], None] | None, **more: Any
    ) -> Pending:
        """The communicator's method of that name, in the background; `finish` gets its result."""
        with self._lock:
            started = getattr(self._comm, f"{name}_async")(*args, **more)
        work = Pending(started, tensors, finish, self._completer)
        work.end_with_backward()
        return work

    def _noted(self, work: Pending) -> Pending:
        if self._together is not None:
            self._together.append(work)
        return work

    def _several(self, works: Sequence[Any]) -> Any:
        pending = [work for work in works if isinstance(work, Pending)]
        if not pending:
            return _DONE
        tensors = [tensor for work in pending for tensor in work._tensors]
        return Pending(_Several(pending), tensors, None, self._completer)

    def _start_coalescing(self, device: Any) -> None:
        self._together = []

    def _end_coalescing(self, device: Any) -> Any:
        works, self._together = self._together or [], None
        return self._several(works)

    def _everyones(self, lists: Any, what: str) -> list[Any]:
        tensors = list(one(lists, what))
        if len(tensors) != self._size:
            raise ValueError(f"{what}: a list of {len(tensors)} tensors was given for {self._size} ranks")
        return tensors

    # --- names of older versions of torch

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


class _Several:
    """Works as one, for those who only wait."""

    def __init__(self, works: Sequence[Pending]) -> None:
        self._works: Final = works

    def done(self) -> bool:
        return all(work.is_completed() for work in reversed(self._works))

    def wait(self, timeout: float | None = None) -> None:
        for work in self._works:
            work.settle(timeout)

    def result(self) -> None:
        self.wait()


def _last(*finishes: Callable[[], None] | None) -> Callable[[Any], None] | None:
    """What remains to be done with the result of an operation, None if nothing does."""
    wanted = [finish for finish in finishes if finish is not None]
    if not wanted:
        return None

    def finish(_: Any) -> None:
        for each in wanted:
            each()

    return finish
