"""The table that the library comes with, for groups that nobody has calibrated.

Invariant: its last rows for each collective fit any group, so that there is a choice for every call.
"""

from __future__ import annotations

from typing import Final

from collectives.schedule.table import Table, parse

DEFAULTS: Final[Table] = parse(
    """
allreduce       any  any  16K   hierarchical_doubling   hosts=2- per-host=2-  : log2(hosts) rounds, one rank a host
allreduce       any  any  256K  hierarchical_circulant  hosts=2- per-host=2-  : few rounds, few bytes between hosts
allreduce       any  any  any   hierarchical_ring       hosts=2- per-host=2-  : fewest bytes between hosts
reduce_scatter  any  any  any   hierarchical_ring       hosts=2- per-host=2-  : fewest bytes between hosts
allgather       any  any  64K   hierarchical_circulant  hosts=2- per-host=2-  : log2(hosts) rounds, one rank a host
allgather       any  any  any   hierarchical_ring       hosts=2- per-host=2-  : fewest bytes between hosts
broadcast       any  any  64K   hierarchical_binomial   hosts=2- per-host=2-  : log2(hosts) rounds, one rank a host
broadcast       any  any  any   hierarchical_chain      hosts=2- per-host=2-  : each host gets and sends the array once
reduce          any  any  any   hierarchical_binomial   hosts=2- per-host=2-  : each host sends the array once

allreduce       self,inproc      1-2   64K   one_shot             : one synchronisation; both read all of a small array
allreduce       shm              1-2   40K   one_shot             : one synchronisation; both read all of a small array
allreduce       inproc           3-4   4K    one_shot   crowded=yes : one synchronisation; reading all copies is cheap
allreduce       shm              3     4K    one_shot   crowded=yes : one synchronisation; reading all copies is cheap
allreduce       shm              3     128K  tree       crowded=yes : fewest messages, each of which waits for a core
allreduce       shm              4     8K    one_shot   crowded=yes : one synchronisation; reading all copies is cheap
allreduce       shm              4     64K   claim      crowded=yes : whoever has a core reduces for all
allreduce       inproc           3-4   64K   claim      crowded=yes : whoever has a core reduces for all
allreduce       inproc,shm       5-64  2K    one_shot   crowded=yes : one synchronisation; reading all copies is cheap
allreduce       shm              5-8   128K  claim      crowded=yes : whoever has a core reduces for all
allreduce       shm              9-64  64K   claim      crowded=yes : whoever has a core reduces for all
allreduce       inproc           5-8   128K  claim      crowded=yes : whoever has a core reduces for all
allreduce       inproc           9-64  1M    claim      crowded=yes : whoever has a core reduces for all
allreduce       shm              3-64  any   two_shot   crowded=yes : all add up in one place
allreduce       shm              4     8K    one_shot             : one synchronisation; reading all copies is cheap
allreduce       shm              4     96K   recursive_doubling   : two rounds, each with one other rank
allreduce       shm              5-8   3K    one_shot             : one synchronisation; reading all copies is cheap
allreduce       shm              9-16  1K    one_shot             : one synchronisation; reading all copies is cheap
allreduce       shm              5-16  12K   recursive_doubling   : log2(ranks) rounds of a small array
allreduce       shm              5-16  48K   claim                : each rank that is there reduces a part for all
allreduce       shm              3     32K   one_shot             : one synchronisation; reading all copies is cheap
allreduce       self,inproc      3-4   32K   one_shot             : one synchronisation; reading all copies is cheap
allreduce       self,inproc      5-16  8K    one_shot             : one synchronisation; reading all copies is cheap
allreduce       self,inproc,shm  17-   2K    recursive_doubling   : log2(ranks) rounds of a small array
allreduce       self,inproc,shm  1-64  any   two_shot             : every rank reduces its own part once
allreduce       self,inproc,shm  65-   any   ring                 : few links a rank where ranks are many
allreduce       any              1-2   48K   one_shot             : one exchange
allreduce       any              1-2   768K  recursive_doubling   : one exchange, also in place
allreduce       any              1-2   any   two_shot             : each reduces a half
allreduce       tcp              5-8   64K   star       hosts=1 crowded=yes : no wire, and fewest messages
allreduce       tcp              5-8   any   halving_doubling_short hosts=1 crowded=yes : no wire, and few rounds
allreduce       tcp              9-64  128K  star       hosts=1 crowded=yes : no wire, and fewest messages
allreduce       tcp              9-64  512K  tree       hosts=1 crowded=yes : no wire, and few messages
allreduce       tcp              9-64  any   halving_doubling_short hosts=1 crowded=yes : no wire, and few rounds
allreduce       tcp              3     64K   recursive_doubling hosts=1 : one address: no wire, and fewest rounds
allreduce       any              3-    16K   recursive_doubling   : log2(ranks) rounds: least latency
allreduce       tcp              4     32K   star       hosts=1 crowded=yes : no wire, and fewest messages
allreduce       tcp              3     any   two_shot   hosts=1      : one address: no wire, and fewest rounds
allreduce       tcp              4     1M    halving_doubling_short hosts=1 : one address: no wire, and few rounds
allreduce       tcp              4     any   halving_doubling hosts=1 : one address: no wire, halves when ready
allreduce       any              3-    256K  halving_doubling_short : few rounds and few bytes
allreduce       any              3-    any   ring                 : fewest bytes, between neighbours only
reduce_scatter  self,inproc,shm  1-64  any   direct               : one round: every rank reads its own part of all
reduce_scatter  tcp              3-8   64K   circulant  hosts=1 crowded=yes : no wire, and few messages
reduce_scatter  tcp              3-8   any   direct     hosts=1 crowded=yes : no wire, and one round
reduce_scatter  any              any   256K  circulant            : log2(ranks) rounds and fewest bytes
reduce_scatter  any              any   any   ring                 : fewest bytes, between neighbours only
allgather       self,inproc,shm  1-64  any   direct               : one round: published once, read by all
allgather       tcp              3-4   64K   direct     hosts=1 crowded=yes : no wire, and one round
allgather       tcp              5-8   64K   circulant  hosts=1 crowded=yes : no wire, and few messages
allgather       tcp              3-8   any   ring       hosts=1 crowded=yes : between neighbours only
allgather       any              any   256K  circulant            : log2(ranks) rounds and fewest bytes
allgather       any              any   any   ring                 : fewest bytes, between neighbours only
broadcast       self,inproc,shm  1-64  any   direct               : one round: published once, read by all
broadcast       tcp              3-8   64K   direct     hosts=1 crowded=yes : no wire, and one round
broadcast       tcp              3-8   any   binomial   hosts=1 crowded=yes : no wire, and each gets the array once
broadcast       any              any   64K   binomial             : log2(ranks) rounds
broadcast       any              any   any   scatter_allgather    : the root sends the array about once
reduce          self,inproc,shm  1-64  64K   direct               : one round: the root reads all
reduce          tcp              3-8   64K   direct     hosts=1 crowded=yes : no wire, and one round
reduce          any              any   any   binomial             : log2(ranks) rounds
gather          any              9-    16K   binomial             : log2(ranks) messages at the root
gather          any              any   any   linear               : every byte crosses one link only
scatter         any              9-    16K   binomial             : log2(ranks) messages at the root
scatter         any              any   any   linear               : every byte crosses one link only
alltoall        self,inproc,shm  1-64  any   direct               : one round
alltoall        any              1-2   any   direct               : one exchange
alltoall        tcp              5-8   any   pairwise   hosts=1 crowded=yes : no wire, and every byte goes once
alltoall        any              5-    4K    bruck                : log2(ranks) messages instead of one a peer
alltoall        any              any   any   pairwise             : every byte crosses one link only
barrier         self,inproc,shm  1-16  any   direct               : one round: every rank tells all
barrier         any              any   any   dissemination        : log2(ranks) rounds
""",
    source="built in",
)
