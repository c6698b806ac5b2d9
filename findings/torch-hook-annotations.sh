#!/usr/bin/env bash
# Guess: `from __future__ import annotations` at the head of a file changes nothing for what it registers.
# Seen: DistributedDataParallel.register_comm_hook compares annotations with classes, so it refuses the same hook there:
#   "bucket annotation should be dist.GradBucket", which is what stands in the file. Without annotations it is taken.
# Version: torch 2.13.0.
# Why it matters: communication hooks are how gradients are compressed, and tools add that line to all files.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > "$folder/seen.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist

HOOK = """
def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
"""


def registered(head):
    names = {"dist": dist, "torch": torch}
    exec(compile(head + HOOK, "hook.py", "exec", dont_inherit=True), names)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    try:
        model.register_comm_hook(None, names["hook"])
    except ValueError as error:
        return str(error)
    return "taken"


dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
plain, postponed = registered(""), registered("from __future__ import annotations\n")
dist.destroy_process_group()
print("torch", torch.__version__)
print("  as it is:", plain)
print("  with postponed annotations:", postponed)
sys.exit(0 if plain == "taken" and "bucket annotation should be dist.GradBucket" in postponed else 1)
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" "$folder/meeting"
