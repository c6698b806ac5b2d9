"""Allreduce of a list of arrays in one call: small arrays of one dtype are copied to a bucket and reduced together.

Invariant: the division into buckets depends only on shapes, dtypes and the size of a bucket. The division is part of
the fingerprint that ranks compare, so ranks whose lists differ raise DesyncError. All arguments are checked before
anything is sent.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from collectives.arrays.array import Array, Dtype, Target, check_number, in_place, output, reading, updating
from collectives.arrays.located import is_device_array
from collectives.arrays.mappings import address
from collectives.arrays.recycle import Recycler
from collectives.calls.call import Call
from collectives.calls.moves import Deadline
from collectives.calls.part_way import PartWay
from collectives.calls.reductions import ReductionCalls
from collectives.calls.work import Ticket
from collectives.native import _engine

BUCKET: Final = 25 << 20  # bytes
# Bytes: from this size on, the copies of an array to a bucket and back cost more than a separate operation.
_ALONE: Final = 512 << 10
_MOST_KEPT: Final = 64  # plans: lists of ever new shapes must not fill the memory

Form: TypeAlias = "tuple[tuple[tuple[int, ...], Dtype], ...]"  # shape and dtype of each array
Key: TypeAlias = "tuple[Form, str, int, str]"  # form, op, bucket_bytes, algorithm


class Part(NamedTuple):
    """Some arrays of a list that one allreduce reduces together, after they have been copied to one buffer (a bucket).

    `members`: the positions of these arrays in the list. `starts`: for each array, the index of its first element in
    the bucket. `elements`: the number of elements of the bucket.
    """

    members: tuple[int, ...]
    starts: tuple[int, ...]
    dtype: Dtype
    elements: int


class Bucket(NamedTuple):
    """Memory for arrays that one allreduce reduces together: `inp` for all inputs, and `out` for all results.

    `inp` and `out` are the same memory if the algorithm works in place. `ins` and `outs` are views of them, one for
    each array: inputs are copied to `ins`, and results are copied from `outs`.
    """

    inp: Array
    out: Array
    ins: tuple[Array, ...]
    outs: tuple[Array, ...]


class Plan(NamedTuple):
    """How `allreduce_many` divides a list of arrays into parts, each of which one allreduce reduces.

    Lists with the same shapes and dtypes share one plan. `free[i]`: the buffers for part i that no call uses at the
    moment. `purpose`: a text that ranks compare before the allreduce. `nbytes`: the size of all arrays together.
    """

    parts: list[Part]
    purpose: str
    nbytes: int
    free: list[list[Bucket]]


class Step(NamedTuple):
    """One allreduce of several arrays: `ins` are copied to a buffer (`bucket`), and later the results to `outs`.

    `bucket` is None for an array that is reduced alone, because it needs no copy. `free`: the list of unused buffers,
    to which the buffer returns at the end; None if the step keeps its buffer.
    """

    call: Call
    bucket: Bucket | None = None
    ins: tuple[Array, ...] = ()
    outs: tuple[Array, ...] = ()
    free: list[Bucket] | None = None

    def pack(self) -> None:
        if self.bucket is not None:
            for place, array in zip(self.bucket.ins, self.ins, strict=True):
                np.copyto(place, array)

    def unpack(self) -> None:
        if self.bucket is None:
            return
        for array, place in zip(self.outs, self.bucket.outs, strict=True):
            np.copyto(array, place)
        if self.free is not None:
            self.free.append(self.bucket)


class Many(NamedTuple):
    """A prepared allreduce of many arrays."""

    steps: list[Step]
    targets: list[Target]

    def run(self, group: _engine.Group, parts: PartWay) -> list[Any]:
        """`parts` counts the operations that have begun."""
        self._begin()
        for step in self.steps:
            step.pack()
            step.call.run(group, step.call.seconds)
            parts.begun += 1
            step.unpack()
        return self.deliver()

    def start(self, group: _engine.Group, parts: PartWay) -> list[Ticket]:
        """Starts all operations; `finish` ends the call once they have ended."""
        self._begin()
        tickets: list[Ticket] = []
        for step in self.steps:
            step.pack()
            call = step.call
            tickets.append(group.start(call.operation, call.taken, call.out, call.seconds))
            parts.begun += 1
        return tickets

    def finish(self) -> list[Any]:
        for step in self.steps:
            step.call.deliver()
            step.unpack()
        return self.deliver()

    def _begin(self) -> None:
        """Call `Target.begin` for each result."""
        for target in self.targets:
            target.begin()

    def deliver(self) -> list[Any]:
        return [target.deliver() for target in self.targets]

    def kept(self) -> Many:
        """The same for many runs, one after the other: each step keeps its buffer."""
        return Many([step._replace(free=None) for step in self.steps], self.targets)


class Fusion:
    """Prepares the calls of `allreduce_many`, which reduces a list of arrays, on one communicator.

    Not thread-safe: the caller makes sure that only one thread at a time uses this object.
    """

    def __init__(self, calls: ReductionCalls, memory: Callable[[int, Dtype], Array]) -> None:
        """`memory(count, dtype)` allocates an array for a bucket, if possible in memory that other ranks can read."""
        self._calls: Final = calls
        self._memory: Final = memory
        self._plans: Final[dict[Key, Plan]] = {}
        self._recycler: Final = Recycler()

    def prepare(self, arrays: Any, out: Any, timeout: float | None, op: str, bucket_bytes: int, algorithm: str) -> Many:
        """Checks the arguments of `allreduce_many`, and returns an object that runs the call.

        Raises TypeError or ValueError for an invalid argument. For an invalid array, the error names its index in the
        list.
        """
        hosts, targets = check_list(arrays, out, self._recycler)
        form = tuple((host.shape, host.dtype) for host in hosts)
        plan = self.plan(form, op, bucket_bytes, algorithm)
        deadline = self._calls.limit(timeout)
        steps = []
        for part, free in zip(plan.parts, plan.free, strict=True):
            if len(part.members) == 1:
                i = part.members[0]
                steps.append(Step(self.allreduce(plan, part, hosts[i], targets[i].host, op, algorithm, deadline)))
                continue
            bucket = free.pop() if free else self._bucket(part, form, op, algorithm)
            call = self.allreduce(plan, part, bucket.inp, bucket.out, op, algorithm, deadline)
            ins, outs = zip(*((hosts[i], targets[i].host) for i in part.members), strict=True)
            steps.append(Step(call, bucket, ins, outs, free))
        return Many(steps, targets)

    def plan(self, form: Form, op: str, bucket_bytes: int, algorithm: str) -> Plan:
        """Returns how a list with these shapes and dtypes is divided. TypeError or ValueError for invalid arguments."""
        key = (form, op, bucket_bytes, algorithm)
        try:
            return self._plans[key]
        except (KeyError, TypeError):  # not hashable: refused below, with a better message
            pass
        most = check_bucket_bytes(bucket_bytes)
        # A single rank sends nothing, so copies to buckets would gain nothing.
        found = parts(form, most if self._calls.size > 1 else 1)
        purpose = f"many {zlib.crc32(repr((form, most)).encode())}"
        nbytes = sum(part.elements * part.dtype.itemsize for part in found)
        plan = Plan(found, purpose, nbytes, [[] for _ in found])
        for part in found:  # raises for invalid arguments before memory is allocated
            self._calls.check_allreduce(part.dtype, part.elements, op, algorithm)
        if len(self._plans) >= _MOST_KEPT:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def allreduce(
        self, plan: Plan, part: Part, inp: Array, out: Array, op: str, algorithm: str, deadline: Deadline
    ) -> Call:
        """Returns the operation that reduces a part of the list, from the memory of `inp` to that of `out`."""
        call_bytes = plan.nbytes if len(part.members) == 1 else 0
        return self._calls.engine_allreduce(inp, out, deadline.left, op, algorithm, plan.purpose, call_bytes)

    def is_in_place(self, part: Part, op: str, algorithm: str) -> bool:
        """Whether the operation of a part works with input and output in the same memory."""
        return self._calls.check_allreduce(part.dtype, part.elements, op, algorithm)

    def _bucket(self, part: Part, form: Form, op: str, algorithm: str) -> Bucket:
        inp = self._memory(part.elements, part.dtype)
        out = inp if self.is_in_place(part, op, algorithm) else self._memory(part.elements, part.dtype)
        return Bucket(inp, out, _views(inp, part, form), _views(out, part, form))


def parts(form: Form, bucket_bytes: int) -> list[Part]:
    """Divides a list of arrays into parts, each of which one allreduce reduces.

    `form`: the shape and dtype of each array. A part is a large array alone, or small arrays of one dtype with at most
    `bucket_bytes` bytes together. Parts are returned in the order in which they are sent.
    """
    done: list[list[int]] = []
    filling: dict[Dtype, list[int]] = {}
    held: dict[Dtype, int] = {}
    for i, (shape, dtype) in enumerate(form):
        n = math.prod(shape) * dtype.itemsize
        if n == 0:
            continue
        if n >= min(_ALONE, bucket_bytes):
            done.append([i])
            continue
        if held.get(dtype, 0) + n > bucket_bytes:
            done.append(filling.pop(dtype))
            held[dtype] = 0
        filling.setdefault(dtype, []).append(i)
        held[dtype] = held.get(dtype, 0) + n
    return [_part(members, form) for members in (*done, *filling.values())]


def _part(members: list[int], form: Form) -> Part:
    starts, end = [], 0
    for i in members:
        starts.append(end)
        end += math.prod(form[i][0])
    return Part(tuple(members), tuple(starts), form[members[0]][1], end)


def _views(memory: Array, part: Part, form: Form) -> tuple[Array, ...]:
    ends = (*part.starts[1:], part.elements)
    return tuple(
        memory[start:end].reshape(form[i][0]) for i, start, end in zip(part.members, part.starts, ends, strict=True)
    )


def check_bucket_bytes(value: Any) -> int:
    """`value` as a number of bytes. Raises TypeError, ValueError."""
    most = check_number(value, "bucket_bytes")
    if most < 1:
        raise ValueError(f"bucket_bytes is {most}: it must be a number of bytes from 1 up")
    return most


def check_list(
    arrays: Any, out: Any, recycler: Recycler, check: Callable[[Any, Any], None] | None = None
) -> tuple[list[Array], list[Target]]:
    """Check `arrays` and `out`; returns the inputs as NumPy arrays, and the destinations of the results.

    `out[i]` may be the same array as `arrays[i]`, but may not share memory with any other array of both lists.
    `check(arrays[i], out[i])` may refuse them by a TypeError or ValueError, to which the number of the array is added.
    """
    given = _listed(arrays, "arrays")
    wanted = [None] * len(given) if out is None else _listed(out, "out")
    if len(wanted) != len(given):
        raise ValueError(f"out has {len(wanted)} arrays, but there are {len(given)} to reduce")
    hosts, targets = [], []
    for i, (x, y) in enumerate(zip(given, wanted, strict=True)):
        try:
            if check is not None:
                check(x, y)
            if y is x:
                target = updating(x)
                host = target.host
            else:
                host = reading(x)
                if y is None and not is_device_array(x):
                    memory = recycler.empty(host.shape, host.dtype)
                    target = Target(memory, result=memory)
                else:
                    target = output(y, host.shape, host.dtype, x)
                    in_place(host, target.host)
        except (TypeError, ValueError) as error:
            raise type(error)(f"array {i} of the list: {error}") from None
        hosts.append(host)
        targets.append(target)
    if out is not None:
        _check_apart(hosts, [target.host for target in targets])
    return hosts, targets


def _check_apart(inputs: list[Array], results: list[Array]) -> None:
    """Raises ValueError if `results[i]` shares memory with `inputs[j]` or `results[j]`, where i and j differ."""
    spans = []
    for i, (x, y) in enumerate(zip(inputs, results, strict=True)):
        if y.nbytes:
            spans.append((*_span(y), i, True))
            if x is not y:
                spans.append((*_span(x), i, False))
    spans.sort()
    reach, last = [0, 0], [-1, -1]  # of inputs and of results so far: the largest end address, and its array
    for start, end, i, written in spans:
        if start < reach[True] and last[True] != i:
            a, b = sorted((last[True], i))
            if written:
                raise ValueError(f"the results of arrays {a} and {b} of the list share memory")
            raise ValueError(f"array {i} of the list shares memory with the result of array {last[True]}")
        if written and start < reach[False] and last[False] != i:
            raise ValueError(f"array {last[False]} of the list shares memory with the result of array {i}")
        if end > reach[written]:
            reach[written], last[written] = end, i


def _span(x: Array) -> tuple[int, int]:
    start = address(x)
    return start, start + x.nbytes


def _listed(arrays: Any, name: str) -> list[Any]:
    if not isinstance(arrays, list | tuple):
        raise TypeError(f"{name} must be a list or tuple of arrays, not {type(arrays).__name__}")
    return list(arrays)
