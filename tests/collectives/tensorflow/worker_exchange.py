"""Exchanges of gradients, on each of two ranks: what comes of them, and what ranks notice when theirs differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import collectives.tensorflow as ct
from collectives import Communicator, DesyncError, PeerLost
from collectives.gradients.wire import Compression
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import join, parse
from tests.collectives.tensorflow.checks import main


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def ways(function: Any, *args: Any) -> list[Any]:
    """What comes of it at once, and in a tf.function."""
    return [function(*args), tf.function(function, autograph=False)(*args)]


def gradients(rank: int, seed: int = 0) -> list[Any]:
    """Of shapes that make many small buckets, some of several entries; the same on every rank but for the values."""
    random = np.random.default_rng((rank, seed))
    shapes: list[list[int]] = [[3], [2, 5], [], [40], [1], [1], [7, 1, 2], [0, 4], [17]]
    return [tf.constant(random.standard_normal(shape), tf.float32) for shape in shapes]


def averages(seed: int = 0) -> list[Any]:
    return [(a.numpy() + b.numpy()) / 2 for a, b in zip(gradients(0, seed), gradients(1, seed), strict=True)]


def check_buckets_of_every_size(comm: Communicator) -> None:
    for nbytes in (1, 64, 100, 25 << 20):
        exchange = ct.GradientExchange(comm, bucket_bytes=nbytes)
        mine = gradients(comm.rank)
        for all_of in ways(exchange, mine):
            for found, expected in zip(all_of, averages(), strict=True):
                same(found, expected)
                assert found.shape == expected.shape
        assert exchange.calls == exchange.steps == 2
        assert exchange.bytes_sent == 2 * sum(x.numpy().nbytes for x in mine)
    assert exchange([]) == []
    assert exchange([None]) == [None]
    with pytest.raises(ValueError, match="2 gradients were given for 1 variables"):
        exchange(mine[:2], [tf.Variable(0.0)])


def check_order_of_buckets(comm: Communicator) -> None:
    """The last variables' travel first; ranks run them in one order though nothing else orders them."""
    exchange = ct.GradientExchange(comm, bucket_bytes=1, record=True)
    step = tf.function(exchange)
    for _ in range(20):
        step(gradients(comm.rank))
    count = len(gradients(0))
    assert [span.bucket for span in exchange.timeline] == list(range(count)) * 20
    assert all(span.started <= span.finished for span in exchange.timeline)
    assert all(a.finished <= b.started for a, b in zip(exchange.timeline, exchange.timeline[1:], strict=False))


def check_graphs_that_are_no_functions(comm: Communicator) -> None:
    """Nothing but us keeps the order there, or runs buckets whose results nobody asks for."""
    exchange = ct.GradientExchange(comm, bucket_bytes=1, record=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = exchange([tf.ones([3]) * i for i in range(8)])
        for _ in range(10):
            same(session.run(found[0]), np.zeros(3))
            same(session.run(found)[7], np.full(3, 7.0))
    assert exchange.calls == 20
    assert [span.bucket for span in exchange.timeline] == list(range(8)) * 20


def check_loops_inside_a_function(comm: Communicator) -> None:
    """As Keras' steps_per_execution makes them; also of gradients that wait for no earlier step."""
    exchange = ct.GradientExchange(comm, op="sum", bucket_bytes=8)
    weight = tf.Variable(tf.zeros([5]))

    @tf.function
    def steps(count: Any) -> Any:
        total = tf.constant(0.0)
        for i in tf.range(count):
            at = tf.cast(i, tf.float32)
            a, b, c = exchange([tf.fill([5], at), tf.fill([2, 2], at + comm.rank), at])
            weight.assign_add(a)
            total += tf.reduce_sum(b) + c
        return total

    assert exchange.calls == 0
    same(steps(30), sum(4 * (2 * i + 1) + 2 * i for i in range(30)))
    same(weight, np.full(5, 2.0 * sum(range(30))))
    assert exchange.calls == 30  # counted where they ran, not where they were traced


def check_two_exchanges_in_one_function(comm: Communicator) -> None:
    """As adversarial networks have them: which goes first must not be a matter of chance."""
    first = ct.GradientExchange(comm, bucket_bytes=8, name="generator")
    second = ct.GradientExchange(comm, op="sum", bucket_bytes=8, name="discriminator")

    @tf.function
    def step(x: Any) -> Any:
        return first([x, x + 1, x + 2]), second([x, x, x])

    for i in range(20):
        a, b = step(tf.fill([4], float(i)))
        same(a[2], np.full(4, i + 2.0))
        same(b[0], np.full(4, 2.0 * i))


def check_retracing_on_one_rank(comm: Communicator) -> None:
    """A new trace of the same model is not a new plan."""
    exchange = ct.GradientExchange(comm, bucket_bytes=64)
    weight = tf.Variable(tf.ones([40]))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * tf.reduce_sum(x))
        return exchange([tape.gradient(loss, weight), tf.reduce_mean(x)], [weight, None])

    traced = tf.function(step, autograph=False)
    for i in range(6):
        rows = i + 1 if comm.rank == 1 else 1
        found, mean = traced(tf.ones([rows]))
        same(found, np.full(40, (1 + i + 1) / 2))
        same(mean, 1.0)
    assert traced.experimental_get_tracing_count() == (6 if comm.rank == 1 else 1)
    found, _ = exchange([tf.ones([40]), tf.constant(1.0)]) if comm.rank == 0 else traced(tf.ones([1]))  # one eagerly
    same(found, np.ones(40))


