"""The checks of `collectives doctor`: each is a function that returns a section of the report.

Invariant: a check has no lasting effect and ends by a deadline. It reports a fault of this machine as a `Problem` in
its section, and does not raise an error. No section contains a password or secret.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import platform
import re
import resource
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from collectives.base.version import library_version
from collectives.core.init import check_sockets, number_asked
from collectives.native import _engine
from collectives.native.errors import AuthError, CollectiveError
from collectives.rendezvous import secret as job_secret
from collectives.rendezvous.bootstrap import Launch, bootstrap
from collectives.transports.addresses import choose, interface_addresses
from collectives.transports.host import cpu_quota, ranges, usable_cores

VARIABLES: Final = (
    *("STORE", "RANK", "SIZE", "NAME", "TRANSPORT", "SECRET_FILE", "TIMEOUT"),
    *("HEARTBEAT_INTERVAL", "HEARTBEAT_LIMIT"),
    *("INTERFACE", "RUN_ID", "LOCAL_RANK", "LOCAL_SIZE", "ISA", "SEGMENT", "SOCKETS", "PULL", "WITHOUT"),
    *("VERBS_DEVICE", "VERBS_TIMEOUT", "VERBS_RETRIES", "VERBS_RNR_RETRIES", "VERBS_DIRECT_FROM"),
    *("TABLE", "ALGORITHM", "CALIBRATE", "JAX", "LOSS_FILE", "NCCL", "NVRTC"),
    *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_SHARE", "TORCH_MESSAGES"),
)
_DESCRIPTORS: Final = (24, 2)  # file descriptors that a rank needs, and more for each peer
_MEMORY: Final = 16 << 20  # bytes that a rank may need besides its arrays

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that `collectives doctor` found, with advice what to do about it.

    `severity`: "broken" if the problem prevents jobs from running, "hint" if it may slow jobs or surprise users.
    """

    severity: Literal["broken", "hint"]
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report of `collectives doctor`: its title, facts by name (as JSON values), and problems."""

    title: str
    facts: Mapping[str, Any]
    problems: Sequence[Problem] = ()


def versions() -> Section:
    facts = {"pycollectives": f"{library_version()}, wire format {_engine.WIRE_VERSION}"}
    facts["python"] = f"{platform.python_version()} {platform.python_implementation()}"
    for package in ("numpy", "ml_dtypes", "redis", "mpi4py", "matplotlib"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    facts["system"] = f"{platform.system()} {platform.release()} {platform.machine()}, {'-'.join(platform.libc_ver())}"
    return Section("versions", facts)


def processor(ranks: int) -> Section:
    usable, quota = usable_cores(), cpu_quota()
    facts: dict[str, Any] = {
        "online": os.cpu_count(),
        "allowed": ranges(sorted(os.sched_getaffinity(0)), ", "),
        "cgroup quota": f"{quota:g} cores" if quota else "none",
        "usable": usable,
    }
    problems = []
    try:
        facts["instruction sets"] = ", ".join(_engine.cpu_features())
    except ValueError as error:
        problems.append(
            Problem("broken", str(error), "unset COLLECTIVES_ISA, or name one that doctor lists without it")
        )
    if ranks > usable:
        text = f"{ranks} ranks share {usable} core{'s' * (usable > 1)}: they cannot all run while others wait for them"
        problems.append(Problem("hint", text, f"start {usable}, or allow more cores (taskset, the container's quota)"))
    return Section("processor", facts, problems)


def memory(ranks: int, meminfo: str = "/proc/meminfo", cgroups: str = "/sys/fs/cgroup") -> Section:
    known = dict(re.findall(r"^(\w+): +(\d+) kB", _text(meminfo), re.MULTILINE))
    total, available = (int(known.get(key, 0)) << 10 for key in ("MemTotal", "MemAvailable"))
    limit = _memory_limit(cgroups)
    facts: dict[str, Any] = {"total": _bytes(total), "available": _bytes(available)}
    facts["cgroup limit"] = _bytes(limit) if limit else "none"
    with contextlib.suppress(OSError):
        facts["/dev/shm"] = f"{_bytes(shutil.disk_usage('/dev/shm').free)} free; not used: shared memory has no name"
    room = min(available, limit or available)
    if available and room < ranks * _MEMORY:
        text = f"{_bytes(room)} of memory for {ranks} ranks, each of which may need 16 MiB besides its arrays"
        return Section("memory", facts, [Problem("hint", text, "end other programs, or start fewer ranks")])
    return Section("memory", facts)


def limits(ranks: int, env: Environment) -> Section:
    names = {"open files": "NOFILE", "locked memory": "MEMLOCK", "processes": "NPROC"}
    names |= {"address space": "AS", "file size": "FSIZE"}
    found = {what: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for what, name in names.items()}
    facts = {what: f"{_limit(soft)}, at most {_limit(hard)}" for what, (soft, hard) in found.items()}
    problems = []
    soft, hard = found["open files"]
    sockets = 0
    try:
        sockets = number_asked("sockets", None, check_sockets, env)
    except ValueError as error:
        problems.append(Problem("broken", str(error), "correct the variable that is named"))
    each = max(_DESCRIPTORS[1], sockets + 1)  # over TCP there is one more connection, which carries no data
    needed = _DESCRIPTORS[0] + each * (ranks - 1)
    if soft != resource.RLIM_INFINITY and soft < needed:
        how = f"run: ulimit -n {needed}" if hard == resource.RLIM_INFINITY or hard >= needed else "ask for more"
        text = f"{soft} open files are too few for {ranks} ranks, whose links need about {needed} in each"
        problems.append(Problem("broken", text, f"{how} (limits.conf, LimitNOFILE=, or the container's ulimits)"))
    if found["address space"][0] != resource.RLIM_INFINITY:
        text = "address space is limited, so comm.empty() gives ordinary arrays, which cost a copy"
        problems.append(Problem("hint", text, "run: ulimit -v unlimited"))
    if found["file size"][0] != resource.RLIM_INFINITY:
        text = f"files are limited to {found['file size'][0]} bytes, and so is the memory that ranks share: what does "
        text += "not fit, comm.empty() gives as ordinary arrays, which cost a copy"
        problems.append(Problem("hint", text, "run: ulimit -f unlimited"))
    return Section("limits", facts, problems)


def kernel(ranks: int, root: str = "/") -> Section:
    def read(path: str) -> str:
        return " ".join(_text(Path(root, path)).split())

    pages = "sys/kernel/mm/transparent_hugepage"
    facts = {
        "huge pages": _chosen(read(f"{pages}/enabled")),
        "huge pages, shared": _chosen(read(f"{pages}/shmem_enabled")),
        "somaxconn": read("proc/sys/net/core/somaxconn"),
        "tcp_rmem": read("proc/sys/net/ipv4/tcp_rmem"),
        "tcp_wmem": read("proc/sys/net/ipv4/tcp_wmem"),
        "overcommit_memory": read("proc/sys/vm/overcommit_memory"),
        "yama ptrace_scope": read("proc/sys/kernel/yama/ptrace_scope"),
    }
    facts = {name: value or "unknown" for name, value in facts.items()}
    problems = []
    if facts["huge pages, shared"] in ("never", "deny"):
        facts["huge pages, shared"] += " (advise would let comm.empty() have them)"
    if facts["somaxconn"].isdigit() and int(facts["somaxconn"]) < ranks:
        text = f"only {facts['somaxconn']} of {ranks} ranks can connect to one at the same moment; others try again"
        problems.append(Problem("hint", text, f"as root: sysctl net.core.somaxconn={max(4096, ranks)}"))
    for name in ("tcp_rmem", "tcp_wmem"):
        most = facts[name].split()[-1]
        if most.isdigit() and int(most) < 1 << 20:
            text = f"sockets may hold {most} bytes only ({name}): large messages over TCP will be slow"
            advice = f"as root: sysctl net.ipv4.{name}='4096 131072 6291456'"
            problems.append(Problem("hint", text, advice))
    return Section("kernel", facts, problems)


def network(env: Environment, secret: bool) -> Section:
    wanted = env.get("COLLECTIVES_INTERFACE") or None
    facts: dict[str, Any] = {"host": socket.gethostname()}
    try:
        found = interface_addresses()
        published = choose(found, wanted)
    except OSError as error:
        return Section(
            "network", facts, [Problem("broken", f"cannot list interfaces: {error}", "see that /sys is there")]
        )
    except ValueError as error:
        problem = Problem("broken", str(error), "correct COLLECTIVES_INTERFACE, or unset it")
        return Section("network", facts, [problem])
    for address in found:
        use = "published" if address in published and secret else "this host only" if address.loopback else "not used"
        facts.setdefault(address.interface, []).append(f"{address.ip}/{address.prefix} ({use})")
    problems = []
    if not secret:
        facts["reach"] = "this host only: there is no secret"
    elif not published:
        text = "no interface but loopback is up: ranks on other hosts cannot reach this one"
        problems.append(Problem("hint", text, "bring one up, or name one: COLLECTIVES_INTERFACE"))
    return Section("network", facts, problems)


def job(env: Environment) -> tuple[Section, Launch | None]:
    """The part of the report of `collectives doctor` about the launcher's environment variables, and errors in them."""
    facts: dict[str, Any] = {}
    problems = []
    names = [f"COLLECTIVES_{name}" for name in VARIABLES]
    for name in sorted(key for key in env if key.startswith("COLLECTIVES_")):
        facts[name] = without_password(env[name])
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            text = f"nothing reads {name}" + (f"; {near[0]} is meant?" if near else "")
            problems.append(Problem("hint", text, f"unset it; there are {', '.join(names)}"))
    launch = None
    try:
        launch = bootstrap(secret=b"\0" * job_secret.SIZE, env=env)  # the file of the secret is checked by `secret`
    except (ValueError, CollectiveError) as error:
        problems.append(Problem("broken", without_password(str(error)), "correct what the launcher, or you, set"))
    else:
        facts["launcher"] = launch.launcher
        if launch.launcher != "none":
            facts["rank"] = f"{launch.rank} of {launch.size}"
        if launch.store is not None:
            facts["store"] = without_password(str(launch.store))
    return Section("job", facts, problems), launch


