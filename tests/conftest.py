"""What all tests share: this folder can be imported as `tests`, real Redis servers are there to use, and nothing that a
test starts outlives it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.append(ROOT)  # at the end: the installed packages, if any, are what is tested

from tests.leftovers import inherit_nothing_ignored, marked, nothing_left  # noqa: E402

# No test measures this machine behind its own back, or depends on what was measured here before.
os.environ["COLLECTIVES_CALIBRATE"] = "off"

inherit_nothing_ignored()
marked()

pytest_plugins = ["tests.redis_server"]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Ends what the test, and its fixtures, have started and not ended; that is a failure of its own."""
    with nothing_left():
        yield
