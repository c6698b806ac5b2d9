"""The collectives as JAX needs them: result shapes, how to run them on arrays, transposes, and batch axes for vmap.

Invariant: all functions but `run` are pure. Except for send and recv, each operand gives one result, which does not
depend on the other operands: a call with several operands is several collectives. A collective is transposed as one
linear function from the operands of all ranks to the results of all ranks. The cotangent of a rank's operand therefore
depends on the cotangents of every rank's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import numpy as np

from collectives.arrays.array import Array, Dtype, check_dtype, check_rank
from collectives.core.communicator import Communicator
from collectives.native import _engine
from collectives.native.spelling import hint

Shape: TypeAlias = "tuple[int, ...]"
Form: TypeAlias = "tuple[Shape, Dtype]"
Bind: TypeAlias = "Callable[[Kind, Sequence[Any]], list[Any]]"


class Kind(Protocol):
    """A collective with its parameters, such as op or root, and all that JAX has to know about it.

    It is hashable, so that JAX recognizes equal collectives.
    """

    name: ClassVar[str]
    in_place: ClassVar[bool]  # results overwrite operands: `run` gets the same arrays for both

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        """Returns the shapes and dtypes of the collective's results on `size` ranks.

        Raises ValueError or TypeError for invalid operands.
        """

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        """Runs the collective on `comm`, with the operands `reads`, and writes its results to `writes`.

        All arrays are contiguous, and used by nothing else until this method returns. Raises the errors of `comm`.
        """

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        """For derivatives: returns the cotangents of the operands, computed from the cotangents of the results.

        `bind` runs or traces another collective. Only for linear collectives, which `check_linear` accepts.
        """

    def batch_axes(self, axis: int) -> tuple[int, int]:
        """Returns, for jax.vmap, where an operand's batch axis `axis` has to move, and the result's batch axis."""

    def __hash__(self) -> int: ...


# --- reductions


@dataclass(frozen=True, slots=True)
class Allreduce:
    op: str
    bucket_bytes: int
    name: ClassVar[str] = "allreduce"
    in_place: ClassVar[bool] = True

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        return [_reducible(form, self.op) for form in operands]

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        if len(reads) == 1:
            comm.allreduce(reads[0], self.op, out=writes[0])
        else:
            comm.allreduce_many(reads, self.op, out=writes, bucket_bytes=self.bucket_bytes)

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        return bind(self, cotangents)

    def batch_axes(self, axis: int) -> tuple[int, int]:
        return axis, axis


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    op: str
    name: ClassVar[str] = "reduce_scatter"
    in_place: ClassVar[bool] = False

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        return [_reducible(((_rows(shape, size, self.name), *shape[1:]), dtype), self.op) for shape, dtype in operands]

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        for x, out in zip(reads, writes, strict=True):
            comm.reduce_scatter(x, self.op, out=out)

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        everyones = [y.reshape(y.shape[0] * y.shape[1], *y.shape[2:]) for y in bind(Allgather(), cotangents)]
        if self.op == "sum":
            return everyones
        return [y / (y.shape[0] // x.shape[0]) for x, y in zip(cotangents, everyones, strict=True)]

    def batch_axes(self, axis: int) -> tuple[int, int]:
        return 1, 1


@dataclass(frozen=True, slots=True)
class Reduce:
    """The sum of all ranks' operands on rank `root`, and zeros on other ranks: the transpose of a broadcast."""

    root: int
    name: ClassVar[str] = "reduce"
    in_place: ClassVar[bool] = False

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        check_rank(self.root, size, "root")
        return [_reducible(form, "sum") for form in operands]

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        for x, out in zip(reads, writes, strict=True):
            if comm.rank == self.root:
                comm.reduce(x, "sum", self.root, out=out)
            else:
                comm.reduce(x, "sum", self.root)
                out[...] = 0

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        return bind(Broadcast(self.root), cotangents)

    def batch_axes(self, axis: int) -> tuple[int, int]:
        return axis, axis


# --- moving data


@dataclass(frozen=True, slots=True)
class Allgather:
    name: ClassVar[str] = "allgather"
    in_place: ClassVar[bool] = False

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        return [((size, *shape), _movable(dtype)) for shape, dtype in operands]

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        for x, out in _moved(reads, writes):
            comm.allgather(x, out=out)

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        return [y.reshape(y.shape[1:]) for y in bind(ReduceScatter("sum"), cotangents)]

    def batch_axes(self, axis: int) -> tuple[int, int]:
        return axis, axis + 1