def refused(comm: Communicator, mine: list[Any], owners: list[Any] | None, pattern: str, **options: Any) -> None:
    """Both ways, on every rank, and the ranks are in step afterwards."""
    exchange = ct.GradientExchange(comm, name="net", bucket_bytes=16, **options)
    with pytest.raises(DesyncError, match=pattern):
        exchange(mine, owners)
    with pytest.raises(DesyncError, match=pattern), ct.typed_errors():
        tf.function(exchange)(mine, owners)
    assert isinstance(exchange.error, DesyncError)
    with pytest.raises(DesyncError, match=rf"rank {comm.rank}, step \d+, bucket 0 of") as caught:
        exchange.raise_error(KeyError("cause"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert exchange.calls == 0
    same(ct.allreduce(tf.constant(1.0), comm=comm), 1.0)


def check_none_on_one_rank(comm: Communicator) -> None:
    owners = [tf.Variable(tf.zeros([2]), name="dense/kernel"), tf.Variable(tf.zeros([3, 4]), name="dense/bias")]
    mine = [tf.ones([2]), tf.ones([3, 4]) if comm.rank == 0 else None]
    pattern = (
        f"gradients of 'net', rank {comm.rank}, step 1, bucket 0 of .: ranks disagree: "
        r"variable 1 'dense/bias:0' is float32\[3, 4\] on rank 0 and None on rank 1"
    )
    with pytest.raises(DesyncError, match=pattern):
        ct.GradientExchange(comm, name="net")(mine, owners)
    refused(comm, mine, owners, r"variable 1 'dense/bias:0' is float32\[3, 4\] on rank 0 and None on rank 1")
    refused(comm, [mine[1]], None, r"variable 0 is float32\[3, 4\] on rank 0 and None on rank 1")
    exchange = ct.GradientExchange(comm, missing="zero")
    same(exchange(mine, owners)[1], np.full([3, 4], 0.5))
    same(exchange([None, None], owners)[1], np.zeros([3, 4]))
    with pytest.raises(ValueError, match="missing='zero' needs variables="):
        exchange([None])
    exchange = ct.GradientExchange(comm)
    with pytest.raises(DesyncError):
        exchange(mine, owners)
    assert exchange([None, tf.constant(1.0)], owners)[0] is None
    exchange.raise_error()  # nothing: the last one went well


def check_different_models(comm: Communicator) -> None:
    r = comm.rank
    refused(comm, [tf.ones([2 + r])], None, r"variable 0 is float32\[2\] on rank 0 and float32\[3\] on rank 1")
    refused(
        comm, [tf.ones([2], [tf.float32, tf.float64][r])], None, r"float32\[2\] on rank 0 and float64\[2\] on rank 1"
    )
    added = [tf.ones([2])] + [tf.ones([3])] * r
    refused(comm, added, None, "number of variables is 1 on rank 0 and 2 on rank 1; variable 1 is not there on rank 0")
    sparse = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]), tf.constant([5, 3]))
    refused(comm, [sparse, tf.ones([5, 3])][r : r + 1], None, r"sparse float32\[\?, 3\] on rank 0 and float32\[5, 3\]")
    refused(comm, [tf.ones([2])], None, "op is 'avg' on rank 0 and 'sum' on rank 1", op=["average", "sum"][r])
    refused(comm, [tf.ones([2])], None, "compression is None on rank 0 and 'fp16'", compression=[None, "fp16"][r])
    wide = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0], [tf.int32, tf.int64][r]), tf.constant([5, 3]))
    refused(comm, [wide], None, "with int32 indices on rank 0 and .* with int64 indices on rank 1")
    many = [tf.ones([i + 1 + r]) for i in range(9)]
    refused(comm, many, None, r"variable 3 is float32\[4\] on rank 0 and float32\[5\] on rank 1; and 5 more")


