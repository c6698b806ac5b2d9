"""Collectives of tensors, on each of two ranks: eager, in a tf.function, and their gradients."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import collectives
import collectives.tensorflow as ct
from collectives import Communicator
from tests.collectives.tensorflow.checks import main


def both(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    """What comes of it at once, and in tf.functions that know shapes, no first extents, and nothing of them."""
    rows = [tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank else [], x.dtype) for x in inputs]
    nothing = [tf.TensorSpec(None, x.dtype) for x in inputs]
    traced = [
        tf.function(function, autograph=False),
        tf.function(function, autograph=False, input_signature=rows),
        tf.function(function, autograph=False, input_signature=nothing),
    ]
    return [run(*inputs) for run in (function, *traced)]


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def check_allreduce(comm: Communicator) -> None:
    mine = np.arange(6, dtype=np.float32).reshape(2, 3) + comm.rank
    every = [np.arange(6, dtype=np.float32).reshape(2, 3) + rank for rank in range(2)]
    for op, total in {
        "average": np.mean(every, 0),
        "sum": np.sum(every, 0),
        "min": np.min(every, 0),
        "max": np.max(every, 0),
        "prod": np.prod(every, 0),
    }.items():
        for found in both(lambda x, op=op: ct.allreduce(x, op, comm=comm), tf.constant(mine)):
            same(found, total)
            assert found.dtype == tf.float32 and found.shape == (2, 3)
    found = ct.allreduce(tf.constant(mine), "sum", comm=comm, prescale=3.0, postscale=0.5)
    same(found, np.sum(every, 0) * 1.5)
    for dtype in (tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.uint8):
        for found in both(lambda x: ct.allreduce(x, "sum", comm=comm), tf.constant([1, 2, 3], dtype)):
            assert found.dtype == dtype
            same(tf.cast(found, tf.float32), [2, 4, 6])
    same(ct.allreduce(tf.constant(2.5), comm=comm), 2.5)  # 0-d
    same(ct.allreduce(tf.zeros([0, 3]), comm=comm), np.zeros([0, 3]))
    same(ct.allreduce(np.float32(comm.rank), "sum", comm=comm), 1.0)
    with pytest.raises(TypeError, match=r"int32, of which there is no average: use op='sum'"):
        ct.allreduce(tf.constant([1]), comm=comm)
    with pytest.raises(ValueError, match=r"op must be one of 'average', .* not 'mean'"):
        ct.allreduce(tf.constant([1.0]), "mean", comm=comm)


def check_allreduce_gradient(comm: Communicator) -> None:
    def slope(op: str, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(ct.allreduce(x, op, comm=comm) * tf.constant([1.0, 10.0]) * (comm.rank + 1.0))
        return tape.gradient(y, x)

    for found in both(lambda x: slope("sum", x), tf.constant([1.0, 2.0])):
        same(found, [3.0, 30.0])
    for found in both(lambda x: slope("average", x), tf.constant([1.0, 2.0])):
        same(found, [1.5, 15.0])
    with pytest.raises(LookupError, match="op='max' has no gradient"):
        slope("max", tf.constant([1.0, 2.0]))


def check_grouped_allreduce(comm: Communicator) -> None:
    def together(x: Any, y: Any, z: Any) -> Any:
        return ct.grouped_allreduce([x, y, z], "sum", comm=comm)

    rank = comm.rank
    inputs = tf.ones([3, 2]) * (rank + 1.0), tf.constant([rank, 5]), tf.constant(0.5 * rank, tf.float64)
    for x, y, z in both(together, *inputs):
        same(x, np.full([3, 2], 3.0))
        same(y, [1, 10])
        same(z, 0.5)
    with tf.GradientTape() as tape:
        tape.watch(inputs[0])
        loss = tf.reduce_sum(together(*inputs)[0]) * (rank + 1.0)
    same(tape.gradient(loss, inputs[0]), np.full([3, 2], 3.0))


def check_allgather(comm: Communicator) -> None:
    rank = comm.rank
    mine = tf.fill([rank + 1, 2], float(rank))
    everyones = [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    for found in both(lambda x: ct.allgather(x, comm=comm), mine):
        same(found, everyones)
    same(ct.allgather(mine[: 1 - rank], comm=comm), [[0.0, 0.0]])  # none from rank 1

    def slope(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            weights = tf.constant([[1.0], [10.0], [100.0]]) * (rank + 1.0)
            y = tf.reduce_sum(ct.allgather(x, comm=comm) * weights)
        return tape.gradient(y, x)

    for found in both(slope, mine):
        same(found, [[3.0, 3.0]] if rank == 0 else [[30.0, 30.0], [300.0, 300.0]])
    with pytest.raises(ValueError, match="0-d"):
        ct.allgather(tf.constant(1.0), comm=comm)


def check_broadcast(comm: Communicator) -> None:
    mine = tf.constant([1.0, 2.0]) + float(comm.rank)
    for root in range(2):
        for found in both(lambda x, root=root: ct.broadcast(x, root, comm=comm), mine):
            same(found, [1.0 + root, 2.0 + root])
    same(mine, [1.0 + comm.rank, 2.0 + comm.rank])  # the caller's own has not changed

    def slope(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(ct.broadcast(x, 1, comm=comm)) * (comm.rank + 1.0)
        return tape.gradient(y, x)

    for found in both(slope, mine):
        same(found, [3.0, 3.0] if comm.rank == 1 else [0.0, 0.0])
    with pytest.raises(ValueError, match="root_rank is 2"):
        ct.broadcast(mine, 2, comm=comm)


def check_reducescatter(comm: Communicator) -> None:
    rank = comm.rank
    mine = tf.reshape(tf.range(8, dtype=tf.float32), [4, 2]) * (rank + 1.0)
    total = np.arange(8, dtype=np.float32).reshape(4, 2) * 3
    part = slice(0, 2) if rank == 0 else slice(2, 4)
    for found in both(lambda x: ct.reducescatter(x, "sum", comm=comm), mine):
        same(found, total[part])
    for found in both(lambda x: ct.reducescatter(x, comm=comm), mine):
        same(found, total[part] / 2)
    for found in both(lambda x: ct.reducescatter(x, "sum", comm=comm), mine[:3]):
        same(found, total[:2] if rank == 0 else total[2:3])

    def slope(op: str, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(ct.reducescatter(x, op, comm=comm)) * (rank + 1.0)
        return tape.gradient(y, x)

    for found in both(lambda x: slope("sum", x), mine[:3]):
        same(found, [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
    for found in both(lambda x: slope("average", x), mine):
        same(found, [[0.5, 0.5], [0.5, 0.5], [1.0, 1.0], [1.0, 1.0]])


def check_alltoall(comm: Communicator) -> None:
    rank = comm.rank
    mine = tf.constant([0.0, 1.0, 2.0, 3.0]) + 10.0 * rank
    for found in both(lambda x: ct.alltoall(x, comm=comm), mine):
        same(found, [0.0, 1.0, 10.0, 11.0] if rank == 0 else [2.0, 3.0, 12.0, 13.0])
    splits = [3, 1] if rank == 0 else [1, 3]
    for found, received in both(lambda x: ct.alltoall(x, splits, comm=comm), mine):
        same(found, [0.0, 1.0, 2.0, 10.0] if rank == 0 else [3.0, 11.0, 12.0, 13.0])
        same(received, [3, 1] if rank == 0 else [1, 3])

    def slope(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            found, _ = ct.alltoall(x, splits, comm=comm)
            y = tf.reduce_sum(found * found)
        return tape.gradient(y, x)

    for found in both(slope, mine):
        same(found, 2 * mine)
    with pytest.raises(ValueError, match="leaves a rest"):
        ct.alltoall(mine[:3], comm=comm)


def check_gradients_of_another_dtype(comm: Communicator) -> None:
    """What flows back keeps its own dtype, also where a graph has to know it before it runs."""
    ops = {
        "allreduce": lambda x: ct.allreduce(x, "sum", comm=comm),
        "allgather": lambda x: ct.allgather(x, comm=comm),
        "broadcast": lambda x: ct.broadcast(x, 0, comm=comm),
        "reducescatter": lambda x: ct.reducescatter(x, "sum", comm=comm),
        "alltoall": lambda x: ct.alltoall(x, comm=comm),
    }
    for name, op in ops.items():

        def slope(x: Any, above: Any, op: Any = op) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = op(x)
            return tape.gradient(y, x, output_gradients=above)

        rows = {"allgather": 4, "reducescatter": 1}.get(name, 2)
        above = tf.ones([rows], tf.float32)
        wanted = {"broadcast": [2.0, 2.0] if comm.rank == 0 else [0.0, 0.0]}
        wanted |= {key: [2.0, 2.0] for key in ("allreduce", "allgather")}
        for run in (slope, tf.function(slope, autograph=False)):
            found = run(tf.constant([1.0, 2.0], tf.float64), above)
            assert found.dtype == tf.float32, name
            same(found, wanted.get(name, [1.0, 1.0]))


def check_gradients_by_rows(comm: Communicator) -> None:
    """Rows that are looked up in a result, here twice rank 0's first row, flow back as tf.IndexedSlices."""
    for op, wanted in (
        (lambda x: ct.allgather(x, comm=comm), [[6.0], [0.0]]),
        (lambda x: ct.broadcast(x, 0, comm=comm), [[6.0], [0.0]]),
        (lambda x: ct.alltoall(x, comm=comm), [[2.0], [4.0]]),  # each rank's first row is one of rank 0's
        (lambda x: ct.allreduce(x, "sum", comm=comm), None),
    ):

        def slope(x: Any, op: Any = op) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(tf.gather(op(x), [0, 0])) * (comm.rank + 1.0)
            return tape.gradient(y, x)

        for run in (slope, tf.function(slope, autograph=False)):
            found = tf.convert_to_tensor(run(tf.constant([[1.0], [2.0]])))
            same(found, [[6.0], [0.0]] if wanted is None else wanted if comm.rank == 0 else [[0.0], [0.0]])


