"""The default machine of commands: this one."""

from __future__ import annotations

from collectives.base.version import library_version
from collectives.core.tables import Machine
from collectives.transports.host import usable_cores


def this_machine() -> Machine:
    """As ranks that are started here find it."""
    return Machine.here(usable_cores(), library_version())
