"""`collectives calibrate` between hosts on slow links: formats of fewer bytes are chosen, and jobs use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectives.bench.namespaces import hosts, run_ranks, why_not
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.select import select_wire
from collectives.schedule.table import Situation, join, parse

RATE = "200mbit"
SECRET = bytes(range(32))
JOB = """
import hashlib, numpy as np, collectives
with collectives.init(join_timeout=30, timeout=60) as comm:
    x = np.random.default_rng(comm.rank).standard_normal(1 << 18).astype("f4")
    found = comm.allreduce(x, wire="auto")
    assert found.tobytes() == comm.allreduce(x, wire="int8").tobytes() != comm.allreduce(x).tobytes()
    print(hashlib.sha256(found).hexdigest())
"""

_reason = why_not(RATE)
pytestmark = pytest.mark.skipif(_reason is not None, reason=str(_reason))


def test_slow_links_get_the_format_of_fewest_bytes(tmp_path: Path) -> None:
    file = tmp_path / "own.table"
    command = ("calibrate", "allreduce", "-e", "1M", "--budget", "10", "--despite-noise", "--output", str(file))
    one_socket = {"COLLECTIVES_SOCKETS": "1"}  # to compare several takes longer than all the rest
    with hosts(2, rates=[RATE]) as made:
        ended = run_ranks(made, "-m", "collectives", *command, secret=SECRET, environment=one_socket)
        assert [end.code for end in ended] == [0, 0], "\n".join(end.err for end in ended)
        ended = run_ranks(made, "-c", JOB, secret=SECRET, environment={"COLLECTIVES_TABLE": str(file)})
        assert [end.code for end in ended] == [0, 0], "\n".join(end.err for end in ended)
        assert ended[0].out == ended[1].out
    table = join([parse(file.read_text()), DEFAULTS])
    hosts_of_one = Situation(2, "tcp", per_host=1, hosts=2)
    for nbytes in (1 << 20, 1 << 30):
        choice = select_wire("allreduce", nbytes, hosts_of_one, table)
        assert choice.algorithm == "int8" and choice.reason.startswith("measured "), file.read_text()
    assert select_wire("allgather", 1 << 20, hosts_of_one, table).algorithm == "float32"  # it was not measured
