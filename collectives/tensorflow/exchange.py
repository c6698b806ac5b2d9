"""Exchanges the gradients of a training step between ranks, bucket by bucket during backpropagation.

Invariant: all ranks exchange matching gradients in the same order, or all ranks raise an error. The counters `calls`
and `bytes_sent` count executions of a tf.function, not traces.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import tensorflow as tf

from collectives.arrays.array import Array
from collectives.core import default
from collectives.core.communicator import Communicator
from collectives.gradients.channel import Channel, channel, joined_rows, located, planned, reduce
from collectives.gradients.plan import BUCKET, UNKNOWN, Bucket, Entry, Plan
from collectives.gradients.sparse import Rows
from collectives.gradients.wire import Compression, Rules, Wire, check_options
from collectives.native.errors import DesyncError
from collectives.tensorflow import bridge
from collectives.tensorflow.errors import as_tensorflow
from collectives.tensorflow.inputs import scaled, tensor_of
from collectives.tensorflow.residuals import Residuals


class Span(NamedTuple):
    """When the exchange of one bucket of gradients began and ended, in seconds of time.monotonic()."""

    bucket: int
    started: float
    finished: float


class GradientExchange:
    """A function object that takes this rank's gradients in each step, and returns them reduced over all ranks.

    - `op`: "average", "sum", "min", "max" or "prod"
    - `compression`: "fp16" or "bf16" sends float32 and float64 gradients in 16 bits, "fp8" or "int8" in 8 bits with
      a scale for each 256 numbers; not for op "min", "max" and "prod", and not for sparse gradients. "auto" takes the
      format that `collectives calibrate` has measured as fastest in such a group, for the bytes of a full bucket; None
      where nothing was measured, and for these ops
    - `error_feedback`: with `compression`, add the rounding error of a gradient to the gradient of the next step
    - `bucket_bytes`: gradients are exchanged in buckets of at most this size
    - `sparse_as_dense`: make sparse gradients dense. By default they stay sparse, and all ranks' rows are concatenated
    - `missing`: with "error", a gradient that is None on every rank stays None; None on only some ranks is an error on
      all ranks. With "zero" each None is replaced by zeros of its variable's shape
    - `prescale`, `postscale`: factors for gradients before, and for results after the reduction
    - `timeout`: in seconds; None for the communicator's timeout
    - `comm`: None for the communicator that `collectives.init` made
    - `name`: appears in error messages
    - `record`: add the start and end of each bucket's exchange to the attribute `timeline`
    """

    def __init__(
        self,
        comm: Communicator | None = None,
        *,
        op: str = "average",
        compression: Compression | None = None,
        bucket_bytes: int = BUCKET,
        sparse_as_dense: bool = False,
        missing: Literal["error", "zero"] = "error",
        error_feedback: bool = False,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
        name: str = "",
        record: bool = False,
    ) -> None:
        """Does not communicate. ValueError or TypeError for invalid options."""
        check_options(missing, error_feedback, compression)
        self._rules: Final = Rules(op, compression, bucket_bytes, float(prescale), float(postscale))
        self._comm: Final = None if comm is None else default.default(comm)
        self._sparse_as_dense: Final = sparse_as_dense
        self._zero: Final = missing == "zero"
        self._timeout: Final = timeout
        self._name: Final = name
        self._residuals: Final = Residuals() if error_feedback else None
        self._record: Final = record
        self._running: tuple[Plan, int] | None = None  # with the number of the bucket to exchange next
        self._step = 0
        self._warned = False
        self.calls = 0
        self.bytes_sent = 0
        self.error: BaseException | None = None
        self.timeline: Final[list[Span]] = []

    @property
    def steps(self) -> int:
        """The number of training steps whose gradients have been exchanged; the attribute `calls` is the same."""
        return self.calls

    def raise_error(self, from_: BaseException | None = None) -> None:
        """Raises the first error since the last successful exchange of gradients, with its own type, if there is one.

        TensorFlow itself reports such an error only as tf.errors.UnknownError. `from_`: the exception that becomes the
        error's cause.
        """
        if self.error is not None:
            raise as_tensorflow(self.error) from from_

    @tf.autograph.experimental.do_not_convert
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """Reduce `gradients` over all ranks; returns the results in the same order.

        A gradient is a tensor, tf.IndexedSlices or None. `variables`, one for each gradient, provide the gradients'
        names, and their shapes if these are unknown. Works eagerly and while a tf.function is traced. DesyncError, on
        every rank, if ranks' gradients differ in number, kind, dtype or shape; PeerLost if a rank is lost; OpTimeout. A
        traced function raises errors as tf.errors.UnknownError; the attribute `error` keeps the error's own type.
        """
        given = list(gradients)
        owners = [None] * len(given) if variables is None else list(variables)
        if len(owners) != len(given):
            raise ValueError(f"{len(given)} gradients were given for {len(owners)} variables")
        comm = default.default(self._comm)
        tensors = [self._prepared(i, g, v) for i, (g, v) in enumerate(zip(given, owners, strict=True))]
        entries = tuple(map(entry, tensors, owners))
        agreed = planned(comm, self._rules, entries)
        if len(agreed.buckets) > 1:
            self._warn_about_threads()
        for bucket in agreed.buckets:
            self._exchange(channel(comm), agreed, bucket, tensors)
        return tensors

    # --- preparing gradients

    def _prepared(self, place: int, gradient: Any, variable: Any) -> Any:
        if gradient is None:
            if not self._zero:
                return None
            if variable is None:
                raise ValueError(f"gradient {place} is None, and missing='zero' needs variables=, to know its shape")
            return tf.zeros(variable.shape, variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient) if self._sparse_as_dense else gradient
        return tensor_of(gradient, f"gradient {place}")

    def _warn_about_threads(self) -> None:
        if self._warned or tf.config.threading.get_inter_op_parallelism_threads() != 1:
            return
        self._warned = True
        warnings.warn(
            "TensorFlow has one inter-op thread, so gradients are not exchanged while backpropagation goes on: "
            "tf.config.threading.set_inter_op_parallelism_threads(2) or more",
            RuntimeWarning,
            stacklevel=3,
        )

    # --- exchanging one bucket of tensors

    def _exchange(self, way: Channel, plan: Plan, bucket: Bucket, tensors: list[Any]) -> None:
        """Replace the bucket's tensors by their results."""
        inputs = [self._encoded(plan, i, tensors[i]) for i in bucket.dense]
        results = [bridge.Spec(x.dtype, x.shape) for x in inputs]
        for i in bucket.sparse:
            values = self._encoded(plan, i, tensors[i].values)
            inputs += [tensors[i].indices, values]
            results += [
                bridge.Spec(tensors[i].indices.dtype, [None]),
                bridge.Spec(values.dtype, _any_rows(values)),
            ]

        def body(*arrays: Array) -> list[Array]:
            return self._run(way, plan, bucket, arrays)

        made = bridge.call(body, inputs, results, f"exchange_{bucket.number}")
        for i in bucket.dense:
            tensors[i] = _decoded(plan.wire(i), made.pop(0))
        for i in bucket.sparse:
            indices, values = made.pop(0), made.pop(0)
            tensors[i] = tf.IndexedSlices(_decoded(plan.wire(i), values), indices, tensors[i].dense_shape)

    def _encoded(self, plan: Plan, place: int, tensor: Any) -> Any:
        wire = plan.wire(place)
        if self._residuals is not None and wire.rounds:
            return self._residuals.encoded(place, tensor, wire)
        return _encoded(wire, tensor)

    # --- exchanging one bucket of NumPy arrays

    def _run(self, way: Channel, plan: Plan, bucket: Bucket, arrays: Sequence[Array]) -> list[Array]:
        try:
            if bucket.number == 0:
                self._begin(way, plan, arrays)
            self._take_turn(plan, bucket)
            started = time.monotonic()
            results = self._travel(way, plan, bucket, arrays)
            if self._record:
                self.timeline.append(Span(bucket.number, started, time.monotonic()))
        except BaseException as error:
            self._running = None
            of = f" of {self._name!r}" if self._name else ""
            where = f"gradients{of}, rank {way.rank}, step {self._step}, bucket {bucket.number} of {len(plan.buckets)}"
            reported = located(error, where)
            if self.error is None:
                self.error = reported
            if reported is error:
                raise
            raise reported from error
        if bucket.number == len(plan.buckets) - 1:
            self._running = None
            self.error = None
            self.calls += 1
        return results

    def _begin(self, way: Channel, plan: Plan, arrays: Sequence[Array]) -> None:
        way.steps[self._name] += 1
        self._step = way.steps[self._name]
        self._running = plan, 0
        way.agree(_concrete(plan, arrays), self._step, self._timeout)

    def _take_turn(self, plan: Plan, bucket: Bucket) -> None:
        if self._running != (plan, bucket.number):
            raise DesyncError(
                "it is not this bucket's turn: two steps run at once, so their order is not the same on every rank. "
                "Run them one after the other; loops inside a tf.function with "
                "tf.autograph.experimental.set_loop_options(parallel_iterations=1)"
            )
        self._running = plan, bucket.number + 1

    def _travel(self, way: Channel, plan: Plan, bucket: Bucket, arrays: Sequence[Array]) -> list[Array]:
        comm, split = way.comm, len(bucket.dense)
        dense = list(arrays[:split])
        results = reduce(comm, plan, bucket, dense, self._timeout)
        self.bytes_sent += sum(plan.wire(i).nbytes(x) for i, x in zip(bucket.dense, dense, strict=True))
        if bucket.sparse:
            rows = [Rows(*pair) for pair in zip(arrays[split::2], arrays[split + 1 :: 2], strict=True)]
            joined, nbytes = joined_rows(comm, rows, self._timeout)
            self.bytes_sent += nbytes
            results += [array for pair in joined for array in pair]
        return results


