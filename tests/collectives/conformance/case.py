"""A case of the conformance suite, and the inputs of its ranks.

Invariant: a case is a value that contains everything, seeds included, so that each rank computes all ranks' inputs.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tests.collectives.conformance.reference import (
    BOOL,
    COMPLEXES,
    DTYPES,
    Array,
    is_exact,
    reduced,
)

BY_NAME = {d.name: d for d in DTYPES}
KEPT = 10_000  # elements; of inputs that are never drawn again
LARGE = 24  # larger inputs that are kept: those of eight ranks, of three shapes
LARGE_REDUCTIONS = 16  # larger results that are kept: of two shapes in eight threads


@dataclass(frozen=True)
class Case:
    """`shape` is of one rank's part (of one block for alltoall and reduce_scatter); the v-variants vary it."""

    collective: str
    dtype: str = "float32"
    op: str = "sum"
    shape: tuple[int, ...] = (5,)
    root: int = 0
    algorithm: str = "auto"
    place: str = "new"  # or "out": into a given array; "in": in place; "strided": x is not contiguous
    background: bool = False
    seed: int = 0

    def __str__(self) -> str:
        usual = asdict(Case(self.collective))
        reported = [f"{k}={v}" for k, v in asdict(self).items() if k in ("dtype", "shape") or v != usual[k]]
        return " ".join([self.collective, *[t for t in reported if not t.startswith("collective=")]])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> Case:
        return Case(**{**value, "shape": tuple(value["shape"])})


def inputs_of(case: Case, shapes: Sequence[tuple[int, ...]]) -> Sequence[Array]:
    """The inputs of all ranks, whose shapes these are."""
    if sum(map(math.prod, shapes)) > KEPT:
        return [values(case, rank, shape) for rank, shape in enumerate(shapes)]
    return _inputs(_text(case), case.dtype, case.op, case.seed, tuple(shapes))


def reduction_of(case: Case, shape: tuple[int, ...], ranks: int) -> Array:
    """The reduction of the inputs of ranks 0 to `ranks` - 1, each of that shape. Read-only.

    It does not depend on the algorithm, or on where the result is to go: small ones are kept, and the last large ones.
    """
    compute = _reduction if ranks * math.prod(shape) <= KEPT else _reduction_of_large
    return compute(_text(case), case.dtype, case.op, case.seed, shape, ranks)


def values(case: Case, rank: int, shape: tuple[int, ...]) -> Array:
    """A rank's input: any integers; floating values small enough for every reduction of 8 to be exact.

    Read-only: the small ones are kept, since every group goes through the same cases, and drawing all ranks' inputs
    takes as long as the calls. The last of the large ones are kept for the next algorithm, whose inputs are the same.
    """
    draw = _draw if math.prod(shape) <= KEPT else _draw_large
    return draw(_text(case), case.dtype, case.op, case.seed, rank, shape)


def _text(case: Case) -> str:
    return f"{case.collective} {case.dtype} {case.op} {case.shape}"


@functools.cache
def _inputs(text: str, dtype_name: str, op: str, seed: int, shapes: tuple[tuple[int, ...], ...]) -> Sequence[Array]:
    return tuple(_draw(text, dtype_name, op, seed, rank, shape) for rank, shape in enumerate(shapes))


@functools.cache
def _reduction(text: str, dtype_name: str, op: str, seed: int, shape: tuple[int, ...], ranks: int) -> Array:
    draw = _draw if math.prod(shape) <= KEPT else _draw_large
    result = reduced([draw(text, dtype_name, op, seed, rank, shape) for rank in range(ranks)], op)
    result.flags.writeable = False
    return result


_reduction_of_large = functools.lru_cache(maxsize=LARGE_REDUCTIONS)(_reduction.__wrapped__)


@functools.cache
def _draw(text: str, dtype_name: str, op: str, seed: int, rank: int, shape: tuple[int, ...]) -> Array:
    random = np.random.default_rng([zlib.crc32(text.encode()), seed, rank])
    drawn = np.asarray(_drawn(random, BY_NAME[dtype_name], op, shape))
    drawn.flags.writeable = False
    return drawn


_draw_large = functools.lru_cache(maxsize=LARGE)(_draw.__wrapped__)


def _drawn(random: np.random.Generator, dtype: np.dtype[Any], op: str, shape: tuple[int, ...]) -> Array:
    if dtype == BOOL:
        return random.integers(0, 2, shape).astype(bool)
    if is_exact(dtype):
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype, endpoint=True)
    if op == "prod":
        return random.choice(np.array([1, -1, 2]), shape).astype(dtype)
    whole = random.integers(-4, 5, shape)
    return (whole + 1j * random.integers(-4, 5, shape)).astype(dtype) if dtype in COMPLEXES else whole.astype(dtype)
