"""Algorithm table rows for groups that nobody has measured, written by `python -m tools.model_defaults`.

Invariant: nobody edits this file. By the simulator's costs, each row's algorithm is fastest or nearly so.
"""

from __future__ import annotations

from typing import Final

# Several hosts with several ranks.
NESTED: Final = """
allreduce       any  any  16K   recursive_doubling      hosts=2- per-host=2  : simulated 12.7 us among 5x2 at 128, claim 12.2
allreduce       any  any  1M    hierarchical_circulant  hosts=2- per-host=2  : simulated 64.6 us among 5x2 at 128K, two_shot 59.1
allreduce       any  any  any   hierarchical_ring       hosts=2- per-host=2  : simulated 8821 us among 5x2 at 32M, two_shot 8594
allreduce       any  any  4K    hierarchical_doubling   hosts=2-7 per-host=3  : simulated 10.5 us among 3x3 at 128, hierarchical_circulant 10.6
allreduce       any  any  64K   hierarchical_circulant  hosts=2-7 per-host=3  : simulated 13.2 us among 3x3 at 8K, two_shot 18.3
allreduce       any  any  any   hierarchical_ring       hosts=2-7 per-host=3  : simulated 2340 us among 3x3 at 8M, hierarchical_circulant 2337
allreduce       any  any  16K   hierarchical_doubling   hosts=8- per-host=3  : simulated 20.5 us among 13x3 at 128, recursive_doubling 22
allreduce       any  any  1M    hierarchical_circulant  hosts=8- per-host=3  : simulated 92.3 us among 13x3 at 128K, circulant 89
allreduce       any  any  any   hierarchical_ring       hosts=8- per-host=3  : simulated 9725 us among 13x3 at 32M, hierarchical_circulant 9729
allreduce       any  any  4K    recursive_doubling      hosts=2 per-host=4-  : simulated 6.58 us among 2x8 at 128, hierarchical_doubling 8.28
allreduce       any  any  64K   halving_doubling        hosts=2 per-host=4-  : simulated 15.8 us among 2x8 at 8K, halving_doubling_short 15.3
allreduce       any  any  any   hierarchical_ring       hosts=2 per-host=4-  : simulated 2570 us among 2x8 at 8M, hierarchical_circulant 2565
allreduce       any  any  4K    recursive_doubling      hosts=3-15 per-host=4-  : simulated 14.3 us among 5x8 at 128, hierarchical_doubling 16
allreduce       any  any  256K  hierarchical_circulant  hosts=3-15 per-host=4-  : simulated 33.4 us among 5x8 at 32K, circulant 53.2
allreduce       any  any  any   hierarchical_ring       hosts=3-15 per-host=4-  : simulated 2632 us among 5x8 at 8M, hierarchical_circulant 2727
allreduce       any  any  4K    recursive_doubling      hosts=16- per-host=4-  : simulated 16.6 us among 16x8 at 128, hierarchical_doubling 18.3
allreduce       any  any  64K   halving_doubling_short  hosts=16- per-host=4-  : simulated 35.2 us among 16x8 at 8K, recursive_doubling 34
allreduce       any  any  1M    hierarchical_circulant  hosts=16- per-host=4-  : simulated 88.1 us among 16x8 at 128K, halving_doubling 91.7
allreduce       any  any  any   hierarchical_ring       hosts=16- per-host=4-  : simulated 10574 us among 16x8 at 32M, hierarchical_circulant 11062
reduce          any  any  1K    direct                  hosts=2-12 per-host=2-3  : simulated 7.04 us among 4x2 at 32, binomial 9.23
reduce          any  any  any   hierarchical_binomial   hosts=2-12 per-host=2-3  : simulated 289 us among 4x2 at 512K, binomial 289
reduce          any  any  any   hierarchical_binomial   hosts=13- per-host=2-3  : simulated 93.9 us among 16x2 at 32K, binomial 93.9
reduce          any  any  64K   binomial                hosts=2- per-host=4-  : simulated 13.8 us among 5x8 at 512, hierarchical_binomial 15.1
reduce          any  any  any   hierarchical_binomial   hosts=2- per-host=4-  : simulated 10787 us among 5x8 at 8M, binomial 6532
reduce_scatter  any  any  64K   pairwise                hosts=2-7 per-host=2-3  : simulated 6.36 us among 3x2 at 512, direct 7.77
reduce_scatter  any  any  any   hierarchical_ring       hosts=2-7 per-host=2-3  : simulated 1297 us among 3x2 at 8M, direct 1019
reduce_scatter  any  any  64K   circulant               hosts=8- per-host=2-3  : simulated 17.6 us among 13x2 at 512, pairwise 25.5
reduce_scatter  any  any  any   hierarchical_ring       hosts=8- per-host=2-3  : simulated 1446 us among 13x2 at 8M, circulant 1288
reduce_scatter  any  any  4K    circulant               hosts=2 per-host=4-  : simulated 9.06 us among 2x8 at 128, hierarchical_ring 9.93
reduce_scatter  any  any  any   hierarchical_ring       hosts=2 per-host=4-  : simulated 523 us among 2x8 at 2M, ring 476
reduce_scatter  any  any  64K   circulant               hosts=3- per-host=4-  : simulated 15.8 us among 8x8 at 512, hierarchical_ring 46.6
reduce_scatter  any  any  any   hierarchical_ring       hosts=3- per-host=4-  : simulated 1959 us among 8x8 at 8M, ring 1972
allgather       any  any  64K   direct                  hosts=2-7 per-host=2  : simulated 6.32 us among 3x2 at 512, hierarchical_circulant 6.33
allgather       any  any  any   hierarchical_ring       hosts=2-7 per-host=2  : simulated 983 us among 3x2 at 8M, ring 856
allgather       any  any  64K   circulant               hosts=8-31 per-host=2  : simulated 17.5 us among 13x2 at 512, hierarchical_circulant 18.2
allgather       any  any  any   hierarchical_ring       hosts=8-31 per-host=2  : simulated 889 us among 13x2 at 8M, ring 870
allgather       any  any  64K   circulant               hosts=32- per-host=2  : simulated 20.8 us among 32x2 at 512, hierarchical_circulant 22.6
allgather       any  any  256K  hierarchical_circulant  hosts=32- per-host=2  : simulated 68.3 us among 32x2 at 128K, circulant 34.2
allgather       any  any  any   hierarchical_ring       hosts=32- per-host=2  : simulated 916 us among 32x2 at 8M, hierarchical_circulant 1023
allgather       any  any  any   hierarchical_ring       hosts=2 per-host=3-15  : simulated 8.86 us among 2x4 at 32K, direct 10.3
allgather       any  any  16K   hierarchical_circulant  hosts=3-7 per-host=3-15  : simulated 10.3 us among 4x4 at 128, circulant 11.6
allgather       any  any  any   hierarchical_ring       hosts=3-7 per-host=3-15  : simulated 241 us among 4x4 at 2M, hierarchical_circulant 319
allgather       any  any  64K   circulant               hosts=8-31 per-host=3-15  : simulated 18.3 us among 13x4 at 512, hierarchical_circulant 19
allgather       any  any  any   hierarchical_ring       hosts=8-31 per-host=3-15  : simulated 884 us among 13x4 at 8M, hierarchical_circulant 1017
allgather       any  any  64K   circulant               hosts=32- per-host=3-15  : simulated 21.6 us among 32x4 at 512, hierarchical_circulant 23.3
allgather       any  any  256K  hierarchical_circulant  hosts=32- per-host=3-15  : simulated 71.3 us among 32x4 at 128K, circulant 51.7
allgather       any  any  any   hierarchical_ring       hosts=32- per-host=3-15  : simulated 939 us among 32x4 at 8M, hierarchical_circulant 1026
allgather       any  any  16K   hierarchical_circulant  hosts=2 per-host=16-  : simulated 11.3 us among 2x16 at 128, circulant 11.6
allgather       any  any  any   hierarchical_ring       hosts=2 per-host=16-  : simulated 346 us among 2x16 at 2M, ring 463
allgather       any  any  64K   hierarchical_circulant  hosts=3-15 per-host=16-  : simulated 15.7 us among 5x16 at 512, circulant 16.3
allgather       any  any  any   hierarchical_ring       hosts=3-15 per-host=16-  : simulated 1302 us among 5x16 at 8M, hierarchical_circulant 1506
allgather       any  any  16K   circulant               hosts=16- per-host=16-  : simulated 21.5 us among 16x16 at 128, hierarchical_circulant 23.7
allgather       any  any  1M    hierarchical_circulant  hosts=16- per-host=16-  : simulated 83.9 us among 16x16 at 128K, hierarchical_ring 125
allgather       any  any  any   hierarchical_ring       hosts=16- per-host=16-  : simulated 5084 us among 16x16 at 32M, hierarchical_circulant 5382
broadcast       any  any  64K   direct                  hosts=2-7 per-host=2  : simulated 6.34 us among 3x2 at 512, binomial 5.64
broadcast       any  any  any   hierarchical_chain      hosts=2-7 per-host=2  : simulated 881 us among 3x2 at 8M, scatter_allgather 993
broadcast       any  any  1M    hierarchical_binomial   hosts=8- per-host=2  : simulated 13 us among 13x2 at 2K, binomial 13
broadcast       any  any  any   hierarchical_chain      hosts=8- per-host=2  : simulated 3536 us among 13x2 at 32M, scatter_allgather 5406
broadcast       any  any  64K   hierarchical_binomial   hosts=2-7 per-host=3-  : simulated 6.04 us among 3x4 at 512, binomial 6.45
broadcast       any  any  any   hierarchical_chain      hosts=2-7 per-host=3-  : simulated 884 us among 3x4 at 8M, hierarchical_binomial 1372
broadcast       any  any  1M    hierarchical_binomial   hosts=8- per-host=3-  : simulated 13.4 us among 13x4 at 2K, binomial 14.1
broadcast       any  any  any   hierarchical_chain      hosts=8- per-host=3-  : simulated 3538 us among 13x4 at 32M, hierarchical_binomial 10768
gather          any  any  any   linear                  hosts=2-12 per-host=2  : simulated 7.13 us among 4x2 at 32K, binomial 11.1
gather          any  any  64K   binomial                hosts=13- per-host=2  : simulated 14.9 us among 16x2 at 512, linear 18.8
gather          any  any  any   linear                  hosts=13- per-host=2  : simulated 633 us among 16x2 at 8M, binomial 660
gather          any  any  16K   binomial                hosts=2-12 per-host=3-7  : simulated 8.81 us among 4x3 at 128, linear 8.3
gather          any  any  any   linear                  hosts=2-12 per-host=3-7  : simulated 130 us among 4x3 at 2M, binomial 156
gather          any  any  256K  binomial                hosts=13- per-host=3-7  : simulated 15.4 us among 16x3 at 512, linear 26.3
gather          any  any  any   linear                  hosts=13- per-host=3-7  : simulated 633 us among 16x3 at 8M, binomial 660
gather          any  any  64K   binomial                hosts=2-4 per-host=8-  : simulated 6.94 us among 3x8 at 512, linear 11.8
gather          any  any  any   linear                  hosts=2-4 per-host=8-  : simulated 451 us among 3x8 at 8M, binomial 536
gather          any  any  256K  binomial                hosts=5-12 per-host=8-  : simulated 9.74 us among 5x8 at 512, linear 19.8
gather          any  any  any   linear                  hosts=5-12 per-host=8-  : simulated 541 us among 5x8 at 8M, binomial 625
gather          any  any  4M    binomial                hosts=13- per-host=8-  : simulated 16.5 us among 16x8 at 2K, linear 63.8
gather          any  any  any   linear                  hosts=13- per-host=8-  : simulated 2520 us among 16x8 at 32M, binomial 2605
scatter         any  any  any   linear                  hosts=2-12 per-host=2  : simulated 8.15 us among 4x2 at 32K, binomial 12.3
scatter         any  any  64K   binomial                hosts=13- per-host=2  : simulated 14.9 us among 16x2 at 512, linear 19
scatter         any  any  any   linear                  hosts=13- per-host=2  : simulated 659 us among 16x2 at 8M, binomial 673
scatter         any  any  16K   binomial                hosts=2-12 per-host=3-7  : simulated 8.81 us among 4x3 at 128, linear 8.7
scatter         any  any  any   linear                  hosts=2-12 per-host=3-7  : simulated 169 us among 4x3 at 2M, binomial 168
scatter         any  any  256K  binomial                hosts=13- per-host=3-7  : simulated 15.4 us among 16x3 at 512, linear 26.7
scatter         any  any  any   linear                  hosts=13- per-host=3-7  : simulated 673 us among 16x3 at 8M, binomial 671
scatter         any  any  64K   binomial                hosts=2-3 per-host=8-  : simulated 6.48 us among 2x8 at 512, linear 9.23
scatter         any  any  any   linear                  hosts=2-3 per-host=8-  : simulated 446 us among 2x8 at 8M, binomial 664
scatter         any  any  256K  binomial                hosts=4-12 per-host=8-  : simulated 10.2 us among 5x8 at 512, linear 21.2
scatter         any  any  any   linear                  hosts=4-12 per-host=8-  : simulated 647 us among 5x8 at 8M, binomial 633
scatter         any  any  4M    binomial                hosts=13- per-host=8-  : simulated 16.5 us among 16x8 at 2K, linear 65.2
scatter         any  any  any   linear                  hosts=13- per-host=8-  : simulated 2627 us among 16x8 at 32M, binomial 2613
alltoall        any  any  any   pairwise                hosts=2 per-host=2-7  : simulated 9.02 us among 2x3 at 32K, direct 8.84
alltoall        any  any  1M    direct                  hosts=3-7 per-host=2-7  : simulated 10.9 us among 4x3 at 2K, pairwise 10.9
alltoall        any  any  any   pairwise                hosts=3-7 per-host=2-7  : simulated 6067 us among 4x3 at 32M, direct 6057
alltoall        any  any  16K   bruck                   hosts=8-12 per-host=2-7  : simulated 15 us among 8x3 at 128, direct 22.8
alltoall        any  any  any   pairwise                hosts=8-12 per-host=2-7  : simulated 516 us among 8x3 at 2M, direct 453
alltoall        any  any  64K   bruck                   hosts=13- per-host=2-7  : simulated 18.5 us among 16x3 at 512, direct 46.8
alltoall        any  any  any   pairwise                hosts=13- per-host=2-7  : simulated 1978 us among 16x3 at 8M, direct 1904
alltoall        any  any  16K   bruck                   hosts=2-7 per-host=8-  : simulated 12.4 us among 3x8 at 128, direct 19.8
alltoall        any  any  any   pairwise                hosts=2-7 per-host=8-  : simulated 1048 us among 3x8 at 2M, direct 908
alltoall        any  any  64K   bruck                   hosts=8- per-host=8-  : simulated 19.3 us among 13x8 at 512, direct 99.8
alltoall        any  any  any   pairwise                hosts=8- per-host=8-  : simulated 5536 us among 13x8 at 8M, direct 4968
scan            any  any  1M    recursive_doubling      hosts=2- per-host=2  : simulated 14.4 us among 5x2 at 2K, direct 14.7
scan            any  any  any   chain                   hosts=2- per-host=2  : simulated 7806 us among 5x2 at 32M, recursive_doubling 20136
scan            any  any  256K  recursive_doubling      hosts=2 per-host=3-  : simulated 6.13 us among 2x4 at 512, hierarchical_doubling 7.41
scan            any  any  any   chain                   hosts=2 per-host=3-  : simulated 2083 us among 2x4 at 8M, recursive_doubling 4826
scan            any  any  4K    recursive_doubling      hosts=3-15 per-host=3-  : simulated 14 us among 5x4 at 128, hierarchical_doubling 13.7
scan            any  any  1M    hierarchical_doubling   hosts=3-15 per-host=3-  : simulated 68.7 us among 5x4 at 32K, recursive_doubling 77.2
scan            any  any  any   chain                   hosts=3-15 per-host=3-  : simulated 8108 us among 5x4 at 32M, hierarchical_doubling 28563
scan            any  any  1K    recursive_doubling      hosts=16- per-host=3-  : simulated 18.2 us among 16x4 at 32, hierarchical_doubling 18.4
scan            any  any  4M    hierarchical_doubling   hosts=16- per-host=3-  : simulated 86.4 us among 16x4 at 32K, recursive_doubling 119
scan            any  any  any   chain                   hosts=16- per-host=3-  : simulated 9436 us among 16x4 at 32M, hierarchical_doubling 36953
exscan          any  any  4M    recursive_doubling      hosts=2- per-host=2  : simulated 15.4 us among 5x2 at 2K, direct 14.2
exscan          any  any  any   chain                   hosts=2- per-host=2  : simulated 11289 us among 5x2 at 32M, recursive_doubling 20149
exscan          any  any  256K  recursive_doubling      hosts=2-3 per-host=3-7  : simulated 7.16 us among 2x3 at 512, hierarchical_doubling 6.75
exscan          any  any  4M    hierarchical_doubling   hosts=2-3 per-host=3-7  : simulated 244 us among 2x3 at 512K, recursive_doubling 325
exscan          any  any  any   chain                   hosts=2-3 per-host=3-7  : simulated 14445 us among 2x3 at 32M, hierarchical_doubling 11805
exscan          any  any  4M    hierarchical_doubling   hosts=4- per-host=3-7  : simulated 17.1 us among 8x3 at 2K, recursive_doubling 19.7
exscan          any  any  any   chain                   hosts=4- per-host=3-7  : simulated 15382 us among 8x3 at 32M, hierarchical_doubling 28559
exscan          any  any  16K   recursive_doubling      hosts=2-4 per-host=8-  : simulated 11.4 us among 3x8 at 128, hierarchical_doubling 12.8
exscan          any  any  1M    hierarchical_doubling   hosts=2-4 per-host=8-  : simulated 295 us among 3x8 at 128K, recursive_doubling 398
exscan          any  any  any   chain                   hosts=2-4 per-host=8-  : simulated 15447 us among 3x8 at 32M, hierarchical_doubling 36981
exscan          any  any  1K    recursive_doubling      hosts=5-31 per-host=8-  : simulated 15.9 us among 8x8 at 32, hierarchical_doubling 17
exscan          any  any  4M    hierarchical_doubling   hosts=5-31 per-host=8-  : simulated 98.5 us among 8x8 at 32K, recursive_doubling 164
exscan          any  any  any   chain                   hosts=5-31 per-host=8-  : simulated 17638 us among 8x8 at 32M, hierarchical_doubling 49566
exscan          any  any  16M   hierarchical_doubling   hosts=32- per-host=8-  : simulated 48.8 us among 32x8 at 8K, recursive_doubling 96.2
exscan          any  any  any   chain                   hosts=32- per-host=8-  : simulated 70935 us among 32x8 at 128M, hierarchical_doubling 231601
barrier         any  any  any   direct                  hosts=2-7 per-host=2  : simulated 8 us among 3x2 at 0, dissemination 10.9
barrier         any  any  any   dissemination           hosts=8- per-host=2  : simulated 17.5 us among 13x2 at 0, direct 28
barrier         any  any  any   dissemination           hosts=2- per-host=3-  : simulated 14.9 us among 5x4 at 0, direct 21.4
"""

