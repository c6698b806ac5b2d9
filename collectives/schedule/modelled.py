"""Rows for groups that nobody has measured, written by `python -m tools.model_defaults`.

Invariant: nobody edits this file. By the simulator's costs, each row's algorithm is fastest or nearly so.
"""

from __future__ import annotations

from typing import Final

# Several hosts with several ranks.
NESTED: Final = """
allreduce       any  any  12K    recursive_doubling      hosts=2-11 per-host=2  : simulated 12.9 us among 5x2 at 256, claim 12.3
allreduce       any  any  96K    hierarchical_circulant  hosts=2-11 per-host=2  : simulated 28.1 us among 5x2 at 32K, two_shot 25.2
allreduce       any  any  any    hierarchical_ring       hosts=2-11 per-host=2  : simulated 2215 us among 5x2 at 8M, two_shot 2151
allreduce       any  any  24K    recursive_doubling      hosts=12- per-host=2  : simulated 15.2 us among 16x2 at 256, hierarchical_doubling 15.9
allreduce       any  any  768K   hierarchical_circulant  hosts=12- per-host=2  : simulated 83.2 us among 16x2 at 128K, halving_doubling 72.9
allreduce       any  any  any    hierarchical_ring       hosts=12- per-host=2  : simulated 9140 us among 16x2 at 32M, halving_doubling_short 9106
allreduce       any  any  6K     hierarchical_doubling   hosts=2-11 per-host=3-7  : simulated 14.3 us among 5x4 at 128, recursive_doubling 13.5
allreduce       any  any  192K   hierarchical_circulant  hosts=2-11 per-host=3-7  : simulated 29.8 us among 5x4 at 32K, circulant 39.7
allreduce       any  any  any    hierarchical_ring       hosts=2-11 per-host=3-7  : simulated 4949 us among 5x4 at 16M, hierarchical_circulant 4939
allreduce       any  any  12K    hierarchical_doubling   hosts=12- per-host=3-7  : simulated 16.8 us among 16x4 at 256, recursive_doubling 16
allreduce       any  any  768K   hierarchical_circulant  hosts=12- per-host=3-7  : simulated 57.4 us among 16x4 at 64K, halving_doubling_short 58
allreduce       any  any  any    hierarchical_ring       hosts=12- per-host=3-7  : simulated 10070 us among 16x4 at 32M, hierarchical_circulant 10063
allreduce       any  any  6K     recursive_doubling      hosts=2- per-host=8-11  : simulated 15 us among 7x8 at 128, hierarchical_doubling 19.3
allreduce       any  any  768K   hierarchical_circulant  hosts=2- per-host=8-11  : simulated 59.2 us among 7x8 at 64K, halving_doubling_short 87.5
allreduce       any  any  any    hierarchical_ring       hosts=2- per-host=8-11  : simulated 10463 us among 7x8 at 32M, hierarchical_circulant 10604
allreduce       any  any  6K     hierarchical_doubling   hosts=2-15 per-host=12-15  : simulated 17.6 us among 6x12 at 128, recursive_doubling 20.7
allreduce       any  any  384K   hierarchical_circulant  hosts=2-15 per-host=12-15  : simulated 37.5 us among 6x12 at 32K, halving_doubling_short 69
allreduce       any  any  any    hierarchical_ring       hosts=2-15 per-host=12-15  : simulated 5347 us among 6x12 at 16M, hierarchical_circulant 5621
allreduce       any  any  12K    hierarchical_doubling   hosts=16- per-host=12-15  : simulated 24.6 us among 24x12 at 256, recursive_doubling 27.6
allreduce       any  any  1536K  hierarchical_circulant  hosts=16- per-host=12-15  : simulated 92.3 us among 24x12 at 128K, halving_doubling_short 182
allreduce       any  any  any    hierarchical_ring       hosts=16- per-host=12-15  : simulated 11665 us among 24x12 at 32M, hierarchical_circulant 12069
allreduce       any  any  6K     recursive_doubling      hosts=2-15 per-host=16-  : simulated 14.6 us among 6x16 at 128, hierarchical_doubling 19.3
allreduce       any  any  12K    halving_doubling_short  hosts=2-15 per-host=16-  : simulated 34.9 us among 6x16 at 8K, hierarchical_circulant 31.8
allreduce       any  any  384K   hierarchical_circulant  hosts=2-15 per-host=16-  : simulated 53.9 us among 6x16 at 64K, halving_doubling_short 93.8
allreduce       any  any  any    hierarchical_ring       hosts=2-15 per-host=16-  : simulated 5409 us among 6x16 at 16M, hierarchical_circulant 6491
allreduce       any  any  6K     recursive_doubling      hosts=16- per-host=16-  : simulated 21.2 us among 24x16 at 128, hierarchical_doubling 25.9
allreduce       any  any  1536K  hierarchical_circulant  hosts=16- per-host=16-  : simulated 72 us among 24x16 at 64K, halving_doubling_short 107
allreduce       any  any  any    hierarchical_ring       hosts=16- per-host=16-  : simulated 12769 us among 24x16 at 32M, tree 13426
reduce          any  any  1536   direct                  hosts=2-11 per-host=2  : simulated 8.11 us among 5x2 at 64, binomial 9.77
reduce          any  any  any    hierarchical_binomial   hosts=2-11 per-host=2  : simulated 617 us among 5x2 at 1M, binomial 617
reduce          any  any  any    hierarchical_binomial   hosts=12- per-host=2  : simulated 169 us among 16x2 at 64K, binomial 169
reduce          any  any  any    hierarchical_binomial   hosts=2- per-host=3  : simulated 124 us among 7x3 at 64K, binomial 127
reduce          any  any  1536   hierarchical_binomial   hosts=2- per-host=4-7  : simulated 11.5 us among 7x4 at 64, binomial 11.6
reduce          any  any  48K    binomial                hosts=2- per-host=4-7  : simulated 27.5 us among 7x4 at 8K, hierarchical_binomial 28.7
reduce          any  any  any    hierarchical_binomial   hosts=2- per-host=4-7  : simulated 6481 us among 7x4 at 8M, binomial 5428
reduce          any  any  48K    binomial                hosts=2- per-host=8-  : simulated 19.1 us among 7x12 at 512, hierarchical_binomial 18.9
reduce          any  any  any    hierarchical_binomial   hosts=2- per-host=8-  : simulated 15147 us among 7x12 at 8M, binomial 7675
reduce_scatter  any  any  any    hierarchical_ring       hosts=2 per-host=2-7  : simulated 19.7 us among 2x3 at 64K, direct 20.4
reduce_scatter  any  any  48K    circulant               hosts=3- per-host=2-7  : simulated 14.8 us among 8x3 at 512, direct 25.2
reduce_scatter  any  any  any    hierarchical_ring       hosts=3- per-host=2-7  : simulated 1579 us among 8x3 at 8M, ring 1826
reduce_scatter  any  any  6K     circulant               hosts=2 per-host=8-  : simulated 9.77 us among 2x12 at 128, hierarchical_ring 13.1
reduce_scatter  any  any  any    hierarchical_ring       hosts=2 per-host=8-  : simulated 540 us among 2x12 at 2M, ring 496
reduce_scatter  any  any  48K    circulant               hosts=3- per-host=8-  : simulated 16.6 us among 8x12 at 512, hierarchical_ring 59.4
reduce_scatter  any  any  any    hierarchical_ring       hosts=3- per-host=8-  : simulated 1992 us among 8x12 at 8M, ring 2020
allgather       any  any  48K    direct                  hosts=2-7 per-host=2  : simulated 7.42 us among 4x2 at 512, hierarchical_circulant 9.65
allgather       any  any  any    hierarchical_ring       hosts=2-7 per-host=2  : simulated 949 us among 4x2 at 8M, ring 858
allgather       any  any  48K    circulant               hosts=8-15 per-host=2  : simulated 14.8 us among 12x2 at 512, hierarchical_circulant 14.4
allgather       any  any  any    hierarchical_ring       hosts=8-15 per-host=2  : simulated 891 us among 12x2 at 8M, ring 869
allgather       any  any  48K    circulant               hosts=16- per-host=2  : simulated 18.1 us among 24x2 at 512, hierarchical_circulant 19.2
allgather       any  any  192K   hierarchical_circulant  hosts=16- per-host=2  : simulated 39.3 us among 24x2 at 64K, circulant 25.8
allgather       any  any  any    hierarchical_ring       hosts=16- per-host=2  : simulated 1746 us among 24x2 at 16M, ring 1725
allgather       any  any  any    hierarchical_ring       hosts=2 per-host=3-11  : simulated 12.2 us among 2x4 at 64K, direct 15.6
allgather       any  any  24K    hierarchical_circulant  hosts=3-6 per-host=3-11  : simulated 10.4 us among 4x4 at 256, circulant 11.6
allgather       any  any  any    hierarchical_ring       hosts=3-6 per-host=3-11  : simulated 454 us among 4x4 at 4M, hierarchical_circulant 542
allgather       any  any  48K    circulant               hosts=7-11 per-host=3-11  : simulated 15 us among 7x4 at 512, hierarchical_circulant 14.7
allgather       any  any  any    hierarchical_ring       hosts=7-11 per-host=3-11  : simulated 884 us among 7x4 at 8M, hierarchical_circulant 983
allgather       any  any  96K    hierarchical_circulant  hosts=12 per-host=3-11  : simulated 15.2 us among 12x4 at 512, circulant 18
allgather       any  any  any    hierarchical_ring       hosts=12 per-host=3-11  : simulated 883 us among 12x4 at 8M, hierarchical_circulant 993
allgather       any  any  48K    circulant               hosts=13-23 per-host=3-11  : simulated 18.3 us among 13x4 at 512, hierarchical_circulant 19
allgather       any  any  96K    hierarchical_circulant  hosts=13-23 per-host=3-11  : simulated 41.2 us among 13x4 at 64K, circulant 30.8
allgather       any  any  any    hierarchical_ring       hosts=13-23 per-host=3-11  : simulated 884 us among 13x4 at 8M, hierarchical_circulant 1017
allgather       any  any  192K   hierarchical_circulant  hosts=24-31 per-host=3-11  : simulated 20.2 us among 24x4 at 1K, circulant 21.4
allgather       any  any  any    hierarchical_ring       hosts=24-31 per-host=3-11  : simulated 1748 us among 24x4 at 16M, hierarchical_circulant 1877
allgather       any  any  48K    circulant               hosts=32- per-host=3-11  : simulated 21.6 us among 32x4 at 512, hierarchical_circulant 23.3
allgather       any  any  384K   hierarchical_circulant  hosts=32- per-host=3-11  : simulated 71.3 us among 32x4 at 128K, circulant 51.7
allgather       any  any  any    hierarchical_ring       hosts=32- per-host=3-11  : simulated 1812 us among 32x4 at 16M, hierarchical_circulant 1891
allgather       any  any  12K    hierarchical_circulant  hosts=2 per-host=12-  : simulated 9.77 us among 2x12 at 256, circulant 9.74
allgather       any  any  any    hierarchical_ring       hosts=2 per-host=12-  : simulated 503 us among 2x12 at 4M, hierarchical_circulant 663
allgather       any  any  48K    hierarchical_circulant  hosts=3-6 per-host=12-  : simulated 13.6 us among 4x12 at 512, circulant 13.1
allgather       any  any  any    hierarchical_ring       hosts=3-6 per-host=12-  : simulated 964 us among 4x12 at 8M, hierarchical_circulant 1149
allgather       any  any  12K    circulant               hosts=7-15 per-host=12-  : simulated 16.3 us among 8x12 at 256, hierarchical_circulant 17.9
allgather       any  any  96K    hierarchical_circulant  hosts=7-15 per-host=12-  : simulated 28.9 us among 8x12 at 32K, circulant 37.2
allgather       any  any  any    hierarchical_ring       hosts=7-15 per-host=12-  : simulated 1023 us among 8x12 at 8M, hierarchical_circulant 1131
allgather       any  any  12K    circulant               hosts=16- per-host=12-  : simulated 22.9 us among 24x12 at 256, hierarchical_circulant 23.2
allgather       any  any  768K   hierarchical_circulant  hosts=16- per-host=12-  : simulated 47.9 us among 24x12 at 64K, circulant 70.5
allgather       any  any  any    hierarchical_ring       hosts=16- per-host=12-  : simulated 3988 us among 24x12 at 32M, hierarchical_circulant 3990
broadcast       any  any  48K    direct                  hosts=2-5 per-host=2  : simulated 6.34 us among 3x2 at 512, binomial 5.64
broadcast       any  any  96K    hierarchical_binomial   hosts=2-5 per-host=2  : simulated 29 us among 3x2 at 64K, direct 25.8
broadcast       any  any  any    hierarchical_chain      hosts=2-5 per-host=2  : simulated 881 us among 3x2 at 8M, scatter_allgather 993
broadcast       any  any  768K   hierarchical_binomial   hosts=6- per-host=2  : simulated 13 us among 12x2 at 2K, binomial 13
broadcast       any  any  any    hierarchical_chain      hosts=6- per-host=2  : simulated 3522 us among 12x2 at 32M, scatter_allgather 5255
broadcast       any  any  48K    hierarchical_binomial   hosts=2-3 per-host=3-15  : simulated 5.94 us among 2x6 at 512, hierarchical_chain 5.94
broadcast       any  any  any    hierarchical_chain      hosts=2-3 per-host=3-15  : simulated 873 us among 2x6 at 8M, hierarchical_binomial 873
broadcast       any  any  384K   hierarchical_binomial   hosts=4-12 per-host=3-15  : simulated 9.97 us among 6x6 at 1K, binomial 13.5
broadcast       any  any  any    hierarchical_chain      hosts=4-12 per-host=3-15  : simulated 1767 us among 6x6 at 16M, hierarchical_binomial 4057
broadcast       any  any  768K   hierarchical_binomial   hosts=13- per-host=3-15  : simulated 16.8 us among 16x6 at 2K, binomial 17.6
broadcast       any  any  any    hierarchical_chain      hosts=13- per-host=3-15  : simulated 3582 us among 16x6 at 32M, hierarchical_binomial 10768
broadcast       any  any  1536   binomial                hosts=2- per-host=16-  : simulated 11 us among 7x16 at 64, hierarchical_binomial 11.6
broadcast       any  any  1536K  hierarchical_binomial   hosts=2- per-host=16-  : simulated 27.4 us among 7x16 at 32K, binomial 47.1
broadcast       any  any  any    hierarchical_chain      hosts=2- per-host=16-  : simulated 5144 us among 7x16 at 32M, hierarchical_binomial 8083
gather          any  any  any    linear                  hosts=2-11 per-host=2  : simulated 8.49 us among 5x2 at 64K, binomial 12.8
gather          any  any  96K    binomial                hosts=12- per-host=2  : simulated 14.9 us among 16x2 at 512, linear 18.8
gather          any  any  any    linear                  hosts=12- per-host=2  : simulated 633 us among 16x2 at 8M, binomial 660
gather          any  any  any    linear                  hosts=2-4 per-host=3-5  : simulated 7.8 us among 3x3 at 64K, binomial 13.3
gather          any  any  48K    binomial                hosts=5-11 per-host=3-5  : simulated 11.6 us among 6x3 at 512, linear 11.3
gather          any  any  any    linear                  hosts=5-11 per-host=3-5  : simulated 563 us among 6x3 at 8M, binomial 563
gather          any  any  96K    binomial                hosts=12-23 per-host=3-5  : simulated 14.9 us among 13x3 at 512, linear 21.8
gather          any  any  any    linear                  hosts=12-23 per-host=3-5  : simulated 623 us among 13x3 at 8M, binomial 647
gather          any  any  384K   binomial                hosts=24- per-host=3-5  : simulated 18.3 us among 24x3 at 1K, linear 38.3
gather          any  any  any    linear                  hosts=24- per-host=3-5  : simulated 1290 us among 24x3 at 16M, binomial 1312
gather          any  any  24K    binomial                hosts=2-4 per-host=6-11  : simulated 9.02 us among 3x6 at 256, linear 9.8
gather          any  any  any    linear                  hosts=2-4 per-host=6-11  : simulated 227 us among 3x6 at 4M, binomial 254
gather          any  any  192K   binomial                hosts=5-11 per-host=6-11  : simulated 12.4 us among 6x6 at 1K, linear 18.8
gather          any  any  any    linear                  hosts=5-11 per-host=6-11  : simulated 1122 us among 6x6 at 16M, binomial 1149
gather          any  any  768K   binomial                hosts=12- per-host=6-11  : simulated 16.2 us among 16x6 at 2K, linear 48.8
gather          any  any  any    linear                  hosts=12- per-host=6-11  : simulated 2520 us among 16x6 at 32M, binomial 2547
gather          any  any  96K    binomial                hosts=2-4 per-host=12-  : simulated 9.75 us among 3x12 at 512, linear 15.8
gather          any  any  any    linear                  hosts=2-4 per-host=12-  : simulated 451 us among 3x12 at 8M, binomial 506
gather          any  any  384K   binomial                hosts=5-11 per-host=12-  : simulated 13.1 us among 6x12 at 1K, linear 33.8
gather          any  any  any    linear                  hosts=5-11 per-host=12-  : simulated 1122 us among 6x12 at 16M, binomial 1177
gather          any  any  768K   binomial                hosts=12-23 per-host=12-  : simulated 16.4 us among 13x12 at 2K, linear 75.8
gather          any  any  any    linear                  hosts=12-23 per-host=12-  : simulated 2482 us among 13x12 at 32M, binomial 2537
gather          any  any  3M     binomial                hosts=24- per-host=12-  : simulated 19.9 us among 24x12 at 4K, linear 142
gather          any  any  any    linear                  hosts=24- per-host=12-  : simulated 5149 us among 24x12 at 64M, binomial 5204
scatter         any  any  any    linear                  hosts=2-6 per-host=2-3  : simulated 10.1 us among 4x2 at 64K, binomial 16.3
scatter         any  any  24K    binomial                hosts=7-12 per-host=2-3  : simulated 11.6 us among 8x2 at 256, linear 11
scatter         any  any  any    linear                  hosts=7-12 per-host=2-3  : simulated 324 us among 8x2 at 4M, binomial 337
scatter         any  any  96K    binomial                hosts=13-23 per-host=2-3  : simulated 12.1 us among 13x2 at 512, linear 16
scatter         any  any  any    linear                  hosts=13-23 per-host=2-3  : simulated 650 us among 13x2 at 8M, binomial 663
scatter         any  any  192K   binomial                hosts=24- per-host=2-3  : simulated 15.5 us among 24x2 at 1K, linear 27
scatter         any  any  any    linear                  hosts=24- per-host=2-3  : simulated 1316 us among 24x2 at 16M, binomial 1330
scatter         any  any  48K    binomial                hosts=2-7 per-host=4-7  : simulated 9.06 us among 4x4 at 512, linear 10.4
scatter         any  any  any    linear                  hosts=2-7 per-host=4-7  : simulated 560 us among 4x4 at 8M, binomial 573
scatter         any  any  192K   binomial                hosts=8-15 per-host=4-7  : simulated 12.9 us among 12x4 at 1K, linear 26.4
scatter         any  any  any    linear                  hosts=8-15 per-host=4-7  : simulated 1287 us among 12x4 at 16M, binomial 1300
scatter         any  any  384K   binomial                hosts=16-31 per-host=4-7  : simulated 15.7 us among 16x4 at 1K, linear 34.4
scatter         any  any  any    linear                  hosts=16-31 per-host=4-7  : simulated 1315 us among 16x4 at 16M, binomial 1328
scatter         any  any  768K   binomial                hosts=32- per-host=4-7  : simulated 19.1 us among 32x4 at 2K, linear 66.4
scatter         any  any  any    linear                  hosts=32- per-host=4-7  : simulated 2657 us among 32x4 at 32M, binomial 2670
scatter         any  any  96K    binomial                hosts=2-3 per-host=8-  : simulated 6.96 us among 2x12 at 512, linear 12
scatter         any  any  any    linear                  hosts=2-3 per-host=8-  : simulated 499 us among 2x12 at 8M, binomial 575
scatter         any  any  192K   binomial                hosts=4-5 per-host=8-  : simulated 10.3 us among 4x12 at 1K, linear 24
scatter         any  any  any    linear                  hosts=4-5 per-host=8-  : simulated 1170 us among 4x12 at 16M, binomial 1077
scatter         any  any  384K   binomial                hosts=6-11 per-host=8-  : simulated 13.6 us among 7x12 at 1K, linear 42
scatter         any  any  any    linear                  hosts=6-11 per-host=8-  : simulated 1314 us among 7x12 at 16M, binomial 1220
scatter         any  any  768K   binomial                hosts=12-23 per-host=8-  : simulated 17 us among 13x12 at 2K, linear 78
scatter         any  any  any    linear                  hosts=12-23 per-host=8-  : simulated 2641 us among 13x12 at 32M, binomial 2548
scatter         any  any  3M     binomial                hosts=24- per-host=8-  : simulated 20.4 us among 24x12 at 4K, linear 144
scatter         any  any  any    linear                  hosts=24- per-host=8-  : simulated 5308 us among 24x12 at 64M, binomial 5215
alltoall        any  any  any    pairwise                hosts=2 per-host=2-3  : simulated 11.7 us among 2x2 at 64K, direct 11.2
alltoall        any  any  1536K  direct                  hosts=3-6 per-host=2-3  : simulated 7.48 us among 4x2 at 2K, pairwise 7.85
alltoall        any  any  any    pairwise                hosts=3-6 per-host=2-3  : simulated 4054 us among 4x2 at 32M, direct 4043
alltoall        any  any  12K    bruck                   hosts=7-12 per-host=2-3  : simulated 14.3 us among 8x2 at 256, direct 15.4
alltoall        any  any  any    pairwise                hosts=7-12 per-host=2-3  : simulated 625 us among 8x2 at 4M, direct 604
alltoall        any  any  48K    bruck                   hosts=13-31 per-host=2-3  : simulated 17.7 us among 16x2 at 512, direct 31.4
alltoall        any  any  any    pairwise                hosts=13-31 per-host=2-3  : simulated 1296 us among 16x2 at 8M, direct 1275
alltoall        any  any  96K    bruck                   hosts=32- per-host=2-3  : simulated 21.1 us among 32x2 at 512, direct 63.4
alltoall        any  any  any    pairwise                hosts=32- per-host=2-3  : simulated 1360 us among 32x2 at 8M, direct 1318
alltoall        any  any  any    pairwise                hosts=2-3 per-host=4-7  : simulated 15.6 us among 2x4 at 64K, direct 15.6
alltoall        any  any  12K    bruck                   hosts=4-6 per-host=4-7  : simulated 15 us among 5x4 at 256, direct 18.2
alltoall        any  any  3M     direct                  hosts=4-6 per-host=4-7  : simulated 38.5 us among 5x4 at 128K, pairwise 46.4
alltoall        any  any  any    pairwise                hosts=4-6 per-host=4-7  : simulated 17207 us among 5x4 at 64M, direct 17197
alltoall        any  any  48K    bruck                   hosts=7-23 per-host=4-7  : simulated 18.5 us among 12x4 at 512, direct 46.2
alltoall        any  any  any    pairwise                hosts=7-23 per-host=4-7  : simulated 2603 us among 12x4 at 8M, direct 2478
alltoall        any  any  96K    bruck                   hosts=24- per-host=4-7  : simulated 21.8 us among 24x4 at 512, direct 94.2
alltoall        any  any  any    pairwise                hosts=24- per-host=4-7  : simulated 2697 us among 24x4 at 8M, direct 2586
alltoall        any  any  12K    bruck                   hosts=2 per-host=8-  : simulated 12.5 us among 2x12 at 256, pairwise 17.4
alltoall        any  any  any    pairwise                hosts=2 per-host=8-  : simulated 2030 us among 2x12 at 4M, direct 2030
alltoall        any  any  24K    bruck                   hosts=3-6 per-host=8-  : simulated 15.8 us among 4x12 at 256, direct 41.4
alltoall        any  any  6M     direct                  hosts=3-6 per-host=8-  : simulated 194 us among 4x12 at 256K, pairwise 241
alltoall        any  any  any    pairwise                hosts=3-6 per-host=8-  : simulated 48346 us among 4x12 at 64M, direct 48335
alltoall        any  any  48K    bruck                   hosts=7-23 per-host=8-  : simulated 22.6 us among 12x12 at 512, direct 137
alltoall        any  any  any    pairwise                hosts=7-23 per-host=8-  : simulated 8063 us among 12x12 at 8M, direct 7392
alltoall        any  any  96K    bruck                   hosts=24- per-host=8-  : simulated 25.9 us among 24x12 at 512, direct 281
alltoall        any  any  any    pairwise                hosts=24- per-host=8-  : simulated 8060 us among 24x12 at 8M, direct 7725
barrier         any  any  any    direct                  hosts=2-6 per-host=2  : simulated 10 us among 4x2 at 0, dissemination 10.9
barrier         any  any  any    dissemination           hosts=7- per-host=2  : simulated 17.5 us among 13x2 at 0, direct 28
barrier         any  any  any    dissemination           hosts=2- per-host=3-  : simulated 18.2 us among 7x6 at 0, direct 42.8
"""

