#!/usr/bin/env bash
# Guess: numpy.from_dlpack(tensor) has the numbers that tensor.tolist() shows, or torch refuses, as it does for a tensor
#   with the conjugate bit and as tensor.numpy() does for this one.
# Seen: torch exports a tensor with the negative bit, as the imaginary part of a conjugate has it, without the sign:
#   [-2, -4] arrives as [2, 4].
# Version: torch 2.13.0, numpy 2.4.6, CPU.
# Why it matters: a library that reads tensors through DLPack reduces and sends numbers of the wrong sign.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > "$folder/seen.py" <<'PYTHON'
import numpy as np
import torch


def refused(export, x):
    try:
        export(x)
    except (BufferError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return ""


conjugate = torch.tensor([1 + 2j, 3 + 4j]).conj()
x = conjugate.imag
found = np.from_dlpack(x).tolist()
print("torch", torch.__version__, "numpy", np.__version__)
print("tensor", x.tolist(), "negative bit", x.is_neg(), "through DLPack", found)
print("numpy() of it:", refused(torch.Tensor.numpy, x))
print("DLPack of its conjugate:", refused(np.from_dlpack, conjugate))
assert x.tolist() == [-2, -4] and found == [2, 4]
assert refused(torch.Tensor.numpy, x) and refused(np.from_dlpack, conjugate)
PYTHON
"$folder/venv/bin/python" "$folder/seen.py"
