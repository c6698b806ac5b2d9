#!/usr/bin/env bash
# Guess: an emulated processor computes what a real one does, so NumPy's results are the same in QEMU.
# Seen:  np.argsort of integers returns an order that is not sorted, without a warning: in 128 of 300 arrays of int64,
#        in 46 of int32. np.sort and the stable argsort are right. With AVX2 left out of the processor (-cpu
#        max,avx2=off), all are right.
# With:  NumPy 2.4.6, QEMU 7.2 of Debian 12 (qemu-user-static; a whole machine by qemu-system with TCG does the same).
# Why:   NumPy chooses its sorts by the features of the processor, and "max" has AVX2 since QEMU 7.2. Not looked into
#        further. The same NumPy is right on the real processor, which had AVX2.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get download -qq qemu-user-static 2>/dev/null && dpkg-deb -x qemu-user-static_*.deb qemu)
qemu=$work/qemu/usr/bin/qemu-x86_64-static
case $("$qemu" --version | head -n 1) in *" 7.2"*) ;; *) echo "this is about QEMU 7.2" >&2; exit 2 ;; esac
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy==2.4.6
cat >"$work/case.py" <<'P'
import numpy as np

random = np.random.default_rng(0)
wrong = {}
for dtype in ("int32", "int64"):
    arrays = [random.integers(0, 50, n).astype(dtype) for n in (5, 10, 22, 40, 100, 1000) for _ in range(50)]
    for name, order in (("sort", None), ("argsort", "quicksort"), ("argsort, stable", "stable")):
        found = [np.sort(x) if order is None else x[np.argsort(x, kind=order)] for x in arrays]
        wrong[f"{name} of {dtype}"] = sum(y.tolist() != sorted(x.tolist()) for x, y in zip(arrays, found))
print({name: count for name, count in wrong.items() if count} or "all right")
P
python=$(readlink -f "$work/venv/bin/python")
export PYTHONPATH
PYTHONPATH=$(echo "$work"/venv/lib/python3*/site-packages)
plain=$("$python" "$work/case.py")
emulated=$("$qemu" -cpu max "$python" "$work/case.py")
without=$("$qemu" -cpu max,avx2=off "$python" "$work/case.py")
printf 'here:                 %s\nQEMU, max:            %s\nQEMU, without AVX2:   %s\n' "$plain" "$emulated" "$without"
[[ $plain == "all right" && $without == "all right" && $emulated == *"'argsort of int32'"*"'argsort of int64'"* && $emulated != *stable* ]]
