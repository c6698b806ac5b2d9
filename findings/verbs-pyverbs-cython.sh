#!/usr/bin/env bash
# Guess: the source package of pyverbs, which asks for "cython>=3.0.12" when it is built, compiles with a newer Cython.
# Seen: the f-string of an error in mlx5dv_flow.pyx has a bracket too few. Cython up to 3.1 compiles it, and Cython 3.2
#   does not, so that `pip install pyverbs` ends with a failed build where pip takes the newest Cython, which it does.
# Version: pyverbs 57.0 and 59.0; Cython 3.1.8, 3.2.0, 3.3.1.
# Why it matters: who installs it from PyPI has to give pip a constraint for the build (PIP_CONSTRAINT: cython<3.2).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seen=
for cython in 3.1.8 3.2.0 3.3.1; do
    python3 -m venv "cython$cython"
    "cython$cython/bin/pip" install -q --disable-pip-version-check "cython==$cython"
done
for pyverbs in 57.0 59.0; do
    cython3.1.8/bin/pip download -q --disable-pip-version-check --no-deps --no-binary pyverbs "pyverbs==$pyverbs"
    tar -xf "pyverbs-$pyverbs.tar.gz"
    for cython in 3.1.8 3.2.0 3.3.1; do
        (
            cd "pyverbs-$pyverbs/rdma-core/pyverbs"
            "$folder/cython$cython/bin/cython" -3 -I .. providers/mlx5/mlx5dv_flow.pyx -o "$folder/compiled.c"
        ) >log 2>&1 && found=compiles || found=$(grep -E '\.pyx:[0-9]+:[0-9]+: ' log | tail -n 1)
        echo "pyverbs $pyverbs, Cython $cython: $found"
        seen+="${found%%[!a-z]*} "
    done
done
[[ $seen == "compiles providers providers compiles providers providers " ]]
