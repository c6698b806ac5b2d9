"""Run by every rank, `worker_ops.py HOW [CHECK]...`: collectives in JAX against what all ranks' data give.

Invariant: every rank knows every rank's data, made from its number, and so what has to come out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import collectives
import collectives.jax as cj
from collectives.arrays.array import dtype_names

Array = Any
comm = collectives.init(timeout=60)
RANK, SIZE = comm.rank, comm.size


def everyones(*shape: int, dtype: Any = np.float64, seed: int = 0) -> Array:
    """What the ranks have, stacked."""
    return np.random.default_rng(seed).integers(1, 5, (SIZE, *shape)).astype(dtype)


# --- what each collective does to all ranks' operands, stacked

WHOLE: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "allreduce": (cj.allreduce, lambda x: jnp.broadcast_to(x.sum(0), x.shape)),
    "average": (lambda x: cj.allreduce(x, "avg"), lambda x: jnp.broadcast_to(x.mean(0), x.shape)),
    "allgather": (cj.allgather, lambda x: jnp.broadcast_to(x, (SIZE, *x.shape))),
    "broadcast": (lambda x: cj.broadcast(x, 1), lambda x: jnp.broadcast_to(x[1], x.shape)),
    "reduce_scatter": (cj.reduce_scatter, lambda x: x.sum(0).reshape(SIZE, -1, *x.shape[2:])),
    "average_scatter": (
        lambda x: cj.reduce_scatter(x, "avg"),
        lambda x: x.mean(0).reshape(SIZE, -1, *x.shape[2:]),
    ),
    "alltoall": (cj.alltoall, lambda x: x.reshape(SIZE, SIZE, -1, *x.shape[2:]).swapaxes(0, 1).reshape(x.shape)),
    "barrier": (cj.barrier, lambda x: x),
}


def check_results() -> None:
    for name, (ours, whole) in WHOLE.items():
        x = everyones(2 * SIZE, 3)
        for function in (ours, jax.jit(ours)):
            np.testing.assert_array_equal(function(x[RANK]), whole(x)[RANK], err_msg=name)


def check_shapes() -> None:
    for shape in ((), (0,), (3, 0, 2), (1,), (2, 3, 4)):
        x = everyones(*shape)
        np.testing.assert_array_equal(jax.jit(cj.allreduce)(x[RANK]), x.sum(0))
        np.testing.assert_array_equal(cj.allgather(x[RANK]), x)
        np.testing.assert_array_equal(cj.broadcast(x[RANK], SIZE - 1), x[-1])


def check_dtypes() -> None:
    for dtype in dtype_names():
        if dtype.kind == "b":
            continue
        x = everyones(SIZE * 5, dtype=dtype)
        total = jax.jit(cj.allreduce)(x[RANK])
        assert total.dtype == dtype
        np.testing.assert_array_equal(total, x.sum(0).astype(dtype))
        np.testing.assert_array_equal(cj.allgather(x[RANK]), x)
        if dtype.kind in "iu":
            mean = np.trunc(x.sum(0) / SIZE).astype(dtype)
            np.testing.assert_array_equal(jax.jit(lambda y: cj.allreduce(y, "avg"))(x[RANK]), mean)
            np.testing.assert_array_equal(cj.reduce_scatter(x[RANK], "avg"), np.split(mean, SIZE)[RANK])
    x = everyones(7) > 2
    np.testing.assert_array_equal(cj.allreduce(x[RANK], "land"), x.all(0))
    np.testing.assert_array_equal(cj.allreduce(everyones(7)[RANK], "max"), everyones(7).max(0))


def check_bytes() -> None:
    """8-bit floats can be moved, though nothing can be computed with them."""
    x = everyones(SIZE, 3).astype(jnp.float8_e4m3fn)
    for function in (cj.allgather, jax.jit(cj.allgather)):
        got = function(x[RANK])
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(x, np.float32))
    np.testing.assert_array_equal(np.asarray(cj.broadcast(x[RANK], 1), np.float32), np.asarray(x[1], np.float32))
    np.testing.assert_array_equal(np.asarray(cj.barrier(jnp.arange(5, dtype=jnp.int4)), int), np.arange(5))
    swapped = np.asarray(cj.alltoall(x[RANK]), np.float32)
    np.testing.assert_array_equal(swapped, np.asarray(x[:, RANK], np.float32))


def check_gradients_of_integers() -> None:
    """jax.grad gives float0 for them, of which there is nothing to send."""

    def loss(parameters: Any, x: Array) -> Array:
        return (parameters["w"] * x).sum() + parameters["step"]

    parameters = {"step": 3, "w": jnp.ones(2), "counts": [jnp.arange(4)]}
    for compile_it in (lambda f: f, jax.jit):
        step = compile_it(lambda p, x: cj.allreduce_gradients(jax.grad(loss, allow_int=True)(p, x)))
        got = step(parameters, everyones(2)[RANK])
        np.testing.assert_allclose(got["w"], everyones(2).mean(0))
        assert got["step"].dtype == got["counts"][0].dtype == jax.dtypes.float0
        assert got["step"].shape == () and got["counts"][0].shape == (4,)
    none = np.zeros(3, jax.dtypes.float0)
    assert cj.allgather({"a": none})["a"].shape == (SIZE, 3)
    assert cj.broadcast(none).dtype == jax.dtypes.float0


def check_derivatives() -> None:
    """Against those of the function from all ranks' operands to all ranks' results."""
    x, tangent = everyones(2 * SIZE, 3) / 4, everyones(2 * SIZE, 3, seed=1)
    for name, (ours, whole) in WHOLE.items():

        def derivatives(function: Callable[[Array], Array], x: Array, tangent: Array, seed: Array) -> Array:
            result, pull = jax.vjp(lambda x: jnp.sin(function(x**2)), x)
            return pull(seed)[0], jax.jvp(lambda x: jnp.sin(function(x**2)), (x,), (tangent,))[1], result

        compiled = jax.jit(derivatives, static_argnums=0)
        seed = np.random.default_rng(2).normal(size=jax.eval_shape(whole, x).shape)
        wanted = compiled(whole, x, tangent, seed)
        for function in (compiled, derivatives) if name in ("allreduce", "broadcast") else (compiled,):
            got = function(ours, x[RANK], tangent[RANK], seed[RANK])
            for ours_one, all_of_it in zip(got, wanted, strict=True):
                np.testing.assert_allclose(ours_one, all_of_it[RANK], rtol=1e-12, err_msg=name)


def check_second_derivative() -> None:
    """Through a broadcast, whose transpose is a sum on the root, whose transpose is a broadcast."""
    x = everyones(3) / 4

    def total(x: Array) -> Array:
        return jax.grad(lambda x: (cj.broadcast(x, 0) ** 3).sum())(x).sum()

    np.testing.assert_allclose(jax.grad(total)(x[RANK]), SIZE * 6 * x[0] if RANK == 0 else 0 * x[0])


def check_data_parallel() -> None:
    """The gradient of a loss over all samples, from parts of them, whether or not the loss itself is averaged."""
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(SIZE * 6, 5)), random.normal(size=SIZE * 6)
    parameters = {"kernel": random.normal(size=(5, 4)), "bias": random.normal(size=4)}

    def loss(parameters: Any, inputs: Array, targets: Array) -> Array:
        return ((jnp.tanh(inputs @ parameters["kernel"] + parameters["bias"]).sum(1) - targets) ** 2).mean()

    def everyones_loss(*args: Any) -> Array:
        return cj.allreduce(loss(*args), "avg")

    mine = slice(RANK * 6, RANK * 6 + 6)
    wanted, expected = jax.value_and_grad(loss)(parameters, inputs, targets)
    for function in (loss, everyones_loss):
        value, gradients = jax.jit(jax.value_and_grad(function))(parameters, inputs[mine], targets[mine])
        averaged = jax.jit(cj.allreduce_gradients)(gradients)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12), averaged, expected)
    np.testing.assert_allclose(value, wanted)


def check_batches() -> None:
    """vmap makes one call of it, over whichever axis."""
    for name, (ours, _) in WHOLE.items():
        x = everyones(2 * SIZE, 3, 4)[RANK]
        apart = np.stack([ours(x[:, i]) for i in range(3)])
        for axis in (0, 2):
            moved = np.moveaxis(x, 1, axis)  # the batch of 3
            batched = jax.vmap(ours, in_axes=axis)
            assert str(jax.make_jaxpr(batched)(moved)).count("collective[") == 1
            np.testing.assert_array_equal(jax.jit(batched)(moved), apart, err_msg=f"{name} {axis}")
    one, both = jax.vmap(lambda x, y: cj.allreduce((x, y)), in_axes=(None, 0), out_axes=(None, 0))(1.0, np.ones(3))
    np.testing.assert_array_equal(one, SIZE)
    np.testing.assert_array_equal(both, np.full(3, SIZE))


def check_control_flow() -> None:
    x = everyones(4) / 8
    mean = x.mean(0)

    def body(x: Array, _: Any) -> tuple[Array, Array]:
        x = cj.allreduce(x, "avg") * 2
        return x, x.sum()

    def thrice(x: Array) -> Array:
        return jax.lax.scan(body, x, None, length=3)[1].sum()

    for step in (thrice, jax.jit(thrice)):
        np.testing.assert_allclose(step(x[RANK]), mean.sum() * 14)
        np.testing.assert_allclose(jax.grad(step)(x[RANK]), np.full(4, 14.0))
    np.testing.assert_allclose(jax.jit(jax.grad(jax.checkpoint(thrice)))(x[RANK]), np.full(4, 14.0))

    def loop(x: Array, limit: Array) -> Array:
        return jax.lax.while_loop(lambda x: x.sum() < limit, cj.allreduce, x)

    doubled = everyones(4)[0] / 8
    rounds = 0
    while doubled.sum() < 1000:
        doubled, rounds = doubled * SIZE, rounds + 1
    assert rounds > 1
    np.testing.assert_allclose(jax.jit(loop)(everyones(4)[0] / 8, 1000.0), doubled)

    def maybe(x: Array, wanted: Array) -> Array:
        return jax.lax.cond(wanted, cj.allreduce, lambda x: x, x).sum()

    for wanted in (True, False):
        np.testing.assert_allclose(jax.jit(maybe)(x[RANK], wanted), (x.sum(0) if wanted else x[RANK]).sum())
        np.testing.assert_allclose(jax.jit(jax.grad(maybe))(x[RANK], wanted), np.full(4, SIZE if wanted else 1))

    @jax.custom_vjp
    def replicated(x: Array) -> Array:
        return cj.allreduce(x)

    replicated.defvjp(lambda x: (cj.allreduce(x), None), lambda _, y: (y,))
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: replicated(x).sum()))(x[RANK]), np.ones(4))


def check_order() -> None:
    """Collectives that have nothing to do with each other keep their order, compiled (on rank 0) or not."""

    def many(x: Array) -> list[Array]:
        totals = [cj.allreduce(jnp.full(n + 1, x)) for n in range(8)]
        cj.allgather(x)  # whose result nobody uses
        return [y * 2 for y in reversed(totals)]

    got = (jax.jit(many) if RANK == 0 else many)(float(RANK))
    assert [y.shape[0] for y in got] == list(range(8, 0, -1))
    assert all((y == SIZE * (SIZE - 1)).all() for y in got)


def check_order_of_calls() -> None:
    """A compiled function whose collective comes late is not overtaken by the next one's, nor mixed up with ours."""

    def slowly(x: Array) -> Array:
        return jax.lax.fori_loop(0, 30, lambda _, y: jnp.tanh(y @ y) + x, x)

    late = jax.jit(lambda x: cj.allreduce(slowly(x)).sum())
    soon = jax.jit(lambda x: cj.allreduce(x * 2))
    wide = jnp.full((250, 250), 1 / 250)
    results = []
    for number in range(3):
        first = late(wide)
        if RANK > 0:  # on rank 0 all are in progress at once
            first.block_until_ready()
        results.append((first, soon(jnp.full(number + 1, 1.0))))
        np.testing.assert_array_equal(comm.allreduce(np.ones(2)), np.full(2, SIZE))
    for number, (first, second) in enumerate(results):
        np.testing.assert_allclose(first, slowly(wide).sum() * SIZE)
        np.testing.assert_array_equal(second, np.full(number + 1, 2.0 * SIZE))