def check_bucket_sizes_that_differ(comm: Communicator) -> None:
    mine = gradients(comm.rank)
    with pytest.raises(DesyncError, match="bucket_bytes is 64 on rank 0 and 128 on rank 1"):
        ct.GradientExchange(comm, bucket_bytes=64 << comm.rank)(mine)


def check_a_call_that_is_no_exchange(comm: Communicator) -> None:
    """The engine's own comparison: never a hang."""
    exchange = ct.GradientExchange(comm)
    calls = [lambda: exchange([tf.ones([3])]), lambda: ct.broadcast(tf.ones([3]), comm=comm)]
    with pytest.raises((DesyncError, PeerLost)) as caught:
        calls[comm.rank]()
    # The rank that notices shuts its links, so that the other one raises, too, though not the cause.
    kinds = ct.allgather_object([caught.type.__name__, str(caught.value)], comm=comm.dup())
    cause = " ".join(message for name, message in kinds if name == "DesyncError")
    assert "allgather(int64, 4 elements)" in cause and "broadcast(float32, 3 elements, root 0)" in cause


def check_sparse_gradients(comm: Communicator) -> None:
    def slices(rank: int) -> tuple[Any, Any]:
        indices = [[4, 0, 4], []][rank]
        values = np.arange(3 * len(indices), dtype=np.float32).reshape(-1, 3) + 1
        return tf.constant(indices, tf.int64), tf.constant(values, shape=[len(indices), 3])

    indices, values = slices(comm.rank)
    other = tf.IndexedSlices(tf.fill([comm.rank + 1, 2, 2], comm.rank + 1.0), tf.range(comm.rank + 1))
    mine = [tf.ones([9]), tf.IndexedSlices(values, indices, tf.constant([6, 3], tf.int64)), other]
    exchange = ct.GradientExchange(comm)
    summing = ct.GradientExchange(comm, op="sum", compression="bf16")
    for (dense, rows, others), (_, total, _) in zip(ways(exchange, mine), ways(summing, mine), strict=True):
        same(dense, np.ones(9))
        same(rows.indices, [4, 0, 4])  # rank 1 has none
        same(rows.values, slices(0)[1] / 2)
        same(rows.dense_shape, [6, 3])
        assert rows.indices.dtype == tf.int64 and rows.values.shape[1:] == [3]
        same(others.indices, [0, 0, 1])
        same(others.values[:, 0, 0], [0.5, 1.0, 1.0])
        same(total.values, slices(0)[1])
        assert total.values.dtype == tf.float32
    as_dense = ct.GradientExchange(comm, sparse_as_dense=True)(mine[:2])
    same(as_dense[1], tf.convert_to_tensor(exchange(mine[:2])[1]))
    unknown = [tf.TensorSpec([None], tf.int64), tf.TensorSpec(None, tf.float32), tf.TensorSpec([2], tf.int64)]
    traced = tf.function(lambda i, v, s: exchange([tf.IndexedSlices(v, i, s)])[0], input_signature=unknown)
    spread = tf.function(lambda i, v, s: exchange([tf.IndexedSlices(v, i, s)])[0])
    found = (traced if comm.rank else spread)(indices, values, tf.constant([6, 3], tf.int64))
    same(found.values, slices(0)[1] / 2)
    found = ct.allreduce(mine[1], "sum", comm=comm)
    same(found.indices, [4, 0, 4])
    with pytest.raises(ValueError, match="sparse, so op must be 'average' or 'sum'"):
        ct.GradientExchange(comm, op="max")(mine)


