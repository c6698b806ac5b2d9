#!/usr/bin/env bash
# Guess: a JAX array, which nothing may change, comes out of an exchange read-only, or as a copy.
# Seen:  cupy.asarray, cupy.from_dlpack and torch.from_dlpack give writable arrays over JAX's memory, and writing there
#        changes the JAX array: its CUDA array interface says read-only, which CuPy does not look at, and its DLPack
#        capsule is of the unversioned kind, which has no such mark. Of four ways only torch.as_tensor refuses. The other
#        way round, jax.numpy.asarray(cupy_array) is the same memory, so a later write in CuPy changes the JAX array;
#        jax.numpy.array copies.
# With:  jax 0.11.2 (CUDA 13), cupy-cuda13x 14.2.0, torch 2.11.0; one NVIDIA H200, driver 580.159.
# Why:   an in-place collective on such an array would change values that compiled code takes for constants. A consumer
#        has to refuse jax.Array by type; no protocol says it.
set -euo pipefail
command -v nvidia-smi >/dev/null || { echo "needs an NVIDIA GPU" >&2; exit 2; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q "jax[cuda13]==0.11.2" cupy-cuda13x==14.2.0 torch==2.11.0
    PYTHON="$work/venv/bin/python"
fi
cat >"$work/case.py" <<'P'
import os
from importlib.metadata import version

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import cupy
import jax
import jax.numpy as jnp
import torch

for name, wanted in (("jax", "0.11.2"), ("cupy-cuda13x", "14.2.0"), ("torch", "2.11.0")):
    assert version(name).startswith(wanted), f"{name} is {version(name)}, this is about {wanted}"
print("jax", jax.__version__, "cupy", cupy.__version__, "torch", torch.__version__)

for name, take in (
    ("cupy.asarray", cupy.asarray),
    ("cupy.from_dlpack", cupy.from_dlpack),
    ("torch.from_dlpack", torch.from_dlpack),
):
    x = jnp.arange(4.0).block_until_ready()
    assert x.__cuda_array_interface__["data"][1] is True  # read-only
    taken = take(x)
    taken[0] = 9
    cupy.cuda.Device().synchronize()
    torch.cuda.synchronize()
    print(f"{name}: after taken[0] = 9 the JAX array is {x.tolist()}")
    assert jax.device_get(x).tolist() == [9, 1, 2, 3]
try:
    torch.as_tensor(jnp.arange(4.0), device="cuda")
    raise SystemExit("torch.as_tensor takes it now")
except TypeError as error:
    print("torch.as_tensor:", error)

for name, take, alias in (("jax.numpy.asarray", jnp.asarray, True), ("jax.numpy.array", jnp.array, False)):
    source = cupy.ones(4, "f4")
    taken = take(source).block_until_ready()
    source.fill(5)
    cupy.cuda.Device().synchronize()
    print(f"{name}(cupy array): {jax.device_get(taken).tolist()} after the CuPy array was filled with 5")
    assert jax.device_get(taken).tolist() == [5.0 if alias else 1.0] * 4
P
"$PYTHON" "$work/case.py"
