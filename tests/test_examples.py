"""The examples, run as their users run them: they do what they say, and notice when something is wrong.

Invariant: every process is waited for, with a deadline.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import collectives
from tests.finished import finished
from tests.launched import launched
from tests.lazily import needs
from tests.warm.parents import SKLEARN

HOME = Path(collectives.__file__).parents[1]
DIGITS = Path(__file__).parents[1] / "examples" / "train_digits.py"
TRAINING = 1437  # samples

needs("sklearn", "the example's data: pip install scikit-learn")

# The example with its `train` replaced: what `spoil` does happens after the first training, that of all ranks.
SPOILT = """
import importlib.util, os, sys
import numpy as np
spec = importlib.util.spec_from_file_location("digits", {path!r})
digits = importlib.util.module_from_spec(spec)
spec.loader.exec_module(digits)
train, calls = digits.train, []
def spoiling(samples, weights, *rest, **options):
    train(samples, weights, *rest, **options)
    calls.append(1)
    if len(calls) == 1:
        {spoil}
digits.train = spoiling
digits.main()
"""


def check_digits(output: str, ranks: int) -> None:
    shares = re.findall(rf"rank (\d+) of {ranks} trains with (\d+) samples", output)
    assert sorted(int(rank) for rank, _ in shares) == list(range(ranks))
    assert sum(int(count) for _, count in shares) == TRAINING
    epochs = re.findall(r"epoch +(\d+)  loss ([\d.]+)  accuracy ([\d.]+) +([\d.]+) of +[\d.]+ ms in allreduce", output)
    assert epochs[0][0] == "1" and epochs[-1][0] == "30"
    assert float(epochs[-1][1]) < float(epochs[0][1]) / 10
    found = re.search(r"the same bits on (\d+) ranks; (\S+) from those of one process alone", output)
    assert found is not None and int(found[1]) == ranks and float(found[2]) <= 1e-5
    found = re.search(r"digits never seen before: ([\d.]+)% recognised", output)
    assert found is not None and float(found[1]) >= 95


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_digits_with_ranks(ranks: int) -> None:
    done = launched(ranks, DIGITS, warm=SKLEARN, OMP_NUM_THREADS="1").succeeded()
    check_digits(done.stdout, ranks)
    lines = [line for line in done.stdout.splitlines() if "trains with" not in line]
    assert lines and all(line.startswith("[0] ") for line in lines)  # progress is for one rank to tell


def test_digits_over_tcp() -> None:
    done = launched(2, DIGITS, run=("--transport", "tcp"), warm=SKLEARN).succeeded()
    check_digits(done.stdout, 2)


def test_digits_without_a_launcher() -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COLLECTIVES_", "OMP_"))}
    environment = {**kept, "PYTHONPATH": str(HOME), "COLLECTIVES_CALIBRATE": "off"}
    done = finished([sys.executable, str(DIGITS)], env=environment)
    assert done.returncode == 0, done.stderr
    check_digits(done.stdout, 1)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("if os.environ['COLLECTIVES_RANK'] == '1': weights[-1] = np.nextafter(weights[-1], 1)", "weights differ"),
        ("weights += 2e-5", "the difference may be 1e-05 at most"),
        ("weights[:] = np.nan", "the difference may be 1e-05 at most"),
        ("digits.WANTED = 1.0", "the accuracy must be 100%"),
    ],
)
def test_digits_notice_what_is_wrong(spoil: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "spoilt.py").write_text(SPOILT.format(path=str(DIGITS), spoil=spoil))
    done = launched(2, tmp_path / "spoilt.py", warm=SKLEARN)
    assert done.returncode == 1
    assert "FAILED: " in done.stderr and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_digits_without_scikit_learn(tmp_path: Path) -> None:
    lacking = f"import runpy, sys; sys.modules['sklearn'] = None; runpy.run_path({str(DIGITS)!r}, run_name='__main__')"
    (tmp_path / "lacking.py").write_text(lacking)
    done = launched(2, tmp_path / "lacking.py")
    assert done.returncode == 1
    assert done.stderr.count("pip install scikit-learn") == 1
    assert "Traceback" not in done.stderr