# More ranks of one host than were measured.
SHARED: Final = """
allreduce       self,inproc,shm  17-    4K   recursive_doubling  oversubscribed=no  : simulated 4.68 us among 32 at 128, circulant 8.07
allreduce       self,inproc,shm  17-    64K  circulant           oversubscribed=no  : simulated 13.3 us among 32 at 8K, halving_doubling_short 13.2
allreduce       self,inproc,shm  17-    any  two_shot            oversubscribed=no  : simulated 5229 us among 32 at 8M, circulant 5229
reduce          self,inproc,shm  17-    any  binomial            oversubscribed=no  : simulated 89.2 us among 32 at 32K, direct 148
reduce_scatter  self,inproc,shm  17-    4M   circulant           oversubscribed=no  : simulated 5.26 us among 32 at 2K, pairwise 14
reduce_scatter  self,inproc,shm  17-    any  direct              oversubscribed=no  : simulated 10924 us among 32 at 32M, ring 10433
allgather       self,inproc,shm  17-    16K  circulant           oversubscribed=no  : simulated 4.55 us among 32 at 128, direct 13.4
allgather       self,inproc,shm  17-    any  direct              oversubscribed=no  : simulated 671 us among 32 at 2M, ring 671
broadcast       self,inproc,shm  17-    4K   binomial            oversubscribed=no  : simulated 4.7 us among 32 at 128, direct 7.73
broadcast       self,inproc,shm  17-    any  direct              oversubscribed=no  : simulated 678 us among 32 at 2M, binomial 678
gather          self,inproc,shm  17-    64K  binomial            oversubscribed=no  : simulated 4.6 us among 32 at 512, linear 7.75
gather          self,inproc,shm  17-    any  linear              oversubscribed=no  : simulated 846 us among 32 at 8M, binomial 854
scatter         self,inproc,shm  17-19  any  linear              oversubscribed=no  : simulated 8.17 us among 17 at 32K, binomial 10.7
scatter         self,inproc,shm  20-    64K  binomial            oversubscribed=no  : simulated 4.69 us among 32 at 512, linear 7.75
scatter         self,inproc,shm  20-    any  linear              oversubscribed=no  : simulated 859 us among 32 at 8M, binomial 961
alltoall        self,inproc,shm  17-    16K  bruck               oversubscribed=no  : simulated 4.62 us among 32 at 128, direct 13.4
alltoall        self,inproc,shm  17-    any  direct              oversubscribed=no  : simulated 671 us among 32 at 2M, pairwise 671
scan            self,inproc,shm  17-    1M   recursive_doubling  oversubscribed=no  : simulated 8.51 us among 32 at 2K, direct 26
scan            self,inproc,shm  17-    any  chain               oversubscribed=no  : simulated 10446 us among 32 at 32M, recursive_doubling 43316
exscan          self,inproc,shm  17-    1M   recursive_doubling  oversubscribed=no  : simulated 9.07 us among 32 at 2K, direct 25.7
exscan          self,inproc,shm  17-    any  chain               oversubscribed=no  : simulated 15925 us among 32 at 32M, recursive_doubling 52040
barrier         self,inproc,shm  17-    any  dissemination       oversubscribed=no  : simulated 4.5 us among 32 at 0, direct 13.7
"""

