#!/usr/bin/env bash
# Guess: PyTorch resolves a lazy conjugation or negation when a CUDA tensor is exported, or refuses to export it.
# Seen:  __cuda_array_interface__ describes the memory and drops both bits. CuPy and Numba read [1+2j, 3+4j] for the
#        conjugate [1-2j, 3-4j], and [2, 4] for its imaginary part [-2, -4]. DLPack refuses the conjugate bit, not the
#        negative one. torch's own path to host memory, tensor.cpu().numpy(), is right.
# With:  torch 2.11.0, cupy-cuda13x 14.2.0, numba-cuda 0.30.4; one NVIDIA H200, driver 580.159.
# Why:   whoever takes CUDA tensors by either protocol sums values that the user does not have. Such a consumer has to
#        ask the tensor (is_conj, is_neg) and resolve it first.
set -euo pipefail
command -v nvidia-smi >/dev/null || { echo "needs an NVIDIA GPU" >&2; exit 2; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q torch==2.11.0 cupy-cuda13x==14.2.0 numba-cuda==0.30.4
    PYTHON="$work/venv/bin/python"
fi
cat >"$work/case.py" <<'P'
from importlib.metadata import version

import cupy
import torch
from numba import cuda

for name, wanted in (("torch", "2.11.0"), ("cupy-cuda13x", "14.2.0"), ("numba-cuda", "0.30.4")):
    assert version(name).startswith(wanted), f"{name} is {version(name)}, this is about {wanted}"
print("torch", torch.__version__, "cupy", cupy.__version__, "numba-cuda", version("numba-cuda"))

conjugate = torch.tensor([1 + 2j, 3 + 4j]).cuda().conj()
negative = conjugate.imag
assert conjugate.tolist() == [1 - 2j, 3 - 4j] and negative.tolist() == [-2, -4]
assert conjugate.cpu().numpy().tolist() == [1 - 2j, 3 - 4j] and negative.cpu().numpy().tolist() == [-2, -4]

for reader, read in (
    ("cupy.asarray", lambda t: cupy.asarray(t).get()),
    ("numba.cuda.as_cuda_array", lambda t: cuda.as_cuda_array(t).copy_to_host()),
):
    print(f"{reader}: conjugate {conjugate.tolist()} is read as {read(conjugate).tolist()}, "
          f"{negative.tolist()} as {read(negative).tolist()}")
    assert read(conjugate).tolist() == [1 + 2j, 3 + 4j]
    assert read(negative).tolist() == [2, 4]
try:
    cupy.from_dlpack(conjugate)
    raise SystemExit("DLPack exported the conjugate")
except BufferError as error:
    print("DLPack:", error)
print("DLPack:", negative.tolist(), "is read as", cupy.from_dlpack(negative).tolist())
assert cupy.from_dlpack(negative).tolist() == [2, 4]
P
"$PYTHON" "$work/case.py"
