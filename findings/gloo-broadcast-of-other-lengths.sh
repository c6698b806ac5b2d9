#!/usr/bin/env bash
# torch.distributed with Gloo: broadcast where a receiver's tensor is longer than the root's.
#
# What one would guess: an error on the receiver, since it cannot fill its tensor; DDP compares the shapes of parameters for
# this reason.
# What happens: both ranks return. The receiver's tensor has the root's values at its beginning, and keeps its own
# behind them, without a word.
# Version: torch 2.13.0 (its Gloo), CPU.
# Why it matters: a model built with another width on one rank starts from weights that are partly random. A library
# that promises to notice has to compare the number of elements on the receiver, and tell the root, who has returned by
# then.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cat >"$dir/rank.py" <<'PY'
import datetime, sys
import torch, torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
limit = datetime.timedelta(seconds=20)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
x = torch.full((9 if rank else 5,), rank + 1.0)
dist.broadcast(x, 0)
print(x.tolist())
PY
"$dir/venv/bin/python" -c 'import torch; print("torch", torch.__version__)'
"$dir/venv/bin/python" "$dir/rank.py" 1 "$dir/store" >"$dir/one" 2>/dev/null &
"$dir/venv/bin/python" "$dir/rank.py" 0 "$dir/store" >"$dir/zero" 2>/dev/null
wait $!
echo "root: $(cat "$dir/zero")"
echo "receiver: $(cat "$dir/one")"
[[ $(cat "$dir/one") == "[1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]" ]]
echo "Both ranks return normally; the receiver keeps 4 of its own elements."