def secret(env: Environment) -> tuple[Section, bytes | None]:
    path = env.get("COLLECTIVES_SECRET_FILE")
    if not path:
        return Section("secret", {"file": "none: ranks can be reached from this host only"}), None
    try:
        found = job_secret.read(path)
    except AuthError as error:
        advice = "a new one is made by: (umask 077; head -c 32 /dev/urandom > job.key)"
        return Section("secret", {"file": path}, [Problem("broken", str(error), advice)]), None
    return Section("secret", {"file": path, "holds": f"{len(found)} bytes, for its owner alone"}), found


def without_password(text: str) -> str:
    """Returns `text` without the user names and passwords in URLs: the text between "://" and "@"."""
    return re.sub(r"(?<=://)\S*@", "...@", text)


def _memory_limit(root: str, membership: str = "/proc/self/cgroup") -> int:
    """The lowest memory limit, in bytes, of this process's cgroups and their parents; 0 if none is set.

    `root`: where cgroups are mounted. `membership`: the file that lists this process's cgroups.
    """
    found = []
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, file = (Path(root, "memory"), "memory.limit_in_bytes") if controllers else (Path(root), "memory.max")
        folder = Path(path.lstrip("/"))
        found += [_text(top / part / file).strip() for part in (folder, *folder.parents)]
    # version 1 says "none" by a number near 2^63
    return min((int(text) for text in found if text.isdigit() and int(text) < 1 << 60), default=0)


def _text(path: str | Path) -> str:
    """The content of a file, as of /proc or /sys; empty if the file cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _chosen(text: str) -> str:
    """The word in brackets, which is the value in force."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else text


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _bytes(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