def check_factors_of_integers(comm: Communicator) -> None:
    """In float64, rounded towards 0: halves of 3 and -7 are 1 and -3 on each rank."""
    for found in both(lambda x: ct.allreduce(x, "sum", comm=comm, prescale=0.5, postscale=1.5), tf.constant([3, -7])):
        assert found.dtype == tf.int32
        same(found, [3, -9])
    with pytest.raises(TypeError, match="bool, which prescale and postscale cannot multiply"):
        ct.allreduce(tf.constant([True]), "max", comm=comm, prescale=2.0)


def check_bytes(comm: Communicator) -> None:
    """8-bit floats can be moved."""
    mine = tf.cast(tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (comm.rank + 1.0), tf.dtypes.experimental.float8_e4m3fn)
    for found in both(lambda x: ct.broadcast(x, 1, comm=comm), mine):
        assert found.dtype == tf.dtypes.experimental.float8_e4m3fn
        same(tf.cast(found, tf.float32), [[2.0, 4.0], [6.0, 8.0]])
    same(tf.cast(ct.allgather(mine, comm=comm), tf.float32)[2:], [[2.0, 4.0], [6.0, 8.0]])
    swapped, counts = ct.alltoall(mine, [1, 1], comm=comm)
    same(tf.cast(swapped, tf.float32), [[1.0, 2.0], [2.0, 4.0]] if comm.rank == 0 else [[3.0, 4.0], [6.0, 8.0]])
    same(counts, [1, 1])


