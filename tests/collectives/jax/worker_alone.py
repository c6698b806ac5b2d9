"""Run by one process: what needs no other rank. `worker_alone.py CHECK`.

Invariant: each check has a process of its own, as what it does to JAX lasts.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"


def refused(kind: type[BaseException], words: Sequence[str], function: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(kind) as found:
        function(*arguments)
    assert all(word in str(found.value) for word in words), found.value


def no_jax() -> None:
    sys.modules["jax"] = None  # type: ignore[assignment]

    def use() -> None:
        import collectives.jax

        print(collectives.jax.how())

    refused(ImportError, ["pip install jax"], use)


def no_extension() -> None:
    sys.modules["collectives.native._xla"] = None  # type: ignore[assignment]
    import collectives.jax as cj

    os.environ["COLLECTIVES_JAX"] = "ffi"
    refused(ImportError, ["native/_xla cannot be imported", "install pycollectives again"], cj.how)
    os.environ["COLLECTIVES_JAX"] = "callback"
    refused(ValueError, ["auto, ffi or io_callback"], cj.how)
    del os.environ["COLLECTIVES_JAX"]
    with pytest.warns(RuntimeWarning, match="native/_xla cannot be imported .* by callbacks, which copy"):
        assert cj.how() == "io_callback"


def other_jaxlib() -> None:
    """A handler that this jaxlib refuses: registered once, and not to be registered again."""
    import jax

    import collectives.jax as cj

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise jax.errors.JaxRuntimeError("the handler's API version is incompatible")

    jax.ffi.register_ffi_target = refuse
    os.environ["COLLECTIVES_JAX"] = "ffi"
    refused(ImportError, ["does not work with jaxlib", "incompatible"], cj.how)
    del os.environ["COLLECTIVES_JAX"]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert cj.how() == "io_callback"
    assert any("does not work with jaxlib" in str(warning.message) for warning in seen)


def arguments() -> None:
    import jax
    import numpy as np
    from jax import numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import collectives
    import collectives.jax as cj

    x = jnp.ones((2, 4))
    refused(RuntimeError, ["collectives.init()"], cj.allreduce, x)
    with collectives.init():
        wrong: list[tuple[type[Exception], list[str], Callable[[Any], Any], Any]] = [
            (TypeError, ["'avg'", "bool"], lambda x: cj.allreduce(x, "avg"), jnp.ones(3, bool)),
            (TypeError, ["float8_e4m3fn"], cj.allreduce, jnp.ones(3, jnp.float8_e4m3fn)),
            (TypeError, ["int4"], cj.allgather, jnp.ones(3, jnp.int4)),
            (TypeError, ["jax.random.key_data"], cj.broadcast, jax.random.key(0)),
            (ValueError, ["'mean'", "avg"], lambda x: cj.allreduce(x, "mean"), x),
            (ValueError, ["root is 1"], lambda x: cj.broadcast(x, 1), x),
            (ValueError, ["first axis"], cj.reduce_scatter, jnp.float32(1)),
        ]
        for kind, words, function, operand in wrong:
            refused(kind, words, function, operand)
            refused(kind, words, jax.jit(function), operand)
        world: Any = "world"
        refused(TypeError, ["Communicator"], lambda: cj.allreduce(x, comm=world))
        refused(ValueError, ["every"], cj.average_parameters, x, 1, 0)
        most = jax.grad(lambda x: cj.allreduce(x, "max").sum())
        refused(TypeError, ["has a derivative for sum and avg, not for 'max'", "stop_gradient"], most, x)
        stopped = jax.grad(lambda x: (x * cj.allreduce(jax.lax.stop_gradient(x), "max")).sum())(x)
        np.testing.assert_array_equal(stopped, x)

        # One device: where a function runs on several, one rank would call several times.
        mesh = Mesh(np.array(jax.devices()), ("device",))
        spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("device")))
        for function, operand in ((jax.jit(cj.allreduce), spread), (cj.allreduce, spread), (jax.pmap(cj.allreduce), x)):
            refused(ValueError, ["one device per process"], function, operand)
        (device,) = jax.jit(cj.allreduce)(jax.device_put(x, jax.devices()[1])).devices()
        assert device == jax.devices()[1]  # any one

        with jax.disable_jit():
            np.testing.assert_array_equal(jax.jit(cj.allreduce)(x), x)
        assert cj.last_error() is None


def views() -> None:
    """XLA's buffers are let go when a call ends, well or not."""
    import numpy as np

    import collectives
    from collectives.jax import _host
    from collectives.jax._channel import channel_of
    from collectives.jax._kinds import Allgather, Alltoall
    from collectives.jax._primitive import how

    assert how() == "ffi"
    with collectives.init() as comm:
        form = ((1, 3), np.dtype(np.float32))
        for kind, out, well in ((Allgather(), ((1, 1, 3), form[1]), True), (Alltoall(), ((1, 4), form[1]), False)):
            number = _host.number_of(_host.Call(kind, channel_of(comm), None, (form,), (out,)))
            read, write = memoryview(bytearray(12)), memoryview(bytearray(4 * math.prod(out[0])))
            text = _host.run_views(number, [read], [write])
            assert (text is None) is well, text
            assert text is None or "ValueError: out has shape" in text
            read.release()
            write.release()  # BufferError while anybody has a view of it


def lowered_for_cuda() -> None:
    """A function that is compiled for a GPU calls this library's handler. XLA itself compiles nothing here."""
    import jax

    import collectives
    import collectives.jax as cj

    with collectives.init("memory://alone", rank=0, size=1) as comm:
        both = jax.jit(lambda x: cj.allgather(cj.allreduce(x * 2, comm=comm), comm=comm))
        text = both.trace(jax.numpy.ones(4)).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("@pycollectives_run") == 2, text


globals()[sys.argv[1]]()
