"""DistributedOptimizer: any optimizer of torch, with gradients averaged over all ranks during backpropagation.

Invariant: buckets of gradients are sent in the same order on every rank, in whatever order the gradients are computed.
No step uses gradients that were not averaged. A parameter without a gradient on any rank gets none.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.native.errors import DesyncError
from collectives.torch.compression import compression_of
from collectives.torch.functions import op_name
from collectives.torch.tensors import tensor_of, writing

BUCKET: Final = 25 << 20  # bytes
_NONE, _DENSE, _SPARSE, _AS_DENSE = range(4)  # kinds of gradients; the last is sparse, and sent as dense


class Item(NamedTuple):
    """A gradient that is being averaged over the ranks.

    `place`: the index of its parameter. `sent`: the tensor to send. `grad`: the tensor for the average. `finish` copies
    the received data to `sent`; None if the data is there already.
    """

    place: int
    sent: Any
    grad: Any
    finish: Any


class Flight(NamedTuple):
    """A bucket that is being exchanged."""

    works: list[Any]
    items: list[Item]


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: str = "average",
    comm: Communicator | None = None,
    *,
    bucket_bytes: int = BUCKET,
    sparse_as_dense: bool = False,
    error_feedback: bool = False,
    timeout: float | None = None,
) -> Any:
    """Returns an optimizer of the class of `optimizer` whose `step` first averages gradients over all ranks.

    - `named_parameters`: pairs (name, parameter), such as `model.named_parameters()`; errors show the names
    - `compression`: "fp16" or "bf16", the dtype in which gradients are sent; "fp8" or "int8" for 8 bits with a scale
      for each 256 numbers; None for their own dtype. "auto" takes the format that `collectives calibrate` has measured
      as fastest in such a group, for the bytes of a full bucket; None where nothing was measured
    - `error_feedback`: with `compression`, add the rounding error of a gradient to the gradient of the next step
    - `backward_passes_per_step`: gradients of this many backward passes are added on each rank before they are sent
    - `op`: "average" or "sum"
    - `comm`: None for the communicator that `collectives.init` made. All ranks have to call `DistributedOptimizer`,
      because it makes a duplicate (`dup`) of the communicator. Both communicators are closed together
    - `bucket_bytes`: gradients are sent in buckets of up to this many bytes
    - `sparse_as_dense`: send sparse gradients as dense tensors; by default every rank receives the rows of all ranks
    - `timeout`: in seconds; None for the communicator's timeout

    In the first step, gradients are sent after the backward pass. In later steps, buckets are sent while other
    gradients are still computed. The new optimizer takes over the state of `optimizer`; do not use `optimizer` any
    more. ValueError if names are missing or occur twice; DesyncError at the first step if ranks have different
    parameters.
    """
    if op_name(op) not in ("avg", "sum"):
        raise ValueError(f"op is {op!r}: gradients are averaged or summed")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}: it must be 1 or more")
    if isinstance(optimizer, _Distributed):
        raise TypeError("the optimizer is distributed already")
    kind = type(optimizer)
    made = type(kind.__name__, (_Distributed, kind), {"__doc__": kind.__doc__, "__module__": kind.__module__})
    distributed: Any = object.__new__(made)
    distributed.__dict__.update(optimizer.__dict__)
    names, group = _names(optimizer, named_parameters), default(comm)
    nbytes = sum(4 * p.numel() for p in _trained(optimizer) if p.dtype in (torch.float32, torch.float64))
    choose = partial(group._wire, "allreduce", min(nbytes, bucket_bytes))
    distributed._begin(
        names,
        compression_of(compression, error_feedback, choose),
        backward_passes_per_step,
        op_name(op),
        group.attached(),
        bucket_bytes,
        sparse_as_dense,
        timeout,
    )
    return distributed


class _Distributed:
    """The base class that comes before an optimizer's own class."""

    def _begin(
        self,
        names: list[str],
        compression: Any,
        passes: int,
        op: str,
        comm: Communicator,
        bucket_bytes: int,
        sparse_as_dense: bool,
        timeout: float | None,
    ) -> None:
        self._params: list[Any] = _trained(self)
        self._names = names
        self._compression = compression
        self._passes = passes
        self._op = op
        self._comm = comm
        self._bucket_bytes = bucket_bytes
        self._sparse_as_dense = sparse_as_dense
        self._timeout = timeout
        self._place = {id(param): i for i, param in enumerate(self._params)}
        self._left = [passes] * len(self._params)  # backward passes until a gradient is sent
        self._buckets: list[list[int]] = []  # known after the first step
        self._bucket_of: list[int] = []
        self._sparse: list[int] = []
        self._waits: list[int] = []  # gradients that a bucket still waits for
        self._next = 0  # the bucket to start next
        self._flights: list[Flight] = []
        self._steps = 0
        self._synchronized = False
        self._skips = False
        self._announce: Callable[[], Any] | None = None  # for hvd.join: called once in each step
        self._hooks = [param.register_post_accumulate_grad_hook(self._arrived) for param in self._params]

    # --- when gradients become ready

    def _arrived(self, param: Any) -> None:
        i = self._place[id(param)]
        if self._left[i] <= 0:
            raise RuntimeError(
                f"parameter {self._names[i]!r} got another gradient after the last one was sent: call step() after "
                f"{self._passes} backward passes, or set backward_passes_per_step"
            )
        self._left[i] -= 1
        if self._left[i] or not self._buckets or self._bucket_of[i] < 0:
            return
        self._waits[self._bucket_of[i]] -= 1
        while self._next < len(self._buckets) and not self._waits[self._next]:
            self._start()

    def _start(self, empty: bool = False) -> None:
        """Send the next bucket. Missing gradients are sent as zeros, because another rank may have them.

        `empty`: send zeros for all gradients.
        """
        items = []
        for i in self._buckets[self._next]:
            param = self._params[i]
            grad = torch.zeros_like(param) if empty or param.grad is None else param.grad
            grad = grad.to_dense() if grad.layout is not torch.strided else grad
            sent = self._compression.compress(grad, i)
            items.append(Item(i, sent, grad, None))
        written = [writing(item.sent) for item in items]
        ways: dict[Any, list[Any]] = {}  # arrays by their wire format
        for item, (array, _) in zip(items, written, strict=True):
            ways.setdefault(_wire(self._compression, item.sent), []).append(array)
        works = [
            self._comm.allreduce_many_async(
                arrays, self._op, out=arrays, bucket_bytes=self._bucket_bytes, wire=wire, timeout=self._timeout
            )
            for wire, arrays in ways.items()
        ]
        self._flights.append(
            Flight(works, [item._replace(finish=finish) for item, (_, finish) in zip(items, written, strict=True)])
        )
        self._next += 1

    # --- the step

    def synchronize(self) -> None:
        """Waits until all gradients are averaged over the ranks.

        `step` does this; call it yourself to clip gradients before `step`. Raises the errors of collectives, such as
        PeerLost and DesyncError.
        """
        announced = None if self._announce is None else self._announce()
        kinds = np.array([self._kind(param) for param in self._params], np.uint8)
        if not self._buckets and not self._sparse:
            self._plan(kinds)
        while self._next < len(self._buckets):
            self._start()
        anywhere = self._comm.allreduce(kinds, "max", timeout=self._timeout)
        with torch.no_grad():
            for flight in self._flights:
                for work in flight.works:
                    work.wait()
                for item in flight.items:
                    self._deliver(item, anywhere[item.place])
            for i in self._sparse:
                if anywhere[i]:
                    self._params[i].grad = self._gathered(i, self._params[i].grad)
        if announced is not None:
            announced.wait()
        self._reset()
        self._steps += 1
        self._synchronized = True

    def step(self, closure: Any = None) -> Any:
        """Waits until all gradients are averaged over the ranks, then updates the parameters.

        `closure` and the returned value are those of torch's `Optimizer.step`.
        """
        if not self._skips:
            if self._synchronized:
                warnings.warn(
                    "step() averages gradients that synchronize() has averaged: wrap it in `with "
                    "optimizer.skip_synchronize()`",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure)  # type: ignore[misc]

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context manager in which `step` does not wait for gradients, because the user has called `synchronize`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """Resets the gradients, as torch's `zero_grad` does. RuntimeError if gradients are still being sent."""
        if self._flights:
            raise RuntimeError("zero_grad() between backward() and step(): gradients are still being averaged")
        return super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From the next step on, add the gradients of `passes` backward passes before they are sent."""
        if passes < 1:
            raise ValueError(f"backward_passes_per_step is {passes}: it must be 1 or more")
        self._passes = passes
        self._reset()

    def close(self) -> None:
        """Removes the hooks from the parameters, and closes the communicator that was made for this optimizer."""
        for hook in self._hooks:
            hook.remove()
        self._comm.close()

    def _step_empty(self) -> None:
        """For hvd.join: take part in the other ranks' `synchronize`, without changing parameters.

        This rank sends zeros for dense gradients, and no rows for sparse gradients.
        """
        nothing = np.full(len(self._params), _NONE, np.uint8)
        if not self._buckets and not self._sparse:
            self._plan(nothing)
        while self._next < len(self._buckets):
            self._start(empty=True)
        anywhere = self._comm.allreduce(nothing, "max", timeout=self._timeout)
        with torch.no_grad():
            for flight in self._flights:
                for work in flight.works:
                    work.wait()
                for item in flight.items:
                    self._compression.decompress(item.sent, item.grad)  # it may keep state from `compress`
            for i in self._sparse:
                if anywhere[i]:
                    self._gathered(i, None)
        self._reset()

    # --- helpers

    def _plan(self, kinds: Any) -> None:
        """Assign parameters to buckets in reverse order, since gradients of the last layers are computed first.

        `kinds`: whether each parameter's gradient is missing, dense or sparse on this rank. Parameters without a
        gradient on any rank come last, so that no bucket before them waits for them.
        """
        self._agree()
        anywhere = self._comm.allreduce(kinds, "max", timeout=self._timeout)
        self._sparse = [i for i, kind in enumerate(anywhere) if kind == _SPARSE]
        held, bucket = 0, list[int]()
        for i in sorted(range(len(self._params)), key=lambda i: (bool(anywhere[i] == _NONE), -i)):
            if anywhere[i] == _SPARSE:
                continue
            size = self._params[i].numel() * self._params[i].element_size()
            if bucket and held + size > self._bucket_bytes:
                self._buckets.append(bucket)
                held, bucket = 0, []
            bucket.append(i)
            held += size
        if bucket:
            self._buckets.append(bucket)
        self._bucket_of = [-1] * len(self._params)
        for number, members in enumerate(self._buckets):
            for i in members:
                self._bucket_of[i] = number

    def _agree(self) -> None:
        """DesyncError, on every rank, if ranks have different parameters; names the first difference."""
        forms = [f"{tuple(param.shape)} {param.dtype}" for param in self._params]
        marks = [hashlib.sha256(form.encode()).digest()[:8] for form in forms]
        mine = np.frombuffer(b"".join(marks), np.uint64)
        lengths = self._comm.allgather(np.array(len(mine)), timeout=self._timeout)
        if len(set(lengths.tolist())) > 1:
            counts = ", ".join(f"rank {rank} has {count}" for rank, count in enumerate(lengths.tolist()))
            raise DesyncError(f"ranks have different numbers of parameters to train: {counts}")
        everyones = self._comm.allgather(mine, timeout=self._timeout)
        different = np.argwhere(everyones != everyones[0])
        if len(different):
            i = int(different[:, 1].min())
            ranks = [int(rank) for rank, place in different if place == i]
            raise DesyncError(
                f"step {self._steps}: parameter {self._names[i]!r} is {forms[i]} on rank {self._comm.rank}; "
                f"ranks {ranks} have another shape or dtype there than rank 0"
            )

    def _kind(self, param: Any) -> int:
        if param.grad is None:
            return _NONE
        if param.grad.is_sparse:
            return _AS_DENSE if self._sparse_as_dense else _SPARSE
        return _DENSE

    def _deliver(self, item: Item, anywhere: int) -> None:
        if item.finish is not None:
            item.finish()
        self._compression.decompress(item.sent, item.grad)
        param = self._params[item.place]
        if param.grad is item.grad or not anywhere:
            return
        # Sparse gradients that were sent as dense become sparse again: some optimizers accept nothing else.
        sparse = anywhere == _AS_DENSE if param.grad is None else param.grad.is_sparse
        axes = 1 if param.grad is None else param.grad.sparse_dim()
        param.grad = item.grad.to_sparse(axes) if sparse else item.grad

    def _gathered(self, i: int, own: Any) -> Any:
        """Return the sum or average of all ranks' sparse gradients of parameter `i`; `own`: this rank's, or None."""
        param = self._params[i]
        grad = torch.zeros_like(param).to_sparse(1) if own is None else own
        grad = (grad if grad.is_sparse else grad.to_sparse(1)).coalesce()
        comm, limit = self._comm, self._timeout
        indices = comm.allgatherv(np.ascontiguousarray(grad.indices().t().numpy()), timeout=limit)
        values = tensor_of(comm.allgatherv(writing(grad.values()).array, timeout=limit))
        if self._op == "avg":
            values = values / comm.size
        places = torch.from_numpy(indices).t()
        return torch.sparse_coo_tensor(places, values, param.shape, check_invariants=True).coalesce()

    def _reset(self) -> None:
        self._flights.clear()
        self._next = 0
        self._left = [self._passes] * len(self._params)
        self._waits = [len(members) for members in self._buckets]


def _wire(compression: Any, sent: Any) -> Any:
    """The wire format for a tensor; objects of users' own need not know of wire formats."""
    found = getattr(compression, "wire", None)
    return None if found is None else found(sent)


def _trained(optimizer: Any) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]


def _names(optimizer: Any, named: Iterable[tuple[str, Any]] | None) -> list[str]:
    """The names of the parameters to train, in the optimizer's order. ValueError if one is missing, or occurs twice."""
    params = _trained(optimizer)
    if named is None:
        return [f"parameter {i}" for i in range(len(params))]
    pairs = list(named)
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"named_parameters has names that come twice: {', '.join(twice)}")
    known = {id(param): name for name, param in pairs}
    missing = [i for i, param in enumerate(params) if id(param) not in known]
    if missing:
        raise ValueError(f"named_parameters lacks parameters of the optimizer: numbers {missing}")
    return [known[id(param)] for param in params]
