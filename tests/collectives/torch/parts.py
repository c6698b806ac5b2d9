"""Parts of a program that tests the backend in several processes.

Invariant: each part is the same on every rank, so one that fails on a rank leaves no other waiting without an error.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401 (registers the backend)

Part = Callable[[], None]


class Parts:
    """Those of one program, in order: `@parts` before a function makes it one."""

    def __init__(self) -> None:
        self._parts: Final[list[Part]] = []

    def __call__(self, function: Part) -> Part:
        self._parts.append(function)
        return function

    def run(self, last: Callable[[], None] = lambda: None, seconds: float = 60.0) -> None:
        """Run them all in a process group of the backend; `last` comes after its end."""
        warnings.simplefilter("ignore", FutureWarning)  # torch calls its own names deprecated
        threads = threading.enumerate()
        dist.init_process_group("collectives", init_method="collectives://", timeout=timedelta(seconds=seconds))
        for each in self._parts:
            start = time.monotonic()
            each()
            print(f"passed {each.__name__} {time.monotonic() - start:.2f}", flush=True)
        dist.barrier()
        dist.destroy_process_group()
        last()
        left = [t.name for t in threading.enumerate() if t not in threads]
        assert not left, left
        print("passed all", flush=True)


def values(rank: int, dtype: Any, shape: tuple[int, ...] = (3, 5)) -> Any:
    """What that rank has: small whole numbers, exact in every dtype."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape) * (rank + 1) % 7
    return (numbers % 2 if dtype is torch.bool else numbers).to(dtype)


def everyones(dtype: Any, shape: tuple[int, ...] = (3, 5)) -> list[Any]:
    return [values(rank, dtype, shape) for rank in range(dist.get_world_size())]


def equal(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found, wanted)
    assert torch.equal(found, wanted), (found, wanted)


def raises(kind: Any, text: str, action: Callable[[], Any]) -> BaseException:
    with pytest.raises(kind, match=re.escape(text) if text else None) as caught:
        action()
    return caught.value
