"""JAX's arrays given to a communicator: read where they lie, never written, refused with words that help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives.arrays import array as arrays
from collectives.core.communicator import Communicator
from tests.collectives.groups import ranks
from tests.launched import launched
from tests.lazily import Lazily

jax = Lazily("jax", "JAX is not installed")


def _deleted() -> Any:
    x = jax.numpy.ones(2) + 1
    x.delete()
    return x


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "deleted": (_deleted, "was deleted, or donated"),
    "keys": (lambda: jax.random.key(0), r"jax.random.key_data\(x\)"),
    "a shape": (lambda: jax.ShapeDtypeStruct((2,), "float32"), r"numpy.asarray\(x\)"),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("use", [arrays.reading, arrays.writing])
def test_what_has_no_numbers_is_refused(name: str, use: Callable[[Any, str], Any]) -> None:
    make, words = REFUSED[name]
    with pytest.raises(TypeError, match=words):
        use(make(), "x")


@pytest.mark.parametrize("transformation", ["jit", "vmap", "grad"])
def test_tracers_are_refused(transformation: str) -> None:
    def function(x: Any) -> Any:
        for use in (arrays.reading, arrays.writing):
            with pytest.raises(TypeError, match=r"traced by a JAX transformation.*collectives.jax.allreduce"):
                use(x)
        return x

    x = 1.0 if transformation == "grad" else jax.numpy.ones(2)
    getattr(jax, transformation)(function)(x)


SHARDED = """
import jax, numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from collectives.arrays import array as arrays
mesh = Mesh(numpy.array(jax.devices()), "a")
x = jax.device_put(jax.numpy.arange(4.0), NamedSharding(mesh, PartitionSpec("a")))
for use in (arrays.reading, arrays.writing):
    try:
        use(x, "x")
    except TypeError as error:
        print(error)
print(arrays.reading(numpy.asarray(x)).tolist())
"""


def test_arrays_over_several_devices_are_refused_with_the_cure(tmp_path: Path) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    done = launched(1, script, XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu").succeeded()
    *refusals, whole = done.lines[0]
    assert whole == "[0.0, 1.0, 2.0, 3.0]" and len(refusals) == 2
    for refusal in refusals:
        assert refusal.startswith("x is a JAX array over 2 devices: give numpy.asarray(x)")


def test_they_are_read_without_a_copy() -> None:
    x = jax.numpy.arange(4096.0)
    assert arrays.reading(x).ctypes.data == x.unsafe_buffer_pointer()


def test_no_rank_writes_one_and_none_goes_on_alone() -> None:
    def body(comm: Communicator) -> None:
        x = jax.numpy.array([1.0, 2.0])
        for wrong in (
            lambda: comm.broadcast(x, 0),
            lambda: comm.allreduce(x, out=x),
            lambda: comm.recv(x, 1 - comm.rank),
            lambda: comm.allreduce_many([x], out=[x]),
            lambda: comm.broadcast_async(x, 0),
        ):
            with pytest.raises(ValueError, match=r"read-only, as every JAX array is: give a copy, numpy.array"):
                wrong()
        assert comm.allreduce(x).tolist() == [2, 4]
        assert x.tolist() == [1, 2]

    ranks(2, body)


def test_bfloat16_is_reduced() -> None:
    def body(comm: Communicator) -> None:
        total = comm.allreduce(jax.numpy.array([1.5, -2.0], "bfloat16"))
        assert total.dtype == ml_dtypes.bfloat16 and total.tolist() == [3, -4]

    ranks(2, body)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_narrow_dtypes_are_moved_and_not_reduced(name: str) -> None:
    def body(comm: Communicator) -> None:
        x = jax.numpy.array([comm.rank, 3]).astype(name)
        found = comm.allgather(x)
        assert found.dtype.name == name and found.astype(np.float32).tolist() == [[0, 3], [1, 3]]
        with pytest.raises(TypeError, match=f"{name}, which can be moved .* but not reduced"):
            comm.allreduce(x)
        comm.barrier()

    ranks(2, body)


def test_gradients_of_integers_pass() -> None:
    """JAX gives them the dtype float0."""

    def body(comm: Communicator) -> None:
        with jax.disable_jit():
            gradients = jax.grad(lambda x, n: (x * n).sum(), (0, 1), allow_int=True)(
                jax.numpy.ones(2), jax.numpy.array([1, 2])
            )
        found = comm.allreduce_many(list(gradients), "avg")
        assert found[0].tolist() == [1, 2] and found[1].dtype == jax.dtypes.float0 and found[1].shape == (2,)
        assert comm.allreduce(gradients[1]).dtype == jax.dtypes.float0

    ranks(2, body)