def check_compression(comm: Communicator) -> None:
    mine = gradients(comm.rank)
    whole = ct.GradientExchange(comm)
    whole(mine)
    kinds: list[tuple[Compression, Any]] = [("fp16", tf.float16), ("bf16", tf.bfloat16)]
    for kind, dtype in kinds:
        half = ct.GradientExchange(comm, compression=kind, bucket_bytes=64)
        for all_of in ways(half, mine):
            for found, expected, own in zip(all_of, averages(), mine, strict=True):
                assert found.dtype == own.dtype
                np.testing.assert_allclose(found, expected, atol=0.02)
        assert half.bytes_sent == whole.bytes_sent  # two steps of half as many bytes
        untouched = half([tf.constant([1, 2], tf.float16), tf.constant([1.0], tf.bfloat16)])
        assert [x.dtype for x in untouched] == [tf.float16, tf.bfloat16]
        same(half([tf.constant([1 / 3])])[0], [float(tf.cast(tf.constant(1 / 3), dtype))])
        everyones = ct.allgather(tf.concat([tf.reshape(x, [-1]) for x in half(mine)], 0)[None], comm=comm)
        same(everyones[0], everyones[1])


def check_averages_do_not_overflow(comm: Communicator) -> None:
    large, tiny = 60000.0, 2.0**-14
    half = ct.GradientExchange(comm, compression="fp16")
    same(half([tf.constant([large, -large, tiny])])[0], [60000.0, -60000.0, tiny])
    same(ct.GradientExchange(comm, op="sum", compression="fp16")([tf.constant([large])])[0], [120000.0])
    same(half([tf.constant([large], tf.float16)])[0], np.array([large], np.float16))
    same(half([tf.constant([2.0**17])], None)[0], [np.inf])  # more than a half holds: seen by loss scaling
    scaled = ct.GradientExchange(comm, prescale=2.0**-3, postscale=2.0**3, compression="fp16")
    same(scaled([tf.constant([2.0**17])])[0], [2.0**17])
    same(ct.GradientExchange(comm, op="sum", prescale=0.5, postscale=3.0)([tf.constant([1.0])])[0], [3.0])
    same(ct.GradientExchange(comm, op="max", compression="fp16")([tf.constant([-1.0 - comm.rank])])[0], [-1.0])


def check_infinities_reach_every_rank(comm: Communicator) -> None:
    kinds: list[Compression | None] = [None, "fp16", "bf16"]
    for op in ("average", "sum"):
        for kind in kinds:
            exchange = ct.GradientExchange(comm, op=op, compression=kind)
            for value in (np.inf, -np.inf, np.nan):
                same(exchange([tf.constant([value if comm.rank else 1.0, 2.0])])[0][0], value)


