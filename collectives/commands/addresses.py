"""Virtual addresses of code and data in ranks: random (Linux's ASLR), or the same in all processes of a program."""

from __future__ import annotations

import ctypes
from typing import Final

ADDRESSES: Final = ("random", "same")  # random: as the kernel, or what started this process, has chosen

_ADDR_NO_RANDOMIZE: Final = 0x0040000
_ASK: Final = 0xFFFFFFFF

_personality = ctypes.CDLL(None, use_errno=True).personality
_personality.argtypes = [ctypes.c_ulong]


def switch_off_randomisation() -> None:
    """Switches off ASLR (random addresses of code and data) for all programs that this process starts from now on.

    Has no effect if a container forbids that.
    """
    before: int = _personality(_ASK)
    if before >= 0:
        _personality(before | _ADDR_NO_RANDOMIZE)
