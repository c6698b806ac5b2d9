"""examples/mnist_dnn_scaling.py, run as its users run it: it does what it says, and notices when something is wrong.

Invariant: every process is waited for, with a deadline.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.launched import launched
from tests.lazily import needs
from tests.warm.parents import SKLEARN, TENSORFLOW

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist_dnn_scaling.py"
QUICK = ("--network", "dnn", "--epochs", "10", "--timed", "2")

needs("sklearn", "the example's data: pip install scikit-learn")

# Processes import large frameworks, and machines that run tests may have other things to do.
pytestmark = pytest.mark.timeout(240)

# The example with one of its functions replaced.
SPOILT = """
import importlib.util
spec = importlib.util.spec_from_file_location("scaling", {path!r})
scaling = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scaling)
{spoil}
scaling.main()
"""


def test_dense_network() -> None:
    done = launched(2, EXAMPLE, *QUICK, warm=SKLEARN).succeeded()
    assert done.lines[1] == []
    text = "\n".join(done.lines[0])
    assert "178110 weights and biases, 0.71 MB to average" in text
    rows = [line.split() for line in done.lines[0] if re.match(r" +\d+ (measured|predicted)", line)]
    assert [row[:2] for row in rows] == [["1", "measured"], ["2", "measured"], ["32", "predicted"]]
    assert rows[0][3] == rows[0][5] == "1.00" and all(float(value) > 0 for row in rows for value in row[2:])
    # What averaging adds to a step's own time makes it less than 32 times as fast.
    assert 16 < float(rows[2][5]) < 32
    assert "in the paper 11.64 times" in text and "the same bits on all ranks" in text


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="the convolutional network: tensorflow")
def test_convolutional_network() -> None:
    few = ("--network", "cnn", "--epochs", "0", "--timed", "1", "--batch", "16")
    done = launched(2, EXAMPLE, *few, warm=TENSORFLOW, KERAS_BACKEND="tensorflow").succeeded()
    text = "\n".join(done.lines[0])
    assert "3274634 weights and biases, 13.10 MB to average" in text
    assert re.search(r" 16 predicted .*\n +64 predicted ", text) and "in the paper 1.41 times" in text


def test_alone() -> None:
    done = launched(1, EXAMPLE, *QUICK, warm=SKLEARN, OMP_NUM_THREADS="1").succeeded()
    assert " 0.0e+00 of their change" in done.stdout and "2 measured" not in done.stdout


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("scaling.average = lambda comm, network: None", "the ranks' weights differ"),
        (
            "average = scaling.average\n"
            "def skip(comm, network):\n"
            "    average(comm, network)\n"
            "    network.assign([w * 1.0001 for w in network.weights()])\n"
            "scaling.average = skip",
            "from those of one process",
        ),
        ("scaling.predicted = lambda *_: 1e-9", "with 32 times the processes"),
    ],
)
def test_notices_what_is_wrong(spoil: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "spoilt.py").write_text(SPOILT.format(path=str(EXAMPLE), spoil=spoil))
    done = launched(2, tmp_path / "spoilt.py", *QUICK, warm=SKLEARN)
    assert done.returncode == 1
    assert "FAILED: " in done.stderr and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_batch_that_cannot_be_divided() -> None:
    done = launched(2, EXAMPLE, "--batch", "127", warm=SKLEARN)
    assert done.returncode == 1 and "cannot be divided evenly among 2 processes" in done.stderr
