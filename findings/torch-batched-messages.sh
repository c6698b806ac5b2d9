#!/usr/bin/env bash
# Guess: a process group written in Python, which says that it supports coalescing, learns where a batch of
#   batch_isend_irecv begins and ends, as it does in the coalescing manager of torch.distributed.
# Seen: it gets send and recv one by one, without _start_coalescing and _end_coalescing: torch asks only groups whose
#   class is exactly ProcessGroup. Around two all_reduce in the coalescing manager, the same group gets both.
# Version: torch 2.13.0, a subclass of torch.distributed.ProcessGroup, CPU.
# Why it matters: a backend in Python cannot group the messages of a batch, as NCCL's send and recv need it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > "$folder/seen.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager


class Complete(dist.Work):
    def wait(self, timeout=None):
        return True


class Group(dist.ProcessGroup):
    """Sends nothing; keeps the names of the methods that torch calls."""

    supports_coalescing = True
    seen = []

    def __getattribute__(self, name):
        if name in ("send", "recv", "allreduce", "allreduce_coalesced", "_start_coalescing", "_end_coalescing"):
            return lambda *args, **options: Group.seen.append(name) or Complete()
        return super().__getattribute__(name)

    def getBackendName(self):
        return "seen"


def calls(block):
    Group.seen.clear()
    block()
    return list(Group.seen)


def batch():
    dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2), 1), dist.P2POp(dist.irecv, torch.ones(2), 1)])


def reductions():
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True):
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2))


dist.Backend.register_backend("seen", lambda store, rank, size, timeout: Group(rank, size), devices=["cpu"])
dist.init_process_group("seen", init_method="file://" + sys.argv[1], rank=0, world_size=2)
messages, sums = calls(batch), calls(reductions)
print("torch", torch.__version__)
print("  batch_isend_irecv:", messages)
print("  two all_reduce in the coalescing manager:", sums)
still = messages == ["send", "recv"] and sums == ["_start_coalescing", "allreduce_coalesced", "_end_coalescing"]
sys.exit(0 if still else 1)
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" "$folder/meeting"
