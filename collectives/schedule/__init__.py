"""Schedules: the steps of each rank in a collective, as immutable data that can be checked, shown and compiled.

Invariant: nothing here communicates, and importing this package does not import the C++ engine. The modules that
check and show schedules are imported when they are first used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from collectives.schedule.algorithm import Algorithm as Algorithm
from collectives.schedule.form import IN as IN
from collectives.schedule.form import NOTHING as NOTHING
from collectives.schedule.form import OUT as OUT
from collectives.schedule.form import SCRATCH as SCRATCH
from collectives.schedule.form import Builder as Builder
from collectives.schedule.form import Chunk as Chunk
from collectives.schedule.form import Copy as Copy
from collectives.schedule.form import Recv as Recv
from collectives.schedule.form import Reduce as Reduce
from collectives.schedule.form import Schedule as Schedule
from collectives.schedule.form import Send as Send
from collectives.schedule.form import Step as Step
from collectives.schedule.layout import Layout as Layout

if TYPE_CHECKING:
    from collectives.schedule.check import VerificationError as VerificationError
    from collectives.schedule.drawing import draw as draw
    from collectives.schedule.listing import explain as explain
    from collectives.schedule.listing import explain_group as explain_group
    from collectives.schedule.verification import Report as Report
    from collectives.schedule.verification import verify as verify

_LATER = {
    "Report": "verification",
    "VerificationError": "check",
    "draw": "drawing",
    "explain": "listing",
    "explain_group": "listing",
    "verify": "verification",
}  # name: the module that defines it


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(f"{__name__}.{_LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
