"""Meets as its arguments say, twice over."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401

url, rank = sys.argv[1], int(sys.argv[2])
given: dict[str, Any] = {} if url == "env://" else {"rank": rank, "world_size": 2}
for _ in range(2):
    dist.init_process_group("collectives", init_method=url, **given)
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3, x
    dist.barrier()
    dist.destroy_process_group()
print("met")
