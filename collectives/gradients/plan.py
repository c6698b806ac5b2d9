"""The plan of one exchange of gradients: an entry for each variable, in order, and buckets of entries in reverse order.

Invariant: buckets and digest depend only on the entries and the user's rules. Ranks compare plans by the digest, a
hash. The digest excludes names, because the variables of a model may have different names in each process.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from collectives.arrays.array import Dtype, dtype_of
from collectives.gradients.wire import Rules, Wire, wire

BUCKET: Final = 25 << 20  # bytes
UNKNOWN: Final = -1  # an extent that is known only while the step runs

Kind: TypeAlias = Literal["dense", "sparse", "none"]
KINDS: Final[tuple[Kind, ...]] = ("dense", "sparse", "none")


class Entry(NamedTuple):
    """The properties of one variable's gradient. Ranks compare all properties but `name` before an exchange.

    - `kind`: "dense", "sparse", or "none" for a missing gradient, which has no dtype and shape
    - `shape`: the shape of the variable; for a sparse gradient the first extent is UNKNOWN (-1)
    - `indices`: the dtype of a sparse gradient's row numbers
    """

    name: str
    kind: Kind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    indices: str = ""

    @property
    def known(self) -> bool:
        """Whether the gradient's shape (if sparse, without its number of rows) is known before the training step."""
        return UNKNOWN not in self.shape[self.kind == "sparse" :]

    def __str__(self) -> str:
        if self.kind == "none":
            return "None"
        extents = ", ".join("?" if extent == UNKNOWN else str(extent) for extent in self.shape)
        return f"{'sparse ' if self.kind == 'sparse' else ''}{self.dtype}[{extents}]"


