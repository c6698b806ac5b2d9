"""What a rank of the cases runs on: CuPy's stand-in where STAND_IN_MODULES names its folder, else CuPy itself.

Imports nothing of this library, of which a case may first load another build. On a device there are no gates.
"""

from __future__ import annotations

import os
import sys

ON_STAND_IN = "STAND_IN_MODULES" in os.environ
if ON_STAND_IN:
    sys.path.insert(0, os.environ["STAND_IN_MODULES"])
import cupy as cupy  # noqa: E402, PLC0414
from cupy.cuda import Device as Device  # noqa: E402, PLC0414
from cupy.cuda import Stream as Stream  # noqa: E402, PLC0414

if ON_STAND_IN:
    from cupy.cuda import Gate as Gate  # noqa: PLC0414
    from cupy.cuda import driver as driver  # noqa: PLC0414
else:
    Gate = driver = None

RANK = int(os.environ["COLLECTIVES_RANK"])
SIZE = int(os.environ["COLLECTIVES_SIZE"])
