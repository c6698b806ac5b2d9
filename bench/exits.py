"""Exit codes of the benchmark and of the ranks that it starts; the command line has further codes of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from collectives.native.errors import CollectiveError

REFUTED: Final = 1  # a result was wrong, something has grown, or, with --strict, a target was missed
FAILED: Final = 3
INTERRUPTED: Final = 130


def guarded(name: str, work: Callable[[], int]) -> int:
    """The exit code that `work` returns, or that of its error, which is printed in a line that begins with `name`."""
    try:
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (CollectiveError, ValueError, OSError) as error:
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
        return FAILED