class Bucket(NamedTuple):
    """Gradients that are exchanged together; `dense` and `sparse` contain their positions in `Plan.entries`."""

    number: int
    dense: tuple[int, ...]
    sparse: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Which gradients the `size` ranks exchange in a training step, in which order, and how they are sent.

    `entries` describe the gradients. `buckets` (gradients that are sent together) are in the order in which they are
    sent. There is at least one bucket, which may be empty, so that ranks always compare their plans. Ranks compare the
    hash `digest`, which does not depend on the names of variables.
    """

    rules: Rules
    entries: tuple[Entry, ...]
    size: int
    buckets: tuple[Bucket, ...]

    @cached_property
    def wires(self) -> tuple[Wire | None, ...]:
        """For each gradient of the plan, the dtype, op and factors with which it is sent; None if it is not sent."""
        return _wires(self.rules, self.entries, self.size)

    @cached_property
    def digest(self) -> tuple[int, int]:
        """A 128-bit hash of the plan, as two signed 64-bit integers; ranks compare it to see whether plans differ."""
        # Without bucket_bytes: only its effect has to be the same on every rank, and `buckets` shows that.
        rules = {rule: value for rule, value in asdict(self.rules).items() if rule != "bucket_bytes"}
        reported = json.dumps((rules, [entry[1:] for entry in self.entries], self.buckets))
        found = hashlib.sha256(reported.encode()).digest()
        return int.from_bytes(found[:8], "little", signed=True), int.from_bytes(found[8:16], "little", signed=True)

    def wire(self, place: int) -> Wire:
        """How gradient number `place` is sent: dtype, op, and factors. The gradient must not be missing."""
        found = self.wires[place]
        assert found is not None
        return found

    def pack(self) -> bytes:
        """The plan as bytes of text, to be sent to other ranks."""
        reported = {"rules": asdict(self.rules), "entries": self.entries, "buckets": self.buckets}
        return json.dumps(reported).encode()


def sizes(entries: Sequence[Entry]) -> list[tuple[Dtype, int]]:
    """The dtype and number of elements of each dense gradient whose shape is known."""
    return [(dtype_of(e.dtype), math.prod(e.shape)) for e in entries if e.kind == "dense" and e.known]


@lru_cache(maxsize=256)
def plan(rules: Rules, entries: tuple[Entry, ...], size: int) -> Plan:
    """Decides how to exchange the gradients that `entries` describe, among `size` ranks; returns a `Plan`.

    Raises TypeError or ValueError if an option in `rules` does not fit a gradient.
    """
    wires = _wires(rules, entries, size)
    # If an entry's shape is unknown, its size is too: all entries go into one bucket.
    most = rules.bucket_bytes if all(entry.known for entry in entries) else 2**63
    filled: list[tuple[list[int], list[int]]] = [([], [])]
    held = 0
    for i in reversed(range(len(entries))):
        way = wires[i]
        if way is None:
            continue
        dense, sparse = filled[-1]
        # The number of rows is unknown: they are exchanged with the dense entries that are ready at the same time.
        if entries[i].kind == "sparse":
            sparse.append(i)
            continue
        nbytes = math.prod(entries[i].shape) * way.dtype.itemsize
        if dense and held + nbytes > most:
            filled.append(([i], []))
            held = nbytes
        else:
            dense.append(i)
            held += nbytes
    buckets = tuple(Bucket(number, tuple(dense), tuple(sparse)) for number, (dense, sparse) in enumerate(filled))
    return Plan(rules, entries, size, buckets)


def unpack(data: bytes, size: int) -> Plan:
    """Decodes `Plan.pack`. Raises ValueError for invalid bytes."""
    try:
        reported = json.loads(data)
        entries = tuple(_entry(*fields) for fields in reported["entries"])
        buckets = tuple(Bucket(number, tuple(dense), tuple(sparse)) for number, dense, sparse in reported["buckets"])
        for bucket in buckets:
            if any(entries[i].kind != "dense" for i in bucket.dense):
                raise ValueError(f"not a bucket of a plan: {bucket}")
            if any(entries[i].kind != "sparse" for i in bucket.sparse):
                raise ValueError(f"not a bucket of a plan: {bucket}")
        return Plan(Rules(**reported["rules"]), entries, size, buckets)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a plan of gradients: {data[:80]!r}") from error


def _entry(name: str, kind: Any, dtype: str, shape: Sequence[int], indices: str) -> Entry:
    if kind not in KINDS or any(type(extent) is not int or extent < UNKNOWN for extent in shape):
        raise ValueError(f"not an entry of a plan: {(name, kind, dtype, shape)}")
    return Entry(name, kind, dtype, tuple(shape), indices)


def _wires(rules: Rules, entries: Sequence[Entry], size: int) -> tuple[Wire | None, ...]:
    return tuple(
        None if e.kind == "none" else wire(rules, dtype_of(e.dtype), size, e.kind == "sparse", e.name) for e in entries
    )


_SHOWN: Final = 4  # differences in a message; the first one mostly explains all


def differences(plans: dict[int, Plan]) -> str:
    """Describes, for an error message, how the ranks' plans differ: options first, then variables by number."""
    found = []
    same = len({plan.buckets for plan in plans.values()}) == 1
    for rule in asdict(next(iter(plans.values())).rules):
        if rule == "bucket_bytes" and same:
            continue
        values = {rank: repr(getattr(plan.rules, rule)) for rank, plan in plans.items()}
        if len(set(values.values())) > 1:
            found.append(f"{rule} is {_by_value(values)}")
    counts = {rank: str(len(plan.entries)) for rank, plan in plans.items()}
    if len(set(counts.values())) > 1:
        found.append(f"the number of variables is {_by_value(counts)}")
    for i in range(max(len(plan.entries) for plan in plans.values())):
        there = {rank: plan.entries[i] for rank, plan in plans.items() if i < len(plan.entries)}
        values = {rank: str(there[rank]) if rank in there else "not there" for rank in plans}
        indices = {entry.indices for entry in there.values()}
        if len(set(values.values())) == 1 and len(indices) > 1:  # only the dtypes of indices differ
            values = {rank: f"{entry} with {entry.indices} indices" for rank, entry in there.items()}
        if len(set(values.values())) > 1:
            names = sorted({entry.name for entry in there.values() if entry.name})
            found.append(f"variable {i} {' or '.join(map(repr, names))} is {_by_value(values)}".replace("  ", " "))
    if not found:
        return "some know lengths that others learn only while the step runs, so their buckets differ"
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def _by_value(values: dict[int, str]) -> str:
    """Values and their ranks as text, the most common value first: "float32[3] on ranks 0, 1 and None on rank 2"."""
    ranks: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        ranks.setdefault(value, []).append(rank)
    ordered = sorted(ranks.items(), key=lambda item: -len(item[1]))
    return " and ".join(f"{value} on {listed(which)}" for value, which in ordered)


def listed(ranks: Sequence[int]) -> str:
    """Ranks as text, such as rank 2, or ranks 0, 1."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