def check_what_is_no_tensor(comm: Communicator) -> None:
    ops = [ct.allreduce, ct.allgather, ct.broadcast, ct.reducescatter, ct.alltoall]
    wrong = {
        "None is not a tensor": None,
        "its flat_values and row_lengths": tf.ragged.constant([[1], [2, 3]]),
        "its indices and values": tf.sparse.from_dense([[0, 1]]),
        "tf.io.decode_raw": tf.constant(["text"]),
        "set is not a tensor": {1.0},
        "dtype qint8": tf.quantization.quantize(tf.constant([1.0]), -1.0, 1.0, tf.qint8)[0],
        "give tf.cast": tf.cast(tf.constant([1]), tf.dtypes.experimental.int4),
    }
    for op in ops:
        for says, x in wrong.items():
            with pytest.raises(TypeError, match=re.escape(says)):
                op(x, comm=comm)
    with pytest.raises(TypeError, match="allreduce: None"):
        ct.grouped_allreduce([tf.ones(1), None], comm=comm)
    with pytest.raises(TypeError, match=r"gradient 1: texts"):
        ct.GradientExchange(comm)([tf.ones(1), tf.constant("text")])
    with pytest.raises(TypeError, match="variable 0: None"):
        ct.broadcast_variables([None], comm=comm)
    same(ct.allreduce(tf.Variable([2.0]), comm=comm), [2.0])


