"""The wire format of a gradient: the dtype that is sent, the reduction, and factors before and after the reduction.

Invariant: if an average is finite, no sum overflows during the exchange, in whatever order gradients are added.
Infinities and NaN are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from collectives.arrays.array import Array, Dtype
from collectives.arrays.wire import AUTO, FLOAT32, WireName, format_of

Compression: TypeAlias = Literal["fp16", "bf16", "fp8", "int8", "auto"]

_HALF: Final = np.dtype(np.float16)
_WIRES: Final[dict[Compression, Dtype]] = {"fp16": _HALF, "bf16": np.dtype(ml_dtypes.bfloat16)}
_EIGHT_BITS: Final = ("fp8", "int8")
_KNOWN: Final = (*_WIRES, *_EIGHT_BITS, AUTO)
_COMPRESSED: Final = (np.dtype(np.float32), np.dtype(np.float64))
_FLOATS: Final = (*_COMPRESSED, *_WIRES.values(), np.dtype(np.complex64), np.dtype(np.complex128))
OPS: Final = {"average": "avg", "avg": "avg", **{op: op for op in ("sum", "prod", "min", "max")}}


def check_options(missing: str, error_feedback: bool, compression: Compression | None) -> None:
    """Raises ValueError if these options for the exchange of gradients are invalid.

    The class `Rules` checks the other options.
    """
    if missing not in ("error", "zero"):
        raise ValueError(f"missing must be 'error' or 'zero', not {missing!r}")
    if error_feedback and compression is None:
        raise ValueError(
            "error_feedback adds the rounding error of compression: pass compression='bf16' or another one, too"
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """The user's options for the exchange of gradients, which have to be the same on every rank.

    - `op`: "average", "sum", "min", "max" or "prod"
    - `compression`: "fp16" or "bf16" to send float32 and float64 in 16 bits, "fp8" or "int8" in 8 bits with a scale for
      each 256 numbers, None to keep the dtype. Sparse gradients are never sent in 8 bits. "auto" stands for one of
      these, which `settled` finds out
    - `bucket_bytes`: the largest size of a bucket, gradients that are sent together
    - `prescale`, `postscale`: factors for gradients before, and for results after the reduction

    Raises ValueError for invalid options.
    """

    op: str = "average"
    compression: Compression | None = None
    bucket_bytes: int = 25 << 20
    prescale: float = 1.0
    postscale: float = 1.0

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ValueError(f"op must be one of {', '.join(map(repr, OPS))}, not {self.op!r}")
        if self.compression is not None and self.compression not in _KNOWN:
            raise ValueError(f"compression must be None, {', '.join(map(repr, _KNOWN))}, not {self.compression!r}")
        if type(self.bucket_bytes) is not int or self.bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be a number of bytes from 1 up, not {self.bucket_bytes!r}")
        object.__setattr__(self, "op", OPS[self.op])
        if self.compression in _EIGHT_BITS and not self.additive:
            raise ValueError(f"compression={self.compression!r} is for op 'average' or 'sum', not {self.op!r}")

    @property
    def additive(self) -> bool:
        """Whether `op` adds gradients ("average" or "sum").

        Only then can ranks without data take part with zeros, and sparse gradients be sent as rows.
        """
        return self.op in ("avg", "sum")


class Wire(NamedTuple):
    """How a gradient `x` is sent and reduced: all ranks' (x * before).astype(dtype) are combined by `op`.

    The reduced gradient is converted back to `source`, the dtype of `x`, and multiplied by `after`. Multiplication is
    done in `source`; but integers are multiplied in float64 and rounded towards 0. For a sparse gradient, `op` is
    "join": rows are concatenated. `format`: the wire format of `comm.allreduce_many` in which `dtype`, float32 then, is
    sent; None to send it as it is.
    """

    source: Dtype
    dtype: Dtype
    op: str
    before: float
    after: float
    format: WireName | None = None

    @property
    def rounds(self) -> bool:
        """Whether gradients are rounded before they are sent."""
        return self.format is not None or (self.dtype != self.source and self.op != "join")

    def rounded(self, sent: Array) -> Array:
        """Returns what other ranks get of `sent`, an array of `dtype`."""
        return sent if self.format is None else format_of(self.format).rounded(np.ascontiguousarray(sent))

    def nbytes(self, sent: Array) -> int:
        """The number of bytes that encode `sent`, an array of `dtype`."""
        if self.format is None:
            return sent.nbytes
        form = format_of(self.format)
        return form.elements(sent.size) * form.element.itemsize


def settled(
    rules: Rules, gradients: Iterable[tuple[Dtype, int]], choose: Callable[[str, int], WireName | None]
) -> Rules:
    """Returns `rules` with the compression that "auto" stands for; the same object if compression is not "auto".

    `gradients`: dtype and size of each dense gradient. `choose(collective, nbytes)`: the format for float32 arrays of
    so many bytes, None to send them as they are. One format is chosen for all gradients, by the bytes of a full bucket.
    So it stays the same from step to step, as error feedback needs.
    """
    if rules.compression != AUTO:
        return rules
    numbers = sum(size for dtype, size in gradients if dtype in _COMPRESSED)
    nbytes = min(numbers * FLOAT32.itemsize, rules.bucket_bytes)
    return replace(rules, compression=choose("allreduce", nbytes) if rules.additive else None)


def wire(rules: Rules, source: Dtype, size: int, sparse: bool, name: str) -> Wire:
    """Decides how gradients of dtype `source` are sent: in which dtype, with which op and factors.

    `rules`: the user's options. `size`: the number of ranks. `sparse`: whether the gradient is sparse. `name`: the
    gradient's name in errors. Raises TypeError or ValueError if op and dtype do not fit together.
    """
    # Rows of a sparse gradient would be divided one by one, before they are added up.
    if rules.op == "avg" and (source.kind == "b" or (sparse and source not in _FLOATS)):
        what = f"sparse {source}" if sparse else source
        raise TypeError(f"{name or 'a tensor'} is {what}, of which there is no average: use op='sum'")
    if source.kind == "b" and (rules.prescale != 1 or rules.postscale != 1):
        raise TypeError(f"{name or 'a tensor'} is {source}, which prescale and postscale cannot multiply")
    if sparse and not rules.additive:
        raise ValueError(
            f"{name or 'a gradient'} is sparse, so op must be 'average' or 'sum': or use sparse_as_dense=True"
        )
    compresses = rules.compression is not None and source in _COMPRESSED
    dtype = _WIRES[rules.compression] if compresses and rules.compression in _WIRES else source
    before, after, op = rules.prescale, rules.postscale, rules.op
    if sparse:  # rows are concatenated, not added up
        return Wire(source, dtype, "join", before, after / size if rules.op == "avg" else after)
    if dtype == _HALF and (rules.op == "avg" or (compresses and rules.op == "sum")):
        # The largest float16 is 65504. Multiplying by a power of two is exact. This one keeps each partial sum at most
        # as large as the largest gradient.
        down = 2.0 ** -(size - 1).bit_length()
        before, after, op = before * down, after / down / (size if rules.op == "avg" else 1), "sum"
    if compresses and rules.compression in _EIGHT_BITS:
        return Wire(source, FLOAT32, op, before, after, rules.compression)
    return Wire(source, dtype, op, before, after)
