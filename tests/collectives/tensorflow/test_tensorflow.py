"""TensorFlow's collectives and gradients, between real processes; the checks are in the workers beside this file."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.collectives.tensorflow import checks
from tests.launched import Launched, launched
from tests.lazily import needs
from tests.warm.parents import TENSORFLOW

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow: pip install tensorflow"),
    # Processes import large frameworks, and machines that run tests may have other things to do.
    pytest.mark.timeout(240),
]

HERE = Path(__file__).parent
OPS = HERE / "worker_ops.py"
STATE = HERE / "ops_state.py"
EXCHANGE = HERE / "worker_exchange.py"
ONE_THREAD = HERE / "worker_one_thread.py"


@cache
def job(worker: Path) -> Launched:
    """One launch for all of a worker's checks: importing TensorFlow takes longer than most of them."""
    return launched(2, worker, warm=TENSORFLOW, KERAS_BACKEND="tensorflow")


@pytest.mark.parametrize("name", [*checks.names(OPS), *checks.names(STATE)])
def test_ops(name: str) -> None:
    checks.passed(job(OPS), name)


@pytest.mark.parametrize("name", checks.names(EXCHANGE))
def test_exchange(name: str) -> None:
    checks.passed(job(EXCHANGE), name)


@pytest.mark.parametrize("name", checks.names(ONE_THREAD))
def test_threads(name: str) -> None:
    checks.passed(job(ONE_THREAD), name)


def test_a_killed_rank_is_named() -> None:
    """The error that leaves the tf.function is typed, though TensorFlow knows UnknownError only."""
    done = launched(2, HERE / "worker_killed.py", run=("--grace", "30"), warm=TENSORFLOW, KERAS_BACKEND="tensorflow")
    assert done.returncode != 0  # rank 1's
    assert re.match(
        r"lost \(1,\) after 5 steps in time: gradients of 'net', rank 0, step 6, bucket . of 2: .*rank 1",
        done.lines[0][0],
    ), f"{done.stdout}\n{done.stderr}"
    assert done.lines[0][1:] == ["from UnknownError, kept: True", "again (1,)"]


def test_the_example() -> None:
    needs("sklearn", "the example's data: pip install scikit-learn")
    example = HERE.parents[2] / "examples" / "tensorflow_custom_loop.py"
    lines = launched(2, example, warm=TENSORFLOW, KERAS_BACKEND="tensorflow").succeeded().lines
    assert lines[1] == []  # one rank speaks
    found = re.search(r"the same bits on 2 ranks; (\S+) from those of one process alone", lines[0][-2])
    assert found is not None and float(found[1]) <= 1e-5
    found = re.search(r"never seen before: ([\d.]+)% recognised", lines[0][-1])
    assert found is not None and float(found[1]) >= 94


def test_without_tensorflow() -> None:
    code = "import sys; sys.modules['tensorflow'] = None\nimport collectives.tensorflow"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "needs TensorFlow: pip install tensorflow" in done.stderr


def test_the_library_does_not_import_tensorflow() -> None:
    code = "import sys, collectives, collectives.gradients; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
