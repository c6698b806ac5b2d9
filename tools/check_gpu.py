"""Runs the tests that need a GPU, after printing what they run on: the record that docs/gpu.md keeps.

    python -m tools.check_gpu                   # or: make test-gpu
    python -m tools.check_gpu -k killed         # arguments for pytest

Invariant: one command, in one process group, that changes no setting of the device. What has not begun after eight
minutes is skipped, since devices are lent for a short time; what matters most comes first. On a machine without a
device all tests are skipped, with the reason and their number.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    *(f"tests/gpu/test_{name}.py" for name in ("leader", "nccl", "record", "arrays", "torch")),
    "tests/collectives/arrays/test_device_arrays.py",
)
LIMIT = 480.0  # seconds in which tests may begin


def main() -> int:
    # A process of its own, so that nothing of what it loads is in the tests.
    program = "import json, os; from collectives.commands import gpus; s = gpus.section(os.environ); "
    program += "print(*(f'{name:10} {value}' for name, value in s.facts.items()), sep='\\n')"
    print(f"== {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC", flush=True)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
    print(flush=True)
    # -rPs: what tests have printed, and why others were skipped
    command = [sys.executable, "-m", "pytest", "-v", "-rPs", "--no-header", "--durations=0", *TESTS, *sys.argv[1:]]
    env = {**os.environ, "COLLECTIVES_CALIBRATE": "off", "GPU_TESTS_UNTIL": str(time.time() + LIMIT)}
    return subprocess.run(command, check=False, cwd=ROOT, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
