"""What the cases share: how a rank starts, and the table of cases.

On a device, with the real CuPy, cases that use a gate or count registrations cannot run.
"""

from __future__ import annotations

import os
import sys
from typing import Any

if "ENGINE" in os.environ:  # another build of the extension: tests/gpu/test_waits.py
    from importlib.util import module_from_spec, spec_from_file_location

    _NAME = "collectives.native._engine"
    _spec = spec_from_file_location(_NAME, os.environ["ENGINE"])
    assert _spec is not None and _spec.loader is not None
    sys.modules[_NAME] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])

import collectives
from tests.collectives.cuda.by_name import Cases
from tests.collectives.cuda.runs_on import Device, cupy

case = Cases()


def start(**options: Any) -> collectives.Communicator:
    Device(int(os.environ.get("WORKER_DEVICE", "0"))).use()
    return collectives.init(timeout=options.pop("timeout", 30.0), **options)


def last_engine(comm: collectives.Communicator) -> str:
    return str(comm.dump()["operations"][-1]["engine"])


def array(values: Any) -> Any:
    """An array on the device. CuPy itself has no bfloat16 in all its versions."""
    return cupy.asarray(values)