def check_errors(comm: Communicator) -> None:
    """They are what TensorFlow's users catch, RuntimeErrors, and of their own types; in tf.functions, too."""
    different = [tf.Variable(tf.zeros([2 + comm.rank]))]
    kinds = (collectives.DesyncError, tf.errors.FailedPreconditionError, tf.errors.UnknownError, RuntimeError)
    step = tf.function(lambda: ct.broadcast_variables(different, comm=comm))
    for run in (lambda: ct.broadcast_variables(different, comm=comm), ct.typed_errors()(step)):
        with pytest.raises(collectives.DesyncError, match="variable 0") as seen:
            run()
        assert all(isinstance(seen.value, kind) for kind in kinds)
        error: Any = seen.value
        assert error.error_code == tf.errors.FAILED_PRECONDITION and error.op is None and error.message == str(error)
        assert type(pickle.loads(pickle.dumps(seen.value))) is collectives.DesyncError
    with pytest.raises(tf.errors.UnknownError, match="DesyncError: ranks disagree"):
        step()
    exchange = ct.GradientExchange(comm)
    with pytest.raises(tf.errors.FailedPreconditionError):
        exchange([tf.zeros([2 + comm.rank])])
    assert type(exchange.error) is collectives.DesyncError
    with pytest.raises(tf.errors.FailedPreconditionError):
        exchange.raise_error()
    other = comm.dup()
    other.close()
    with pytest.raises(tf.errors.AbortedError, match="closed") as aborted:
        ct.barrier(comm=other)
    assert isinstance(aborted.value, collectives.Aborted)


def check_a_deadline(comm: Communicator) -> None:
    other = comm.dup()
    ct.barrier(comm=other)  # the first use is collective
    if comm.rank == 0:
        with pytest.raises(tf.errors.DeadlineExceededError) as late:
            ct.barrier(comm=other, timeout=0.1)
        assert isinstance(late.value, collectives.OpTimeout) and isinstance(late.value, TimeoutError)
        assert late.value.late == (1,)
    comm.barrier()
    other.close()


