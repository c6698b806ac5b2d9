"""Neural networks whose training steps are measured, each described by the widths of its dense layers.

Invariant: this module describes networks and does not build them. It imports nothing but the standard library.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

NETWORKS: Final = {
    "ddp-digits": (64, 128, 128, 10),  # scikit-learn's digits
    "ddp-mlp": (784, 1024, 1024, 1024, 10),  # as wide as MNIST
}


def parameters(name: str) -> int:
    """Return the number of trainable parameters (weights and biases) of the neural network `name`."""
    return sum(wide * narrow + narrow for wide, narrow in pairwise(NETWORKS[name]))