def _encoded(wire: Wire, tensor: Any) -> Any:
    sent = scaled(tensor, wire.before)
    return sent if wire.dtype == wire.source else tf.cast(sent, wire.dtype)


def _decoded(wire: Wire, tensor: Any) -> Any:
    back = tensor if wire.dtype == wire.source else tf.cast(tensor, wire.source)
    return scaled(back, wire.after)


def _any_rows(values: Any) -> Any:
    return values.shape if values.shape.rank is None else [None, *values.shape[1:]]


def _concrete(plan: Plan, arrays: Sequence[Array]) -> Plan:
    """`plan` with its unknown shapes replaced by those of `arrays`; a plan with unknown shapes has only one bucket."""
    if all(entry.known for entry in plan.entries):
        return plan
    entries = list(plan.entries)
    (bucket,) = plan.buckets
    split = len(bucket.dense)
    for place, array in zip(bucket.dense, arrays[:split], strict=True):
        entries[place] = entries[place]._replace(shape=array.shape)
    for place, values in zip(bucket.sparse, arrays[split + 1 :: 2], strict=True):
        entries[place] = entries[place]._replace(shape=(UNKNOWN, *values.shape[1:]))
    return replace(plan, entries=tuple(entries))


def entry(gradient: Any, variable: Any) -> Entry:
    """Returns the properties of a gradient that ranks compare before they exchange gradients.

    `gradient` and its `variable` may each be None.
    """
    name = str(getattr(variable, "path", None) or getattr(variable, "name", None) or "")
    if gradient is None:
        return Entry(name, "none")
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values
        row = _shape(values.shape[1:])
        return Entry(name, "sparse", values.dtype.name, (UNKNOWN, *row), gradient.indices.dtype.name)
    shape = gradient.shape if gradient.shape.is_fully_defined() or variable is None else variable.shape
    return Entry(name, "dense", gradient.dtype.name, _shape(shape))


def _shape(shape: Any) -> tuple[int, ...]:
    """`shape` as a tuple, with UNKNOWN for unknown extents; (UNKNOWN,) if the number of axes is not known."""
    extents = (None,) if shape.rank is None else tuple(shape)
    return tuple(UNKNOWN if extent is None else int(extent) for extent in extents)
