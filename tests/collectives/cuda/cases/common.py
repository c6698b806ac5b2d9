"""What the cases share: how a rank starts, what it runs on, and the table of cases.

On a device, with the real CuPy, cases that use a gate cannot run. A rank with the variable WORKER_HOST has no device.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import collectives
from tests.collectives.cuda.by_name import Cases

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
ON_HOST = "WORKER_HOST" in os.environ

case = Cases()


def start(**options: Any) -> collectives.Communicator:
    if not ON_HOST:
        Device(int(os.environ.get("WORKER_DEVICE", RANK))).use()
    return collectives.init(timeout=options.pop("timeout", 20.0), **options)


def engines(comm: collectives.Communicator) -> list[str]:
    return [o["engine"] for o in comm.dump()["operations"]]
