"""The second and the last cache before memory, and how much of each a rank has.

Invariant: what the kernel does not say is not made up: 0 then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transports.host import HostIdentity, on_machine

_SECOND_LEVEL = 2
_SHARED_LEVEL = 3  # from this level on a cache is large, and several cores share it
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of each; 0 where there is none or nobody knows."""

    second: int
    last: int


def caches_of_rank(
    mine: HostIdentity, everyone: Sequence[HostIdentity], root: str = "/sys/devices/system/cpu"
) -> Caches:
    """Each rank's share (one identity each) of the caches of my machine.

    Ranks are taken to be spread evenly over the cores that they may use.
    """
    here, union = on_machine(mine, everyone)

    def share(cache: _Cache) -> int:
        ranks = math.ceil(len(here) * (cache.cores & union).bit_count() / union.bit_count())
        return cache.nbytes // max(1, ranks)

    core = (mine.cpus & -mine.cpus).bit_length() - 1
    caches = _caches(Path(root, f"cpu{core}", "cache"))
    second = next((cache for cache in caches if cache.level == _SECOND_LEVEL), _NONE)
    last = max(caches, key=lambda cache: cache.level, default=_NONE)
    return Caches(share(second), share(last) if last.level >= _SHARED_LEVEL else 0)


@dataclass(frozen=True, slots=True)
class _Cache:
    level: int
    nbytes: int
    cores: int  # that share it, as a mask


_NONE = _Cache(0, 0, 0)


def _caches(folder: Path) -> list[_Cache]:
    found = []
    for index in folder.glob("index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            cores = int((index / "shared_cpu_map").read_text().replace(",", ""), 16)
            nbytes = int(size[:-1]) * _UNITS[size[-1]] if size[-1:] in _UNITS else int(size)
        except (OSError, ValueError):
            continue
        found.append(_Cache(level, nbytes, cores))
    return found
