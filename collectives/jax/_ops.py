"""The collectives of collectives.jax, for eager code and compiled functions.

Invariant: a whole tree of arrays is exchanged in one call, and the result is a tree of the same structure. All
collectives run in the order in which the program calls them.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from collectives.calls.fusion import BUCKET
from collectives.core.communicator import Communicator
from collectives.jax._channel import Channel, channel_of
from collectives.jax._kinds import (
    Allgather,
    Allreduce,
    Alltoall,
    Barrier,
    Broadcast,
    Kind,
    Recv,
    ReduceScatter,
    Send,
)
from collectives.jax._primitive import bind


def allreduce(x: Any, op: str = "sum", *, comm: Communicator | None = None, bucket_bytes: int = BUCKET) -> Any:
    """Returns the reduction by `op` of `x` over all ranks, bitwise equal on all ranks.

    `x`: an array or a pytree (tree of arrays), with the same shapes and dtypes on all ranks. `op`: sum prod min max avg
    band bor bxor land lor lxor. Only sum and avg have derivatives; each is its own transpose. Small arrays of a pytree
    are joined into buckets of `bucket_bytes` bytes, which are reduced together. Arrays of dtype float0, which jax.grad
    returns for integers, are returned unchanged.
    """
    return _mapped(Allreduce(op, bucket_bytes), x, comm)


def allgather(x: Any, *, comm: Communicator | None = None) -> Any:
    """Returns every rank's `x`, stacked in rank order: an array of shape (size, *x.shape).

    `x` has to have the same shape and dtype on all ranks. The transpose, for derivatives, is reduce_scatter with sum.
    """
    return _mapped(Allgather(), x, comm)


def broadcast(x: Any, root: int = 0, *, comm: Communicator | None = None) -> Any:
    """Returns the `x` of rank `root` on every rank. All ranks have to pass an `x` of the same shape and dtype.

    The transpose, for derivatives, is the sum on rank `root`, and zeros on the other ranks.
    """
    return _mapped(Broadcast(root), x, comm)


def reduce_scatter(x: Any, op: str = "sum", *, comm: Communicator | None = None) -> Any:
    """Reduces `x` over all ranks by `op`, and returns this rank's rows: shape (x.shape[0] / size, *x.shape[1:]).

    `size` is the number of ranks; ValueError if it does not divide `x.shape[0]`. Only sum and avg have derivatives; the
    transpose is allgather, divided by `size` for avg.
    """
    return _mapped(ReduceScatter(op), x, comm)


def alltoall(x: Any, *, comm: Communicator | None = None) -> Any:
    """Sends block i of `x` to rank i; returns the received blocks, in the order of the ranks that sent them.

    The blocks are equal parts of the first axis: ValueError if the number of ranks does not divide `x.shape[0]`. The
    transpose, for derivatives, is alltoall itself.
    """
    return _mapped(Alltoall(), x, comm)


def barrier(token: Any = None, *, comm: Communicator | None = None) -> Any:
    """Waits until every rank has called `barrier` and has computed its `token`, any pytree; returns `token`.

    A computation that has to run after the barrier must use the returned token. Later collectives run after the barrier
    in any case.
    """
    return _mapped(Barrier(), token, comm, check=False)


def send(x: Any, dest: int, *, comm: Communicator | None = None) -> None:
    """Sends the array `x` to rank `dest`, which has to call `recv`. A send has no derivative.

    If two ranks exchange arrays, one of them has to receive first.
    """
    bind(Send(dest), channel_of(comm), None, [_array(x)])


def recv(like: Any, source: int, *, comm: Communicator | None = None) -> Any:
    """Returns the array that rank `source` sends, of the shape and dtype of `like`. Its derivative is zero.

    `like` is an array, whose values are not used, or a jax.ShapeDtypeStruct.
    """
    form = (tuple(like.shape), jax.numpy.dtype(like.dtype))
    (result,) = bind(Recv(source, (form,)), channel_of(comm), None, [])
    return result


def _mapped(kind: Kind, x: Any, comm: Communicator | None, check: bool = True) -> Any:
    channel: Channel = channel_of(comm)
    leaves, structure = jax.tree_util.tree_flatten_with_path(x)
    names = tuple(jax.tree_util.keystr(path) for path, _ in leaves)
    is_tree = check and not jax.tree_util.treedef_is_leaf(structure)
    sent = [i for i, (_, leaf) in enumerate(leaves) if not _is_empty(leaf)]
    names = tuple(names[i] for i in sent)
    found = bind(kind, channel, names if is_tree else None, [_array(leaves[i][1]) for i in sent])
    results: list[Any] = [None] * len(leaves)
    for i, result in zip(sent, found, strict=True):
        results[i] = result
    for i in set(range(len(leaves))).difference(sent):
        ((shape, _),) = kind.results([(leaves[i][1].shape, np.dtype(np.float32))], channel.size)
        results[i] = np.zeros(shape, jax.dtypes.float0)
    return jax.tree_util.tree_unflatten(structure, results)


def _is_empty(x: Any) -> bool:
    """Whether `x` has dtype float0, which JAX gives to gradients of integers: such an array has no data to send."""
    return getattr(x, "dtype", None) == jax.dtypes.float0


def _array(x: Any) -> Any:
    array = jnp.asarray(x)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"x has dtype {array.dtype}: give jax.random.key_data(x)")
    return array
