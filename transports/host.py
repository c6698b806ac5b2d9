"""Where a rank runs: machine, network namespace and process, and the cores it may use.

Invariant: the kernel's boot id decides whether two ranks share a host, or the module `neighbours` if the boot id is not
sufficient. Host names decide nothing: they only appear in texts for the user.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
import platform
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectives.transports import abstract

_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """Where a rank runs: its machine, network namespace and process, and the CPU cores that it may use.

    `boot` is the kernel's boot id, empty if the kernel hides it. `netns` is the number of the network namespace.
    `cookie` is a random text that identifies the process. `cpus` is the affinity mask (bit i: core i). `quota` is the
    cgroup's CPU limit in cores; 0.0 means no limit.

    `proof` is the name of an abstract Unix socket that the rank binds while the group forms. Only ranks in its network
    namespace can see the socket. `proof` is empty if the socket could not be bound.
    """

    host: str
    boot: str
    netns: int
    pid: int
    cookie: str
    cpus: int
    quota: float
    proof: str = field(default="", compare=False)

    @staticmethod
    def here(proof: str = "") -> HostIdentity:
        """Return the machine, network namespace, process and cores of the calling process.

        The cores are those in the affinity mask of the calling thread. `proof` is the name of an abstract Unix socket
        that this process has bound to prove its network namespace, or empty.
        """
        return HostIdentity(
            host=socket.gethostname()[:_LONGEST_NAME],
            boot=_boot_id(),
            netns=_network_namespace(),
            pid=os.getpid(),
            cookie=_process.cookie,
            cpus=sum(1 << core for core in os.sched_getaffinity(0)),
            quota=cpu_quota(),
            proof=proof,
        )

    def same_machine(self, other: HostIdentity) -> bool:
        return self.boot == other.boot if self.boot else self.same_process(other)

    def same_network(self, other: HostIdentity) -> bool:
        """Return whether both ranks are in the same network namespace of the same machine.

        In that case the ranks can reach each other over loopback and by abstract Unix sockets.
        """
        return self.same_machine(other) and self.netns == other.netns

    def proven(self, other: HostIdentity) -> bool:
        """Return whether the result of `same_network(other)` is certain.

        It is certain if both ranks have bound an abstract Unix socket, which only ranks in the same network namespace
        can see.
        """
        return bool(self.proof and other.proof)

    def same_process(self, other: HostIdentity) -> bool:
        return self.cookie == other.cookie

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "boot": self.boot,
            "netns": self.netns,
            "pid": self.pid,
            "cookie": self.cookie,
            "cpus": f"{self.cpus:x}",
            "quota": self.quota,
            "proof": self.proof,
        }

    @staticmethod
    def from_json(value: Any) -> HostIdentity:
        """Decode the `value` with which a peer describes its host and process.

        Raises: ValueError if `to_json` cannot have returned `value`.
        """
        match value:
            case {
                "host": str(host),
                "boot": str(boot),
                "netns": int(netns),
                "pid": int(pid),
                "cookie": str(cookie),
                "cpus": str(cpus),
                "quota": int() | float() as quota,
                "proof": str(proof),
            } if max(len(host), len(boot), len(cookie)) <= _LONGEST_NAME and 0 < len(cpus) <= 4096 and quota >= 0:
                if proof:
                    abstract.check(proof)
                return HostIdentity(host, boot, netns, pid, cookie, int(cpus, 16), float(quota), proof)
        raise ValueError(f"not a host identity: {str(value)[:200]}")


class _Process:
    """The random `cookie` of this process; a forked child draws a new one."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.cookie = secrets.token_hex(16)


_process = _Process()
os.register_at_fork(after_in_child=_process.renew)


def on_machine(mine: HostIdentity, everyone: Sequence[HostIdentity]) -> tuple[list[HostIdentity], int]:
    """Return the entries of all ranks on this machine, and a mask of the cores that at least one of them may use.

    `everyone` has the host and the cores of each rank, by rank; `mine` is the entry of the calling rank. Bit i of the
    mask stands for core i.
    """
    here = [identity for identity in everyone if identity.same_machine(mine)]
    return here, functools.reduce(operator.or_, (identity.cpus for identity in here), 0)


