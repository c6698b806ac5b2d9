"""What all tests share: this folder can be imported as `tests`, real Redis servers are there to use, and nothing that a
test starts outlives it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.append(ROOT)  # at the end: the installed packages, if any, are what is tested

from tests.leftovers import inherit_nothing_ignored, marked, nothing_left  # noqa: E402

# No test measures this machine behind its own back, or depends on what was measured here before.
os.environ["COLLECTIVES_CALIBRATE"] = "off"

# Bytecode is kept even where the environment says otherwise: the tests start thousands of interpreters, and each would
# compile all that it imports of ours, which takes as long as the rest of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says nothing where three tests share two cores.
hypothesis.settings.register_profile("checks", deadline=None)
hypothesis.settings.load_profile("checks")

inherit_nothing_ignored()
marked()

pytest_plugins = ["tests.again", "tests.redis_server"]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Ends what the test, and its fixtures, have started and not ended; that is a failure of its own."""
    with nothing_left():
        yield


def pytest_collection_finish() -> None:
    """Garbage collection, which tests often ask for, passes over the thousands of tests that stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Of `-n auto`."""
    from tests.scheduling import workers

    return workers()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadfile`."""
    from tests.scheduling import Scheduler

    return Scheduler(config, log) if config.getvalue("dist") == "loadfile" else None
