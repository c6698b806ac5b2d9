"""Exchanges gradients as NumPy arrays in host memory, for backends that can convert gradients to NumPy.

Invariant: all ranks exchange gradients of the same kinds, dtypes and shapes in the same order; otherwise all ranks
raise an error. Names are not compared, because the variables of a model may have different names in each process.
Results are new arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from collectives.arrays.array import Array, dtype_of
from collectives.core.communicator import Communicator
from collectives.gradients.channel import channel, located, planned, reduce
from collectives.gradients.plan import Entry, Plan
from collectives.gradients.wire import Rules, Wire, check_options
from collectives.keras.backends import Options


class HostExchange:
    """Exchanges gradients with all ranks at each training step, on NumPy arrays, for several backends of Keras.

    Call `prepare` while the training step is traced, and `run` when the step runs.
    """

    def __init__(self, comm: Communicator, options: Options) -> None:
        """ValueError for invalid options. Does not communicate."""
        check_options(options.missing, options.error_feedback, options.compression)
        self._comm: Final = comm
        self._options: Final = options
        self._rules: Final = Rules(options.op, options.compression, options.bucket_bytes)
        self._lost: Final[dict[int, Array]] = {}  # rounding errors by index of the entry
        self.calls = 0
        self.bytes_sent = 0
        self.error: BaseException | None = None

    def prepare(self, entries: Sequence[Entry]) -> Plan:
        """Decides how ranks exchange the gradients that `entries` describe; returns a `Plan`, which `run` needs.

        Raises TypeError or ValueError if a gradient does not fit the options.
        """
        return planned(self._comm, self._rules, tuple(entries))

    def filled(self, gradient: Any, variable: Any, zeros: Callable[[Any], Any]) -> Any:
        """Returns `gradient`. If it is None and the option `missing` is "zero", returns `zeros(variable)` instead."""
        if gradient is not None or self._options.missing != "zero":
            return gradient
        if variable is None:
            raise ValueError("a gradient is None, and missing='zero' needs variables, to know its shape")
        return zeros(variable)

    def run(self, agreed: Plan, arrays: Sequence[Array]) -> list[Array]:
        """Exchanges this rank's gradients with all ranks, and returns the reduced gradients in the same order.

        `agreed`: the plan from `prepare`. `arrays`: the gradients that are not None, in the order of the `entries`
        given to `prepare`; they are not changed.
        """
        try:
            return self._run(agreed, arrays)
        except BaseException as error:
            of = f" of {self._options.name!r}" if self._options.name else ""
            reported = located(error, f"gradients{of}, rank {self._comm.rank}, step {self.calls + 1}")
            self.error = self.error or reported
            if reported is error:
                raise
            raise reported from error

    def _run(self, agreed: Plan, arrays: Sequence[Array]) -> list[Array]:
        way, timeout = channel(self._comm), self._options.timeout
        way.agree(agreed, self.calls + 1, timeout)
        places = [i for i, entry in enumerate(agreed.entries) if entry.kind != "none"]
        given, results = dict(zip(places, arrays, strict=True)), {}
        for bucket in agreed.buckets:
            packed = [self._encoded(i, given[i], agreed.wire(i)) for i in bucket.dense]
            back = reduce(way.comm, agreed, bucket, packed, timeout)
            self.bytes_sent += sum(agreed.wire(i).nbytes(x) for i, x in zip(bucket.dense, packed, strict=True))
            results.update({i: _decoded(x, agreed.wire(i)) for i, x in zip(bucket.dense, back, strict=True)})
        self.calls += 1
        return [results[i] for i in places]

    def _encoded(self, place: int, array: Array, wire: Wire) -> Array:
        feedback = self._options.error_feedback and wire.rounds
        wanted = array + self._lost[place] if feedback and place in self._lost else array
        with np.errstate(over="ignore"):  # overflow gives infinity, as intended
            sent = (wanted if wire.before == 1 else wanted * wire.source.type(wire.before)).astype(
                wire.dtype, copy=False
            )
        if feedback:
            lost = wanted - wire.rounded(sent).astype(wire.source) / wire.source.type(wire.before)
            self._lost[place] = np.where(np.isfinite(lost), lost, wire.source.type(0))
        return np.ascontiguousarray(sent)


def entry(name: str, dtype: Any, shape: Sequence[int]) -> Entry:
    """Describes a dense gradient by its dtype and shape, which ranks compare, and by its name for errors."""
    return Entry(name, "dense", str(dtype_of(dtype)), tuple(map(int, shape)))


def _decoded(array: Array, wire: Wire) -> Array:
    back = array.astype(wire.source, copy=False)
    return back if wire.after == 1 else back * wire.source.type(wire.after)
