"""Numbers of bytes as text with suffixes ("64K"), and the series of sizes that a benchmark measures.

Invariant: K, M, G and T are powers of 1024, as in nccl-tests; `parse` is the inverse of `text`.
"""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FORM: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
LARGEST: Final = 1 << 50


def parse(text: str) -> int:
    """Returns the number of bytes that a text such as "8", "4K", "1.5M" or "64MiB" means.

    K and KiB are both 1024 bytes, and so on. Raises ValueError for other texts.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write 8, 4K, 64M or 1G (bytes, powers of 1024)")
    number, unit = match[1], _UNITS[match[2].upper()]
    size = int(number) * unit if number.isdigit() else round(float(number) * unit)
    if size > LARGEST:
        raise ValueError(f"{text!r} is more than any machine holds")
    return size


def text(size: int) -> str:
    """Returns `size`, in bytes, as text with the largest unit that divides it: 65536 is "64K", 1000 is "1000"."""
    for name, unit in reversed(_UNITS.items()):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def series(first: int, last: int, factor: float | None, step: int | None) -> list[int]:
    """Returns sizes from `first` to at most `last`: each size is `factor` times the previous size, or `step` more.

    All sizes are in bytes. Raises ValueError if `last` is below `first`, or if the sizes would not grow.
    """
    if last < first:
        raise ValueError(f"the largest size, {text(last)}, is below the smallest, {text(first)}")
    if step is not None:
        if step < 1:
            raise ValueError(f"sizes cannot grow by {step} bytes")
        return list(range(first, last + 1, step))
    factor = 2.0 if factor is None else factor
    if not 1.0 < factor < float(LARGEST):
        raise ValueError(f"sizes cannot grow by a factor of {factor:g}: it has to be more than 1")
    sizes = [first]
    while (following := max(round(sizes[-1] * factor), sizes[-1] + 1)) <= last:
        sizes.append(following)
    return sizes