@dataclass(frozen=True, slots=True)
class Broadcast:
    root: int
    name: ClassVar[str] = "broadcast"
    in_place: ClassVar[bool] = True

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        check_rank(self.root, size, "root")
        return [(shape, _movable(dtype)) for shape, dtype in operands]

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        for x, _ in _moved(writes, writes):
            comm.broadcast(x, self.root)

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        return bind(Reduce(self.root), cotangents)

    def batch_axes(self, axis: int) -> tuple[int, int]:
        return axis, axis


@dataclass(frozen=True, slots=True)
class Alltoall:
    name: ClassVar[str] = "alltoall"
    in_place: ClassVar[bool] = False

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        for shape, _ in operands:
            _rows(shape, size, self.name)
        return [(shape, _movable(dtype)) for shape, dtype in operands]

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        for x, out in _moved(reads, writes):
            comm.alltoall(x, out=out)

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        return bind(self, cotangents)

    def batch_axes(self, axis: int) -> tuple[int, int]:
        return 1, 1


# --- barrier, and messages between two ranks


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier that returns its operands, so that computations that use the returned arrays run after the barrier."""

    name: ClassVar[str] = "barrier"
    in_place: ClassVar[bool] = True

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        return list(operands)

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        comm.barrier()

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        return list(cotangents)

    def batch_axes(self, axis: int) -> tuple[int, int]:
        return axis, axis


@dataclass(frozen=True, slots=True)
class Send:
    dest: int
    name: ClassVar[str] = "send"
    in_place: ClassVar[bool] = False

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        check_rank(self.dest, size, "dest")
        for _, dtype in operands:
            _movable(dtype)
        return []

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        for x, _ in _moved(reads, reads):
            comm.send(x, self.dest)

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        raise AssertionError("it has no results")

    def batch_axes(self, axis: int) -> tuple[int, int]:
        return 0, 0


@dataclass(frozen=True, slots=True)
class Recv:
    source: int
    forms: tuple[Form, ...]
    name: ClassVar[str] = "recv"
    in_place: ClassVar[bool] = False

    def results(self, operands: Sequence[Form], size: int) -> list[Form]:
        check_rank(self.source, size, "source")
        return [(shape, _movable(dtype)) for shape, dtype in self.forms]

    def run(self, comm: Communicator, reads: list[Array], writes: list[Array]) -> None:
        for out, _ in _moved(writes, writes):
            comm.recv(out, self.source)

    def transposed(self, bind: Bind, cotangents: Sequence[Any]) -> list[Any]:
        raise AssertionError("it has no operands")

    def batch_axes(self, axis: int) -> tuple[int, int]:
        raise AssertionError("it has no operands")


# --- checks


def check_linear(kind: Kind) -> None:
    """Raises TypeError if the collective has no derivative, because it is not linear."""
    op = kind.op if isinstance(kind, Allreduce | ReduceScatter) else "sum"
    if op not in ("sum", "avg"):
        raise TypeError(
            f"collectives.jax.{kind.name} has a derivative for sum and avg, not for {op!r}: "
            "give it jax.lax.stop_gradient(x)"
        )
    if isinstance(kind, Send):
        raise TypeError(
            "collectives.jax.send has no derivative: use alltoall or broadcast, or send jax.lax.stop_gradient(x)"
        )


_BYTES: Final = np.dtype(np.uint8)  # 8-bit floats are sent as bytes: nothing is computed with them


def _movable(dtype: Dtype) -> Dtype:
    """Return `dtype`. TypeError unless the library supports it, or it is an 8-bit float, which is sent as bytes."""
    if not _in_bytes(dtype):
        check_dtype(dtype, "x")
    return dtype


def _in_bytes(dtype: Dtype) -> bool:
    return dtype.name.startswith("float8_")


def _moved(reads: Sequence[Array], writes: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
    for x, out in zip(reads, writes, strict=True):
        yield (x.view(_BYTES), out.view(_BYTES)) if _in_bytes(x.dtype) else (x, out)


def _reducible(form: Form, op: str) -> Form:
    name = check_dtype(form[1], "x")
    if op not in _engine.OPS:
        raise ValueError(f"unknown op {op!r}{hint(op, _engine.OPS)}; there are {', '.join(_engine.OPS)}")
    if not _engine.supports(_engine.DTYPES[name], _engine.OPS[op]):
        raise TypeError(f"op {op!r} has no meaning for dtype {name}")
    return form


def _rows(shape: Shape, size: int, collective: str) -> int:
    if not shape or shape[0] % size:
        raise ValueError(
            f"{collective} divides the first axis among {size} ranks, which x of shape {shape} does not allow"
        )
    return shape[0] // size
