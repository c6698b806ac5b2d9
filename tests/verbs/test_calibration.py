"""Calibration over verbs: from which number of bytes on messages use the rendezvous protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectives.calibration.protocol import SIZES
from tests.verbs.programs import run

pytestmark = pytest.mark.timeout(300)


def test_calibration_yields_a_communicator_that_uses_what_was_found(tmp_path: Path) -> None:
    """Whatever is measured, what counts as found is 32 KiB, so that the links' counts show the protocol."""
    program = """
    from collectives.calibration import protocol
    from collectives.calibration.timing import Stopwatch

    fastest = protocol.fastest
    measured = []

    def found(seconds):
        measured.append(fastest(seconds))
        return 32 << 10

    protocol.fastest = found
    protocol._ROUNDS = 2
    with protocol.best_linked(comm, Stopwatch(comm)) as linked:
        assert linked is not comm and linked._linked.rendezvous == 32 << 10
        straight = []
        for nbytes in (24 << 10, 40 << 10):
            x = np.full(nbytes, rank + 1, np.uint8)
            out = linked.allgather(x, out=np.empty((size, nbytes), np.uint8), algorithm="ring")
            assert (out == np.arange(1, size + 1)[:, None]).all()
            straight.append(linked._linked.group.link_counts(1 - rank)["straight"])
        linked.barrier()
    assert (comm.allgather(np.array(rank)) == np.arange(size)).all()  # the first one still works
    say([measured, straight])
    comm.barrier()
    comm.close()
    """
    ended = run(program, 2, tmp_path)
    ((measured, _),) = ended[0]
    assert all(one[0][0] == measured for one in ended), ended
    assert measured[0] in (None, *SIZES, 2 * SIZES[-1])
    for ((_, straight),) in ended:
        assert straight == [0, 40 << 10], straight
