"""The environment of ranks that tests start without a launcher: that of `launched`, so all have one warm parent."""

from __future__ import annotations

import os
import sys

from tests.launched import _CHOSEN, _HOME


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
    paths = os.pathsep.join([str(_HOME), *sys.path])
    return {**kept, **_CHOSEN, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": paths, "COLLECTIVES_CALIBRATE": "off"}
