"""Process groups, variables, objects and ranks that have joined: checks of `worker_ops`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import collectives
import collectives.tensorflow as ct
from collectives import Communicator
from tests.collectives.tensorflow.values import both, same


def check_process_groups(comm: Communicator) -> None:
    alone = comm.split(comm.rank)
    same(ct.allreduce(tf.constant([1.0 + comm.rank]), "sum", comm=alone), [1.0 + comm.rank])
    same(ct.allreduce(tf.constant([1.0 + comm.rank]), "sum", comm=comm), [3.0])
    with collectives.init("memory://second", rank=0, size=1), pytest.raises(RuntimeError, match="pass the one to use"):
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
