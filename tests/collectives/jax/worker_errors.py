"""Run by every rank: what goes wrong between ranks reaches each of them, as the error that it is.

Invariant: ends with an assertion, or by saying what it saw; `killed` leaves the last rank dead.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import collectives
import collectives.jax as cj

comm = collectives.init(timeout=30)
RANK, SIZE = comm.rank, comm.size

total = jax.jit(cj.allreduce)
kept_open: list[collectives.Communicator] = []


def caught(kind: type[BaseException], function: Callable[[], Any], *words: str) -> BaseException:
    with pytest.raises(kind) as found:
        jax.block_until_ready(function())
    assert all(word in str(found.value) for word in words), found.value
    return found.value


def works(other: collectives.Communicator) -> None:
    """Both ways, in new functions."""
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.jit(lambda x: cj.allreduce(x, comm=other))(x), x * SIZE)
    np.testing.assert_array_equal(cj.allreduce(x, comm=other), x * SIZE)


def disagree() -> None:
    words = [f"collectives.jax.allreduce on rank {RANK}: DesyncError", "4 elements", "5 elements"]
    x = jnp.ones(4 + min(RANK, 1))

    # Compiled: XLA knows one kind of error. What it was about is kept, and typed_errors raises it.
    caught(jax.errors.JaxRuntimeError, lambda: total(x), *words)
    kept = cj.last_error()
    assert type(kept) is collectives.DesyncError and "5 elements" in str(kept)
    assert kept.__traceback__ is None and kept.__context__ is None, "keeps views of XLA's buffers"
    typed = cj.typed_errors()(lambda: total(x))
    error = caught(collectives.DesyncError, typed, "4 elements", "5 elements")
    assert isinstance(error.__cause__, jax.errors.JaxRuntimeError)
    assert isinstance(error, jax.errors.JaxRuntimeError) and isinstance(error, RuntimeError)
    # Not compiled: as it is. It is the communicator's first error, whatever is called.
    caught(collectives.DesyncError, lambda: cj.allgather(x), "4 elements", "5 elements")
    caught(jax.errors.JaxRuntimeError, lambda: cj.allgather(x), "4 elements", "5 elements")
    caught(collectives.DesyncError, cj.typed_errors()(lambda: cj.allgather(x)), "4 elements", "5 elements")
    # The user's communicator is none the worse.
    np.testing.assert_array_equal(comm.allreduce(np.ones(2)), np.full(2, SIZE))

    other = comm.dup()
    works(other)
    print("compiled")

    # Late: the error comes when the call has long returned, out of the block.
    def dispatch() -> None:
        with cj.typed_errors():
            late = jax.jit(lambda x: cj.allreduce(jax.lax.fori_loop(0, 60, lambda _, y: jnp.sin(y @ y), x), comm=other))
            late(jnp.ones((300 + RANK, 300 + RANK)))

    caught(collectives.DesyncError, dispatch, "90000 elements", "90601 elements")
    another = comm.dup()
    works(another)
    print("late")

    # Late, and seen by XLA alone: the next communicator does not suffer.
    late = jax.jit(lambda x: cj.allreduce(jax.lax.fori_loop(0, 60, lambda _, y: jnp.sin(y @ y), x), comm=another))
    caught(jax.errors.JaxRuntimeError, lambda: late(jnp.ones((300 + RANK, 300 + RANK))), "90000 elements")
    works(comm.dup())
    print("seen by XLA alone")

    # Rank 0 ends with a call in progress, in which it has yet to do its part.
    fresh = comm.dup()
    last = jax.jit(lambda x: cj.allreduce(jax.lax.fori_loop(0, 60, lambda _, y: jnp.sin(y @ y), x), comm=fresh))
    last(jnp.ones((300, 300))).block_until_ready()
    result = last(jnp.ones((300, 300)))
    if RANK == 1:
        assert np.isfinite(result).all()
    kept_open.append(fresh)
    print("ends")


def trees() -> None:
    gradients = {"kernel": jnp.ones((3, 4 - RANK)), "bias": jnp.ones(4), **({"extra": jnp.ones(2)} if RANK else {})}
    words = "only rank 0 has [0]['kernel'] float32[3, 4]", "only rank 1 has [0]['extra'] float32[2]"
    for step in (jax.jit(cj.allreduce_gradients), cj.allreduce_gradients):
        caught(collectives.DesyncError, cj.typed_errors()(lambda step=step: step(gradients)), *words)
    caught(collectives.DesyncError, lambda: cj.broadcast_parameters(gradients), *words)
    caught(collectives.DesyncError, lambda: cj.allreduce_gradients({"a": None if RANK else jnp.ones(2)}), "[0]['a']")
    # Nothing was reduced, so all goes on.
    np.testing.assert_array_equal(total(jnp.ones(2)), np.full(2, SIZE))
    print("trees")


def closed() -> None:
    other = comm.dup()
    sums = jax.jit(lambda x: cj.allreduce(x, comm=other))
    sums(jnp.ones(3)).block_until_ready()
    other.close()
    caught(collectives.Aborted, cj.typed_errors()(lambda: sums(jnp.ones(3))), "is closed", "compiled with")
    duplicate = cj._channel.channel_of(comm).comm
    gone = comm.dup()
    name = cj._channel.channel_of(gone)
    del gone
    gc.collect()
    assert name.comm.closed and not duplicate.closed
    works(comm)
    print("closed")


def killed() -> None:
    step = jax.jit(lambda x: jax.lax.scan(lambda x, _: (cj.allreduce(x, "avg"), None), x, None, length=1000)[0])
    step(jnp.ones(8)).block_until_ready()
    if RANK == SIZE - 1:
        print("dies", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    error = caught(jax.errors.JaxRuntimeError, lambda: step(jnp.ones(8)), "PeerLost", f"rank {SIZE - 1}")
    assert time.monotonic() - began < 15, "late"
    kept = cj.last_error()
    assert isinstance(kept, collectives.PeerLost) and kept.ranks == (SIZE - 1,), kept
    assert str(kept) in str(error)
    with_type = caught(collectives.PeerLost, cj.typed_errors()(lambda: step(jnp.ones(8))))
    assert isinstance(with_type, collectives.PeerLost) and with_type.ranks == (SIZE - 1,)
    print("survives", flush=True)


def main() -> None:
    assert cj.how() == sys.argv[1], cj.how()
    if sys.argv[2] == "killed":
        killed()
        return
    assert SIZE == 2
    trees()
    closed()
    disagree()


main()
