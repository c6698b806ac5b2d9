"""The decision table: which algorithm runs for which call, as a Python object and as text.

Invariant: `parse` and `text` are inverse to each other, except for `Row.source`. The first row that fits a call
decides.

    # collective   kinds            ranks  up to  algorithm   conditions                    reason
    allreduce      shm,inproc       3-4    32K    one_shot                                 : reading all copies is cheap
    allreduce      any              2-     any    ring        per-host=1 oversubscribed=no  : fewest bytes

Each line is a row; "#" begins a comment. A row's fields:

- collective: allreduce, reduce, broadcast, ...
- kinds: the slowest transport between any two ranks of the group; alternatives are joined by commas; or any
- ranks: the size of the group: 4, 3-16, 17- (17 or more), or any
- up to: the row is for calls in which a rank's input and output buffers have at most this many bytes each, such as
  512, 64K, 2M, 1G, or any
- algorithm: its name
- conditions, which are optional: hosts=HOSTS, the number of hosts, written as 4, 3-16 or 17-; per-host=RANKS, the
  number of ranks on the host with the most ranks, written likewise; oversubscribed=yes or no, whether any host has more
  ranks than cores; memory=cuda, for arrays on a CUDA device, for which rows without this condition do not count. The
  algorithm is then "leader" (one rank's kernel reads and writes the arrays of all), "nccl", or "staging" (the call runs
  on a copy in host memory, by the rows for host memory); device=shared or device=own, with memory=cuda: whether two
  ranks use the same device; wire=auto, for the wire format of calls with wire="auto", for which rows without this
  condition do not count. The algorithm is then "float32" (numbers are sent as they are), "bf16", "fp16", "fp8" or
  "int8"
- after a ":", the reason, which is optional

A line NAME = VALUE is a fact about the table: when and where it was made, what was measured. Facts have no effect, with
two exceptions: "sockets = 4" is the number of sockets of each link over TCP, 1 to 16; "rendezvous = 64K" is the number
of bytes from which on messages over verbs use the rendezvous protocol, 4K or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from collectives.native.spelling import hint
from collectives.schedule.conditions import COLLECTIVES

ANY_SIZE: Final = 1 << 62
ANY_RANKS: Final = (1, ANY_SIZE)
LONGEST: Final = 1 << 18  # characters of a table
MOST_SOCKETS: Final = 16  # of one link
LEAST_RENDEZVOUS: Final = 4 << 10  # bytes
_IN_FORCE: Final = ("sockets", "rendezvous")  # facts that have an effect
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_KIND: Final = re.compile(r"[A-Za-z0-9][\w.+-]*")
_FACT: Final = re.compile(r"([a-z][a-z0-9._-]*)\s+=\s+(.*)")
_RANGE: Final = re.compile(r"(\d{1,9})(?:(-)(\d{1,9})?)?")
_WHAT: Final = (
    "COLLECTIVE KINDS RANKS BYTES ALGORITHM [hosts=HOSTS] [per-host=RANKS] [oversubscribed=yes|no] [memory=cuda] "
    "[device=shared|own] [wire=auto] [: REASON]"
)
HOST_MEMORY: Final = "host"
ON_DEVICES: Final[Mapping[str, tuple[str, ...]]] = {"cuda": ("leader", "nccl", "hierarchy", "staging")}
"""By kind of memory, what rows for it may name beside the algorithms that have schedules."""
WIRED: Final = ("allreduce", "reduce_scatter", "allgather")
"""The collectives that have wire formats."""
AS_IT_IS: Final = "float32"
FORMATS: Final = (AS_IT_IS, "bf16", "fp16", "fp8", "int8")
"""What rows with the condition wire=auto name: wire formats, or that float32 numbers are sent as they are."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The properties of a group on which the choice of algorithms depends.

    `size`: the number of ranks. `kind`: the slowest transport between any two ranks ("self" for a single rank).
    `hosts`: the number of hosts, or 0 if unknown. `per_host`: the number of ranks on the host with the most ranks, or 0
    if unknown. `oversubscribed`: some host has more ranks than cores. `shared_device`: two ranks use the same CUDA
    device; False as long as the devices are unknown.
    """

    size: int
    kind: str
    oversubscribed: bool = False
    per_host: int = 0
    hosts: int = 0
    shared_device: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table of algorithms: it chooses `algorithm` for calls of `collective` that meet its conditions.

    - `bytes`: the largest size of the call's array, in bytes
    - `ranks`: the least and largest number of ranks of the group
    - `kinds`: transports, one of which is the group's slowest; empty for any
    - `per_host`: the least and largest number of ranks on the host with the most ranks; None for any
    - `hosts`: the least and largest number of hosts; None for any
    - `oversubscribed`: whether some host has more ranks than cores; None for either
    - `shared_device`: whether two ranks use the same CUDA device; None for either
    - `memory`: the kind of memory of the call's arrays
    - `wire`: the row chooses the wire format of calls with wire="auto", and `algorithm` is this format
    - `reason`, `source`: texts for people: why this algorithm, and from which file and line the row comes
    """

    collective: str
    kinds: tuple[str, ...]
    ranks: tuple[int, int]
    bytes: int
    algorithm: str
    reason: str = ""
    per_host: tuple[int, int] | None = None
    oversubscribed: bool | None = None
    source: str = field(default="", compare=False)
    hosts: tuple[int, int] | None = None
    memory: str = HOST_MEMORY
    shared_device: bool | None = None
    wire: bool = False

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise ValueError(
                f"there is no collective {self.collective!r}{hint(self.collective, COLLECTIVES)}; there are "
                f"{', '.join(COLLECTIVES)}"
            )
        for kind in self.kinds:
            if not _KIND.fullmatch(kind):
                raise ValueError(f"{kind!r} is no name of a transport")
        if not _NAME.fullmatch(self.algorithm):
            raise ValueError(f"{self.algorithm!r} is no name of an algorithm")
        if self.memory not in (HOST_MEMORY, *ON_DEVICES):
            raise ValueError(f"memory={self.memory} is not memory={', memory='.join(ON_DEVICES)}")
        if self.shared_device is not None and self.memory == HOST_MEMORY:
            raise ValueError("device= is a condition of rows with memory=cuda")
        if self.wire and (self.collective not in WIRED or self.memory != HOST_MEMORY):
            raise ValueError(f"wire=auto is a condition of rows for {', '.join(WIRED)}, and does not go with memory=")
        if self.wire and self.algorithm not in FORMATS:
            raise ValueError(f"{self.algorithm!r} is none of {', '.join(FORMATS)}, as rows with wire=auto name")
        for what, span in (("ranks", self.ranks), ("ranks", self.per_host), ("hosts", self.hosts)):
            if span is not None and not 1 <= span[0] <= span[1]:
                raise ValueError(f"{span[0]}-{span[1]} is no range of {what}")
        if not 0 <= self.bytes <= ANY_SIZE:
            raise ValueError(f"{self.bytes} is no number of bytes")
        if self.reason != " ".join(self.reason.split()) or "#" in self.reason:
            raise ValueError(f"a reason is one line without '#': {self.reason!r}")

    def fits(self, situation: Situation) -> bool:
        """Whether the conditions of this row of a table match the group that `situation` describes.

        Does not compare the row's collective, limit of bytes, kind of memory and `wire`.
        """
        return (
            (not self.kinds or situation.kind in self.kinds)
            and self.ranks[0] <= situation.size <= self.ranks[1]
            and (self.hosts is None or self.hosts[0] <= situation.hosts <= self.hosts[1])
            and (self.per_host is None or self.per_host[0] <= situation.per_host <= self.per_host[1])
            and self.oversubscribed in (None, situation.oversubscribed)
            and self.shared_device in (None, situation.shared_device)
        )

    @property
    def rule(self) -> str:
        """The row as a line of a table, without the reason."""
        return " ".join(_fields(self))

    def __str__(self) -> str:
        return f"{self.rule}{' : ' if self.reason else ''}{self.reason}"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that chooses algorithms: for a call, the first of `rows` whose conditions match the call decides.

    `facts`: notes about the table, by name, such as the date of its measurement. With `in_order`, reductions combine
    their operands exactly in the order of the algorithm. Ranks that share memory then do not use faster sums in another
    order.
    """

    rows: tuple[Row, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    in_order: bool = False

    @property
    def sockets(self) -> int | None:
        """The number of TCP connections between two ranks that this table recommends; None if it recommends none.

        Raises ValueError for an invalid number.
        """
        stated = self.facts.get("sockets")
        if stated is None:
            return None
        if not (stated.isdecimal() and len(stated) < 9 and 1 <= int(stated) <= MOST_SOCKETS):
            raise ValueError(f"{stated[:80]!r} is no number of sockets, 1 to {MOST_SOCKETS}")
        return int(stated)

    @property
    def rendezvous(self) -> int | None:
        """The number of bytes from which on messages over verbs are to use the rendezvous protocol; None if unstated.

        Raises ValueError for an invalid number.
        """
        stated = self.facts.get("rendezvous")
        if stated is None:
            return None
        found = _bytes(stated)
        if found < LEAST_RENDEZVOUS:
            raise ValueError(f"{stated[:80]!r} is less than {bytes_text(LEAST_RENDEZVOUS)}")
        return found

    def for_group(self, situation: Situation) -> Table:
        """Returns the table with only those rows whose conditions match the group that `situation` describes."""
        return replace(self, rows=tuple(row for row in self.rows if row.fits(situation)))

    def from_source(self, source: str) -> Table:
        """The table with `source` as every row's source."""
        return replace(self, rows=tuple(replace(row, source=source) for row in self.rows))


