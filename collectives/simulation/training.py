"""The time of a training step: gradients become ready one after another, and are averaged over all ranks.

Invariant: pure arithmetic; the caller passes a function that returns the time of an allreduce.

A step computes for a given time. The last part of this time is the backward pass, in which gradients become ready at
equal intervals unless their times are given. Consecutive gradients are joined into buckets; the exchange of a bucket
begins once its last gradient is ready and the previous exchange has ended. Without overlap all exchanges follow the
computation.
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
    """`ready`: seconds from the beginning of the step; None if the time follows from the place in the list."""

    nbytes: int
    ready: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Times of one training step on `ranks` ranks, in seconds.

    `compute`: the computation of a rank; `communication`: all allreduces together; `overlapped`: the step if allreduces
    run during the backward pass; `alone`: the step if they run after the backward pass.
    """

    ranks: int
    compute: float
    communication: float
    overlapped: float
    alone: float


def parse(text: str) -> list[Gradient]:
    """Parses sizes separated by commas or lines, each optionally followed by a time: "4M, 9.4K 85ms".

    Gradients are in the order in which they become ready; `#` begins a comment. ValueError for other texts, and for an
    empty list.
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
    """Consecutive gradients joined into buckets of at most `largest` bytes, with the times when they are ready."""
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
    """The step whose buckets are `parts`. `allreduce(nbytes)` returns the time of an allreduce in seconds."""
    over = total = 0.0
    for part in parts:
        takes = allreduce(part.nbytes) if ranks > 1 else 0.0
        over = max(over, part.ready or 0.0) + takes
        total += takes
    return Step(ranks, compute, total, max(compute, over), compute + total)


def speedup(found: Step, compute: float) -> tuple[float, float]:
    """How many times as fast as one rank the group is: with overlap of allreduces and computation, and without.

    `compute`: the time that one rank takes for the work of one step. In a step of `found`, each rank computes for
    `found.compute`.
    """
    work = found.ranks * found.compute / compute  # in steps of one rank
    return work * compute / found.overlapped, work * compute / found.alone
