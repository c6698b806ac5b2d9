"""The end of a process group whose store has gone before it."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from tests.collectives.torch.ranks import environment
from tests.lazily import needs
from tests.warm.parents import TORCH, interpreter

needs("torch", "PyTorch is not installed: pip install torch")

WORKER = Path(__file__).parent / "worker_gone.py"


def test_destroying_after_rank_0_has_gone_says_nothing() -> None:
    """Torch prints 16 lines of C++ where anybody asks a TCPStore whose server has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = environment()
    pipe = subprocess.PIPE
    ranks = [
        subprocess.Popen(
            [interpreter(TORCH, settings), str(WORKER), str(rank)],
            env={**settings, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
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
