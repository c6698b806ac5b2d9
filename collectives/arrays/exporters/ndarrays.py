"""Access to the memory of NumPy scalars, and of subclasses of numpy.ndarray, also those of other libraries.

Invariant: arrays with a unit or a mask are refused. Sums of metres and kilometres, or sums that include masked values,
would be wrong without a warning.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives.arrays.exporters.reached import Array, Reached, kind_of, plain

_NO_UNIT = ("", "None", "dimensionless")


def read(x: Any, name: str, moved: bool) -> Array:
    check_meaning(x, name)
    return plain(x)


def reach(x: Any, name: str, moved: bool) -> Reached:
    if isinstance(x, np.generic):
        raise TypeError(f"{name} is a NumPy scalar, which cannot be written: give a 0-d array, numpy.array(value)")
    check_meaning(x, name)
    return Reached(plain(x))


def check_meaning(x: Any, name: str) -> None:
    """Raises TypeError if `x` has a physical unit (astropy, unyt, pint) or a mask (numpy.ma, astropy).

    Collectives would ignore both. `name`: what the error calls `x`.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: give {name}.filled(value), or its data")
    if isinstance(x, np.generic):
        return
    if getattr(x, "mask", None) is not None:
        raise TypeError(f"{name}, of type {kind_of(x)}, has a mask: give {name}.filled(value), or its unmasked data")
    for attribute in ("unit", "units"):
        unit = getattr(x, attribute, None)
        if unit is not None and str(unit) not in _NO_UNIT:
            raise TypeError(
                f"{name}, of type {kind_of(x)}, has the {attribute[:4]} {str(unit)!r}, which would be lost: convert it "
                f"to one unit on every rank and give its plain numbers ({_numbers(x, name)})"
            )


def _numbers(x: Any, name: str) -> str:
    return f"{name}.magnitude" if hasattr(x, "magnitude") else f"{name}.value"
