"""Engines of other packages, which run whole collectives by themselves.

An engine is registered before `collectives.init`, by `register` or by an entry point of its package:

    [project.entry-points."pycollectives.engines"]
    gather = "my_package:GatherEngine"

Invariant: the choice of the engine depends only on data that is the same on every rank, and every rank of a group has
the same engines in the same order. Calls that no such engine accepts are run by the native engine.
"""

from collectives.arrays.memory import Memory as Memory
from collectives.engines.engine import Collective as Collective
from collectives.engines.engine import Engine as Engine
from collectives.engines.engine import Ranks as Ranks
from collectives.engines.engine import Task as Task
from collectives.engines.registry import register as register
from collectives.engines.registry import registered as registered
from collectives.engines.registry import unregister as unregister
