"""Run by test_tensorflow.py and test_keras.py with two processes: functions and tapes, then what is Keras's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

import collectives.horovod.tensorflow as hvd
from collectives.horovod.common.exceptions import HorovodInternalError
from collectives.horovod.compression import NoneCompressor
from tests.collectives.horovod import signatures, worker_keras
from tests.collectives.horovod.worker import differences, digest, example, raised, run

hvd.init()
RANK = hvd.rank()


def names() -> Any:
    return differences(hvd, signatures.TENSORFLOW, signatures.VALUES["TENSORFLOW"])


def _row(*values: float) -> Any:
    return tf.constant(values, tf.float32) * (RANK + 1)


def _listed(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value.numpy().tolist() for name, value in found.items()}


class Halved(NoneCompressor):
    """A compressor of a user's, made of Horovod's."""

    calls: ClassVar[list[str]] = []

    @staticmethod
    def compress(tensor: Any) -> Any:
        Halved.calls.append("compress")
        return tensor / 2, "half"

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        Halved.calls.append(ctx)
        return tensor * 2


# --- collectives


def _reductions() -> dict[str, Any]:
    x, integers = _row(1, -4, 6), tf.constant([3, -8]) + RANK
    slices = tf.IndexedSlices(tf.ones([1, 2]) * (RANK + 1), tf.constant([RANK]), tf.constant([3, 2]))
    rows = tf.IndexedSlices(tf.constant([[1], [-5], [4]]), tf.constant([0, 0, 2 * RANK]), tf.constant([3, 1]))
    return {
        "average": hvd.allreduce(x),
        "sum": hvd.allreduce(x, op=hvd.Sum),
        "min": hvd.allreduce(x, op=hvd.Min),
        "max": hvd.allreduce(x, op=hvd.Max, name="largest"),
        "product": hvd.allreduce(x, op=hvd.Product),
        "scaled": hvd.allreduce(x, prescale_factor=0.5, postscale_factor=8.0),
        "integers": hvd.allreduce(integers),
        "fp16": hvd.allreduce(x, compression=hvd.Compression.fp16),
        "bf16": hvd.allreduce(x, compression=hvd.Compression.bf16),
        "own": hvd.allreduce(x, compression=Halved),
        "grouped": hvd.grouped_allreduce([integers, x], op=hvd.Sum)[1],
        "grouped integers": hvd.grouped_allreduce([x, integers])[1],
        "scaled integers": hvd.allreduce(integers, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        "scaled average": hvd.allreduce(integers, postscale_factor=1.5),
        "sparse integers": tf.convert_to_tensor(hvd.allreduce(rows)),
        "sparse integers sum": tf.convert_to_tensor(hvd.allreduce(rows, op=hvd.Sum, prescale_factor=2.0)),
        "sparse": tf.convert_to_tensor(hvd.allreduce(slices)),
        "variable": hvd.allreduce(tf.Variable(x)) if tf.executing_eagerly() else hvd.allreduce(x),
    }


def _others() -> dict[str, Any]:
    rows = tf.range(2.0 + RANK) + 10.0 * RANK  # 0 1; 10 11 12
    x = _row(1, 2, 3)
    hvd.barrier()
    return {
        "allgather": hvd.allgather(rows, name="rows"),
        "grouped allgather": hvd.grouped_allgather([rows, rows + 1])[1],
        "broadcast": hvd.broadcast(x, root_rank=1),
        "bool": hvd.broadcast(tf.constant([RANK == 1]), 1),
        "size": hvd.size_op(),
        "local size": hvd.local_size_op(),
        "included": hvd.process_set_included_op(),
    }


def _by_rank() -> dict[str, Any]:
    x, even = _row(1, 2, 3), _row(1, 2, 3, 4)
    rows = tf.range(3) + 10 * RANK
    received, counts = hvd.alltoall(rows, splits=[1, 2])
    return {
        "reducescatter": hvd.reducescatter(x, op=hvd.Sum),
        "average": hvd.reducescatter(even, prescale_factor=2.0, compression=hvd.Compression.fp16),
        "integers": hvd.reducescatter(tf.constant([7, -7])),
        "scaled integers": hvd.reducescatter(tf.constant([7, -7]), op=hvd.Sum, postscale_factor=0.25),
        "grouped": hvd.grouped_reducescatter([x, even], postscale_factor=2.0)[1],
        "alltoall": hvd.alltoall(tf.range(4) + 10 * RANK),
        "split": received,
        "counts": counts,
        "rank": hvd.rank_op(),
        "local rank": hvd.local_rank_op(),
    }


def collectives_of_tensors() -> Any:
    results = []
    for function in (_reductions, _others):
        results += [_listed(function()), _listed(tf.function(function)())]
    return results


def by_rank() -> Any:
    return _listed(_by_rank()), _listed(tf.function(_by_rank)()), _by_rank()["counts"].dtype.name


def _gradient(function: Any) -> Any:
    """Of this rank's loss: the sum of what comes, times rank + 1."""
    x = tf.ones([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = (RANK + 1) * tf.reduce_sum(function(x))
    return tape.gradient(loss, x).numpy().tolist()


def gradients() -> Any:
    return {
        "average": _gradient(hvd.allreduce),
        "sum": _gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5)),
        "grouped": _gradient(lambda x: tf.add_n(hvd.grouped_allreduce([x, 2 * x]))),
        "fp16": _gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16)),
        "allgather": _gradient(hvd.allgather),
        "broadcast": _gradient(lambda x: hvd.broadcast(x, 1)),
        "reducescatter": _gradient(hvd.reducescatter),
        "reducescatter sum": _gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)),
        "alltoall": _gradient(hvd.alltoall),
    }


