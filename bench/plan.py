"""A run of the benchmark as a value: what is measured and how, the same on every rank.

Invariant: a plan is checked before ranks start, so every collective, dtype, op and algorithm that it names exists. A
plan contains no secrets: the launcher passes the store's address and the job's secret to ranks separately.
"""

from __future__ import annotations

import importlib
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from collectives.algorithms import registry
from collectives.arrays.array import dtype_names, dtype_of
from collectives.bench.cases import KINDS, OUT_OF_PLACE, Case, Kind, count_for
from collectives.bench.traces import gradients
from collectives.native import _engine
from collectives.native.spelling import hint

ALIASES: Final = {"half": "float16", "float": "float32", "double": "float64", "bf16": "bfloat16"}
DTYPES: Final = tuple(dtype_names().values())
OPS: Final = tuple(_engine.OPS)


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """Another library to measure, such as Open MPI, and the Python interpreter in which it is installed."""

    name: str
    python: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of one run of the benchmark: what is measured, and how.

    Every combination of `collectives`, `sizes` (in bytes), `dtypes` and `ops` is measured. "all" as a dtype, op or
    algorithm stands for all that are possible. `traces` are models whose gradients are reduced, instead of arrays of
    the given sizes. Each model is measured with one allreduce per gradient, and with gradients joined in buckets of
    `bucket` bytes.

    `places` are the forms of call to measure, "out-of-place" and "in-place". If `usual`, each collective is measured in
    the first of its forms only. `device` is "cpu" for arrays in host memory, "cuda" for arrays on CUDA devices.
    `buffers` is "plain" for arrays of NumPy or CuPy, "shared" for arrays from `comm.empty`. `peers` are other libraries
    to measure. `limits` are lower bounds to measure, such as the time of a plain copy (see limits.py and
    device_limits.py).

    `iterations` is the number of calls to time; if None, as many as fit into `budget` seconds. `rounds` is the number
    of rounds, in each of which all libraries are timed in turn. If `renew`, every rank writes its input again before
    each call, outside the timed part. `row` is the number of calls without a barrier between them. `addresses` is the
    option of `collectives run`.
    """

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    root: int = 0
    algorithm: str = "auto"
    places: tuple[str, ...] = KINDS["allreduce"].places
    usual: bool = False
    device: str = "cpu"
    buffers: str = "plain"
    renew: bool = False
    row: int = 1
    warmup: int = 5
    iterations: int | None = None
    budget: float = 0.2
    rounds: int = 1
    check: bool = True
    timeout: float = 60.0
    addresses: str = "random"
    transport: str | None = None
    segment: int | None = None
    modules: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    peers: tuple[PeerPlan, ...] = ()
    traces: tuple[str, ...] = ()
    bucket: int = 25 << 20
    json: str | None = None
    plot: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        value: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
        value["peers"] = tuple(PeerPlan(**peer) for peer in value["peers"])
        return Plan(**value)

    @property
    def fingerprint(self) -> int:
        """A checksum of the options of the benchmark, by which ranks check that they have the same options.

        The names of output files do not count.
        """
        return zlib.crc32(replace(self, json=None, plot=None).to_json().encode())


def load(modules: tuple[str, ...], folder: str) -> None:
    """Import the Python modules `modules`, with which the user registers algorithms of their own.

    The directory `folder` is added to `sys.path` first. Raises: ValueError if a module cannot be imported.
    """
    if folder not in sys.path:
        sys.path.append(folder)
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # the user's code may raise anything
            raise ValueError(f"cannot import {module}: {type(error).__name__}: {error}") from error


def cases(plan: Plan, ranks: int) -> list[Case]:
    """Return the measurements that `plan` asks for, in the order in which they are made and printed.

    Each measurement is of one collective at one size on `ranks` ranks. Raises: ValueError for unknown names, and for
    combinations that are impossible.
    """
    found = list(dict.fromkeys(_cases(plan, ranks)))
    if not found:
        raise ValueError("nothing to measure: none of the dtypes supports any of the ops")
    return found


def _cases(plan: Plan, ranks: int) -> Iterator[Case]:
    if not 0 <= plan.root < ranks:
        raise ValueError(f"root {plan.root} is not one of {ranks} ranks, counted from 0")
    for name in plan.collectives:
        kind = KINDS[name]
        if not set(kind.places) & set(plan.places):
            raise ValueError(f"{name} cannot be called {plan.places[0]}, only {kind.places[0]}")
        for dtype in _dtypes(plan, kind):
            for op in _ops(plan, kind, dtype):
                yield from _traces(plan, dtype, op, ranks)
                for nbytes in () if plan.traces else plan.sizes if name != "barrier" else (0,):
                    for algorithm in _algorithms(plan, name, ranks):
                        itemsize = dtype_of(dtype).itemsize
                        yield Case(
                            collective=name,
                            dtype=dtype,
                            itemsize=itemsize,
                            op=op,
                            root=plan.root if kind.rooted else -1,
                            algorithm=algorithm,
                            ranks=ranks,
                            count=count_for(kind, nbytes, itemsize, ranks),
                        )


def _traces(plan: Plan, dtype: str, op: str, ranks: int) -> Iterator[Case]:
    itemsize = dtype_of(dtype).itemsize
    for name in plan.traces:
        parts = gradients(name)
        if plan.bucket < itemsize:
            raise ValueError(f"a bucket of {plan.bucket} bytes holds no element")
        for bucket in (0, plan.bucket):
            yield Case("allreduce", dtype, itemsize, op, -1, plan.algorithm, ranks, sum(parts), name, parts, bucket)


def _dtypes(plan: Plan, kind: Kind) -> tuple[str, ...]:
    if kind.name == "barrier":
        return ("uint8",)
    names = DTYPES if "all" in plan.dtypes else plan.dtypes
    for name in names:
        if name not in DTYPES:
            raise ValueError(f"there is no dtype {name!r}{hint(name, DTYPES)}; there are all, {', '.join(DTYPES)}")
    return tuple(dict.fromkeys(names))


def _ops(plan: Plan, kind: Kind, dtype: str) -> tuple[str, ...]:
    """The plan's ops that `dtype` supports. ValueError for an unsupported op, unless the dtypes or ops are "all"."""
    if not kind.reduces:
        return ("none",)
    every = "all" in plan.ops
    names = OPS if every else plan.ops
    for name in names:
        if name not in OPS:
            raise ValueError(f"there is no op {name!r}{hint(name, OPS)}; there are all, {', '.join(OPS)}")
    fitting = tuple(o for o in dict.fromkeys(names) if _engine.supports(_engine.DTYPES[dtype], _engine.OPS[o]))
    if len(fitting) < len(set(names)) and not every and "all" not in plan.dtypes:
        missing = ", ".join(o for o in names if o not in fitting)
        raise ValueError(f"op {missing} has no meaning for {dtype}")
    return fitting


