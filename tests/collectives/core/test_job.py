"""What the communicators of one job share: threads, listeners, memory, and the news that a process is gone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from collectives import Communicator
from tests.collectives.groups import nothing_left, ranks
from tests.launched import launched
from tests.waiting import eventually

MANY = """
import os
import numpy as np
import collectives

def resident():  # bytes
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))

def threads():
    return len(os.listdir("/proc/self/task"))

with collectives.init() as comm:
    comm.dup().close()
    before, memory = threads(), resident()
    family = [comm.dup() for _ in range(64)]
    print(threads() - before, resident() - memory)
    for child in family:
        assert child.allreduce(np.ones(4)).tolist() == [comm.size] * 4
    print(threads() - before)
    comm.barrier()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_many_communicators_cost_no_threads_and_little_memory(tmp_path: Path, transport: str) -> None:
    script = tmp_path / "many.py"
    script.write_text(MANY)
    found = launched(2, script, COLLECTIVES_TRANSPORT=transport).succeeded()
    for message in found.lines.values():
        threads, memory = map(int, message[0].split())
        assert threads == 0 and int(message[1]) == 0
        assert memory <= 1 << 20, memory  # 16 KiB each


KILLED = """
import os, signal, sys, threading, time
import numpy as np
import collectives

comm = collectives.init(timeout=60)
family = [comm, comm.dup(), comm.split(0, -comm.rank), comm.split(comm.rank // 2)]
for one in family:
    one.allreduce(np.ones(1))
comm.barrier()
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
errors = {}

def wait(number):
    try:
        family[number].allreduce(np.ones(1))
    except collectives.PeerLost as error:
        errors[number] = list(error.ranks)

began = time.monotonic()
threads = [threading.Thread(target=wait, args=(number,)) for number in range(len(family))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert time.monotonic() - began < 30
print(sorted(errors.items()))
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_communicator_learns_that_a_process_is_gone(tmp_path: Path, transport: str) -> None:
    """Each names the rank by its own number; one that the process does not belong to goes on."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    found = launched(3, script, run=("--grace", "60"), COLLECTIVES_TRANSPORT=transport)
    assert found.returncode != 0
    assert found.lines[0] == ["[(0, [1]), (1, [1]), (2, [1]), (3, [1])]"], found.stderr
    assert found.lines[2] == ["[(0, [1]), (1, [1]), (2, [1])]"], found.stderr


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_communicators_go_on_when_the_one_they_were_made_from_is_closed(transport: str) -> None:
    def body(comm: Communicator) -> list[float]:
        middle = comm.dup()
        half = middle.split(comm.rank % 2)
        assert half is not None
        comm.close()
        last = middle.dup()
        middle.close()
        found = [float(one.allreduce(np.array(1.0))[()]) for one in (half, last)]
        again = last.split(0, -last.rank)
        assert again is not None
        found.append(float(again.allreduce(np.array(1.0))[()]))
        for one in (half, last, again):
            one.close()
        return found

    with nothing_left():
        assert ranks(4, body, transport=transport) == [[2.0, 4.0, 4.0]] * 4


def test_the_thread_of_calls_in_the_background_ends_when_there_are_none() -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def body(comm: Communicator) -> None:
        comm.barrier()
        before = threads()
        comm.barrier()
        for _ in range(2):
            assert comm.allreduce_async(np.ones(2)).result().tolist() == [1, 1]
            assert threads() == before + 1
            assert eventually(lambda: threads() == before, 30.0)

    with nothing_left():
        ranks(1, body)
