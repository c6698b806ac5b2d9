"""As much of PyTorch as the peer `gloo` uses, so that peers can be tested without it.

Invariant: real processes that really exchange data; what it cannot do it refuses as PyTorch does, by RuntimeError.
"""

from __future__ import annotations

from typing import Any


def from_numpy(array: Any) -> Any:
    return array


def set_num_threads(_number: int) -> None: ...