def check_error_feedback(comm: Communicator) -> None:
    """What rounding a gradient loses comes later: over many steps it does not add up.

    One rank has zeros, so that adding up ranks' halves, which rounds as well, is exact.
    """
    values = np.array([1 / 3, 1e-3, 7.7], np.float32)
    mine = [tf.constant(values * (1 - comm.rank)), tf.fill([70], 1 / 3)]
    for kind in ("fp16", "bf16"):
        plain = ct.GradientExchange(comm, compression=kind, bucket_bytes=64)
        kept = ct.GradientExchange(comm, compression=kind, bucket_bytes=64, error_feedback=True)
        for a, b in ((plain, kept), (tf.function(plain), tf.function(kept))):
            without, with_it = (sum(x(mine)[0].numpy().astype(np.float64) for _ in range(64)) / 64 for x in (a, b))
            assert np.all(np.abs(with_it - values / 2) < np.abs(without - values / 2) / 4), (with_it, without)
        kept([tf.constant([np.inf, 1.0, 1.0]), mine[1]])
        same(np.isfinite(kept(mine)[0]), [True] * 3)  # an infinity is not remembered
    with pytest.raises(ValueError, match="pass compression"):
        ct.GradientExchange(comm, error_feedback=True)


def check_eight_bits(comm: Communicator) -> None:
    values = np.array([1 / 3, 1e-3, 7.7], np.float32)
    mine = [tf.constant(values * (1 - comm.rank)), tf.fill([70], 1 / 3), tf.constant([1 / 3], tf.float64)]
    kinds: list[tuple[Compression, float]] = [("fp8", 7.7 / 16), ("int8", 7.7 / 254)]
    for kind, step in kinds:
        plain = ct.GradientExchange(comm, compression=kind)
        kept = ct.GradientExchange(comm, compression=kind, error_feedback=True)
        for a, b in ((plain, kept), (tf.function(plain), tf.function(kept))):
            once = a(mine)
            assert [x.dtype for x in once] == [tf.float32, tf.float32, tf.float64]
            assert np.abs(once[0] - values / 2).max() < step
            average = sum(b(mine)[0].numpy().astype(np.float64) for _ in range(64)) / 64
            assert np.abs(average - values / 2).max() < step / 64, average
        assert plain.bytes_sent == 2 * 3 * 260
        kept([tf.constant([np.inf, 1.0, 1.0]), *mine[1:]])
        kept(mine)
        same(np.isfinite(kept(mine)[0]), [True] * 3)
        assert plain([tf.constant([1.0], tf.float16)])[0].dtype == tf.float16
    with pytest.raises(ValueError, match="is for op 'average' or 'sum'"):
        ct.GradientExchange(comm, op="max", compression="int8")
    auto = ct.GradientExchange(comm, compression="auto", error_feedback=True)
    exact = ct.GradientExchange(comm)(mine)
    for found, wanted in zip(auto(mine), exact, strict=True):  # nobody has measured these links
        same(found, wanted)
    assert auto.bytes_sent == 4 * 3 + 4 * 70 + 8
    comm._choose_by(join([parse("allreduce any any any int8 wire=auto"), DEFAULTS]))
    rounded = tf.function(auto)(mine)
    assert auto.bytes_sent == 4 * 3 + 4 * 70 + 8 + 3 * 260
    same(rounded[0], ct.GradientExchange(comm, compression="int8")(mine)[0])
    comm._choose_by(DEFAULTS)


