"""Rows 25 and 27: no room in /dev/shm, limits of files and memory, and no file descriptors left."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import collectives
from collectives.bench.chaos import moments
from collectives.bench.chaos.case import FINE, Case, Expect
from collectives.bench.chaos.rank import Rank

_CLONE_NEWNS: Final = 0x20000
_MS_PRIVATE: Final = 0x40000 | 0x4000  # and recursive
_AWAY: Final = 1.0  # seconds without descriptors
_SPARE: Final = 6  # descriptors that are left: enough for a file, not for a group
_CLEAR: Final = r"(?i)descriptor|open files"


def _fill_dev_shm() -> None:
    """Give this process a /dev/shm of its own that has no room. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "a mount namespace of its own")
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k"):
        raise OSError(ctypes.get_errno(), "mount /dev/shm")
    file = os.open("/dev/shm/full", os.O_CREAT | os.O_WRONLY)
    with contextlib.suppress(OSError):
        while True:
            os.write(file, bytes(4096))
    os.close(file)


def _why_no_mounts() -> str | None:
    return None if os.geteuid() == 0 else "needs root, to mount a small /dev/shm"


def _works(rank: Rank) -> None:
    """Form the group, and use what needs shared memory."""
    comm = rank.init()
    rank.tell("working")
    for elements in (1, 1000, 1 << 20):
        x = comm.empty(elements)
        x.fill(1.0)
        result = comm.allreduce(x)
        ordinary = comm.allreduce(np.ones(elements, np.float32))
        if (result != comm.size).any() or (ordinary != comm.size).any():
            raise ValueError("a wrong result")


def _dev_shm_full(rank: Rank) -> None:
    _fill_dev_shm()
    _works(rank)


def _limit(which: int, amount: int) -> None:
    resource.setrlimit(which, (amount, resource.getrlimit(which)[1]))


def _small_files(rank: Rank) -> None:
    if rank.is_victim:
        _limit(resource.RLIMIT_FSIZE, 1 << 20)
    _works(rank)


def _small_files_later(rank: Rank) -> None:
    """The limit comes after the group has formed: arrays that find no room in shared memory are ordinary ones."""
    comm = rank.init()
    comm.barrier()
    _limit(resource.RLIMIT_FSIZE, 1 << 20)
    rank.tell("working")
    for _ in range(20):
        x = comm.empty(1 << 20)
        x.fill(1.0)
        if (comm.allreduce(x) != comm.size).any():
            raise ValueError("a wrong result")


def _small_space(rank: Rank) -> None:
    if rank.is_victim:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, used + (64 << 20))
    _works(rank)


@contextlib.contextmanager
def _no_descriptors(spare: int = 0) -> Iterator[Callable[[], None]]:
    """Use up all descriptors but `spare`; what it yields frees them again, as does the end."""
    kept: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    _limit(resource.RLIMIT_NOFILE, min(before, 256))
    try:
        while True:
            kept.append(os.dup(2))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise

    def free(count: int = 1 << 20) -> None:
        while kept and count:
            os.close(kept.pop())
            count -= 1

    free(spare)
    try:
        yield free
    finally:
        free()
        _limit(resource.RLIMIT_NOFILE, before)


def _joins_without(rank: Rank) -> None:
    if not rank.is_victim:
        rank.init()
        return
    with _no_descriptors(_SPARE):
        rank.init()


def _works_without(rank: Rank) -> None:
    """All descriptors are in use while the group works; once they are free, more communicators can be made."""
    comm = rank.init()
    x = np.ones(1000, np.float32)
    comm.allreduce(x)
    rank.tell("working")
    if rank.is_victim:
        with _no_descriptors():
            for elements in (1, 1000, 1 << 20):
                comm.allreduce(np.ones(elements, np.float32))
            kept = [comm.empty(1 << 18) for _ in range(4)]
            kept[0].fill(1.0)
    else:
        for elements in (1, 1000, 1 << 20):
            comm.allreduce(np.ones(elements, np.float32))
    with comm.dup() as child:
        if (child.allreduce(x) != comm.size).any():
            raise ValueError("a wrong result")


def _accepts_later(rank: Rank) -> None:
    """Rank 0, to which the others connect, has no descriptors for a second.

    More communicators can be made once it has; the one that is made meanwhile works as well, or the error is clear.
    """
    comm = rank.init()
    comm.barrier()
    rank.tell("working")
    if comm.rank == 0:
        with _no_descriptors() as free:
            comm.barrier()
            timer = threading.Timer(_AWAY, free)
            timer.start()
            _try(comm)
            timer.join()
    else:
        comm.barrier()
        _try(comm)
    comm.barrier()
    _child(comm)


def _try(comm: Any) -> None:
    try:
        _child(comm)
    except (OSError, collectives.CollectiveError) as error:
        if not re.search(_CLEAR, str(error)):
            raise


def _child(comm: Any) -> None:
    with comm.dup() as child:
        if (child.allreduce(np.ones(1000, np.float32)) != comm.size).any():
            raise ValueError("a wrong result")


def _case(row: int, name: str, injected: str, program: Callable[[Rank], None], **more: Any) -> Case:
    expect = more.pop("survivors", Expect((FINE,)))
    return Case(
        row=row,
        name=name,
        injected=injected,
        program=program,
        inject=moments.from_the_beginning,
        survivors=expect,
        victims=more.pop("victims", expect),
        values={"timeout": 10.0, "join_timeout": 5.0},
        runs=(1, 20),
        **more,
    )


CASES: Final = (
    _case(25, "dev-shm-full", "no room in /dev/shm", _dev_shm_full, why_not=_why_no_mounts, transports=("auto", "shm")),
    _case(25, "small-files", "files of 1 MiB at most on one rank", _small_files, transports=("auto",)),
    _case(
        25,
        "small-files-shm",
        "the same, where shared memory is asked for",
        _small_files,
        transports=("shm",),
        survivors=Expect(("TransportUnavailable", "OpTimeout"), within=6.0),
        victims=Expect(("TransportUnavailable",), within=5.0, names=False, text="ulimit -f"),
        keys_stay=True,
    ),
    _case(25, "small-files-later", "files of 1 MiB at most, once joined", _small_files_later, transports=("shm",)),
    _case(25, "small-space", "64 MiB of address space left on one rank", _small_space, transports=("auto",)),
    _case(
        27,
        "descriptors-joining",
        "a rank that joins has 6 descriptors left",
        _joins_without,
        survivors=Expect(("PeerLost", "OpTimeout", "TransportUnavailable", "ConfigMismatch"), within=6.0),
        victims=Expect(
            ("OSError", "StoreError", "TransportUnavailable", "CollectiveError"), within=5.0, names=False, text=_CLEAR
        ),
        keys_stay=True,
    ),
    _case(27, "descriptors-working", "a rank that works has no descriptors left", _works_without),
    _case(27, "descriptors-accepting", "none for a second where links are accepted", _accepts_later, chosen=0),
)
