#!/usr/bin/env bash
# torch.distributed with Gloo: all_reduce where one rank asks for SUM and the other for MAX.
#
# What one would guess: an error on some rank, or a time-out, as where ranks call different collectives.
# What happens: both ranks return, without a word, the same tensor, of which one part was added and another part is
# the maximum: each rank reduces the part that it owns by its own op. float64 on one rank and int64 on the other
# return as well: the bits of one are taken for the other's.
# Version: torch 2.13.0 (its Gloo), CPU.
# Why it matters: a mismatch of ops or dtypes (a metric that is averaged on one rank only, a mixed-precision branch) is a
# silent wrong result there. A library that promises to notice has to compare op and dtype itself.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cat >"$dir/rank.py" <<'PY'
import datetime, sys
import torch, torch.distributed as dist

rank, store, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
limit = datetime.timedelta(seconds=20)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
x = torch.full((6,), rank + 1.0, dtype=torch.int64 if what == "dtype" and rank else torch.float64)
dist.all_reduce(x, op=dist.ReduceOp.MAX if what == "op" and rank else dist.ReduceOp.SUM)
print(x.tolist())
PY
"$dir/venv/bin/python" -c 'import torch; print("torch", torch.__version__)'
for what in op dtype; do
    "$dir/venv/bin/python" "$dir/rank.py" 1 "$dir/store-$what" $what >"$dir/one" 2>/dev/null &
    zero=$("$dir/venv/bin/python" "$dir/rank.py" 0 "$dir/store-$what" $what 2>/dev/null)
    wait $!
    echo "different $what: rank 0 has $zero, rank 1 has $(cat "$dir/one")"
    if [[ $what == op ]]; then
        [[ $zero == "$(cat "$dir/one")" && $zero == *3.0* && $zero == *2.0* ]]
    fi
done
echo "Both ranks return normally; of the sum and the maximum each has a part."