def join(tables: Iterable[Table]) -> Table:
    """Joins tables that choose algorithms: returns a table with the rows of all `tables`, in order.

    Of their notes (`facts`) it keeps only those about links, `sockets` and `rendezvous`, each from the first table that
    has it.
    """
    joined = list(tables)
    facts = {name: table.facts[name] for table in reversed(joined) for name in _IN_FORCE if name in table.facts}
    return Table(tuple(row for table in joined for row in table.rows), facts)


def parse(text: str, name: str = "table", source: str | None = None) -> Table:
    """Reads a table, which chooses algorithms, from `text`, which has one row on each line.

    Every row gets `source` as the text that says where it comes from; by default this is `name` and the line's number.
    Raises ValueError for an invalid table; the error's text begins with `name` and the number of the invalid line.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{name}: {len(text)} characters, more than the {LONGEST} that a table may have")
    rows, facts = [], {}
    for number, line in enumerate(text.splitlines(), 1):
        what = line.partition("#")[0].strip()
        if not what:
            continue
        try:
            fact = _FACT.fullmatch(what)
            if fact is not None:
                facts[fact[1]] = fact[2]
                _ = Table((), facts).sockets, Table((), facts).rendezvous
            else:
                rows.append(_row(what, f"{name}, line {number}" if source is None else source))
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
    return Table(tuple(rows), facts)


def text(table: Table) -> str:
    """Returns `table` as text in columns, with a line for each row. `parse` can read this text."""
    lines = [f"{name} = {value}" for name, value in table.facts.items()]
    cells = [_fields(row) for row in table.rows]
    cells = [[*cell[:5], " ".join(cell[5:])] for cell in cells]
    widths = [max((len(cell[column]) for cell in cells), default=0) for column in range(6)]
    for row, cell in zip(table.rows, cells, strict=True):
        line = "  ".join(f"{part:{width}}" for part, width in zip(cell, widths, strict=True) if width).rstrip()
        lines.append(f"{line}  : {row.reason}" if row.reason else line)
    return "".join(f"{line}\n" for line in lines)


def bytes_text(nbytes: int) -> str:
    """A number of bytes as tables of algorithms spell it: 65536 is "64K", and ANY_SIZE is "any"."""
    if nbytes == ANY_SIZE:
        return "any"
    unit = next(u for u, factor in reversed(_UNITS.items()) if (nbytes and nbytes % factor == 0) or not u)
    return f"{nbytes // _UNITS[unit]}{unit}"


def _row(what: str, source: str) -> Row:
    fields, _, reason = what.partition(":")
    words = fields.split()
    if len(words) < 5:
        raise ValueError(f"{what[:200]!r} is no row: {_WHAT}")
    collective, kinds, ranks, nbytes, algorithm, *conditions = words
    found: dict[str, str] = {}
    for condition in conditions:
        name, _, value = condition.partition("=")
        if name == "crowded":  # in tables of earlier versions
            name = "oversubscribed"
        if name not in ("hosts", "per-host", "oversubscribed", "memory", "device", "wire") or name in found:
            there_are = (
                "hosts=HOSTS, per-host=RANKS, oversubscribed=yes, oversubscribed=no, memory=cuda, device=shared, "
                "device=own or wire=auto"
            )
            raise ValueError(f"{condition!r} is no condition: {there_are}, once each")
        found[name] = value
    if found.get("oversubscribed", "yes") not in ("yes", "no"):
        raise ValueError(
            f"oversubscribed={found['oversubscribed']} is neither oversubscribed=yes nor oversubscribed=no"
        )
    if found.get("device", "own") not in ("shared", "own"):
        raise ValueError(f"device={found['device']} is neither device=shared nor device=own")
    if found.get("wire", "auto") != "auto":
        raise ValueError(f"wire={found['wire']} is not wire=auto")
    return Row(
        collective=collective,
        kinds=() if kinds == "any" else tuple(kinds.split(",")),
        ranks=_range(ranks),
        bytes=_bytes(nbytes),
        algorithm=algorithm.replace("-", "_"),
        reason=" ".join(reason.split()),
        per_host=_range(found["per-host"]) if "per-host" in found else None,
        oversubscribed=found["oversubscribed"] == "yes" if "oversubscribed" in found else None,
        source=source,
        hosts=_range(found["hosts"]) if "hosts" in found else None,
        memory=found.get("memory", HOST_MEMORY),
        shared_device=found["device"] == "shared" if "device" in found else None,
        wire="wire" in found,
    )


def _fields(row: Row) -> list[str]:
    return [
        row.collective,
        ",".join(row.kinds) or "any",
        _range_text(row.ranks),
        bytes_text(row.bytes),
        row.algorithm,
        *_conditions(row),
    ]


def _conditions(row: Row) -> Iterator[str]:
    if row.hosts is not None:
        yield f"hosts={_range_text(row.hosts)}"
    if row.per_host is not None:
        yield f"per-host={_range_text(row.per_host)}"
    if row.oversubscribed is not None:
        yield f"oversubscribed={'yes' if row.oversubscribed else 'no'}"
    if row.memory != HOST_MEMORY:
        yield f"memory={row.memory}"
    if row.shared_device is not None:
        yield f"device={'shared' if row.shared_device else 'own'}"
    if row.wire:
        yield "wire=auto"


def _range(word: str) -> tuple[int, int]:
    if word == "any":
        return ANY_RANKS
    found = _RANGE.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is no number of ranks: 4, 3-16, 17- or any")
    first = int(found[1])
    return first, int(found[3]) if found[3] else ANY_SIZE if found[2] else first


def _range_text(ranks: tuple[int, int]) -> str:
    first, last = ranks
    if ranks == ANY_RANKS:
        return "any"
    return str(first) if first == last else f"{first}-{'' if last == ANY_SIZE else last}"


def _bytes(word: str) -> int:
    if word == "any":
        return ANY_SIZE
    found = re.fullmatch(r"(\d{1,15})([KMG]?)(?:i?B)?", word, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{word!r} is no number of bytes: 4096, 64K, 4M, 1G or any")
    return int(found[1]) * _UNITS[found[2].upper()]