# More ranks of one host than were measured.
SHARED: Final = """
allreduce       self,inproc,shm  17-    3K    recursive_doubling  crowded=no  : simulated 6.24 us among 31 at 128, circulant 8.07
allreduce       self,inproc,shm  17-    48K   circulant           crowded=no  : simulated 13.1 us among 31 at 8K, tree 19
allreduce       self,inproc,shm  17-    any   two_shot            crowded=no  : simulated 5061 us among 31 at 8M, ring 5061
reduce          self,inproc,shm  17-    any   binomial            crowded=no  : simulated 157 us among 31 at 64K, direct 279
reduce_scatter  self,inproc,shm  17-    96K   circulant           crowded=no  : simulated 4.69 us among 31 at 512, direct 13.4
reduce_scatter  self,inproc,shm  17-    6M    ring                crowded=no  : simulated 163 us among 31 at 512K, circulant 181
reduce_scatter  self,inproc,shm  17-    any   direct              crowded=no  : simulated 20639 us among 31 at 64M, ring 20164
allgather       self,inproc,shm  17-    24K   circulant           crowded=no  : simulated 4.59 us among 31 at 256, direct 13
allgather       self,inproc,shm  17-    any   direct              crowded=no  : simulated 1299 us among 31 at 4M, circulant 1299
broadcast       self,inproc,shm  17-23  1536  binomial            crowded=no  : simulated 4.05 us among 17 at 64, direct 4.71
broadcast       self,inproc,shm  17-23  any   direct              crowded=no  : simulated 195 us among 17 at 1M, binomial 293
broadcast       self,inproc,shm  24-    6K    binomial            crowded=no  : simulated 4.7 us among 32 at 128, direct 7.73
broadcast       self,inproc,shm  24-    any   direct              crowded=no  : simulated 678 us among 32 at 2M, binomial 678
gather          self,inproc,shm  17-    48K   binomial            crowded=no  : simulated 4.09 us among 31 at 512, linear 7.55
gather          self,inproc,shm  17-    any   linear              crowded=no  : simulated 846 us among 31 at 8M, binomial 841
scatter         self,inproc,shm  17-23  12K   binomial            crowded=no  : simulated 4.05 us among 17 at 256, linear 4.73
scatter         self,inproc,shm  17-23  any   linear              crowded=no  : simulated 437 us among 17 at 4M, binomial 503
scatter         self,inproc,shm  24-    48K   binomial            crowded=no  : simulated 4.69 us among 32 at 512, linear 7.75
scatter         self,inproc,shm  24-    any   linear              crowded=no  : simulated 859 us among 32 at 8M, binomial 961
alltoall        self,inproc,shm  17-    12K   bruck               crowded=no  : simulated 4.72 us among 31 at 256, direct 13.1
alltoall        self,inproc,shm  17-    any   direct              crowded=no  : simulated 1299 us among 31 at 4M, pairwise 1299
barrier         self,inproc,shm  17-    any   dissemination       crowded=no  : simulated 4.5 us among 31 at 0, direct 13.3
"""

