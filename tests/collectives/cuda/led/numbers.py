"""What cases pass to calls, and what the calls give."""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives.native import _engine
from tests.collectives.cuda.runs_on import SIZE


def inputs_of(dtype: Any, count: int) -> list[Any]:
    """The same on every rank: of each rank, numbers whose sum in another order may differ."""
    random = np.random.default_rng(7)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return [random.integers(0, 2, count).astype(bool) for _ in range(SIZE)]
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return [random.integers(info.min, info.max, count, dtype=kind, endpoint=True) for _ in range(SIZE)]
    if kind.kind == "c":
        return [(random.normal(size=count) + 1j * random.normal(size=count)).astype(kind) for _ in range(SIZE)]
    return [(random.normal(size=count) * 100).astype(kind) for _ in range(SIZE)]


def expected(inputs: list[Any], op: str) -> Any:
    """What the library's kernels for the CPU compute, in the order of ranks."""
    result = np.empty_like(inputs[0])
    code = _engine.DTYPES["bool" if result.dtype == bool else result.dtype.name]
    _engine.reduce(result, inputs, code, _engine.OPS[op], 1.0 / SIZE)
    return result


def xor(inputs: list[Any]) -> Any:
    result = inputs[0].copy()
    for one in inputs[1:]:
        result ^= one
    return result
