#!/usr/bin/env bash
# Guess: cupy.asarray of a torch bfloat16 tensor is a bfloat16 array (CuPy 14 has the dtype), or an error.
# Seen:  it is an array of dtype |V2, two bytes of no meaning, without an error; of a JAX bfloat16 array, and by
#        from_dlpack of either, it is bfloat16. torch cannot take CuPy's bfloat16 by torch.as_tensor (TypeError about
#        numpy.void), but can by torch.from_dlpack.
# With:  torch 2.11.0, cupy-cuda13x 14.2.0, jax 0.11.2, ml_dtypes; one NVIDIA H200, driver 580.159.
# Why:   the CUDA array interface has no name for bfloat16: whoever goes by its typestr loses the dtype that the array's
#        own .dtype has. DLPack is the protocol to use for it.
set -euo pipefail
command -v nvidia-smi >/dev/null || { echo "needs an NVIDIA GPU" >&2; exit 2; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q torch==2.11.0 cupy-cuda13x==14.2.0 "jax[cuda13]==0.11.2" ml_dtypes
    PYTHON="$work/venv/bin/python"
fi
cat >"$work/case.py" <<'P'
import os
from importlib.metadata import version

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import cupy
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

for name, wanted in (("torch", "2.11.0"), ("cupy-cuda13x", "14.2.0"), ("jax", "0.11.2")):
    assert version(name).startswith(wanted), f"{name} is {version(name)}, this is about {wanted}"
tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, device="cuda")
array = jnp.array([1.5, -2.0], "bfloat16")
seen = {
    "cupy.asarray(torch)": cupy.asarray(tensor).dtype,
    "cupy.from_dlpack(torch)": cupy.from_dlpack(tensor).dtype,
    "cupy.asarray(jax)": cupy.asarray(array).dtype,
    "cupy.from_dlpack(jax)": cupy.from_dlpack(array).dtype,
}
for name, dtype in seen.items():
    print(f"{name}: {dtype}")
assert seen["cupy.asarray(torch)"] == np.dtype("V2") != np.dtype(ml_dtypes.bfloat16)
assert all(seen[name] == np.dtype(ml_dtypes.bfloat16) for name in seen if name != "cupy.asarray(torch)")

own = cupy.array(np.array([1.5, -2.0], ml_dtypes.bfloat16))
try:
    torch.as_tensor(own, device="cuda")
    raise SystemExit("torch.as_tensor takes it now")
except TypeError as error:
    print("torch.as_tensor(cupy bfloat16):", str(error)[:60])
taken = torch.from_dlpack(own)
print("torch.from_dlpack(cupy bfloat16):", taken.dtype, taken.tolist())
assert taken.dtype == torch.bfloat16 and taken.tolist() == [1.5, -2.0]
P
"$PYTHON" "$work/case.py"
