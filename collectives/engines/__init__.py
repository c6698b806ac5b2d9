"""Engines that run whole collectives by themselves, beside the native one: for other packages.

An engine is registered before `collectives.init`, by `register` or by an entry point of its package:

    [project.entry-points."pycollectives.engines"]
    gather = "my_package:GatherEngine"

Invariant: which engine runs a call depends only on what is the same on every rank, and every rank of a group has the
same engines in the same order. What an engine does not take, the native engine runs.
"""

from collectives.arrays.memory import Memory as Memory
from collectives.engines.engine import Collective as Collective
from collectives.engines.engine import Engine as Engine
from collectives.engines.engine import Ranks as Ranks
from collectives.engines.engine import Task as Task
from collectives.engines.registry import register as register
from collectives.engines.registry import registered as registered
from collectives.engines.registry import unregister as unregister
