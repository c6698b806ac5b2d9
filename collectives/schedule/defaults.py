"""The built-in table that selects the algorithm of each call, for groups that nobody has calibrated by measurements.

Invariant: the last rows of the table for each collective match any group, so that there is an algorithm for every call.

The rows below were measured on one host: up to 16 ranks over shared memory, 8 over TCP, and 64 if ranks outnumber
cores. For all other groups the rows come from the simulator: tools/model_defaults.py has written them to the module
`modelled`, so they are the same on every rank, and nothing is simulated at run time. The first matching row counts. So
simulated rows for several ranks on each of several hosts, and for many ranks on one host, come before measured rows.
Rows for arrays on devices follow from what each mechanism costs on one H200 (docs/gpu.md). No wire format is chosen for
calls with wire="auto": which one is fastest depends on the speed of links, which only a calibration measures.
"""

from __future__ import annotations

from typing import Final

from collectives.schedule.modelled import FLAT, NESTED, SHARED
from collectives.schedule.table import AS_IT_IS, WIRED, Table, join, parse

MEASURED: Final = parse(
    """
allreduce       self,inproc      1-2   64K   one_shot             : one synchronisation; both read all of a small array
allreduce       shm              1-2   40K   one_shot             : one synchronisation; both read all of a small array
allreduce       inproc           3-4   4K    one_shot   oversubscribed=yes : one synchronisation
allreduce       shm              3     4K    one_shot   oversubscribed=yes : one synchronisation
allreduce       shm              3     128K  tree       oversubscribed=yes : fewest messages; each waits for a core
allreduce       shm              4     8K    one_shot   oversubscribed=yes : one synchronisation
allreduce       shm              4     64K   one_shot   oversubscribed=yes : on a board, one sum for each core
allreduce       inproc,shm       5-64  2K    one_shot   oversubscribed=yes : one synchronisation
allreduce       shm              5-8   128K  one_shot   oversubscribed=yes : on a board, one sum for each core
allreduce       shm              9-64  64K   one_shot   oversubscribed=yes : on a board, one sum for each core
allreduce       shm              3-64  any   two_shot   oversubscribed=yes : all add up in one place
allreduce       shm              4     8K    one_shot             : one synchronisation; reading all copies is cheap
allreduce       shm              4     96K   recursive_doubling   : two rounds, each with one other rank
allreduce       shm              5-8   3K    one_shot             : one synchronisation; reading all copies is cheap
allreduce       shm              9-16  1K    one_shot             : one synchronisation; reading all copies is cheap
allreduce       shm              5-16  16K   recursive_doubling   : log2(ranks) rounds of a small array
allreduce       shm              8     64K   recursive_doubling   : three rounds, each with one other rank
allreduce       shm              16    32K   recursive_doubling   : four rounds, each with one other rank
allreduce       shm              3     32K   one_shot             : one synchronisation; reading all copies is cheap
allreduce       self,inproc      3-4   32K   one_shot             : one synchronisation; reading all copies is cheap
allreduce       self,inproc      5-16  8K    one_shot             : one synchronisation; reading all copies is cheap
allreduce       self,inproc,shm  65-   2K    recursive_doubling   oversubscribed=yes : log2(ranks) rounds
allreduce       self,inproc,shm  1-64  any   two_shot             : every rank reduces its own part once
allreduce       self,inproc,shm  65-   any   ring       oversubscribed=yes : few links a rank where ranks are many
allreduce       tcp              1-2   48K   one_shot   hosts=1      : one exchange
allreduce       tcp              1-2   768K  recursive_doubling hosts=1 : one exchange, also in place
allreduce       tcp              1-2   any   two_shot   hosts=1      : each reduces a half
allreduce       tcp              5-8   64K   star       hosts=1 oversubscribed=yes : no wire, and fewest messages
allreduce       tcp              5-8   any   halving_doubling_short hosts=1 oversubscribed=yes : no wire, and few rounds
allreduce       tcp              9-64  128K  star       hosts=1 oversubscribed=yes : no wire, and fewest messages
allreduce       tcp              9-64  512K  tree       hosts=1 oversubscribed=yes : no wire, and few messages
allreduce       tcp              9-64  any   halving_doubling_short hosts=1 oversubscribed=yes : no wire, and few rounds
allreduce       tcp              3     64K   recursive_doubling hosts=1 : one address: no wire, and fewest rounds
allreduce       tcp              3-8   16K   recursive_doubling hosts=1 : log2(ranks) rounds: least latency
allreduce       tcp              4     32K   star       hosts=1 oversubscribed=yes : no wire, and fewest messages
allreduce       tcp              3     any   two_shot   hosts=1      : one address: no wire, and fewest rounds
allreduce       tcp              4     1M    halving_doubling_short hosts=1 : one address: no wire, and few rounds
allreduce       tcp              4     any   halving_doubling hosts=1 : one address: no wire, halves when ready
allreduce       tcp              3-8   256K  halving_doubling_short hosts=1 : few rounds and few bytes
allreduce       tcp              3-8   any   ring       hosts=1      : fewest bytes, between neighbours only
reduce_scatter  self,inproc,shm  1-64  any   direct               : one round: every rank reads its own part of all
reduce_scatter  tcp              3-8   64K   circulant  hosts=1 oversubscribed=yes : no wire, and few messages
reduce_scatter  tcp              3-8   any   direct     hosts=1 oversubscribed=yes : no wire, and one round
reduce_scatter  tcp              1-8   256K  circulant  hosts=1      : log2(ranks) rounds and fewest bytes
reduce_scatter  tcp              1-8   any   ring       hosts=1      : fewest bytes, between neighbours only
allgather       self,inproc,shm  1-64  any   direct               : one round: published once, read by all
allgather       tcp              3-4   64K   direct     hosts=1 oversubscribed=yes : no wire, and one round
allgather       tcp              5-8   64K   circulant  hosts=1 oversubscribed=yes : no wire, and few messages
allgather       tcp              3-8   any   ring       hosts=1 oversubscribed=yes : between neighbours only
allgather       tcp              1-8   256K  circulant  hosts=1      : log2(ranks) rounds and fewest bytes
allgather       tcp              1-8   any   ring       hosts=1      : fewest bytes, between neighbours only
broadcast       self,inproc,shm  1-64  any   direct               : one round: published once, read by all
broadcast       tcp              3-8   64K   direct     hosts=1 oversubscribed=yes : no wire, and one round
broadcast       tcp              3-8   any   binomial   hosts=1 oversubscribed=yes : no wire, one copy for each rank
broadcast       tcp              1-8   64K   binomial   hosts=1      : log2(ranks) rounds
broadcast       tcp              1-8   any   scatter_allgather hosts=1 : the root sends the array about once
reduce          self,inproc,shm  1-64  64K   direct               : one round: the root reads all
reduce          tcp              3-8   64K   direct     hosts=1 oversubscribed=yes : no wire, and one round
reduce          self,inproc,shm  1-64  any   binomial             : log2(ranks) rounds
reduce          tcp              1-8   any   binomial   hosts=1      : log2(ranks) rounds
gather          self,inproc,shm  9-64  16K   binomial             : log2(ranks) messages at the root
gather          self,inproc,shm  1-64  any   linear               : every byte crosses one link only
gather          tcp              1-8   any   linear     hosts=1      : every byte crosses one link only
scatter         self,inproc,shm  9-64  16K   binomial             : log2(ranks) messages at the root
scatter         self,inproc,shm  1-64  any   linear               : every byte crosses one link only
scatter         tcp              1-8   any   linear     hosts=1      : every byte crosses one link only
alltoall        self,inproc,shm  1-64  any   direct               : one round
alltoall        tcp              1-2   any   direct     hosts=1      : one exchange
alltoall        tcp              5-8   any   pairwise   hosts=1 oversubscribed=yes : no wire, and every byte goes once
alltoall        tcp              5-8   4K    bruck      hosts=1      : log2(ranks) messages instead of one a peer
alltoall        tcp              1-8   any   pairwise   hosts=1      : every byte crosses one link only
scan            self,inproc,shm  1-16  4K    direct               : one round: every rank reads those before it
scan            self,inproc,shm  1-16  64K   recursive_doubling   : log2(ranks) rounds
scan            self,inproc,shm  1-16  any   chain                : every rank sends the array once
scan            tcp              1-8   64K   recursive_doubling hosts=1 : log2(ranks) rounds
scan            tcp              1-8   any   chain      hosts=1      : every rank sends the array once
exscan          self,inproc,shm  1-16  4K    direct               : one round: every rank reads those before it
exscan          self,inproc,shm  1-16  64K   recursive_doubling   : log2(ranks) rounds
exscan          self,inproc,shm  1-16  any   chain                : every rank sends the array once
exscan          tcp              1-8   64K   recursive_doubling hosts=1 : log2(ranks) rounds
exscan          tcp              1-8   any   chain      hosts=1      : every rank sends the array once
barrier         self,inproc,shm  1-16  any   direct               : one round: every rank tells all
barrier         tcp              1-8   any   dissemination hosts=1   : log2(ranks) rounds
""",
    source="built in",
)