def _algorithms(plan: Plan, collective: str, ranks: int) -> tuple[str, ...]:
    if plan.algorithm == "auto":
        return ("auto",)
    usable = tuple(a.name for a in registry.algorithms(collective, ranks))
    if plan.algorithm == "all":
        return usable
    name = registry.get(collective, plan.algorithm).name
    if name not in usable:
        raise ValueError(f"{collective} {name} does not work for {ranks} ranks; those that do: {', '.join(usable)}")
    return (name,)


def places(plan: Plan, kind: Kind) -> tuple[str, ...]:
    """Return the forms in which `plan` asks to measure the collective `kind`: "out-of-place", "in-place" or both."""
    found = tuple(place for place in kind.places if place in plan.places)
    return found[:1] if plan.usual else found


def memory_needed(plan: Plan, ranks: int) -> int:
    """Return the largest number of bytes that all arrays of a run of the benchmark use at the same time.

    `plan` says what is measured. All `ranks` ranks are on one machine.
    """
    each = 0
    for case in cases(plan, ranks):
        arrays = 2 if OUT_OF_PLACE in places(plan, case.kind) else 1
        systems = 1 + len(plan.peers)
        each = max(
            each, (arrays + 2 * len(plan.limits) + 2 * len(plan.peers)) * case.nbytes + 2 * systems * case.bucket
        )
    return ranks * each
