"""Communication hooks for DistributedDataParallel that send gradients in fewer bytes.

    model.register_comm_hook(None, collectives.torch.bf16_hook)
    model.register_comm_hook(collectives.torch.HookState(error_feedback=True), collectives.torch.fp16_hook)

Invariant: a hook's average is an operation of the process group. It is ordered with the group's other operations, as
DistributedDataParallel's own average is. Errors of a hook have the communicator's types, which a future's `then` would
lose. Where the library adds several ranks' gradients in one step, it adds in float32 and rounds only the sum.
"""

# No `from __future__ import annotations`: DistributedDataParallel compares a hook's annotations with its own.

from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from collectives.arrays.wire import AUTO
from collectives.torch.compression import Compression
from collectives.torch.process_group import CollectivesProcessGroup
from collectives.torch.tensors import reading


class Member(NamedTuple):
    """A parameter of a bucket: the address of its memory, and how many numbers it has."""

    address: int
    numbers: int


class HookState:
    """The state of the communication hooks, such as `bf16_hook`, for one model; pass it to `register_comm_hook`.

    `group`: the process group; None for the default group. `error_feedback`: add the rounding error of a gradient to
    the gradient of the next step, which needs memory for a copy of all gradients.
    """

    def __init__(self, group: Any = None, *, error_feedback: bool = False) -> None:
        self.group: Final = group
        self._feedback: Final = error_feedback
        self._compressions: Final[dict[str | None, Compression]] = {}
        self._members: Final[dict[int, tuple[Member, ...]]] = {}  # by index of the bucket
        self._moving: Final[dict[int, Any]] = {}  # rounding errors of parameters that change places, by address

    def _follow(self, bucket: dist.GradBucket, compression: Compression) -> None:
        """Lets rounding errors follow their parameters: PyTorch forms its buckets anew after the first step.

        `compression`: for this bucket. If it does not round, what earlier steps have lost is added to the bucket.
        """
        if not self._feedback:
            return
        place, members = bucket.index(), tuple(Member(p.data_ptr(), p.numel()) for p in bucket.parameters())
        known = self._members.get(place)
        if known == members:
            return
        if known is not None:
            self._release()
        self._members[place] = members
        if not any(member.address in self._moving for member in members):
            return
        buffer = bucket.buffer()
        nothing = buffer.new_zeros(max(member.numbers for member in members))
        lost = torch.cat([self._moving.pop(m.address, nothing[: m.numbers]) for m in members])
        if compression._rounds:
            compression._keep(place, lost)
        else:
            buffer += lost

    def _release(self) -> None:
        """Divides the rounding errors of all buckets among their parameters, and forgets the buckets."""
        for compression in self._compressions.values():
            for place, lost in compression._release().items():
                assert isinstance(place, int)
                members = self._members[place]
                pieces = lost.split([member.numbers for member in members])
                self._moving.update((m.address, piece) for m, piece in zip(members, pieces, strict=True))
        self._members.clear()

    def compression(self, name: str | None) -> Compression:
        found = self._compressions.get(name)
        if found is None:
            feedback = self._feedback and name is not None
            found = self._compressions[name] = Compression(name, error_feedback=feedback)
        return found


def fp16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel that averages gradients over all ranks as float16.

    `state`: None, a process group, or a HookState. Returns a future of the averaged bucket. The largest float16 is
    65504; larger gradients become infinite, which loss scaling notices.
    """
    return _averaged(state, bucket, "fp16")


def bf16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel that averages gradients over all ranks as bfloat16.

    `state`: None, a process group, or a HookState. Returns a future of the averaged bucket. bfloat16 has the range of
    float32.
    """
    return _averaged(state, bucket, "bf16")


def fp8_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel that averages gradients as float8 (e4m3), in blocks of 256.

    `state`: None, a process group, or a HookState. Returns a future of the averaged bucket. Each block has a scale.
    """
    return _averaged(state, bucket, "fp8")


def int8_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel that averages gradients as int8, in blocks of 256 numbers.

    `state`: None, a process group, or a HookState; use one with error feedback. Returns a future of the averaged
    bucket. Each block has a scale.
    """
    return _averaged(state, bucket, "int8")


def auto_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel that averages gradients in the format that is fastest.

    `state`: None, a process group, or a HookState; use one with error feedback. Returns a future of the averaged
    bucket. The format is the one that `collectives calibrate` has measured as fastest in such a group, for the bytes of
    the bucket. Where nothing was measured, gradients are sent as they are.
    """
    return _averaged(state, bucket, AUTO)


def _averaged(state: Any, bucket: Any, name: str) -> Any:
    given = state if isinstance(state, HookState) else None
    group = (given.group if given else state) or dist.group.WORLD
    if not isinstance(group, CollectivesProcessGroup):
        raise TypeError(
            f"this hook is for process groups of the backend 'collectives', not {type(group).__name__}: torch's own "
            "are in torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
        )
    buffer = bucket.buffer()
    # A bucket has the same bytes in each step, so its format stays the same, too.
    form = name if name != AUTO else group.communicator._wire("allreduce", 4 * buffer.numel())
    compression = given.compression(form) if given else Compression(form)
    if given is not None:
        given._follow(bucket, compression)
    sent = compression.compress(buffer, bucket.index())

    def finish(_: Any) -> None:
        compression.decompress(sent, buffer)

    array = reading(sent)
    work = group.started(
        "allreduce", array, "avg", out=array, wire=compression.wire(sent), tensors=(buffer,), finish=finish
    )
    return work.promise(buffer)
