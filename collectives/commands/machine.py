"""The machine that commands describe by default: this one."""

from __future__ import annotations

from collectives.base.version import library_version
from collectives.core.tables import Machine
from collectives.transports.host import usable_cores


def this_machine() -> Machine:
    """Describes this machine, with the cores that this process may use, and the version of this library."""
    return Machine.here(usable_cores(), library_version())
