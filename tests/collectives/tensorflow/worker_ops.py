"""Collectives of tensors, on each of two ranks: eager, in a tf.function, and their gradients."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import collectives
import collectives.tensorflow as ct
from collectives import Communicator
from tests.collectives.tensorflow import ops_state
from tests.collectives.tensorflow.checks import main
from tests.collectives.tensorflow.values import both, same


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
    for found in both(lambda x: ct.allreduce(x, comm=comm), tf.constant([-7, 7]) * (1 - comm.rank)):
        same(found, [-3, 3])
    same(ct.reducescatter(tf.constant([-7, 7]) * (1 - comm.rank), comm=comm), [3 if comm.rank else -3])
    with pytest.raises(TypeError, match=r"bool, of which there is no average: use op='sum'"):
        ct.allreduce(tf.constant([True]), comm=comm)
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
    with pytest.raises(ValueError, match="does not divide evenly"):
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


if __name__ == "__main__":
    main({**globals(), **vars(ops_state)})
