"""Meets as its arguments say, at one port after the other: worker_meets.py env|tcp RANK PORT...

Not at the same one again: rank 1 may reach torch's server of the first meeting, which rank 0 is about to end, and
torch waits for it forever.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401

way, rank = sys.argv[1], int(sys.argv[2])
given: dict[str, Any] = {} if way == "env" else {"rank": rank, "world_size": 2}
for port in sys.argv[3:]:
    os.environ["MASTER_PORT"] = port
    url = "env://" if way == "env" else f"tcp://127.0.0.1:{port}"
    dist.init_process_group("collectives", init_method=url, **given)
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3, x
    dist.barrier()
    dist.destroy_process_group()
print("met")
