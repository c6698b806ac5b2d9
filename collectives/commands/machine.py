"""The machine that commands describe by default: this one."""

from __future__ import annotations

from collectives.base.version import library_version
from collectives.core.tables import Machine
from collectives.transports.host import usable_cores


def this_machine() -> Machine:
    """Describes this machine, as ranks that are started here see it."""
    return Machine.here(usable_cores(), library_version())
