"""What all tests share: this folder can be imported as `tests`, and real Redis servers are there to use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.append(ROOT)  # at the end: the installed packages, if any, are what is tested

# No test measures this machine behind its own back, or depends on what was measured here before.
os.environ["COLLECTIVES_CALIBRATE"] = "off"

pytest_plugins = ["tests.redis_server"]
