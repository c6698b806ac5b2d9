"""Engines of other packages: objects that run whole collectives in place of this library's C++ engine.

A program registers an engine by `register` before `collectives.init`. A package registers one by an entry point:

    [project.entry-points."pycollectives.engines"]
    gather = "my_package:GatherEngine"

Invariant: every rank of a group has the same engines in the same order, and an engine is chosen only by data that is
equal on all ranks. So all ranks choose the same engine. The C++ engine runs the calls that no other engine accepts.
"""

from collectives.arrays.memory import Memory as Memory
from collectives.engines.engine import Collective as Collective
from collectives.engines.engine import Engine as Engine
from collectives.engines.engine import Ranks as Ranks
from collectives.engines.engine import Task as Task
from collectives.engines.registry import register as register
from collectives.engines.registry import registered as registered
from collectives.engines.registry import unregister as unregister