def _alike(mine: HostIdentity, everyone: Sequence[HostIdentity]) -> list[int]:
    """The numbers of the ranks on this machine whose affinity mask equals this rank's, including this rank."""
    return [r for r, identity in enumerate(everyone) if identity.same_machine(mine) and identity.cpus == mine.cpus]


def oversubscribed(mine: HostIdentity, everyone: Sequence[HostIdentity]) -> bool:
    """Return whether more ranks run on this machine than there are cores for them.

    Affinity masks count: ranks that are pinned to different cores have one core each, but two ranks that are pinned to
    one core are too many. A cgroup's CPU quota counts as a number of cores. `everyone` has the host and the cores of
    each rank, by rank; `mine` is the entry of the calling rank.
    """
    here, union = on_machine(mine, everyone)
    if len(here) > union.bit_count():
        return True
    if len(_alike(mine, everyone)) > mine.cpus.bit_count():
        return True
    quotas = [identity.quota for identity in here if identity.quota > 0]
    return bool(quotas) and len(here) > max(1, math.floor(min(quotas)))


def fill_cores(mine: HostIdentity, everyone: Sequence[HostIdentity]) -> bool:
    """Return whether there is at least one rank for each core that the calling rank may use.

    Only ranks of this machine with the same affinity mask are counted. `everyone` has the host and the cores of each
    rank, by rank; `mine` is the entry of the calling rank.
    """
    return len(_alike(mine, everyone)) >= mine.cpus.bit_count()


def ranges(numbers: Sequence[int], separator: str = ",") -> str:
    """Return `numbers`, which are ascending, in the kernel's notation for lists of cores, for example "0-3,8".

    `separator` is the text between two ranges.
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return separator.join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def home_core(rank: int, everyone: Sequence[HostIdentity]) -> int:
    """Return the number of the core on which the thread of `rank` should wait for other ranks, or -1 if there is none.

    `everyone` has the host and the cores of each rank, by rank. Ranks that may use the same cores are spread over these
    cores evenly, in ascending order. The result is -1 if the rank's CPU quota is smaller than the number of these
    cores.
    """
    mine = everyone[rank]
    if 0 < mine.quota < mine.cpus.bit_count():
        return -1
    alike = _alike(mine, everyone)
    cores = [core for core in range(mine.cpus.bit_length()) if mine.cpus >> core & 1]
    return cores[alike.index(rank) * len(cores) // len(alike)]


def group_cores(mine: HostIdentity, everyone: Sequence[HostIdentity]) -> int:
    """Return how many cores all ranks of this machine together can use at the same time; at least 1.

    Affinity masks and cgroup quotas limit the number. `everyone` has the host and the cores of each rank, by rank;
    `mine` is the entry of the calling rank.
    """
    here, union = on_machine(mine, everyone)
    quotas = [identity.quota for identity in here if identity.quota > 0]
    return max(1, min([union.bit_count(), *(math.floor(quota) for quota in quotas)]))


def processor() -> str:
    """Return the name of the CPU model, as Linux shows it, or the CPU architecture if Linux shows no name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def usable_cores() -> int:
    """Return how many cores this thread can use at the same time; at least 1.

    The thread's affinity mask and the cgroup's CPU quota limit the number.
    """
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return max(1, min(cores, math.floor(quota))) if quota else cores


def cpu_quota(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> float:
    """Return the smallest CPU quota of the cgroups of this process, in cores; 0.0 if there is none.

    Both versions of cgroups are supported. `root` is the folder of the cgroup file system, `membership` the file that
    lists the cgroups of the process.
    """
    try:
        lines = Path(membership).read_text().splitlines()
    except OSError:
        return 0.0
    tightest = 0.0
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            tops, read = [Path(root), Path(root, "unified")], _quota_v2
        elif "cpu" in controllers.split(","):
            tops, read = [Path(root, controllers), Path(root, "cpu")], _quota_v1
        else:
            continue
        for top in tops:
            # In a container, the path may be that on the host, while the mount begins at the container's own cgroup.
            folder = Path(path.lstrip("/"))
            for part in (folder, *folder.parents):
                quota = read(top / part)
                if quota and (not tightest or quota < tightest):
                    tightest = quota
    return tightest


def _quota_v2(folder: Path) -> float:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return 0.0 if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def _quota_v1(folder: Path) -> float:
    try:
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return limit / period if limit > 0 else 0.0
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _network_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0
