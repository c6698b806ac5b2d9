"""What all tests share: this folder can be imported as `tests`, and real Redis servers are there to use."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.append(ROOT)  # at the end: the installed packages, if any, are what is tested

pytest_plugins = ["tests.redis_server"]
