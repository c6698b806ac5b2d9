"""Measures on one rank what a call by NCCL costs beside the bare call, and prints each figure beside its bar.

    python tests/gpu/costs.py            # CuPy: plans, large arrays, graphs, against NCCL called by ctypes
    python tests/gpu/costs.py torch      # against torch's own all_reduce

Contestants take turns, and figures are medians over the turns. Run it alone on a device that nothing else uses.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import cupy
import numpy as np

import collectives
from collectives.bench.cases import Case
from collectives.bench.peers.nccl import Member
from collectives.transports import nccl
from tests.gpu.sharing import line

TURNS: Final = 15
CALLS: Final = 100
LARGE: Final = 64 << 20


def in_turns(calls: list[Callable[[], Any]], settle: Callable[[], Any], count: int, waits: bool) -> list[float]:
    """The median over turns of the microseconds of each call. `waits`: until the stream is empty, else to enqueue."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(TURNS + 1):
        for call, found in zip(calls, times, strict=True):
            settle()
            begun = time.perf_counter()
            for _ in range(count):
                call()
            if waits:
                settle()
            ended = time.perf_counter()
            settle()
            if turn:  # the first warms up
                found.append(1e6 * (ended - begun) / count)
    return [statistics.median(found) for found in times]


def on_cupy() -> None:
    folder = Path(tempfile.mkdtemp())
    bare = Member(nccl.find().path, folder, 1, 0)  # its device and stream are the current ones from now on
    stream = cupy.cuda.get_current_stream()
    with collectives.init("memory://costs", rank=0, size=1, transport="nccl") as comm:
        small = bare.task(Case("allreduce", "float32", 4, "sum", -1, "auto", 1, 256))
        x, y = cupy.ones(256, cupy.float32), cupy.empty(256, cupy.float32)
        plan = comm.allreduce_plan(x, out=y)
        theirs, ours, call = in_turns(
            [small.call, plan, lambda: comm.allreduce(x, out=y)], stream.synchronize, CALLS, waits=False
        )
        line("a bare call of NCCL, 1 KiB, us on the host", theirs)
        line("a plan beside the bare call, us more", ours - theirs, 2.0, below=True)
        line("a call beside the bare call, us more", call - theirs)
        large = bare.task(Case("allreduce", "float32", 4, "sum", -1, "auto", 1, LARGE // 4))
        a, b = cupy.ones(LARGE // 4, cupy.float32), cupy.empty(LARGE // 4, cupy.float32)
        big = comm.allreduce_plan(a, out=b)
        theirs, ours = in_turns([large.call, big], stream.synchronize, 5, waits=True)
        line("64 MiB, ours / bare, with synchronisation", ours / theirs, 1.02, below=True)
        comm.prepare("allreduce")
        graphs = []
        for one in (small.call, lambda: comm.allreduce(x, out=y)):
            stream.begin_capture()
            one()
            graphs.append(stream.end_capture())
        theirs, ours = in_turns(
            [partial(graph.launch, stream) for graph in graphs], stream.synchronize, CALLS, waits=True
        )
        line("replay of a graph, ours / NCCL's own", ours / theirs, 1.05, below=True)
        np.testing.assert_array_equal(y.get(), 1.0)
    bare.close()


def on_torch() -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    folder = Path(tempfile.mkdtemp())
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=device)
    x = torch.ones(256, device=device)
    dist.all_reduce(x)
    with collectives.init("memory://costs", rank=0, size=1, transport="nccl") as comm:
        theirs, ours = in_turns(
            [lambda: dist.all_reduce(x), lambda: comm.allreduce(x, out=x)], torch.cuda.synchronize, CALLS, waits=False
        )
    line("torch's all_reduce, 1 KiB, us on the host", theirs)
    line("a call on a torch tensor / torch's all_reduce", ours / theirs, 1.0, below=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["torch"]:
        on_torch()
    else:
        on_cupy()