# One rank a host, or an unknown network.
FLAT: Final = """
allreduce       any  1-15    12K    one_shot  : simulated 10.5 us among 8 at 256, claim 10.5
allreduce       any  1-15    384K   two_shot  : simulated 26.9 us among 8 at 64K, halving_doubling 36.2
allreduce       any  1-15    3M     circulant  : simulated 210 us among 8 at 1M, halving_doubling 205
allreduce       any  1-15    any    ring  : simulated 9399 us among 8 at 64M, two_shot 9399
allreduce       any  16-47   12K    recursive_doubling  : simulated 18.8 us among 24 at 256, claim 27.1
allreduce       any  16-47   96K    circulant  : simulated 37.1 us among 24 at 32K, two_shot 53.3
allreduce       any  16-47   384K   two_shot  : simulated 65.4 us among 24 at 128K, circulant 63.3
allreduce       any  16-47   6M     circulant  : simulated 247 us among 24 at 1M, two_shot 305
allreduce       any  16-47   any    ring  : simulated 10294 us among 24 at 64M, two_shot 10294
allreduce       any  48-     12K    recursive_doubling  : simulated 27.7 us among 65 at 256, circulant 41.7
allreduce       any  48-     6M     circulant  : simulated 115 us among 65 at 256K, two_shot 164
allreduce       any  48-     48M    tree  : simulated 2918 us among 65 at 16M, two_shot 3080
allreduce       any  48-     any    ring  : simulated 42293 us among 65 at 256M, two_shot 42293
reduce          any  1-19    6K     direct  : simulated 8.54 us among 10 at 128, binomial 13
reduce          any  1-19    any    binomial  : simulated 1142 us among 10 at 2M, direct 2462
reduce          any  20-47   768    direct  : simulated 16.6 us among 26 at 64, binomial 18.3
reduce          any  20-47   any    binomial  : simulated 830 us among 26 at 1M, direct 3555
reduce          any  48-     any    binomial  : simulated 240 us among 65 at 64K, direct 896
reduce_scatter  any  1-9     384K   direct  : simulated 7.42 us among 5 at 1K, circulant 11.1
reduce_scatter  any  1-9     1536K  circulant  : simulated 91.2 us among 5 at 512K, direct 91.8
reduce_scatter  any  1-9     any    ring  : simulated 3373 us among 5 at 32M, direct 3403
reduce_scatter  any  10-47   6M     circulant  : simulated 15.5 us among 21 at 4K, direct 23.8
reduce_scatter  any  10-47   any    ring  : simulated 8023 us among 21 at 64M, direct 8213
reduce_scatter  any  48-     48M    circulant  : simulated 24.6 us among 65 at 16K, direct 69.3
reduce_scatter  any  48-     any    ring  : simulated 33116 us among 65 at 256M, circulant 33459
allgather       any  1-14    1536K  direct  : simulated 8.03 us among 8 at 2K, circulant 11.1
allgather       any  1-14    any    ring  : simulated 2366 us among 8 at 32M, circulant 2366
allgather       any  15-47   96K    circulant  : simulated 14.7 us among 24 at 512, direct 24
allgather       any  15-47   3M     direct  : simulated 46.7 us among 24 at 512K, circulant 56.1
allgather       any  15-47   any    ring  : simulated 5162 us among 24 at 64M, circulant 5162
allgather       any  48-     48M    circulant  : simulated 22.6 us among 65 at 16K, direct 65
allgather       any  48-     any    ring  : simulated 21161 us among 65 at 256M, direct 21161
broadcast       any  1-6     24K    direct  : simulated 5.32 us among 4 at 256, binomial 7.64
broadcast       any  1-6     384K   binomial  : simulated 18.1 us among 4 at 64K, direct 20
broadcast       any  1-6     any    scatter_allgather  : simulated 2017 us among 4 at 16M, binomial 2688
broadcast       any  7-11    24K    direct  : simulated 7.82 us among 9 at 256, binomial 11.5
broadcast       any  7-11    1536K  binomial  : simulated 52.8 us among 9 at 128K, scatter_allgather 78.7
broadcast       any  7-11    any    scatter_allgather  : simulated 4776 us among 9 at 32M, binomial 10741
broadcast       any  12-21   12K    direct  : simulated 11.3 us among 16 at 256, binomial 14.3
broadcast       any  12-21   3M     binomial  : simulated 56.1 us among 16 at 128K, scatter_allgather 125
broadcast       any  12-21   any    scatter_allgather  : simulated 10070 us among 16 at 64M, binomial 21479
broadcast       any  22-47   6M     binomial  : simulated 16 us among 27 at 4K, direct 17.1
broadcast       any  22-47   any    scatter_allgather  : simulated 10344 us among 27 at 64M, binomial 26847
broadcast       any  48-95   24M    binomial  : simulated 21.4 us among 63 at 8K, direct 44.9
broadcast       any  48-95   any    scatter_allgather  : simulated 24395 us among 63 at 128M, binomial 64428
broadcast       any  96-255  96M    binomial  : simulated 30 us among 96 at 16K, direct 129
broadcast       any  96-255  any    scatter_allgather  : simulated 55134 us among 96 at 256M, binomial 150328
broadcast       any  256-    384M   binomial  : simulated 48.4 us among 256 at 32K, direct 673
broadcast       any  256-    any    scatter_allgather  : simulated 271127 us among 256 at 512M, binomial 343601
gather          any  1-22    any    linear  : simulated 9.74 us among 12 at 64K, binomial 15.7
gather          any  23-47   48K    binomial  : simulated 14.7 us among 28 at 512, linear 17.3
gather          any  23-47   any    linear  : simulated 651 us among 28 at 8M, binomial 651
gather          any  48-127  192K   binomial  : simulated 20.9 us among 64 at 1K, linear 35.3
gather          any  48-127  any    linear  : simulated 1325 us among 64 at 16M, binomial 1325
gather          any  128-    768K   binomial  : simulated 24.3 us among 128 at 2K, linear 67.3
gather          any  128-    any    linear  : simulated 2667 us among 128 at 32M, binomial 2667
scatter         any  1-23    any    linear  : simulated 10.3 us among 12 at 64K, binomial 17.3
scatter         any  24-47   24K    binomial  : simulated 14.7 us among 28 at 256, linear 17.3
scatter         any  24-47   any    linear  : simulated 340 us among 28 at 4M, binomial 342
scatter         any  48-127  192K   binomial  : simulated 20.9 us among 64 at 1K, linear 35.3
scatter         any  48-127  any    linear  : simulated 1338 us among 64 at 16M, binomial 1338
scatter         any  128-    768K   binomial  : simulated 24.3 us among 128 at 2K, linear 67.3
scatter         any  128-    any    linear  : simulated 2680 us among 128 at 32M, binomial 2680
alltoall        any  1-18    192K   direct  : simulated 10 us among 10 at 1K, pairwise 10
alltoall        any  1-18    any    pairwise  : simulated 1235 us among 10 at 16M, direct 1225
alltoall        any  19-47   24K    bruck  : simulated 17.6 us among 26 at 256, direct 26
alltoall        any  19-47   any    pairwise  : simulated 350 us among 26 at 4M, direct 340
alltoall        any  48-255  96K    bruck  : simulated 21.1 us among 64 at 512, direct 64
alltoall        any  48-255  any    pairwise  : simulated 688 us among 64 at 8M, direct 678
alltoall        any  256-    384K   bruck  : simulated 28.1 us among 256 at 1K, direct 256
alltoall        any  256-    any    pairwise  : simulated 1353 us among 256 at 16M, direct 1348
barrier         any  1-11    any    direct  : simulated 8.3 us among 6 at 0, dissemination 10.9
barrier         any  12-     any    dissemination  : simulated 17.5 us among 26 at 0, direct 28.3
"""
