"""Waiting for what happens in threads and processes that tell nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# Seconds that a loaded machine may take for what takes none; the deadlines that tests tell it from are longer.
AT_ONCE: Final = 10.0


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether `condition` comes true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
