"""Predicts the time of a training step, in which the gradients of all ranks are averaged.

Invariant: pure arithmetic; the caller passes a function that returns the time of an allreduce.

In each step, a rank computes for a given time. The last part of this time is the backward pass. During this pass,
gradients become ready one after another, at given times or at equal intervals. Consecutive gradients are joined into
buckets, and each bucket is averaged by one allreduce. The allreduce of a bucket begins when the bucket's last gradient
is ready and the previous allreduce has ended. Without overlap, all allreduces follow the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from collectives.base import sizes
from collectives.simulation.cost import seconds

BACKWARD: Final = 2 / 3  # of a step's computation: a backward pass takes about twice as long as a forward pass


@dataclass(frozen=True, slots=True)
class Gradient:
    """The size in bytes of a gradient, or of a bucket of gradients, and when backpropagation has computed it.

    `ready`: seconds since the training step began. None if gradients become ready at equal intervals, in the order of
    the list.
    """

    nbytes: int
    ready: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The predicted times of one training step on `ranks` ranks, in seconds.

    - `compute`: the time that a rank computes
    - `communication`: the sum of the times of all allreduces
    - `overlapped`: the time of the step if allreduces run during the backward pass
    - `alone`: the time of the step if allreduces run after the backward pass
    """

    ranks: int
    compute: float
    communication: float
    overlapped: float
    alone: float


def parse(text: str) -> list[Gradient]:
    """Reads sizes of gradients, with optional times when they are ready, from a text such as "4M, 9.4K 85ms".

    The text lists gradients in the order in which they become ready, separated by commas or line breaks; `#` begins a
    comment. ValueError for other texts, and for a text without gradients.
    """
    found = []
    for line in text.splitlines():
        for part in line.partition("#")[0].split(","):
            words = part.split()
            if len(words) > 2:
                raise ValueError(f"{part.strip()!r} is not a size, or a size and a time")
            if words:
                found.append(Gradient(sizes.parse(words[0]), seconds(words[1]) if len(words) == 2 else None))
    if not found:
        raise ValueError("there are no gradients")
    return found


def buckets(gradients: Sequence[Gradient], compute: float, largest: int, backward: float = BACKWARD) -> list[Gradient]:
    """Joins consecutive gradients into buckets of at most `largest` bytes; a bucket is ready with its last gradient.

    A larger gradient is a bucket of its own. `compute`: the seconds that a rank computes in a training step.
    `backward`: the fraction of these seconds that the backward pass takes.
    """
    begin, found = compute * (1 - backward), list[Gradient]()
    for number, gradient in enumerate(gradients, 1):
        ready = begin + (compute - begin) * number / len(gradients) if gradient.ready is None else gradient.ready
        if found and found[-1].nbytes + gradient.nbytes <= largest:
            before = found.pop()
            found.append(Gradient(before.nbytes + gradient.nbytes, max(before.ready or 0.0, ready)))
        else:
            found.append(Gradient(gradient.nbytes, ready))
    return found


def step(parts: Sequence[Gradient], compute: float, ranks: int, allreduce: Callable[[int], float]) -> Step:
    """Predicts the times of a training step: each rank computes for `compute` seconds, and gradients are averaged.

    `parts`: the buckets of gradients, each of which one allreduce averages over `ranks` ranks. `allreduce(nbytes)`
    returns the time of an allreduce in seconds.
    """
    over = total = 0.0
    for part in parts:
        takes = allreduce(part.nbytes) if ranks > 1 else 0.0
        over = max(over, part.ready or 0.0) + takes
        total += takes
    return Step(ranks, compute, total, max(compute, over), compute + total)


def speedup(found: Step, compute: float) -> tuple[float, float]:
    """The speed-up over one rank, for allreduces that overlap backpropagation, and for allreduces that follow it.

    `found`: the predicted times of the group's training step. `compute`: the seconds that a step takes on one rank
    alone, more than `found.compute` if the ranks divide the work of a step.
    """
    work = found.ranks * found.compute / compute  # in steps of one rank
    return work * compute / found.overlapped, work * compute / found.alone
