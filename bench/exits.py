"""Exit codes of the benchmark and of the ranks that it starts; for a wrong command line, Click exits with code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from collectives.native.errors import CollectiveError

REFUTED: Final = 1  # a result was wrong, something has grown, or, with --strict, a target was missed
FAILED: Final = 3
INTERRUPTED: Final = 130


def guarded(name: str, work: Callable[[], int]) -> int:
    """Call `work` and return the exit code that it returns.

    If `work` raises CollectiveError, ValueError, OSError or MemoryError, print the error after `name` to the standard
    error, and return the exit code `FAILED`, 3. After Ctrl-C, return the exit code `INTERRUPTED`, 130.
    """
    try:
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (CollectiveError, ValueError, OSError, MemoryError) as error:  # CuPy's OutOfMemoryError is a MemoryError
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
        return FAILED
