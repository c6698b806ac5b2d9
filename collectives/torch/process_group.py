"""The backend "collectives" of torch.distributed: a process group whose operations run on a communicator.

Invariant: each method accepts every form of call that torch documents for it. The module `operations` translates the
calls for the communicator. Methods raise the error types of `collectives`; TypeError and ValueError are raised before
anything is sent.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

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

from collectives.torch import sparse
from collectives.torch.device_operations import DeviceOperations
from collectives.torch.group import Group
from collectives.torch.meeting import Options
from collectives.torch.messages import Messages
from collectives.torch.operations import Operation, Operations
from collectives.torch.overloads import overloaded
from collectives.torch.tensors import is_cuda, one

_ROOTED: Final = ("root", "timeout")
_REDUCING: Final = ("op", "timeout")


class CollectivesProcessGroup(Group):
    """The process group of this library's backend "collectives" of torch.distributed.

    `init_process_group("collectives")` and `new_group` make it. It is for tensors in host memory and on CUDA devices.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float, options: Options, name: str) -> None:
        super().__init__(store, rank, size, timeout, options, name)
        self._on_host: Final = Operations(rank, size)
        self._messages: Final = Messages(self._place, rank, size)

    def _of(self, tensors: Any) -> Operations | DeviceOperations:
        """What translates calls with these tensors: a tensor, a list of them, or a list of lists."""
        first = tensors
        while isinstance(first, list | tuple) and first:
            first = first[0]
        return self._on(first) if is_cuda(first) else self._on_host

    def _on(self, tensor: Any) -> DeviceOperations:
        return DeviceOperations(self._rank, self._size, tensor.device)

    # --- reductions

    @overloaded(AllreduceOptions, "tensors|tensor", instead=_REDUCING)
    def allreduce(self, tensors: Any, opts: Any) -> Any:
        tensor = one(tensors, "all_reduce")
        if sparse.is_sparse(tensor):
            if tensor.is_cuda:
                raise TypeError("sparse tensors are for host memory: give tensor.cpu(), or tensor.to_dense()")
            operations, then = sparse.allreduce(tensor, opts.reduceOp, self._size)
            return self._run_all(opts, "sparse_all_reduce", (tensor,), operations, then)
        plan = self._planned(tensor, opts)
        if plan is not None:
            return self._run_plan(opts, (tensor,), plan)
        return self._run(opts, "all_reduce", (tensor,), self._of(tensor).allreduce(tensor, opts.reduceOp))

    @overloaded(AllreduceCoalescedOptions, "tensors")
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Any:
        plan = self._planned(tensors, opts)
        if plan is not None:
            return self._run_plan(opts, tensors, plan)
        return self._run_all(opts, "all_reduce", tensors, self._of(tensors).allreduce_coalesced(tensors, opts.reduceOp))

    @overloaded(ReduceOptions, "tensors|tensor", instead=("root", "op", "timeout"))
    def reduce(self, tensors: Any, opts: Any) -> Any:
        tensor = one(tensors, "reduce")
        return self._run(opts, "reduce", (tensor,), self._of(tensor).reduce(tensor, opts.reduceOp, opts.rootRank))

    @overloaded(ReduceScatterOptions, "output_tensors|output", "input_tensors|input_tensor|input", instead=_REDUCING)
    def reduce_scatter(self, output: Any, inputs: Any, opts: Any) -> Any:
        operation = self._of(output).reduce_scatter(one(output, "reduce_scatter"), inputs, opts.reduceOp)
        return self._run(opts, "reduce_scatter", tensors_of(inputs), operation)

    @overloaded(ReduceScatterOptions, "outputTensor", "inputTensor")
    def reduce_scatter_single(self, output: Any, inp: Any, opts: Any) -> Any:
        operation = self._of(output).reduce_scatter_single(output, inp, opts.reduceOp)
        return self._run(opts, "reduce_scatter_tensor", (inp,), operation)

    @overloaded(ReduceScatterOptions, "outputTensors", "inputTensors")
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        operations = [self._of(o).reduce_scatter_single(o, i, opts.reduceOp) for o, i in pairs]
        return self._run_all(opts, "reduce_scatter_tensor_coalesced", inputs, operations)

    # --- moving data

    @overloaded(BroadcastOptions, "tensors|tensor", instead=_ROOTED)
    def broadcast(self, tensors: Any, opts: Any) -> Any:
        tensor = one(tensors, "broadcast")
        return self._run(opts, "broadcast", (tensor,), self._of(tensor).broadcast(tensor, opts.rootRank))

    @overloaded(AllgatherOptions, "output_tensors", "input_tensors|input_tensor")
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        tensor = one(inputs, "all_gather")
        return self._run(opts, "all_gather", (tensor,), self._of(tensor).allgather(outputs, tensor))

    @overloaded(AllgatherOptions, "output_lists", "input_list")
    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any) -> Any:
        turned = zip(*output_lists, strict=True)  # from a list for each tensor to a list for each rank
        operations = [self._of(i).allgather(list(o), i) for o, i in zip(turned, inputs, strict=True)]
        return self._run_all(opts, "all_gather", inputs, operations)

    @overloaded(AllgatherOptions, "output", "input")
    def all_gather_single(self, output: Any, inp: Any, opts: Any) -> Any:
        return self._run(opts, "all_gather_into_tensor", (inp,), self._of(inp).all_gather_single(output, inp))

    @overloaded(AllgatherOptions, "output_lists", "input_list")
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        operations = [self._of(i).all_gather_single(o, i) for o, i in zip(outputs, inputs, strict=True)]
        return self._run_all(opts, "all_gather_into_tensor_coalesced", inputs, operations)

    @overloaded(GatherOptions, "output_tensors", "input_tensors|input_tensor", instead=_ROOTED)
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        tensor = one(inputs, "gather")
        return self._run(opts, "gather", (tensor,), self._of(tensor).gather(outputs, tensor, opts.rootRank))

    @overloaded(ScatterOptions, "output_tensors|output_tensor", "input_tensors", instead=_ROOTED)
    def scatter(self, output: Any, inputs: Any, opts: Any) -> Any:
        operation = self._of(output).scatter(one(output, "scatter"), inputs, opts.rootRank)
        return self._run(opts, "scatter", tensors_of(inputs), operation)

    @overloaded(AllToAllOptions, "output_tensor|output_tensors|output", "input_tensor|input_tensors|input")
    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self._run(opts, "all_to_all", inputs, self._of(inputs).alltoall(outputs, inputs))

    @overloaded(
        AllToAllOptions,
        "output_tensor|output",
        "input_tensor|input",
        "output_split_sizes",
        "input_split_sizes",
    )
    def all_to_all_single(self, output: Any, inp: Any, output_splits: Any, input_splits: Any, opts: Any) -> Any:
        operation = self._of(inp).all_to_all_single(output, inp, output_splits, input_splits)
        return self._run(opts, "all_to_all", (inp,), operation)

    @overloaded(BarrierOptions)
    def barrier(self, opts: Any) -> Any:
        return self._run(opts, "barrier", (), Operation("barrier", (), ()))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that raises OpTimeout after `timeout`; the error names all ranks that have not reached the barrier.

        `wait_all_ranks` has no effect.
        """
        opts = BarrierOptions()
        opts.asyncOp = False
        if timeout is not None:
            opts.timeout = timeout
        self.barrier(opts)

    # --- messages between two ranks

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        tensor = one(tensors, "send")
        if self._goes_by_nccl(tensor):
            return self._message(self._on(tensor).send(tensor, dstRank, tag))
        return self._noted(self._messages.send(tensor, dstRank, tag, self._timeout))

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:
        tensor = one(tensors, "recv")
        if self._goes_by_nccl(tensor):
            return self._message(self._on(tensor).recv(tensor, srcRank, tag))
        return self._noted(self._messages.recv(tensor, srcRank, tag, self._timeout))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        tensor = one(tensors, "recv")
        if self._goes_by_nccl(tensor):
            return self._message(self._on(tensor).recv(tensor, None, tag))
        return self._noted(self._messages.recv(tensor, None, tag, self._timeout))

    def _goes_by_nccl(self, tensor: Any) -> bool:
        """Whether a message of `tensor` goes by NCCL. The other rank's tensor then has to be on a device, too."""
        return self._messages_by_nccl and is_cuda(tensor)

    def shutdown(self) -> None:
        """Ends the process group; operations in progress fail with Aborted. Does not wait for other ranks."""
        super().shutdown()
        self._messages.close(self._name)

    # --- names of older versions of torch

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def tensors_of(lists: Any) -> Any:
    """The tensors of a list, or of the only list in a list."""
    return lists[0] if lists and isinstance(lists[0], list | tuple) else lists or ()