def check_sessions(comm: Communicator) -> None:
    """In a graph of TensorFlow 1 nothing happens until a session runs it, and then it does."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        variables = [v1.get_variable("a", initializer=[1.0 + comm.rank]), v1.get_variable("b", initializer=comm.rank)]
        total = ct.allreduce(variables[0], "sum", comm=comm)
        start, wait = ct.broadcast_variables(variables, 1, comm=comm), ct.barrier(comm=comm)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            same(session.run(total), [3.0])
            session.run(start)
            same(session.run(variables[0]), [2.0])
            same(session.run(variables[1]), 1)
            same(session.run(total), [4.0])
            session.run(wait)
            # What is broadcast once is not broadcast again with every step.
            session.run(variables[0].assign([float(comm.rank)]))
            same(session.run(total), [1.0])
            same(session.run(variables[0]), [float(comm.rank)])


def check_barrier_and_chain(comm: Communicator) -> None:
    """Operations that no data connects run in the order of the program, in every graph."""
    ct.barrier(comm=comm)

    @tf.function
    def several(x: Any) -> Any:
        ct.barrier(comm=comm)
        found = [ct.broadcast(x, i % 2, comm=comm) for i in range(6)]
        ct.barrier(comm=comm)
        return [*found, ct.allgather(x, comm=comm)]

    for _ in range(20):
        found = several(tf.constant([float(comm.rank)]))
        assert [float(x[0]) for x in found] == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]


def check_process_groups(comm: Communicator) -> None:
    alone = comm.split(comm.rank)
    same(ct.allreduce(tf.constant([1.0 + comm.rank]), "sum", comm=alone), [1.0 + comm.rank])
    same(ct.allreduce(tf.constant([1.0 + comm.rank]), "sum", comm=comm), [3.0])
    with collectives.init("memory://second", rank=0, size=1), pytest.raises(RuntimeError, match="say which one"):
        ct.allreduce(tf.constant([1.0]))
    ct.barrier()  # the default communicator is the only one again


def check_nothing_is_shared(comm: Communicator) -> None:
    """Results stay as they were when the next step runs, and inputs when results are made."""
    step = tf.function(lambda x: ct.allreduce(x, "sum", comm=comm))
    for rounds in (lambda x: ct.allreduce(x, "sum", comm=comm), step):
        given = tf.ones([50_000])
        first = rounds(given)
        kept = first.numpy().copy()
        for i in range(4):
            rounds(tf.fill([50_000], float(i)))
        same(first, kept)
        same(given, np.ones(50_000))
        constant = tf.function(lambda: ct.allreduce(tf.fill([50_000], 1.0), "sum", comm=comm))
        assert [float(constant()[0]) for _ in range(3)] == [2.0, 2.0, 2.0]


def check_variables(comm: Communicator) -> None:
    rank = comm.rank
    for run in (lambda f: f, tf.function):
        owned = {
            "a": tf.Variable(tf.fill([3, 2], float(rank))),
            "b": [tf.Variable(rank, dtype=tf.int64), tf.Variable(tf.fill([2], rank == 1))],
            "c": tf.Variable(tf.cast(tf.fill([70_000], rank), tf.bfloat16)),
        }
        run(lambda owned=owned: ct.broadcast_variables(owned, 1, comm=comm))()
        for variable in tf.nest.flatten(owned):
            assert tf.reduce_all(tf.cast(variable, tf.float32) == 1.0)
    different = [tf.Variable(tf.zeros([2]), name="w"), tf.Variable(tf.zeros([2 + rank]), name="b")]
    with pytest.raises(collectives.DesyncError, match=r"variable 1 'b:0' is float32\[2\] on rank 0 and .* on rank 1"):
        ct.broadcast_variables(different, comm=comm)
    with pytest.raises(TypeError, match="variable 0: texts"):
        ct.broadcast_variables([tf.Variable("text")], comm=comm)


def check_objects(comm: Communicator) -> None:
    rank = comm.rank
    reported = {"epoch": 3, "rates": [0.1, 1e-300], "name": "ä", "none": None, "yes": True}
    assert ct.broadcast_object(reported if rank == 0 else None, comm=comm) == reported
    assert ct.broadcast_object(b"\0\xff" if rank == 1 else "ignored", 1, comm=comm) == b"\0\xff"
    assert ct.allgather_object({"rank": rank}, comm=comm) == [{"rank": 0}, {"rank": 1}]
    assert ct.allgather_object(b"x" * rank, comm=comm) == [b"", b"x"]
    sent = ct.broadcast_object({1: (2, tf.constant([3.0]))} if rank == 0 else None, comm=comm)
    assert list(sent) == [1] and sent[1][0] == 2 and tf.is_tensor(sent[1][1]) and sent[1][1].numpy() == [3.0]
    expected = (TypeError, "object cannot travel") if rank == 0 else (collectives.Aborted, "rank 0 has no object")
    with pytest.raises(expected[0], match=expected[1]):
        ct.broadcast_object([object()], comm=comm)
    expected = (TypeError, "function cannot travel") if rank == 1 else (collectives.Aborted, r"ranks \[1\]")
    with pytest.raises(expected[0], match=expected[1]):
        ct.allgather_object({"fine": 1} if rank == 0 else {1: check_objects}, comm=comm)
    assert ct.allgather_object(rank, comm=comm) == [0, 1]  # nobody lags behind


def check_join(comm: Communicator) -> None:
    """Rank 0 has 5 batches, rank 1 has 2; what is missing counts as zeros."""
    exchange = ct.GradientExchange(comm, op="sum", bucket_bytes=64)
    variables = [tf.Variable(tf.zeros([30])), tf.Variable(tf.zeros([20, 3])), tf.Variable(tf.zeros([4]))]

    @tf.function
    def step() -> Any:
        rows = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([comm.rank, 7]), tf.constant([20, 3]))
        return exchange([tf.ones([30]), rows, None], variables)

    for batch in range(2 if comm.rank else 5):
        alone = batch >= 2
        dense, rows, none = step()
        assert none is None
        same(dense, np.full(30, 1.0 if alone else 2.0))
        same(rows.indices, [0, 7] if alone else [0, 7, 1, 7])
        same(ct.allreduce(tf.constant([2.0]), comm=comm), [1.0 if alone else 2.0])
        unknown = tf.function(lambda x: ct.allreduce(x, "sum", comm=comm), input_signature=[tf.TensorSpec([None])])
        same(unknown(tf.ones([batch + 1])), np.full(batch + 1, 1.0 if alone else 2.0))
    assert exchange.calls == (2 if comm.rank else 5)
    assert int(ct.join(comm=comm)) == 0
    assert int(tf.function(lambda: ct.join(comm=comm))()) == 1  # both at once
    last = [lambda: ct.allreduce(tf.constant([2.0]), "max", comm=comm), lambda: ct.join(comm=comm)]
    with pytest.raises(collectives.DesyncError, match=r"rank 1 joined, .* not 'max'"):
        last[comm.rank]()


def check_typed_errors(comm: Communicator) -> None:
    step = tf.function(lambda: ct.allreduce(tf.ones([3 + comm.rank]), comm=comm, name="totals"))
    with pytest.raises(tf.errors.UnknownError, match="DesyncError"):
        step()
    pattern = r"'totals', rank \d, step 2, .*float32\[3\] on rank 0 and float32\[4\] on rank 1"
    with pytest.raises(collectives.DesyncError, match=pattern) as caught, ct.typed_errors():
        step()
    assert isinstance(caught.value.__cause__, tf.errors.UnknownError)
    divided = tf.function(lambda x, y: x // y)
    with pytest.raises(tf.errors.InvalidArgumentError), ct.typed_errors():  # not ours
        divided(tf.constant([1]), tf.constant([0]))
    same(ct.allreduce(tf.constant([1.0]), comm=comm), [1.0])


def check_compiled_by_xla(comm: Communicator) -> None:
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        tf.function(lambda: ct.allreduce(tf.ones([3]), comm=comm), jit_compile=True)()
    exchange = ct.GradientExchange(comm)
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        tf.function(tf.function(lambda: exchange([tf.ones([3])])), jit_compile=True)()
    assert exchange.calls == 0


def check_functions_run_eagerly(comm: Communicator) -> None:
    tf.config.run_functions_eagerly(True)
    try:
        for found in both(lambda x: ct.allreduce(x, "sum", comm=comm), tf.constant([1.0 + comm.rank])):
            same(found, [3.0])
    finally:
        tf.config.run_functions_eagerly(False)


if __name__ == "__main__":
    main(globals())
