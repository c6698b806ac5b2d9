"""Horovod's arguments for features that this library implements differently.

Invariant: an argument that changes results is respected or refused. An argument that could only change speed, and has
no effect here, causes a warning once for each line of code that passes it.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from collectives.horovod.reductions import Average


class Factors(NamedTuple):
    """The factors by which gradients are multiplied before the reduction over all ranks, and after it."""

    before: float
    after: float


def predivided(op: Any, factor: float) -> Factors:
    """Returns the factors for gradients before and after the reduction over all ranks: 1 / `factor` and `factor`.

    Raises ValueError if `factor` is not positive, or if it is not 1 and `op` is not Average.
    """
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not factor > 0:
        raise ValueError(f"gradient_predivide_factor must be more than 0, not {factor}")
    return Factors(1.0 / factor, float(factor))


def check_groups(num_groups: int, groups: Any) -> None:
    """Warns that Horovod's arguments `num_groups` and `groups` have no effect: gradients are sent in buckets instead.

    Raises ValueError for invalid values.
    """
    if groups is None and num_groups == 0:
        return
    chosen = num_groups if groups is None else groups
    if not isinstance(chosen, list) and not (type(chosen) is int and chosen > 0):
        raise ValueError(f"groups must be a number from 1 up, or a list of lists of variables, not {chosen!r}")
    _warn("groups are Horovod's way to fuse gradients: here they are sent in buckets, for any groups")


def check_devices(*devices: str) -> None:
    """Warns if one of `devices` is not a CPU, because this library reduces tensors in host memory."""
    elsewhere = [device for device in devices if device and "cpu" not in device.lower()]
    if elsewhere:
        _warn(f"device {elsewhere[0]!r}: tensors travel from host memory, where TensorFlow brings them")


def hint(given: bool, what: str) -> None:
    """If the user has `given` a Horovod argument without effect in this library, warns with the text `what`."""
    if given:
        _warn(what)


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)
