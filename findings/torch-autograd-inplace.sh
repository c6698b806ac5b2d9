#!/usr/bin/env bash
# Guess: torch.distributed.all_reduce and broadcast count as in-place operations for autograd, as mul_ does: backward()
#   raises where a tensor that it needs was overwritten.
# Seen: their tensors keep their version counter. backward() computes with the overwritten values and gives a wrong
#   gradient, without an error.
# Version: torch 2.13.0, backend gloo, CPU.
# Why it matters: gradients of a model that reduces or broadcasts an activation in place are silently wrong.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > "$folder/seen.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def gradient(change, rank):
    """That of sum((w * (rank + 1))**2), `change` being applied before backward; None where torch refuses."""
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    x = w * (rank + 1)
    y = (x * x).sum()
    with torch.no_grad():
        change(x)
    try:
        return x._version, torch.autograd.grad(y, w)[0].tolist()
    except RuntimeError:
        return x._version, None


def run(rank, meeting):
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    seen = {
        "mul_": gradient(lambda x: x.mul_(2), rank),
        "all_reduce": gradient(dist.all_reduce, rank),
        "broadcast": gradient(lambda x: dist.broadcast(x, 0), rank),
    }
    dist.destroy_process_group()
    if rank == 1:
        print("torch", torch.__version__, "- right would be [8.0, 16.0], or an error")
        for name, (version, found) in seen.items():
            print(f"  {name}: version {version}, gradient {found}")
        still = seen["mul_"] == (1, None) and seen["all_reduce"] == (0, [12.0, 24.0])
        sys.exit(0 if still and seen["broadcast"] == (0, [4.0, 8.0]) else 1)


if __name__ == "__main__":
    mp.spawn(run, ("file://" + sys.argv[1],), 2)
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" "$folder/meeting"
