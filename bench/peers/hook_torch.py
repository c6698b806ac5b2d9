"""Measures our backend of torch.distributed with a list of gradients, or a step of DistributedDataParallel.

Invariant: Gloo is measured by the same code with another backend name (see `gloo_torch`).
"""

from __future__ import annotations

import importlib
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

from collectives.bench.cases import Case
from collectives.bench.networks import NETWORKS
from collectives.bench.peers import here
from collectives.bench.peers.here import Gradients, commands
from collectives.bench.traces import buckets, shapes

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]

ENVIRONMENT = "here"
REQUIREMENTS = ("pycollectives", "torch")
BARE: tuple[str, ...] = ()

BUCKET: Final = 25 << 20  # bytes: the default of DistributedDataParallel
BATCH: Final = 32  # samples of each rank
STEPS: Final = 5  # steps of training in a check
_BATCHES: Final = 4  # batches of samples, used in turn
_RATE, _MOMENTUM = 0.05, 0.9
_SLACK: Final = 1e-5  # allowed relative error of sums of more than two numbers, added in another order
_PATIENCE: Final = timedelta(seconds=60)


def environment(folder: str) -> dict[str, str]:
    return {**here.environment(), "GLOO_SOCKET_IFNAME": "lo"}


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    here.packages()
    importlib.import_module("collectives.torch")
    return member("collectives", folder, ranks, rank)


def member(backend: str, folder: str, ranks: int, rank: int | None) -> Member:
    """Join a process group of torch.distributed with `ranks` ranks as rank `rank`; return an object for this rank.

    `backend` is the backend's name, such as "gloo". `folder` is the directory through which the ranks find each other.
    """
    assert rank is not None
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=ranks, timeout=_PATIENCE
    )
    return Member(torch, dist, rank)


class Member:
    def __init__(self, torch: Any, dist: Any, rank: int) -> None:
        self.rank: Final = rank
        self._torch: Final = torch
        self._dist: Final = dist

    def barrier(self) -> None:
        self._dist.barrier()

    def task(self, case: Case) -> GradientAllreduce | Training:
        if case.trace in NETWORKS:
            return Training(self._torch, self._dist, case)
        return GradientAllreduce(self._torch, self._dist, case)

    def close(self) -> None:
        self._dist.destroy_process_group()


class GradientAllreduce:
    """An allreduce of each gradient of a model with PyTorch, in place, ready to be timed.

    The gradients of the last layer come first, as in backpropagation.
    """

    def __init__(self, torch: Any, dist: Any, case: Case) -> None:
        known = [torch.zeros(shape, dtype=getattr(torch, case.dtype)) for shape in reversed(shapes(case.trace))]
        self._torch, self._dist = torch, dist
        self._tensors = known
        self._gradients = Gradients(case, dist.get_rank(), [tensor.numpy() for tensor in known])
        self.call = {"each": self._each, "coalesced": self._coalesced, "buckets": self._bucketed}[case.algorithm]
        self._buckets = self._flat(BUCKET // case.itemsize) if case.algorithm == "buckets" else []

    def wrong(self, salt: int) -> int:
        self._gradients.fill(salt)
        self.call()
        return self._gradients.wrong(self._gradients.arrays, salt)

    def _each(self) -> None:
        for work in [self._dist.all_reduce(tensor, async_op=True) for tensor in self._tensors]:
            work.wait()

    def _coalesced(self) -> None:
        with self._dist._coalescing_manager(async_ops=True) as together:
            for tensor in self._tensors:
                self._dist.all_reduce(tensor)
        together.wait()

    def _bucketed(self) -> None:
        """Copy gradients into buckets, reduce each bucket, and copy the sums back, as DistributedDataParallel does."""
        copy, works = self._torch._foreach_copy_, []
        for flat, views, tensors in self._buckets:
            copy(views, tensors)
            works.append(self._dist.all_reduce(flat, async_op=True))
        for work, (_, views, tensors) in zip(works, self._buckets, strict=True):
            work.wait()
            copy(tensors, views)

    def _flat(self, most: int) -> list[tuple[Any, list[Any], list[Any]]]:
        """The buckets, each of about `most` elements: one tensor, its views, and the gradients to copy to the views."""
        found = []
        counts = tuple(tensor.numel() for tensor in self._tensors)
        for first, last in buckets(counts, most):
            tensors = self._tensors[first:last]
            flat = self._torch.zeros(sum(counts[first:last]), dtype=tensors[0].dtype)
            views = [part.view(t.shape) for part, t in zip(flat.split(counts[first:last]), tensors, strict=True)]
            found.append((flat, views, tensors))
        return found


class Training:
    """Training steps of a dense neural network with PyTorch's DistributedDataParallel in its default settings."""

    def __init__(self, torch: Any, dist: Any, case: Case) -> None:
        self._torch, self._dist = torch, dist
        self._layers = NETWORKS[case.trace]
        self._step = 0
        self._batches = [self._batch(0, dist.get_rank(), number) for number in range(_BATCHES)]
        self._model = torch.nn.parallel.DistributedDataParallel(self._network(0))
        self._optimizer = self._optimizer_of(self._model)

    def call(self) -> None:
        self._step += 1
        self._optimizer.zero_grad()
        self._loss(self._model, *self._batches[self._step % _BATCHES]).backward()
        self._optimizer.step()

    def wrong(self, salt: int) -> int:
        """Train for a few steps, and return the number of wrong parameters of the network.

        The parameters are compared with those of a second network, which this process trains on the samples of all
        ranks. `salt` selects the samples.
        """
        torch, rank, ranks = self._torch, self._dist.get_rank(), self._dist.get_world_size()
        together, alone = torch.nn.parallel.DistributedDataParallel(self._network(salt)), self._network(salt)
        moves, mine = self._optimizer_of(together), self._optimizer_of(alone)
        for number in range(STEPS):
            moves.zero_grad()
            self._loss(together, *self._batch(salt, rank, number)).backward()
            moves.step()
            parts = []
            for other in range(ranks):
                loss = self._loss(alone, *self._batch(salt, other, number))
                parts.append(torch.autograd.grad(loss, list(alone.parameters())))
            for parameter, *gradients in zip(alone.parameters(), *parts, strict=True):
                parameter.grad = sum(gradient / ranks for gradient in gradients)
            mine.step()
        slack = 0.0 if ranks <= 2 else _SLACK
        pairs = zip(together.parameters(), alone.parameters(), strict=True)
        return sum(int((~((a - b).abs() <= slack * b.abs().clamp(min=1))).sum()) for a, b in pairs)

    def _network(self, seed: int) -> Any:
        nn = self._torch.nn
        self._torch.manual_seed(seed)
        layers: list[Any] = []
        for wide, narrow in pairwise(self._layers):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def _optimizer_of(self, model: Any) -> Any:
        return self._torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM)

    def _batch(self, seed: int, rank: int, number: int) -> tuple[Any, Any]:
        random = self._torch.Generator().manual_seed(1 + number + 1000 * (rank + 1000 * seed))
        pixels = self._torch.rand(BATCH, self._layers[0], generator=random)
        return pixels, self._torch.randint(self._layers[-1], (BATCH,), generator=random)

    def _loss(self, model: Any, pixels: Any, labels: Any) -> Any:
        return self._torch.nn.functional.cross_entropy(model(pixels), labels)
