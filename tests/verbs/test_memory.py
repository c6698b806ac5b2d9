"""Memory that the device reads and writes: arrays that come and go at the same addresses, and are mapped anew.

Every operation compares its result, so a stale registration, by which the device would use pages that an array no
longer has, is seen at once. Of arrays over mappings of the program's own (`np.frombuffer`), nothing may be kept: each
message registers them anew.

In the long form, there are 10 000 operations on arrays that come and go at the same addresses, 2 000 on memory that is
mapped anew (by MADV_DONTNEED, MAP_FIXED and mremap in turn), and 400 around forks.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.depth import LONG
from tests.verbs.programs import run

pytestmark = pytest.mark.timeout(600)

OPERATIONS = 10_000 if LONG else 200  # the processor of the VM is emulated
WITHIN = 550.0

BEGIN = """
import ctypes, ctypes.util, gc, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
FIXED, ANONYMOUS, PRIVATE, MAYMOVE, DONTNEED = 0x10, 0x20, 0x2, 1, 4
MOST, MOST_BYTES = 256, 2 << 30  # native/src/verbs/tuning.hpp


def mapped(nbytes, address=None):
    got = libc.mmap(address, nbytes, 3, PRIVATE | ANONYMOUS | (FIXED if address else 0), -1, 0)
    assert got not in (None, ctypes.c_void_p(-1).value)
    return got


def over(address, nbytes):
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.float32)


def reduced(x, out, turn):
    # Each of both ranks adds its values; all bytes of the result are compared.
    x[...] = turn % 97 + rank
    out[...] = -1
    comm.allreduce(x, out=out, algorithm="ring")
    wanted = 2 * (turn % 97) + 1
    assert (out == wanted).all(), (turn, wanted, np.unique(out))


def bounded():
    now = comm._linked.group.link_counts(1 - rank)  # a dump has a thousand operations as well
    assert now["regions_kept"] <= MOST and now["regions_kept_bytes"] <= MOST_BYTES, now
    return now

"""


def test_arrays_that_come_and_go(tmp_path: Path) -> None:
    """The allocator gives new arrays the addresses of old ones; some arrays live on meanwhile."""
    program = """
    rng = np.random.default_rng(7)
    kept = []
    addresses = set()
    again = 0
    for turn in range({operations}):
        n = int(rng.integers(40_000, 80_000))
        x, out = np.empty(n, np.float32), np.empty(n, np.float32)
        again += out.ctypes.data in addresses
        addresses.add(out.ctypes.data)
        reduced(x, out, turn)
        if turn % 50 == 0:
            kept = kept[-20:] + [(x, out)]
        if turn % 100 == 0 and kept:
            reduced(*kept[int(rng.integers(len(kept)))], turn)
        bounded()
    del x, out
    kept.clear()
    gc.collect()
    now = bounded()
    say([again, now["regions_kept"], now["regions_made"], now["regions_reused"]])
    comm.barrier()
    comm.close()
    """
    for ((again, kept, made, reused),) in run(BEGIN + _dedent(program, OPERATIONS), 2, tmp_path, WITHIN):
        assert again > OPERATIONS // 10  # addresses were used again
        assert kept == 0, "registrations outlive their arrays"
        assert made > OPERATIONS and reused > OPERATIONS // 10


def test_addresses_that_are_mapped_anew(tmp_path: Path) -> None:
    """MAP_FIXED, mremap and MADV_DONTNEED between operations, under arrays that go and that stay.

    The program owns this memory, and no call tells when its pages change. So nothing of it is kept, and the halves of
    an array that a rank sends and receives, of 512 KiB each, are registered for each operation.
    """
    program = """
    nbytes = 1 << 20
    base = mapped(2 * nbytes)
    x = np.empty(nbytes // 4, np.float32)
    stays = over(base, nbytes)
    for turn in range({operations} // 10):
        reduced(x, stays, turn)
        if turn % 3 == 0:  # other pages, without the array's knowledge
            assert libc.madvise(base, nbytes, DONTNEED) == 0
        elif turn % 3 == 1:
            mapped(nbytes, base)
        else:
            moved = libc.mremap(base, nbytes, nbytes, MAYMOVE | 2, mapped(nbytes))
            assert moved not in (None, ctypes.c_void_p(-1).value)
            mapped(nbytes, base)
            libc.munmap(moved, nbytes)
        gone = over(base + nbytes, nbytes)
        reduced(x, gone, turn)
        del gone
        mapped(nbytes, base + nbytes)
        bounded()
    say(bounded()["regions_made"])
    comm.barrier()
    comm.close()
    """
    for (made,) in run(BEGIN + _dedent(program, OPERATIONS), 2, tmp_path, WITHIN):
        assert made > OPERATIONS // 5  # one turn in ten, of two operations


def test_an_array_and_a_mapping_take_turns_at_one_address(tmp_path: Path) -> None:
    """What NumPy owned belongs to a mapping of the user's afterwards, of which nothing may be kept, and again."""
    program = """
    nbytes = 34 << 20  # the allocator maps so much on its own, and unmaps it at once
    x = np.empty(nbytes // 4, np.float32)
    same = 0
    for turn in range(8):
        out = np.empty(nbytes // 4, np.float32)
        place = out.ctypes.data
        reduced(x, out, turn)
        del out
        base = mapped(nbytes + 4096)
        same += base <= place < base + 8192
        reduced(x, over(base, nbytes), turn + 1)
        libc.munmap(base, nbytes + 4096)
        bounded()
    say(same)
    comm.barrier()
    comm.close()
    """
    for (same,) in run(BEGIN + textwrap.dedent(program), 2, tmp_path, WITHIN):
        assert same > 0  # else the test has tried nothing


def test_an_array_whose_memory_is_also_used_through_a_buffer(tmp_path: Path) -> None:
    """A view that NumPy does not own ends what is kept of the array, until a call uses the array again."""
    program = """
    n = 1 << 16  # too little to be registered for one message
    x, out = np.empty(n, np.float32), np.empty(n, np.float32)
    reduced(x, out, 0)
    reduced(np.frombuffer(memoryview(x).cast("B"), np.float32), out, 1)
    reduced(x, out, 2)
    before = counts()
    reduced(x, out, 3)
    after = counts()
    say([after[name] - before[name] for name in ("copied", "regions_made")])
    comm.barrier()
    comm.close()
    """
    for (did,) in run(BEGIN + textwrap.dedent(program), 2, tmp_path, WITHIN):
        assert did == [0, 0]


def test_a_process_that_forks(tmp_path: Path) -> None:
    """The parent's registrations still hold after a fork; a child that drops the arrays ends nothing."""
    program = """
    n = 1 << 18
    x, out = np.empty(n, np.float32), np.empty(n, np.float32)
    for turn in range({operations} // 50):
        reduced(x, out, turn)
        child = os.fork()
        if child == 0:
            out[...] = 5
            del x, out
            gc.collect()
            os._exit(0)
        x[...] = 1  # a page that is shared with the child gets copied
        reduced(x, out, turn + 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
    now = bounded()
    assert now["regions_made"] <= 4 and now["regions_reused"] > {operations} // 50, now
    comm.barrier()
    comm.close()
    """
    run(BEGIN + _dedent(program, OPERATIONS), 2, tmp_path, WITHIN)


def _dedent(program: str, operations: int) -> str:
    return textwrap.dedent(program).replace("{operations}", str(operations))