# One rank a host, or an unknown network.
FLAT: Final = """
allreduce       any  1-13    16K   one_shot  : simulated 9.41 us among 7 at 128, claim 9.41
allreduce       any  1-13    1M    two_shot  : simulated 42.1 us among 7 at 128K, circulant 54.7
allreduce       any  1-13    any   ring  : simulated 4606 us among 7 at 32M, two_shot 4606
allreduce       any  14-47   16K   recursive_doubling  : simulated 21.5 us among 21 at 128, claim 23.6
allreduce       any  14-47   4M    circulant  : simulated 63.6 us among 21 at 128K, two_shot 59.4
allreduce       any  14-47   any   ring  : simulated 5117 us among 21 at 32M, two_shot 5117
allreduce       any  48-     16K   recursive_doubling  : simulated 21 us among 64 at 128, circulant 40.6
allreduce       any  48-     4M    circulant  : simulated 77.4 us among 64 at 128K, halving_doubling 75.6
allreduce       any  48-     64M   tree  : simulated 1576 us among 64 at 8M, halving_doubling 1633
allreduce       any  48-     any   ring  : simulated 21143 us among 64 at 128M, two_shot 21143
reduce          any  1-30    4K    direct  : simulated 8.54 us among 10 at 128, binomial 13
reduce          any  1-30    any   binomial  : simulated 1142 us among 10 at 2M, direct 2462
reduce          any  31-     any   binomial  : simulated 123 us among 63 at 32K, direct 451
reduce_scatter  any  1-11    1M    pairwise  : simulated 6.54 us among 6 at 2K, circulant 8.42
reduce_scatter  any  1-11    any   ring  : simulated 3514 us among 6 at 32M, circulant 3512
reduce_scatter  any  12-47   64K   circulant  : simulated 14.8 us among 17 at 512, pairwise 17.1
reduce_scatter  any  12-47   1M    pairwise  : simulated 32.4 us among 17 at 128K, direct 37.1
reduce_scatter  any  12-47   4M    circulant  : simulated 290 us among 17 at 2M, pairwise 409
reduce_scatter  any  12-47   any   ring  : simulated 3977 us among 17 at 32M, pairwise 4120
reduce_scatter  any  48-     64M   circulant  : simulated 22.5 us among 64 at 8K, pairwise 65
reduce_scatter  any  48-     any   ring  : simulated 16592 us among 64 at 128M, circulant 16535
allgather       any  1-14    1M    direct  : simulated 8.03 us among 8 at 2K, circulant 11.1
allgather       any  1-14    any   ring  : simulated 2366 us among 8 at 32M, circulant 2366
allgather       any  15-47   64K   circulant  : simulated 14.7 us among 21 at 512, direct 21
allgather       any  15-47   4M    direct  : simulated 46.7 us among 21 at 512K, circulant 56.1
allgather       any  15-47   any   ring  : simulated 2573 us among 21 at 32M, circulant 2573
allgather       any  48-     64M   circulant  : simulated 21.5 us among 64 at 8K, direct 64
allgather       any  48-     any   ring  : simulated 10587 us among 64 at 128M, circulant 10587
broadcast       any  1-12    16K   direct  : simulated 6.81 us among 7 at 128, binomial 8.12
broadcast       any  1-12    1M    binomial  : simulated 39.1 us among 7 at 128K, scatter_allgather 62.7
broadcast       any  1-12    any   scatter_allgather  : simulated 4606 us among 7 at 32M, binomial 8057
broadcast       any  13-30   16K   direct  : simulated 11.3 us among 16 at 128, binomial 14.2
broadcast       any  13-30   4M    binomial  : simulated 56.1 us among 16 at 128K, scatter_allgather 125
broadcast       any  13-30   any   scatter_allgather  : simulated 5037 us among 16 at 32M, binomial 10741
broadcast       any  31-127  16M   binomial  : simulated 21.4 us among 48 at 8K, direct 35.1
broadcast       any  31-127  any   scatter_allgather  : simulated 21031 us among 48 at 128M, binomial 64428
broadcast       any  128-    256M  binomial  : simulated 42.5 us among 128 at 32K, direct 337
broadcast       any  128-    any   scatter_allgather  : simulated 104923 us among 128 at 512M, binomial 300652
gather          any  1-23    any   linear  : simulated 8.56 us among 10 at 32K, binomial 12.7
gather          any  24-127  64K   binomial  : simulated 17.5 us among 33 at 512, linear 19.8
gather          any  24-127  any   linear  : simulated 655 us among 33 at 8M, binomial 655
gather          any  128-    1M    binomial  : simulated 24.3 us among 128 at 2K, linear 67.3
gather          any  128-    any   linear  : simulated 2667 us among 128 at 32M, binomial 2667
scatter         any  1-23    any   linear  : simulated 8.89 us among 10 at 32K, binomial 14.2
scatter         any  24-127  64K   binomial  : simulated 18 us among 33 at 512, linear 19.8
scatter         any  24-127  any   linear  : simulated 668 us among 33 at 8M, binomial 668
scatter         any  128-    1M    binomial  : simulated 24.3 us among 128 at 2K, linear 67.3
scatter         any  128-    any   linear  : simulated 2680 us among 128 at 32M, binomial 2680
alltoall        any  1-23    256K  direct  : simulated 10 us among 10 at 512, pairwise 10
alltoall        any  1-23    any   pairwise  : simulated 631 us among 10 at 8M, direct 621
alltoall        any  24-127  64K   bruck  : simulated 21 us among 33 at 512, direct 33
alltoall        any  24-127  any   pairwise  : simulated 678 us among 33 at 8M, direct 668
alltoall        any  128-    256K  bruck  : simulated 24.4 us among 128 at 512, direct 128
alltoall        any  128-    any   pairwise  : simulated 682 us among 128 at 8M, direct 677
scan            any  1-62    1M    recursive_doubling  : simulated 14.4 us among 12 at 2K, direct 17.5
scan            any  1-62    any   chain  : simulated 4524 us among 12 at 32M, recursive_doubling 16794
scan            any  63-     4M    recursive_doubling  : simulated 27.9 us among 65 at 2K, direct 84.1
scan            any  63-     any   chain  : simulated 6123 us among 65 at 32M, recursive_doubling 29378
exscan          any  1-3     any   direct  : simulated 6.92 us among 2 at 32K, chain 6.92
exscan          any  4-13    16K   direct  : simulated 10.4 us among 8 at 128, recursive_doubling 12
exscan          any  4-13    1M    recursive_doubling  : simulated 109 us among 8 at 128K, direct 179
exscan          any  4-13    any   chain  : simulated 7794 us among 8 at 32M, recursive_doubling 12613
exscan          any  14-255  4M    recursive_doubling  : simulated 22.4 us among 31 at 2K, direct 40.9
exscan          any  14-255  any   chain  : simulated 8790 us among 31 at 32M, recursive_doubling 21004
exscan          any  256-    16M   recursive_doubling  : simulated 50.5 us among 256 at 8K, direct 559
exscan          any  256-    any   chain  : simulated 41176 us among 256 at 128M, recursive_doubling 134253
barrier         any  1-11    any   direct  : simulated 8.3 us among 6 at 0, dissemination 10.9
barrier         any  12-     any   dissemination  : simulated 17.5 us among 31 at 0, direct 33.3
"""
