"""The conditions of a benchmark run, without which its figures have no meaning: machines, cores, and versions.

Invariant: the conditions are read from the kernel and the running interpreter, never from settings of a user or a
launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from collectives import Communicator, __version__
from collectives.bench.calls import transports_of
from collectives.native import _engine
from collectives.transports.host import HostIdentity, oversubscribed, processor, ranges, usable_cores


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of one rank and its machine that influence the measured times.

    `cores` is the number of cores that the rank can use at the same time, by its affinity mask and the cgroup's quota.
    `affinity` has the numbers of the cores in its affinity mask, as the kernel writes them ("0-3,8").
    """

    rank: int
    host: str
    machine: str  # the kernel's boot id: the same for all ranks of one machine
    pid: int
    cores: int
    affinity: str
    quota: float  # the cgroup's limit in cores, 0.0 if there is none
    outnumbered: bool  # ranks outnumber cores on this machine
    processor: str
    features: tuple[str, ...]
    kernel: str
    memory: int  # bytes
    python: str
    numpy: str
    ml_dtypes: str
    pycollectives: str
    transports: dict[str, int]  # the number of peers that are reached over each transport
    device: str = ""  # of CUDA, with its driver, if the arrays are there


@dataclass(frozen=True, slots=True)
class Group:
    """The facts about all ranks of a benchmark and their machines."""

    ranks: tuple[Facts, ...]

    @property
    def hosts(self) -> list[tuple[Facts, int]]:
        """A list with a pair for each machine: the properties of one of its ranks, and the number of its ranks."""
        counts = Counter(facts.machine for facts in self.ranks)
        first = {facts.machine: facts for facts in reversed(self.ranks)}
        return [(first[machine], counts[machine]) for machine in counts]

    @property
    def pairs(self) -> dict[str, int]:
        """The number of pairs of ranks for each transport."""
        ends: Counter[str] = Counter()
        for facts in self.ranks:
            ends.update(facts.transports)
        return {kind: number // 2 for kind, number in ends.items()}

    @property
    def outnumbered(self) -> bool:
        return any(facts.outnumbered for facts in self.ranks)


def gather(comm: Communicator, device: str = "") -> Group:
    """Collect the properties of all ranks and their machines; return the same `Group` on every rank.

    `device` describes the device on which this rank has its arrays, "" for host memory. The call is collective: all
    ranks must make it.
    """
    mine = comm._linked.place
    identities = [HostIdentity.from_json(json.loads(text)) for text in _exchange(comm, json.dumps(mine.to_json()))]
    facts = Facts(
        rank=comm.rank,
        host=mine.host,
        machine=mine.boot,
        pid=mine.pid,
        cores=usable_cores(),
        affinity=ranges(sorted(os.sched_getaffinity(0))),
        quota=mine.quota,
        outnumbered=oversubscribed(mine, identities),
        processor=processor(),
        features=tuple(_engine.cpu_features()),
        kernel=f"{platform.system()} {platform.release()}",
        memory=memory("MemTotal"),
        python=platform.python_version(),
        numpy=np.__version__,
        ml_dtypes=ml_dtypes.__version__,
        pycollectives=__version__,
        transports=transports_of(comm),
        device=device,
    )
    everyones = [json.loads(text) for text in _exchange(comm, json.dumps(asdict(facts)))]
    return Group(tuple(Facts(**{**reported, "features": tuple(reported["features"])}) for reported in everyones))


def cores(comm: Communicator) -> list[int]:
    """Return the numbers of the cores that at least one rank may use, ascending.

    The call is collective. All ranks must be on this machine.
    """
    mine = np.array(sorted(os.sched_getaffinity(0)), np.int64)
    return sorted(set(comm.allgatherv(mine).tolist()))


def agree(comm: Communicator, number: int) -> bool:
    """Return whether all ranks pass the same `number`. The call is collective."""
    return len(set(comm.allgather(np.array(number, np.int64)).tolist())) == 1


def busy(seconds: float) -> float:
    """Sleep for `seconds`; return how many cores of this machine were busy meanwhile, on average. 0.0 if unknown."""
    before = _cpu_times()
    time.sleep(seconds)
    spent = [b - a for a, b in zip(before, _cpu_times(), strict=False)]
    whole = sum(spent)
    idle = sum(spent[3:5])  # idle, and waiting for a disk
    return (os.cpu_count() or 1) * (whole - idle) / whole if whole else 0.0


def _cpu_times() -> list[int]:
    """Clock ticks since boot, summed over all cores: user, nice, system, idle, iowait, irq, softirq, steal."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return []


def memory(name: str) -> int:
    """Return the entry `name` of /proc/meminfo, such as "MemTotal", in bytes; 0 if there is no such entry."""
    return _kilobytes("/proc/meminfo", name)


def own_memory(name: str) -> int:
    """Return the entry `name` of /proc/self/status, such as "VmRSS", in bytes; 0 if there is no such entry."""
    return _kilobytes("/proc/self/status", name)


def _kilobytes(path: str, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def _exchange(comm: Communicator, text: str) -> list[str]:
    mine = np.frombuffer(text.encode(), np.uint8)
    ends = np.cumsum(comm.allgather(np.array(mine.size, np.int64))).tolist()
    whole = comm.allgatherv(mine).tobytes()
    return [whole[start:end].decode() for start, end in zip([0, *ends[:-1]], ends, strict=True)]
