"""The end of a process group whose store has gone before it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.launched import _HOME
from tests.lazily import needs

needs("torch", "PyTorch is not installed: pip install torch")

WORKER = Path(__file__).parent / "worker_gone.py"


def test_destroying_after_rank_0_has_gone_says_nothing() -> None:
    """Torch prints 16 lines of C++ where anybody asks a TCPStore whose server has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "COLLECTIVES_CALIBRATE": "off"}
    environment = {**kept, **meeting, "PYTHONPATH": os.pathsep.join([str(_HOME), *sys.path])}
    pipe = subprocess.PIPE
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank)], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
        assert ranks[0].communicate(timeout=60)[0] == ""
        message, complained = ranks[1].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0, 0], complained
    assert message == "destroyed\n"
    assert complained == ""
