"""The library's algorithms: pure functions from (rank, size) to a schedule, the list of steps of that rank.

Each family of algorithms has a file.

Invariant: importing this package registers all algorithms and does nothing else.

In docstrings, p is the number of ranks and n the bytes of the whole array. Rounds are the longest chain of messages
that depend on each other. A message takes the time alpha, plus beta for each of its bytes. Reducing takes gamma for
each byte.
"""

from collectives.algorithms import binomial as _binomial
from collectives.algorithms import bruck as _bruck
from collectives.algorithms import circulant as _circulant
from collectives.algorithms import direct as _direct
from collectives.algorithms import dissemination as _dissemination
from collectives.algorithms import halving_doubling as _halving_doubling
from collectives.algorithms import hierarchical as _hierarchical
from collectives.algorithms import in_order as _in_order
from collectives.algorithms import pairwise as _pairwise
from collectives.algorithms import recursive_doubling as _recursive_doubling
from collectives.algorithms import ring as _ring
from collectives.algorithms import scan as _scan
from collectives.algorithms import scatter_allgather as _scatter_allgather
from collectives.algorithms import tree as _tree
from collectives.algorithms.registry import algorithm as algorithm
from collectives.algorithms.registry import algorithms as algorithms
from collectives.algorithms.registry import get as get
from collectives.algorithms.registry import schedule as schedule
