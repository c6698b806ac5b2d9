"""The last-level cache, and the share of it for each rank.

Invariant: unknown values are 0, never guessed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from collectives.transports.host import HostIdentity, on_machine

_SHARED_LEVEL = 3  # from this level on a cache is large, and several cores share it
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cache_share(mine: HostIdentity, everyone: Sequence[HostIdentity], root: str = "/sys/devices/system/cpu") -> int:
    """Return one rank's share of the last-level cache (level 3 or higher) in bytes, or 0 if no such cache is known.

    `everyone` has the host and the cores of each rank, by rank; `mine` is the entry of the calling rank. The ranks of
    this machine are assumed to be spread evenly over the cores that they may use. `root` is the folder of the kernel's
    files about cores.
    """
    core = (mine.cpus & -mine.cpus).bit_length() - 1
    nbytes, sharing = _last_cache(Path(root, f"cpu{core}", "cache"))
    here, union = on_machine(mine, everyone)
    return nbytes // max(1, math.ceil(len(here) * (sharing & union).bit_count() / union.bit_count()))


def _last_cache(folder: Path) -> tuple[int, int]:
    """The size of the last-level cache in bytes, and the mask of the cores that share it; (0, 0) if none is known."""
    found = (0, 0, 0)
    try:
        entries = os.listdir(folder)  # Path.glob compiles a pattern, which takes longer than all else here
    except OSError:
        return (0, 0)
    for index in (folder / entry for entry in entries if entry.startswith("index")):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            cores = int((index / "shared_cpu_map").read_text().replace(",", ""), 16)
            nbytes = int(size[:-1]) * _UNITS[size[-1]] if size[-1:] in _UNITS else int(size)
        except (OSError, ValueError):
            continue
        if level >= _SHARED_LEVEL:
            found = max(found, (level, nbytes, cores))
    return found[1:]
