"""Access to the memory of JAX's arrays.

Invariant: JAX's arrays never change, so nothing is written into them. Only arrays on a single CPU device are read.
"""

from __future__ import annotations

import sys
from typing import Any

from collectives.arrays.exporters import buffers
from collectives.arrays.exporters.reached import Array, Reached, kind_of, plain, read_only


def read(x: Any, name: str, moved: bool) -> Array:
    check(x, name)
    return plain(x) if hasattr(x, "__dlpack__") else buffers.read(x, name, moved)


def reach(x: Any, name: str, moved: bool) -> Reached:
    check(x, name)
    if not hasattr(x, "__dlpack__"):
        return buffers.reach(x, name, moved)
    raise read_only(name, "JAX array")


def check(x: Any, name: str) -> None:
    """Raises TypeError, with advice, unless the JAX array `x` has values in the memory of a single CPU device.

    `name`: what the error calls `x`.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        return
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            f"{name} is traced by a JAX transformation (jit, vmap, grad, ...), and has no values yet: call "
            "collectives.jax.allreduce and its like there"
        )
    if not isinstance(x, jax.Array):
        return
    if x.is_deleted():
        raise TypeError(
            f"{name} is a JAX array that was deleted, or donated to a compiled function: it has no values any more"
        )
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        raise TypeError(f"{name} is an array of random keys: give jax.random.key_data({name})")
    devices = len(x.sharding.device_set)
    if devices > 1 and x.is_fully_addressable:
        raise TypeError(
            f"{name} is a JAX array over {devices} devices: give numpy.asarray({name}), which puts it together, or the "
            f"data of one of {name}.addressable_shards"
        )
    if devices > 1:
        raise TypeError(
            f"{name} is a JAX array over {devices} devices of several processes: give the data of one of "
            f"{name}.addressable_shards"
        )
    (device,) = x.sharding.device_set
    if device.platform != "cpu":
        raise TypeError(f"{name} is a {kind_of(x)} on {device}: give numpy.asarray({name})")
