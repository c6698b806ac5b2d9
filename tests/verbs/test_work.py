"""What a device is asked to do: work requests and bytes for an operation, and what the processor copies besides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verbs.programs import run

MIB = 1 << 20

pytestmark = pytest.mark.timeout(300)

ALLREDUCE = """
n = {count}
x = np.arange(n, dtype=np.float32) % 1000 + rank
out = np.empty_like(x)
wanted = np.arange(n, dtype=np.float32) % 1000 * size + size * (size - 1) / 2
for _ in range(2):  # opens links, and registers the arrays
    comm.allreduce(x, out=out, algorithm={algorithm!r})
before = counts()
comm.allreduce(x, out=out, algorithm={algorithm!r})
after = counts()
assert np.array_equal(out, wanted)
say({{name: after[name] - before[name] for name in after}})
comm.barrier()
comm.close()
"""


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling"])
def test_a_large_allreduce_moves_its_formula_and_copies_nothing(tmp_path: Path, size: int, algorithm: str) -> None:
    count = 8 * MIB // 4
    formula = 2 * (size - 1) / size * count * 4
    for (done,) in run(ALLREDUCE.format(count=count, algorithm=algorithm), size, tmp_path):
        assert formula <= done["payload"] <= 1.03 * formula, done
        assert done["copied"] == 0, done
        assert done["straight"] == done["payload"] // 2, done  # the other half is reduced in the ring
        assert done["regions_made"] == 0 and done["regions_kept_bytes"] == 0, done
        # A record in the ring has 32 KiB, a piece 256 KiB.
        assert done["work_requests"] <= 1.2 * formula / 2 * (1 / (32 << 10) + 1 / (256 << 10)) + 20 * size, done


def test_scratch_memory_is_registered_once(tmp_path: Path) -> None:
    """Blocks are put together in scratch memory, sent from there, and received there."""
    program = """
    x = np.empty((size, 16 << 10), np.float32)
    out = np.empty_like(x)
    for turn in range(12):
        if turn == 2:
            before = counts()
        x[...] = rank * size + np.arange(size)[:, None] + turn
        comm.alltoall(x, out=out, algorithm="bruck")
        assert (out == np.arange(size)[:, None] * size + rank + turn).all()
    after = counts()
    say({name: after[name] - before[name] for name in after})
    comm.barrier()
    comm.close()
    """
    for (done,) in run(program, 4, tmp_path):
        assert done["straight"] == done["payload"] == 10 * 4 * (64 << 10), done
        assert done["copied"] == 0 and done["regions_made"] == 0, done


def test_a_short_message_is_one_work_request(tmp_path: Path) -> None:
    program = """
    x = np.zeros(1)
    comm.barrier()
    for turn in range(10):
        comm.send(x, 1) if rank == 0 else comm.recv(x, 0)
        comm.recv(x, 1) if rank == 0 else comm.send(x, 0)
    before = counts()
    for turn in range(100):
        comm.send(x, 1) if rank == 0 else comm.recv(x, 0)
        comm.recv(x, 1) if rank == 0 else comm.send(x, 0)
    after = counts()
    say({name: after[name] - before[name] for name in after})
    comm.barrier()
    comm.close()
    """
    for (done,) in run(program, 2, tmp_path):
        assert done["work_requests"] == 100, done
        assert done["payload"] == 800, done