def variables_and_objects() -> Any:
    made = [tf.Variable(_row(1, 2)), tf.Variable(RANK)]
    hvd.broadcast_variables(made, root_rank=1)
    again = hvd.broadcast_([tf.Variable(float(RANK))], root_rank=0)
    objects = hvd.broadcast_object([RANK], 1), hvd.allgather_object(RANK), hvd.broadcast_object_fn(1)([RANK])
    return [v.numpy().tolist() for v in [*made, *again]], objects


def sessions() -> Any:
    """In graphs of TensorFlow 1: what is returned does it, once a session runs it."""
    v1, found = tf.compat.v1, []
    makers: list[Callable[[Any], Any]] = [
        lambda variable: hvd.broadcast_variables([variable], root_rank=1),
        lambda variable: hvd.broadcast_([variable], 1),
        lambda variable: hvd.broadcast_global_variables(1),
    ]
    for make in makers:
        with tf.Graph().as_default():
            variable = v1.get_variable("v", initializer=1.0 + RANK)
            broadcast = make(variable)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                before = float(session.run(variable))
                session.run(broadcast)
                found.append([before == 1.0 + RANK, float(session.run(variable))])
    with tf.Graph().as_default():
        variable = v1.get_variable("v", initializer=1.0 + RANK)
        v1.train.get_or_create_global_step()
        with v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(1)]) as session:
            found.append([True, float(session.run(variable))])
    return found


def errors() -> Any:
    """What Horovod's elastic code, and TensorFlow's, catches."""
    try:
        hvd.allreduce(tf.ones([2 + RANK]))
    except hvd.HorovodInternalError as error:
        kinds = (RuntimeError, HorovodInternalError, tf.errors.FailedPreconditionError, tf.errors.UnknownError)
        return [isinstance(error, kind) for kind in kinds]


