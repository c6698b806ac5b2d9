"""The examples for frameworks, run by two processes as their users run them: all ranks end with the same weights.

Invariant: each example checks its own result and says FAILED where it is not right; here what it prints is checked.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.launched import launched
from tests.lazily import needs
from tests.warm.parents import TENSORFLOW

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.timeout(240)
needs("sklearn", "the examples' data: pip install scikit-learn")

# The arguments of each.
RUN = {"keras_fit_digits": (), "local_sgd_digits": ("--every", "5")}
RECOGNISED = re.compile(r"digits never seen before: ([\d.]+)% recognised")


@pytest.mark.parametrize("name", RUN)
def test_two_ranks(name: str) -> None:
    for framework in ("keras", "tensorflow"):
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{name} needs {framework}, which is not installed")
    script = EXAMPLES / f"{name}.py"
    done = launched(2, script, *RUN[name], warm=TENSORFLOW, KERAS_BACKEND="tensorflow").succeeded()
    assert any("weights: the same bits on 2 ranks" in line for line in done.lines[0]), done.stdout
    found = RECOGNISED.search(done.stdout)
    assert found is not None and float(found[1]) >= 95, done.stdout
    assert not any(RECOGNISED.search(line) for line in done.lines[1])  # one rank tells it


def test_every_example_is_run() -> None:
    """By a test here or beside its framework's, so that none is forgotten."""
    tests = Path(__file__).parent
    reported = "\n".join(file.read_text() for file in tests.rglob("*.py"))
    for example in EXAMPLES.glob("*.py"):
        assert example.stem in reported, f"nobody runs {example.name}"
