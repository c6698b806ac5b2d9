"""Where processes have their code and data: at addresses that the kernel draws for each, or all at the same ones."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Final

ADDRESSES: Final = ("auto", "random", "same")  # auto: the same where ranks share cores

_ADDR_NO_RANDOMIZE: Final = 0x0040000
_ASK: Final = 0xFFFFFFFF

_personality = ctypes.CDLL(None, use_errno=True).personality
_personality.argtypes = [ctypes.c_ulong]


def choose(same: bool) -> bool:
    """For the programs that this process executes from now on, and what these start. Returns what it was.

    Where a container forbids it, nothing changes.
    """
    before: int = _personality(_ASK)
    if before >= 0:
        _personality(before | _ADDR_NO_RANDOMIZE if same else before & ~_ADDR_NO_RANDOMIZE)
    return before >= 0 and bool(before & _ADDR_NO_RANDOMIZE)


@contextlib.contextmanager
def random() -> Iterator[None]:
    """What is started meanwhile has random ones."""
    before = choose(False)
    try:
        yield
    finally:
        choose(before)
