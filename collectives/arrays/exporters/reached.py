"""What the functions `reach` of this package return: the memory of an object, as an array.

Invariant: the array is a plain `numpy.ndarray`, not a subclass, whatever object has the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"


class Reached(NamedTuple):
    """The memory of an object, such as a tensor, as a NumPy array.

    `changed`, if not None, has to be called after a write to this memory: it tells the object's library about the
    write.
    """

    array: Array
    changed: Callable[[], None] | None = None


def kind_of(x: object) -> str:
    """Returns the name of the type of `x`, with its library, for error messages: for example "pandas.Series"."""
    kind = type(x)
    library = str(kind.__module__).partition(".")[0]
    return kind.__name__ if library in ("builtins", "__main__") else f"{library}.{kind.__name__}"


def read_only(name: str, what: str) -> ValueError:
    """The error for objects that never change."""
    return ValueError(f"{name} is read-only, as every {what} is: give a copy, numpy.array({name}), and use that")


def plain(x: Any) -> Array:
    array = np.asarray(x)
    return array if type(array) is np.ndarray else array.view(np.ndarray)