def refused() -> Any:
    x = _row(1.0)
    v1 = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    every: list[Any] = [(f, ()) for f in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.alltoall)]
    every += [(hvd.broadcast, (0,)), (hvd.broadcast_variables, (0,)), (hvd.broadcast_, (0,))]
    return {
        "adasum": raised(hvd.allreduce, x, op=hvd.Adasum),
        "both": raised(hvd.allreduce, x, average=True, op=hvd.Sum),
        "factor": raised(hvd.reducescatter, tf.constant([True]), prescale_factor=0.5),
        **{f"{f.__name__} of None": raised(f, None, *rest) for f, rest in every},
        "compression": raised(hvd.allreduce, x, compression="fp16"),
        "elastic": raised(lambda: hvd.elastic.run),
        "global variables": raised(hvd.broadcast_global_variables, 0),
        "object": raised(hvd.allgather_object, object()),
        "optimizer of TensorFlow 1": raised(hvd.DistributedOptimizer, v1),
        "tape op": raised(hvd.DistributedGradientTape, tf.GradientTape(), op=hvd.Min),
        "predivide": raised(hvd.DistributedGradientTape, tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0),
        "layers": raised(hvd.PartialDistributedGradientTape, tf.GradientTape(), local_layers=[3]),
        "name": raised(lambda: hvd.no_such_name),
    }


# --- gradients


def _taped(register: bool = False, **options: Any) -> Any:
    """Gradients of two variables: 1 and -4, and a sparse one's, times rank + 1."""
    dense, table = tf.Variable([0.0, 0.0]), tf.Variable([[0.0], [0.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(dense * _row(1, -4)) + tf.reduce_sum(tf.gather(table, [RANK])) * (RANK + 1)
    tape = hvd.DistributedGradientTape(tape, **options)
    if register:
        tape.register_local_source(dense)
        local, others = tape.get_local_and_global_gradients(loss, [dense, table])
        assert [v is dense for v, _ in local] == [True] and [v is table for v, _ in others] == [True]
        found = [local[0][1], others[0][1]]
    else:
        found = tape.gradient(loss, [dense, table], None, True)  # use_generic_names
    sparse = isinstance(found[1], tf.IndexedSlices)
    return [found[0].numpy().tolist(), tf.convert_to_tensor(found[1]).numpy().ravel().tolist(), sparse]


def tapes() -> Any:
    only = hvd.add_process_set([0])
    Halved.calls.clear()
    with warnings.catch_warnings(record=True) as results:
        warnings.simplefilter("always")
        grouped = _taped(num_groups=2, device_dense="/gpu:0", device_sparse="/cpu:0")
    found = {
        "average": _taped(),
        "sum": _taped(op=hvd.Sum),
        "dense": _taped(sparse_as_dense=True),
        "predivided": _taped(gradient_predivide_factor=4.0),
        "fp16": _taped(compression=hvd.Compression.fp16),
        "own": _taped(compression=Halved),
        "calls": list(Halved.calls),
        "grouped": [grouped, sorted(str(w.message)[:14] for w in results)],
    }
    alone = [_taped(process_set=only), _taped(register=True), _taped(register=True, scale_local_gradients=False)]
    assert hvd.remove_process_set(only)
    return found, alone


def traced() -> Any:
    """Two steps of a tf.function, the first with a broadcast, as in Horovod's example; then rank 1 makes one more."""
    weight = tf.Variable(_row(8, 8))

    @tf.function
    def step(x: Any, first: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        tape = hvd.DistributedGradientTape(tape)
        (gradient,) = tape.gradient(loss, [weight])
        weight.assign_sub(gradient)
        if first:
            hvd.broadcast_variables([weight], root_rank=0)
        return gradient

    for i in range(2):
        step(_row(1, -4), i == 0)
    same = weight.numpy().tolist()
    if RANK == 1:
        step(_row(1, -4), False)
    last = hvd.join()
    return same, weight.numpy().tolist(), int(last), last.dtype.name


# --- scripts


def script() -> Any:
    left = example("horovod_tensorflow_digits.py")
    return left.get("exit"), float(left["right"].mean()), digest(v.numpy() for v in left["model"].variables)


def script_that_is_not_distributed() -> Any:
    taped = ("tape = hvd.DistributedGradientTape(tape)", "")
    return example("horovod_tensorflow_digits.py", ("EPOCHS, WANTED = 32, 8", "EPOCHS, WANTED = 32, 1"), taped).get(
        "exit"
    )


run([
    names, collectives_of_tensors, by_rank, gradients, variables_and_objects, sessions, errors, refused, tapes, traced,
    script, script_that_is_not_distributed, *worker_keras.SCENARIOS,
])  # fmt: skip
