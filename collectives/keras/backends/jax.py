"""Keras on JAX: the compiled training step exchanges gradients in an ordered io_callback, which uses only NumPy.

Invariant: a callback never calls JAX: JAX would wait for the step, and the step waits for the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final, TypeVar

import jax
import numpy as np
from jax.experimental import io_callback

from collectives.arrays.array import Array
from collectives.core.caught_as import caught_as
from collectives.core.communicator import Communicator
from collectives.gradients.channel import channel
from collectives.gradients.plan import Entry
from collectives.keras.backends import Accumulate, Options
from collectives.keras.backends.host import HostExchange, entry
from collectives.keras.hook import Exchange

F = TypeVar("F", bound=Callable[..., Any])

NOT_COMPILED: Final = ""  # callbacks are part of compiled steps


def exchange(comm: Communicator, options: Options) -> Exchange:
    return _Exchange(comm, options)


@contextmanager
def typed_errors(found: Exchange) -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if found.error is None:
            raise
        raise caught_as(found.error, jax.errors.JaxRuntimeError) from error


def accumulate(every: int, sparse_as_dense: bool) -> Accumulate:
    raise NotImplementedError(
        "backward_passes_per_step has no place to keep gradients on the JAX backend, whose steps have no state of "
        "their own: give the optimizer gradient_accumulation_steps instead"
    )


def allreduce(tensor: Any, comm: Communicator) -> Any:
    return _allreduce(comm, tensor)


def after(gradients: Sequence[Any]) -> AbstractContextManager[Any]:
    return nullcontext()


def unconverted(function: F) -> F:
    return function


class _Exchange(HostExchange):
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        owners = [None] * len(gradients) if variables is None else list(variables)
        given = [
            self.filled(g, v, lambda variable: jax.numpy.zeros(variable.shape, variable.dtype))
            for g, v in zip(gradients, owners, strict=True)
        ]
        names = [str(getattr(v, "path", "")) for v in owners]
        plan = self.prepare(
            [Entry(name, "none") if g is None else entry(name, g.dtype, g.shape)
             for name, g in zip(names, given, strict=True)]
        )  # fmt: skip
        there = [g for g in given if g is not None]
        results = iter(_outside(lambda arrays: self.run(plan, arrays), there))
        return [None if g is None else next(results) for g in given]


def _outside(function: Callable[[list[Array]], list[Array]], arrays: list[Any]) -> list[Any]:
    """Call `function` with `arrays` as NumPy arrays, and return its results as JAX arrays.

    In a traced step, the call is made when the step runs. `function` returns arrays of the same shapes and dtypes as
    those that it is given.
    """
    if not any(isinstance(x, jax.core.Tracer) for x in arrays):
        return [jax.numpy.asarray(x) for x in function([np.asarray(x) for x in arrays])]

    def body(*given: Any) -> list[Array]:
        return function([np.asarray(x) for x in given])

    found: list[Any] = io_callback(
        body, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays], *arrays, ordered=True
    )
    return found


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _allreduce(comm: Communicator, tensor: Any) -> Any:
    (total,) = _outside(lambda arrays: [channel(comm).comm.allreduce(arrays[0])], [tensor])
    return total


def _forward(comm: Communicator, tensor: Any) -> tuple[Any, None]:
    return _allreduce(comm, tensor), None


def _backward(comm: Communicator, kept: None, upstream: Any) -> tuple[Any]:
    return (_allreduce(comm, upstream),)


_allreduce.defvjp(_forward, _backward)