_BY_LEADER: Final = ("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "alltoall")
_BY_NCCL: Final = (*_BY_LEADER, "scatter")
_IN_TWO_LEVELS: Final = ("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter")
_BY_STAGING: Final = (*_BY_NCCL, "scan", "exscan")
# In the order of choice: who runs calls on arrays in CUDA memory, when, and why.
_ENGINES: Final = (
    (
        _BY_LEADER,
        "leader memory=cuda device=shared : one rank's kernel reads the inputs of all and writes their outputs",
    ),
    (_BY_NCCL, "nccl memory=cuda : every rank has a device of its own, and NCCL"),
    (_BY_LEADER, "leader memory=cuda : devices of one host that reach each other, where NCCL does not run the call"),
    (
        _IN_TWO_LEVELS,
        "hierarchy memory=cuda hosts=2- : NCCL inside each host, slices through host memory between hosts",
    ),
    (_BY_STAGING, "staging memory=cuda : through host memory"),
)

FOR_DEVICES: Final = parse(
    "\n".join([f"{name} any any any {how}" for name in _BY_STAGING for names, how in _ENGINES if name in names]),
    source="built in",
)

# For calls whose parts have different lengths: the rows before name algorithms that need equal parts.
UNEVEN: Final = parse(
    "reduce_scatter any any any circulant : parts of different lengths, in log2(ranks) rounds with fewest bytes",
    source="built in",
)

FORMATS: Final = parse(
    "\n".join(f"{name} any any any {AS_IT_IS} wire=auto : nobody has measured these links" for name in WIRED),
    source="built in",
)

BY_MODEL: Final = "built in, by the simulator"

DEFAULTS: Final[Table] = join(
    [
        parse(NESTED, source=BY_MODEL),
        parse(SHARED, source=BY_MODEL),
        MEASURED,
        parse(FLAT, source=BY_MODEL),
        UNEVEN,
        FOR_DEVICES,
        FORMATS,
    ]
)
