"""The identity of this process, and whether another process of this machine still exists.

Invariant: `is_gone` returns True only if it is certain that the process has ended.
"""

from __future__ import annotations

import functools
import math
import os
import socket
import time
from typing import Final

_ENDING: Final = 0x4  # PF_EXITING of the kernel's flags


@functools.cache
def boot_id() -> str:
    """Return the random id that Linux draws at each boot of this machine; empty if /proc does not show it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def place() -> str:
    """Return "host:pid" of this process, for error messages; unprintable characters of the host name become "?"."""
    host = "".join(letter if letter.isprintable() else "?" for letter in socket.gethostname())
    return f"{host}:{os.getpid()}"


def origin() -> str:
    """Return a text that identifies this process among the processes of all machines.

    The text has the machine's boot id, the pid namespace, the user id, the pid and the start time. It is empty if /proc
    does not show these five. `is_gone` uses the text to find out whether the process has ended.
    """
    return _origin(os.getpid())  # cached by pid, so that a forked child does not use its parent's identity


@functools.lru_cache(maxsize=4)
def _origin(pid: int) -> str:
    started = _started(pid)
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{boot_id()} {namespace} {os.getuid()} {pid} {started}" if boot_id() and started else ""


def is_gone(process: str) -> bool:
    """Return whether the process that is described by `process` is known to have ended.

    `process` is the text that `origin()` returned in that process. The result is also False if nothing is known about
    the process, for example because it belongs to another machine or container.
    """
    parts = process.split(" ")
    ours = origin().split(" ")
    # The kernel may hide processes of other users, and a pid of another namespace names another process here.
    if len(parts) != 5 or len(ours) != 5 or parts[:3] != ours[:3] or not parts[3].isdecimal():
        return False
    return _started(int(parts[3])) != parts[4]


def now() -> float:
    """Return the seconds since this machine booted. All processes of one machine share this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def born() -> float:
    """Return when this process started, in seconds since the machine booted; infinity if /proc does not show it."""
    ticks = _started(os.getpid())
    return int(ticks) / os.sysconf("SC_CLK_TCK") if ticks else math.inf


def is_of_this_machine(process: str) -> bool:
    """Return whether a process runs on this machine, or ran on it since the machine's last boot.

    `process` is the text that `origin()` returned in that process.
    """
    return bool(process) and process.split(" ", maxsplit=1)[0] == boot_id()


def _started(pid: int) -> str:
    """When the process `pid` started, in clock ticks since boot; empty if it does not exist, or has begun to end.

    The kernel marks a process that ends before it closes its sockets, so whoever has seen them closed finds it marked.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return ""
    # After the process's name: state, parent's pid, ... The 9th field of the line has the kernel's flags, the 22nd the
    # start time.
    if len(fields) < 20 or fields[0] in (b"Z", b"X") or int(fields[6]) & _ENDING:
        return ""
    return fields[19].decode()
