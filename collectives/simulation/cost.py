"""The costs of links and reductions in the alpha-beta-gamma model, as a Python object and as text.

Invariant: this is the only place where costs are named, and `from_text(to_text(costs)) == costs`. In the code, times
are in seconds and rates in bytes per second; other units are only in the text form.

The text has one `name = value` per line; `#` begins a comment. Costs that are not named keep their defaults.
The *board* is shared memory in which the ranks of a host read each other's short messages; the *pool* is shared memory
in which they sum long arrays:

    latency = 2us               # between hosts: from the sender's network card to the receiver's core
    bandwidth = 100Gbit         # of a network card, in each direction
    overhead = 500ns            # of the sender's core, and of the receiver's, for a message between hosts
    hop = 300ns                 # for each switch on the path
    inside_latency = 300ns      # between two ranks of one host
    inside_bandwidth = 10GB     # one core moving bytes into or out of memory that ranks share
    inside_overhead = 200ns     # of the sender's core, and of the receiver's, for a message inside a host
    inside_gap = 0s             # for which a message inside a host keeps the host's next one waiting
    memory_bandwidth = 100GB    # all ranks of a host together, when they move bytes between them
    reduce_bandwidth = 8GB      # one core adding one operand to another
    call = 1us                  # a call before its first step
    slice = 128KiB              # bytes that the engine moves at once
    switch = 0s                 # context switches when a rank waits: time for each other rank on its core
    stagger = 0s                # for each pair of ranks that share a core: time until both have started the call
    staging = 0s                # additional latency of a message inside a host that does not fit into a cache line
    cache = 1MiB                # of a core: the part of its ranks' arrays that fits is moved and reduced faster
    cached = 1                  # how many times as fast as other arrays those in the cache are moved and reduced
    pool_bandwidth = 0B         # one core that adds to sums in the pool and copies them out; 0: no pool
    board = 0s                  # until all ranks of a host have read all chunks on the board; 0: no board
    board_overhead = 0s         # additional time on the board for each other rank
    board_switch = 0s           # additional time on the board, and in the pool, for each other rank on a core
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Final

from collectives.native.spelling import hint

_TIMES: Final = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # units per second
_RATES: Final = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
}
_NUMBER: Final = r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*"
_TIME: Final = re.compile(_NUMBER + r"(s|ms|us|ns)")
_RATE: Final = re.compile(_NUMBER + r"([kKMGT]|[KMG]i|)(bit|B|)(?:/s|ps)?")


def seconds(text: str) -> float:
    """Reads a time from a text such as "2us", "1.5ms" or "300ns"; returns it in seconds. ValueError for other texts."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a time: write 300ns, 2us, 1.5ms or 1s")
    return float(found[1]) / _TIMES[found[2]]


def rate(text: str, may_be_none: bool = False) -> float:
    """Reads a number of bytes, or of bytes per second, from a text such as "12.5GB", "100Gbit", "8GB/s" or "128KiB".

    k, K, M, G and T are powers of 1000; Ki, Mi and Gi are powers of 1024. ValueError for other texts, and for 0 unless
    `may_be_none`.
    """
    found = _RATE.fullmatch(text.strip())
    value = float(found[1]) * _RATES[found[2]] if found else -1.0
    if found is None or value < 0 or (value == 0 and not may_be_none):
        raise ValueError(f"{text!r} is not a bandwidth: write 12.5GB or 100Gbit, which are the same")
    return value / 8 if found[3] == "bit" else value


@dataclass(frozen=True, slots=True)
class Costs:
    """The simulator's model of hardware and library: latencies, overheads and bandwidths of messages and reductions.

    Units are seconds, bytes and bytes per second. Raises ValueError for invalid values.
    """

    latency: float = 2e-6
    bandwidth: float = 12.5e9
    overhead: float = 0.5e-6
    hop: float = 0.3e-6
    inside_latency: float = 0.3e-6
    inside_bandwidth: float = 10e9
    inside_overhead: float = 0.2e-6
    inside_gap: float = 0.0
    memory_bandwidth: float = 100e9
    reduce_bandwidth: float = 8e9
    call: float = 1e-6
    slice: float = float(128 << 10)
    switch: float = 0.0
    stagger: float = 0.0
    staging: float = 0.0
    cache: float = float(1 << 20)
    cached: float = 1.0
    pool_bandwidth: float = 0.0
    board: float = 0.0
    board_overhead: float = 0.0
    board_switch: float = 0.0

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if not 0 <= value < float("inf") or (value == 0 and name not in _TIMED | _MAY_BE_NONE):
                raise ValueError(f"{name} cannot be {value!r}")

    def to_text(self) -> str:
        """Writes the simulator's costs as text, one on each line, which `from_text` can read."""
        return "".join(f"{name} = {getattr(self, name)!r}{'s' * (name in _TIMED)}\n" for name in NAMES)

    def holding(self, nbytes: float) -> Costs:
        """A copy of the simulator's costs with the bandwidths for arrays of `nbytes` bytes in total on each core.

        The more of these arrays fits into the core's cache, the higher are the bandwidths inside the host.
        """
        if self.cached == 1:
            return self
        pace = 1 - (1 - 1 / self.cached) * min(1.0, self.cache / max(nbytes, 1.0))
        names = ("inside_bandwidth", "reduce_bandwidth", "pool_bandwidth")
        return replace(self, **{name: getattr(self, name) / pace for name in names})

    def with_(self, name: str, value: str) -> Costs:
        """A copy of the simulator's costs in which the cost `name` is set to `value`, a text such as "2us".

        Raises ValueError for an invalid value, and for an unknown name; the error then lists the known names.
        """
        if name not in NAMES:
            raise ValueError(f"there is no cost {name!r}{hint(name, NAMES)}; there are {', '.join(NAMES)}")
        try:
            return replace(self, **{name: seconds(value) if name in _TIMED else rate(value, name in _MAY_BE_NONE)})
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    @classmethod
    def from_text(cls, text: str) -> Costs:
        """Reads the simulator's costs from `text`, one on each line.

        Raises ValueError, which names the line, for an invalid cost.
        """
        found = cls()
        for number, line in enumerate(text.splitlines(), 1):
            content = line.partition("#")[0].strip()
            if not content:
                continue
            name, equals, value = (part.strip() for part in content.partition("="))
            if not equals:
                raise ValueError(f"line {number}: {content!r} is not name = value")
            try:
                found = found.with_(name, value)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        return found


_TIMED: Final = frozenset(
    {"latency", "overhead", "hop", "inside_latency", "inside_overhead", "inside_gap"}
    | {"call", "switch", "stagger", "staging"}
    | {"board", "board_overhead", "board_switch"}
)
_MAY_BE_NONE: Final = frozenset({"pool_bandwidth"})
NAMES: Final = tuple(field.name for field in fields(Costs))
