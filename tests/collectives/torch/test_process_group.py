"""The backend of torch.distributed, in processes of its own."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.collectives.torch.ranks import environment
from tests.launched import launched
from tests.lazily import needs
from tests.warm.parents import TORCH, interpreter

needs("torch", "PyTorch is not installed")

HERE = Path(__file__).parent


def test_every_call_of_torch_distributed() -> None:
    done = launched(3, HERE / "worker_api.py", warm=TORCH, OMP_NUM_THREADS="1").succeeded()
    for rank in range(3):
        assert done.lines[rank][-1] == "passed all", done.stdout


def test_distributed_data_parallel_and_fsdp() -> None:
    done = launched(2, HERE / "worker_ddp.py", warm=TORCH, OMP_NUM_THREADS="1").succeeded()
    for rank in range(2):
        assert done.lines[rank][-1] == "passed all", done.stdout


def test_what_torch_asks_of_a_group() -> None:
    done = launched(3, HERE / "worker_asked.py", warm=TORCH, OMP_NUM_THREADS="1").succeeded()
    for rank in range(3):
        assert done.lines[rank][-1] == "passed all", done.stdout


def test_hooks_uneven_data_sparse_gradients_and_checkpoints(tmp_path: Path) -> None:
    done = launched(2, HERE / "worker_training.py", str(tmp_path), warm=TORCH, OMP_NUM_THREADS="1").succeeded()
    for rank in range(2):
        assert done.lines[rank][-1] == "passed all", done.stdout


def test_a_killed_rank_is_named_by_the_others(tmp_path: Path) -> None:
    """SIGKILL in the middle of training; nobody but the survivors themselves notices."""
    url = (tmp_path / "store").as_uri()
    settings = environment()
    command = [interpreter(TORCH, settings), str(HERE / "worker_killed.py"), url]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=settings, stdout=subprocess.PIPE, text=True) for rank in range(3)
    ]
    message = _ended(ranks)
    assert [rank.returncode for rank in ranks] == [0, -9, 0], message
    for survivor in (message[0], message[2]):
        assert survivor.splitlines()[-1] == "PeerLost (1,) within seconds", message


@pytest.mark.parametrize("way", ["env", "tcp"])
def test_ways_of_torch_to_meet(way: str, tmp_path: Path) -> None:
    """file:// is what the killed ranks use, a launcher's what the others do."""
    with socket.socket() as first, socket.socket() as second:
        for found in (first, second):
            found.bind(("127.0.0.1", 0))
        ports = [str(found.getsockname()[1]) for found in (first, second)]
    settings = environment()
    meeting = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"} if way == "env" else {}
    ranks = [
        subprocess.Popen(
            [interpreter(TORCH, settings), str(HERE / "worker_meets.py"), way, str(rank), *ports],
            env={**settings, **meeting, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    message = _ended(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], message
    assert [text.split()[-1] for text in message] == ["met", "met"]


@pytest.mark.parametrize("launcher", ["collectives", "torchrun"])
def test_the_example_under_both_launchers(launcher: str) -> None:
    needs("sklearn", "the example's data: pip install scikit-learn")
    example = str(HERE.parents[2] / "examples" / "torch_ddp_digits.py")
    if launcher == "collectives":
        done = launched(2, example, warm=TORCH, OMP_NUM_THREADS="1", EPOCHS="6").succeeded()
        assert not any("recognised" in line for line in done.lines[1])  # one rank tells it
        output = done.stdout
    else:
        settings = {**environment(), "EPOCHS": "6"}
        torchrun = [interpreter(TORCH, settings), "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node", "2", example]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, env=settings, timeout=100)
        assert ended.returncode == 0, ended.stderr
        output = ended.stdout
    assert "weights: the same bits on 2 ranks" in output
    found = re.search(r"digits never seen before: ([\d.]+)% recognised", output)
    assert found is not None and float(found[1]) >= 95, output


def _ended(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """What each has printed, when all have ended."""
    try:
        return [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