def check_operands_stay() -> None:
    """A collective works in place where XLA lets it, which it does not where the operand is used again."""
    x = jnp.arange(5.0) + RANK
    before = np.array(x)
    total = sum(np.arange(5.0) + rank for rank in range(SIZE))
    both = jax.jit(lambda x: (cj.allreduce(x), cj.broadcast(x, 1), x + 0, cj.allreduce(x * 1)))(x)
    for got, wanted in zip(both, (total, np.arange(5.0) + 1, before, total), strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(cj.allreduce(x), total)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(jax.jit(cj.allreduce, donate_argnums=0)(x), total)
    constant = np.ones(3)
    for _ in range(3):
        np.testing.assert_array_equal(jax.jit(lambda: cj.allreduce(constant))(), np.full(3, SIZE))


def check_trees() -> None:
    x = everyones(3, 2)
    tree = {"w": x[RANK], "b": [jnp.bfloat16(RANK), None, np.float16(2)], "n": ()}
    for function in (cj.allreduce_gradients, jax.jit(cj.allreduce_gradients)):
        got = function(tree)
        np.testing.assert_allclose(got["w"], x.mean(0))
        assert got["b"][0].dtype == jnp.bfloat16 and got["b"][1] is None and got["b"][2] == 2 and got["n"] == ()
    many = [np.full(n % 7 + 1, float(n + RANK)) for n in range(60)]
    for n, total in enumerate(cj.allreduce_gradients(many, op="sum", bucket_bytes=200)):
        np.testing.assert_array_equal(total, np.full(n % 7 + 1, n * SIZE + SIZE * (SIZE - 1) / 2))
    start = cj.broadcast_parameters({"w": x[RANK], "step": RANK, "on": RANK == 1}, root_rank=1)
    np.testing.assert_array_equal(start["w"], x[1])
    assert start["step"] == 1 and bool(start["on"])
    assert cj.allreduce_gradients({}) == {}


def check_metrics() -> None:
    got = cj.average_metrics({"loss": float(RANK), "right": jnp.float32(1)}, weight=RANK + 1)
    weights = np.arange(1, SIZE + 1)
    np.testing.assert_allclose(got["loss"], (weights * np.arange(SIZE)).sum() / weights.sum(), rtol=1e-6)
    np.testing.assert_allclose(got["right"], 1)


def check_local_steps() -> None:
    compiled = jax.jit(cj.average_parameters, static_argnums=2)
    for average in (cj.average_parameters, lambda p, step, every: compiled(p, jnp.asarray(step), every)):
        parameters = {"w": jnp.full(3, float(RANK)), "seen": RANK}
        for step in range(1, 7):
            parameters["w"] = parameters["w"] + RANK
            parameters = average(parameters, step, 3)
            own = RANK + RANK * step
            wanted = own if step < 3 else (SIZE - 1) / 2 * 4 + RANK * (step - 3) if step < 6 else (SIZE - 1) / 2 * 7
            np.testing.assert_allclose(parameters["w"], wanted)
            assert parameters["seen"] == RANK


def check_messages() -> None:
    ring = jnp.arange(4.0) + RANK

    @jax.jit
    def shift(x: Array) -> Array:
        if RANK % 2:
            got = cj.recv(x, (RANK - 1) % SIZE)
            cj.send(x, (RANK + 1) % SIZE)
        else:
            cj.send(x, (RANK + 1) % SIZE)
            got = cj.recv(jax.ShapeDtypeStruct(x.shape, x.dtype), (RANK - 1) % SIZE)
        return got

    np.testing.assert_array_equal(shift(ring), np.arange(4.0) + (RANK - 1) % SIZE)
    with pytest.raises(TypeError, match="no derivative"):  # before it is sent
        jax.jvp(lambda x: cj.send(x, 0), (ring,), (ring,))


def check_groups() -> None:
    """Another communicator in the same function."""
    pair = comm.split(RANK // 2)
    assert pair is not None
    both = jax.jit(lambda x: (cj.allreduce(x, comm=pair), cj.allreduce(x, comm=comm)))(float(RANK))
    assert both[0] == 2 * (RANK // 2 * 2) + 1 and both[1] == SIZE * (SIZE - 1) / 2
    pair.close()


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    how, *wanted = sys.argv[1:]
    assert cj.how() == how, cj.how()
    checks = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}
    for name in wanted or checks:
        checks[name]()
        print(name, flush=True)


main()