def check_tape(comm: Communicator) -> None:
    r = comm.rank
    w, unused = tf.Variable([1.0, 2.0]), tf.Variable([5.0])
    nest = {"w": w, "rest": [unused]}

    def step(x: Any) -> Any:
        with ct.DistributedGradientTape(comm=comm) as tape:
            loss = tf.reduce_sum(w * x)
        return tape.gradient(loss, nest)

    mine = tf.constant([1.0, 10.0]) * (r + 1)
    for run in (step, tf.function(step)):
        found = run(mine)
        same(found["w"], [1.5, 15.0])
        assert found["rest"] == [None]
    with tf.GradientTape() as inner:
        loss = tf.reduce_sum(w * mine)
    same(ct.DistributedGradientTape(inner, comm, op="sum").gradient(loss, w), [3.0, 30.0])
    with ct.DistributedGradientTape(comm=comm, persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(w)
        loss = tf.reduce_sum(w * w * mine)
        half = loss / 2
    same(tape.gradient(loss, [w])[0], [3.0, 60.0])
    same(tape.gradient(half, (w,))[0], [1.5, 30.0])
    zeros = tape.gradient(loss, [unused], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    same(zeros[0], [0.0])
    assert tape.watched_variables() == (w,)
    exchange = ct.GradientExchange(comm, compression="fp16", error_feedback=True)
    with ct.DistributedGradientTape(exchange=exchange) as tape:
        loss = tf.reduce_sum(w * mine)
    same(tape.gradient(loss, w), [1.5, 15.0])
    assert exchange.calls == 1
    with pytest.raises(ValueError, match="error_feedback is kept from step to step"):
        ct.DistributedGradientTape(comm=comm, compression="fp16", error_feedback=True)
    with pytest.raises(ValueError, match="either an exchange, or comm"):
        ct.DistributedGradientTape(comm=comm, exchange=exchange)
    with tf.GradientTape() as inner:
        loss = tf.reduce_sum(w * mine)
    with pytest.raises(DesyncError, match=r"variable 0 .*None on rank 1"):
        ct.DistributedGradientTape(inner, comm).gradient(loss, [w] if r == 0 else [unused])
    same(ct.allreduce_gradients([mine, None], [w, unused], comm, op="max")[0], [2.0, 20.0])


class Words(tf.Module):
    """An embedding, a layer on top of it, and a variable that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        self.table = tf.Variable(random.standard_normal([50, 8]), dtype=tf.float32, name="table")
        self.unused = tf.Variable(tf.ones([4]), name="unused")
        self.kernel = tf.Variable(random.standard_normal([8, 3]), dtype=tf.float32, name="kernel")
        self.all = [self.table, self.unused, self.kernel]

    def loss(self, words: Any, labels: Any) -> Any:
        hidden = tf.tanh(tf.reduce_mean(tf.gather(self.table, words), axis=1))
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden @ self.kernel)
        )


def adam(variables: list[Any]) -> Any:
    """Adam as its paper has it: a row that no rank looked up still moves on by its momentum."""
    slots = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in variables]
    count = tf.Variable(0.0)

    def apply(gradients: list[Any]) -> None:
        count.assign_add(1.0)
        rate = 0.01 * tf.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        for variable, gradient, (m, v) in zip(variables, gradients, slots, strict=True):
            if gradient is None:
                continue
            dense = tf.convert_to_tensor(gradient)
            m.assign(0.9 * m + 0.1 * dense)
            v.assign(0.999 * v + 0.001 * dense * dense)
            variable.assign_sub(rate * m / (tf.sqrt(v) + 1e-7))

    return apply


def trained(batches: list[tuple[Any, Any]], exchange: Any, sparse: list[bool]) -> list[Any]:
    model = Words()
    apply = adam(model.all)

    @tf.function
    def step(words: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = model.loss(words, labels)
        gradients = exchange(tape.gradient(loss, model.all), model.all)
        sparse.append(isinstance(gradients[0], tf.IndexedSlices))
        assert gradients[1] is None
        apply(gradients)

    for words, labels in batches:
        step(words, labels)
    return [variable.numpy() for variable in model.all]


def check_embedding_equals_one_process(comm: Communicator) -> None:
    random = np.random.default_rng(5)
    batches = [(random.integers(0, 50, [16, 4]), random.integers(0, 3, [16])) for _ in range(40)]
    r = comm.rank
    halves = [(words[8 * r : 8 * r + 8], labels[8 * r : 8 * r + 8]) for words, labels in batches]
    alone = trained(batches, lambda gradients, _: gradients, [])
    for options, kept in (({}, True), ({"sparse_as_dense": True}, False), ({"bucket_bytes": 16}, True)):
        sparse: list[bool] = []
        exchange = ct.GradientExchange(comm, **options)
        found = trained(halves, exchange, sparse)
        assert sparse == [kept] and exchange.calls == 40
        for mine, theirs in zip(found, alone, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
            everyones = ct.allgather(mine[None], comm=comm)
            same(everyones[0], everyones[1])
    unsynchronised = trained(halves, lambda gradients, _: gradients, [])
    assert np.abs(unsynchronised[0] - alone[0]).max() > 1e-2  # so that the comparison can fail


if __name__ == "__main__":
    main(globals())
