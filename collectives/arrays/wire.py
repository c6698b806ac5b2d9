"""Wire formats: float32 arrays in fewer bytes, while they are sent and reduced.

Invariant: the bits of an encoded array depend only on its numbers, on every machine. A number of a block depends on no
number outside the block, and blocks begin at multiples of 256 numbers of their array.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from collectives.arrays.array import Array, Dtype
from collectives.arrays.dtypes import BLOCKS, dtype_of
from collectives.native import _engine
from collectives.native.spelling import hint

WireName: TypeAlias = Literal["bf16", "fp16", "fp8", "int8"]
WireChoice: TypeAlias = Literal["bf16", "fp16", "fp8", "int8", "auto"]
AUTO: Final = "auto"

FLOAT32: Final[Dtype] = np.dtype(np.float32)
_ENGINE_NAMES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_blocks", "int8": "int8_blocks"}
_ROUNDINGS: Final = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp8": 2.0**-4, "int8": 0.5 / 127}


class Format(NamedTuple):
    """A wire format. `element`: the dtype of encoded arrays; one element encodes `numbers` float32 numbers.

    - `code`: the engine's number of `element`
    - `narrow`: whether sums of finite numbers may exceed its range; then numbers are divided by a power of two before
    - `rounding`: the largest error of an encoded number, relative to the largest absolute value of its element
    """

    name: WireName
    element: Dtype
    numbers: int
    code: int
    narrow: bool
    rounding: float

    def elements(self, numbers: int) -> int:
        """How many elements encode so many numbers."""
        return -(-numbers // self.numbers)

    def factor(self, size: int) -> float:
        """By which numbers are multiplied before they are encoded, for a reduction over `size` ranks.

        Results are divided by it. It is a power of two, so both are exact but for the smallest numbers.
        """
        return 2.0 ** -(size - 1).bit_length() if self.narrow else 1.0

    def encode(self, x: Array, out: Array, factor: float = 1.0) -> None:
        """Writes `x` times `factor` to `out`, of `elements(x.size)` elements. `x`: C-contiguous, of float32."""
        _engine.encode(out, x, self.code, factor)

    def decode(self, x: Array, out: Array, factor: float = 1.0) -> None:
        """Writes the numbers of `x`, encoded, times `factor` to `out`, a C-contiguous array of float32."""
        _engine.decode(out, x, self.code, factor)

    def rounded(self, x: Array, factor: float = 1.0) -> Array:
        """Returns a new array with the numbers that other ranks get from this rank's `x`."""
        encoded = np.empty(self.elements(x.size), self.element)
        found = np.empty_like(x)
        self.encode(x, encoded, factor)
        self.decode(encoded, found, 1.0 / factor)
        return found


def format_of(name: Any) -> Format:
    """The wire format of that name. Raises TypeError if it is not a name, ValueError if there is none."""
    if not isinstance(name, str):
        raise TypeError(f"wire must be a name, not {name!r}")
    if name not in _ENGINE_NAMES:
        similar = hint(name, [known for known in (*_ENGINE_NAMES, AUTO) if known != name])
        raise ValueError(f"wire is {name!r}{similar}; there are {', '.join(_ENGINE_NAMES)}")
    return _format(cast(WireName, name))


@lru_cache
def _format(name: WireName) -> Format:
    engine_name = _ENGINE_NAMES[name]
    blocks = {known: dtype for dtype, known in BLOCKS.items()}
    element = blocks.get(engine_name) or dtype_of(engine_name)
    numbers = _engine.BLOCK_NUMBERS if engine_name in blocks else 1
    return Format(name, element, numbers, _engine.DTYPES[engine_name], name == "fp16", _ROUNDINGS[name])
