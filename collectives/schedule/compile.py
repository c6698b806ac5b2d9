"""Compiles a schedule to the records that the C++ engine runs.

Invariant: `compiled` is a pure function and does not need the native extension. Only `program` needs the extension, and
imports it when it is first called. A schedule that is not well formed never reaches the engine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from collectives.schedule.algorithm import Algorithm
from collectives.schedule.check import check
from collectives.schedule.dependencies import Dependency, dependencies
from collectives.schedule.form import Chunk, Copy, Recv, Schedule, Send, Step
from collectives.schedule.layout import Layout

if TYPE_CHECKING:
    from collectives.native._engine import Program

SEND: Final = 0
RECV: Final = 1
REDUCE: Final = 2
COPY: Final = 3

Triple: TypeAlias = "tuple[int, int, int]"  # buffer, first block, number of blocks


class CompiledStep(NamedTuple):
    """One step of a schedule (one rank's steps in a collective), encoded for the C++ engine that runs it.

    `sources`, for a reduction, are its operands in order. Each is either a chunk (consecutive blocks of a local
    buffer), or the rank of a peer whose next message is the operand.
    """

    kind: int
    peers: tuple[int, ...]
    dst: Triple  # for a send: the chunk to send
    sources: tuple[int | Triple, ...] = ()
    final: bool = False
    dependencies: tuple[tuple[int, int, int, int], ...] = ()


class Compiled(NamedTuple):
    """One rank's steps in a collective, encoded for the C++ engine.

    The fields are the arguments of the constructor `collectives.native._engine.Program`.
    """

    rank: int
    size: int
    grid: tuple[int, int]
    scratch: tuple[tuple[tuple[int, int], ...], ...]
    steps: tuple[CompiledStep, ...]
    pooled: bool = False
    flat: tuple[Triple, Triple] | None = None


def compiled(schedule: Schedule, in_place: bool = False) -> Compiled:
    """Encodes `schedule`, the steps of one rank in a collective, for the C++ engine.

    `in_place`: the buffers IN (input) and OUT (output) are the same memory.
    """
    check(schedule, in_place)
    waits = dependencies(schedule, in_place)
    steps = tuple(_record(step, waits[number]) for number, step in enumerate(schedule.steps))
    flat = None if schedule.flat is None else (_triple(schedule.flat[0]), _triple(schedule.flat[1]))
    return Compiled(schedule.rank, schedule.size, schedule.grid, schedule.scratch, steps, schedule.pooled, flat)


def _record(step: Step, waits: tuple[Dependency, ...]) -> CompiledStep:
    after = tuple((d.step, d.buffer, d.there, d.here) for d in waits)
    if isinstance(step, Send):
        return CompiledStep(SEND, step.peers, _triple(step.chunk), dependencies=after)
    if isinstance(step, Recv):
        return CompiledStep(RECV, (step.peer,), _triple(step.chunk), dependencies=after)
    if isinstance(step, Copy):
        return CompiledStep(COPY, (), _triple(step.dst), (_triple(step.src),), dependencies=after)
    sources = tuple(_triple(o) if isinstance(o, Chunk) else o for o in step.operands)
    return CompiledStep(REDUCE, (), _triple(step.dst), sources, step.final, after)


def _triple(chunk: Chunk) -> Triple:
    return (chunk.buffer, chunk.first, chunk.count)


@lru_cache(maxsize=1024)
def program(
    algorithm: Algorithm,
    rank: int,
    size: int,
    root: int = 0,
    in_place: bool = False,
    layout: Layout | None = None,
    in_order: bool = False,
) -> Program:
    """Returns the steps of `rank` in `algorithm`, encoded for the C++ engine. Encoded steps are cached.

    `in_place`: the input and output buffers are the same memory. `layout`: which ranks share a host. `in_order`:
    reductions combine their operands exactly in the order of the steps. Without `in_order`, ranks that share memory may
    use faster sums in another order, such as one buffer to which all ranks add. Raises ValueError for an invalid size,
    rank, root or layout, and if `in_place` is set for an algorithm that does not work in place.
    """
    from collectives.native import _engine

    if in_place and not algorithm.in_place:
        raise ValueError(f"{algorithm} does not work in place")
    parts = compiled(algorithm(rank, size, root, layout), in_place)
    if in_order and algorithm.contract.reduces:
        parts = parts._replace(pooled=False, flat=None)
    return _engine.Program(*parts)
