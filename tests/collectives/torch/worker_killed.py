"""Trains by DistributedDataParallel, until rank 1 is killed in the middle of a backward pass."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401
from collectives.native.errors import PeerLost

STEP = 5  # in which it happens


def main(url: str, rank: int) -> None:
    dist.init_process_group("collectives", init_method=url, rank=rank, world_size=3)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)  # a bucket for each layer
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    middle = list(model.parameters())[6]
    for step in range(1000):
        if rank == 1 and step == STEP:
            middle.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        start = time.monotonic()
        try:
            optimizer.zero_grad()
            ddp(torch.ones(8, 64)).sum().backward()
            optimizer.step()
        except PeerLost as error:
            soon = "within seconds" if time.monotonic() - start < 10 else "late"
            assert step == STEP, step
            print(f"PeerLost {error.ranks} {soon}", flush=True)
            break
    else:
        raise AssertionError("nobody was lost")
    os._exit(0)  # the others see no difference, and torch would complain about the group that was not destroyed


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
