"""Judges whether a machine was quiet during a measurement, by counters of the kernel and the spread of times.

Quiet means that other programs and machines did not disturb the ranks. Invariant: reading the counters takes
microseconds and changes nothing. All ranks judge by the readings of all ranks, so they reach the same verdict. Where
counters cannot be read (/proc/stat may be hidden), the machine counts as quiet.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

COMPETING: Final = 0.15  # wanted cores minus existing cores: background tasks of the system want less
STOLEN: Final = 0.02  # share of the time of all cores that the hypervisor took
PREEMPTED: Final = 50.0  # times a second that a rank may lose its own core to tasks of the kernel
SPREAD: Final = 1.6  # the slowest round of a call over its fastest: the median over all calls


@dataclass(frozen=True, slots=True)
class Reading:
    """What a process, and all programs on its cores, did during a measurement of `elapsed` seconds.

    - `host`: a number that identifies the host
    - `process`: the process's number (pid)
    - `cores`: the number of cores on which the process may run
    - `busy`: seconds that any programs ran on these cores, added over the cores
    - `stolen`: seconds that the hypervisor took from these cores
    - `used`: seconds that the process itself ran, with its children if `Watch` includes them
    - `preempted`: how often the process lost its core
    """

    host: int
    process: int
    cores: int
    elapsed: float
    busy: float
    stolen: float
    used: float
    preempted: int

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Reading:
        return Reading(**value)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Watch:
    """Observes, to judge a measurement, how much this process and other programs on its cores run from now on.

    `children`: include the time of child processes that have ended.
    """

    def __init__(self, *, children: bool = False) -> None:
        self._who: Final = (resource.RUSAGE_SELF, *((resource.RUSAGE_CHILDREN,) if children else ()))
        self._cores: Final = frozenset(os.sched_getaffinity(0))
        self._start: Final = self._now()

    def reading(self, host: int = 0) -> Reading:
        """Returns what this process and other programs did since this object was made.

        `host`: any number that identifies this host.
        """
        began, (busy, stolen, used, preempted) = self._start
        now, (busy_now, stolen_now, used_now, preempted_now) = self._now()
        return Reading(
            host,
            os.getpid(),
            len(self._cores),
            max(now - began, 1e-9),
            busy_now - busy,
            stolen_now - stolen,
            used_now - used,
            int(preempted_now - preempted),
        )

    def _now(self) -> tuple[float, tuple[float, float, float, float]]:
        usages = [resource.getrusage(who) for who in self._who]
        used = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return time.monotonic(), (*cores_time(self._cores), used, sum(usage.ru_nivcsw for usage in usages))


def cores_time(cores: Collection[int], stat: str | os.PathLike[str] = "/proc/stat") -> tuple[float, float]:
    """Reads from the kernel how many seconds `cores` were busy, and how many the hypervisor took from them (steal).

    Both numbers are sums over the cores, counted from the start of the machine. They are 0 if the file `stat` cannot be
    read.
    """
    try:
        lines = Path(stat).read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    tick = os.sysconf("SC_CLK_TCK")
    busy = stolen = 0
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (*map(int, fields[:8]), *[0] * (8 - len(fields)))
            busy += user + nice + system + irq + softirq
            stolen += steal
    return busy / tick, stolen / tick


def judge(readings: Iterable[Reading], ranks: int, spread: float | None = None) -> tuple[str, ...]:
    """Returns the reasons why a measurement is unreliable, such as other programs that ran; empty if there are none.

    Each reason is a sentence without a full stop. `readings`: what each rank observed. `ranks`: the number of ranks on
    the host that has most ranks. `spread`: for a repeated call, the slowest time divided by the fastest time, as a
    median of all calls; None if no call was repeated.
    """
    reasons = []
    hosts: dict[int, dict[int, Reading]] = {}
    for reading in readings:
        hosts.setdefault(reading.host, {})[reading.process] = reading  # threads of one process have equal counts
    for host in hosts.values():
        cores = max(reading.cores for reading in host.values())
        elapsed = max(reading.elapsed for reading in host.values())
        ours = sum(reading.used / reading.elapsed for reading in host.values())
        others = max(reading.busy / reading.elapsed for reading in host.values()) - ours
        stolen = max(reading.stolen for reading in host.values()) / elapsed / cores
        preempted = max(reading.preempted / reading.elapsed for reading in host.values())
        if min(ranks, cores) + others > cores + COMPETING:
            reasons.append(f"other programs used {others:.1f} of {cores} core{'s' * (cores > 1)}, which the ranks need")
        if stolen > STOLEN:
            reasons.append(f"the hypervisor gave {stolen:.0%} of the time to other machines (steal)")
        if ranks <= cores and preempted > PREEMPTED:
            reasons.append(f"a rank lost its core {preempted:.0f} times a second")
        if spread is not None and spread > (SPREAD if ranks <= cores else SPREAD**2):
            reasons.append(f"the same call took {spread:.1f} times as long in one round as in another")
    return tuple(dict.fromkeys(reasons))


def beforehand(ranks: int, seconds: float = 0.5) -> tuple[str, ...]:
    """Returns the reasons why measurements by `ranks` ranks on this machine would be unreliable; empty if none.

    Call it before the ranks start. It sleeps for `seconds`, and observes what other programs do meanwhile.
    """
    watch = Watch()
    time.sleep(seconds)
    return judge([replace(watch.reading(), preempted=0)], ranks)


def middle(ratios: Sequence[float]) -> float | None:
    """The median; None if `ratios` is empty."""
    return sorted(ratios)[len(ratios) // 2] if ratios else None
