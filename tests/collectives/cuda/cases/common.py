"""What the cases share: how a rank starts, and the table of cases.

On a device, with the real CuPy, cases that use a gate cannot run. A rank with the variable WORKER_HOST has no device.
"""

from __future__ import annotations

import os
from typing import Any

import collectives
from tests.collectives.cuda.by_name import Cases
from tests.collectives.cuda.runs_on import RANK, Device

ON_HOST = "WORKER_HOST" in os.environ

case = Cases()


def start(**options: Any) -> collectives.Communicator:
    if not ON_HOST:
        Device(int(os.environ.get("WORKER_DEVICE", RANK))).use()
    return collectives.init(timeout=options.pop("timeout", 20.0), **options)


def engines(comm: collectives.Communicator) -> list[str]:
    return [o["engine"] for o in comm.dump()["operations"]]
