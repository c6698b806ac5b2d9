#!/usr/bin/env bash
# Guess: numpy.from_dlpack gives an array over the exporter's memory, or raises where it has none.
# Seen: torch exports a tensor subclass that wraps others (DTensor, as FSDP2 has it) with a null pointer, for which NumPy
#   allocates memory of its own: an array that owns its data, whose values are arbitrary, and which nobody sees written.
# Version: torch 2.13.0, numpy 2.4.6, CPU.
# Why it matters: a library that receives into what from_dlpack gives leaves a model's DTensors as they were, silently.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > "$folder/seen.py" <<'PYTHON'
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
x = distribute_tensor(torch.tensor([1.0, 2.0]), DeviceMesh("cpu", [0]), [Shard(0)])
array = np.from_dlpack(x)
array[:] = 7
local = np.from_dlpack(x.to_local())
print("torch", torch.__version__, "numpy", np.__version__)
print("data_ptr", x.data_ptr(), "array owns its data", array.flags.owndata, "of its shard", local.flags.owndata)
print("tensor after writing 7 to the array", x.full_tensor().tolist())
found = x.data_ptr() == 0 and array.flags.owndata and not local.flags.owndata and x.full_tensor().tolist() == [1, 2]
dist.destroy_process_group()
assert found
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" "$folder/store"
