"""Rank 0, which serves torch's store, ends; then the others destroy their process group: worker_gone.py RANK.

An end of standard input tells when. Rank 0 ends as a program does that has nothing more to do with the group.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401

rank = int(sys.argv[1])
dist.init_process_group("collectives", rank=rank, world_size=2)
x = torch.ones(4)
dist.all_reduce(x)
pair = dist.new_group([0, 1])
dist.all_reduce(x, group=pair)
if rank == 0:
    dist.send(x, 1, tag=3)
else:
    dist.recv(x, 0, tag=3)
print("ready", flush=True)
sys.stdin.read()
if rank == 0:
    os._exit(0)
dist.destroy_process_group()
print("destroyed", flush=True)
