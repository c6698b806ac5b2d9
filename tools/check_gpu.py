"""Runs the tests that need a GPU, after printing what they run on: the record that docs/gpu.md keeps.

    python -m tools.check_gpu                   # or: make test-gpu
    python -m tools.check_gpu -k killed         # arguments for pytest

Invariant: one command, in one process group, that changes no setting of the device. Tests of results run several at a
time, if pytest-xdist is there, and those of figures one by one after them. What has not begun after eight minutes is
skipped, since devices are lent for a short time. On a machine without a device all tests are skipped, with the reason
and their number.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = (
    *(f"tests/gpu/test_{name}.py" for name in ("leader", "nccl", "conformance", "arrays", "torch", "waits")),
    "tests/collectives/arrays/test_device_arrays.py",
)
FIGURES = ("tests/gpu/test_record.py",)
AT_A_TIME = 4
LIMIT = 480.0  # seconds in which tests may begin


def main() -> int:
    # A process of its own, so that nothing of what it loads is in the tests.
    program = "import json, os; from collectives.commands import gpus; s = gpus.section(os.environ); "
    program += "print(*(f'{name:10} {value}' for name, value in s.facts.items()), sep='\\n')"
    print(f"== {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC", flush=True)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
    print(flush=True)
    env = {**os.environ, "COLLECTIVES_CALIBRATE": "off", "GPU_TESTS_UNTIL": str(time.time() + LIMIT)}
    # -rPs: what tests have printed, and why others were skipped
    common = [sys.executable, "-m", "pytest", "-v", "-rPs", "--no-header", "--durations=0"]
    together = ["-n", str(AT_A_TIME), "--dist", "loadfile"] if find_spec("xdist") else []
    codes = []
    for tests, more in ((RESULTS, together), (FIGURES, [])):
        codes.append(subprocess.run([*common, *more, *tests, *sys.argv[1:]], check=False, cwd=ROOT, env=env).returncode)
    nothing_chosen = 5
    return next((code for code in codes if code not in (0, nothing_chosen)), 0)


if __name__ == "__main__":
    sys.exit(main())
