// The control links of a job: which ranks exchange heartbeats and notices.
//
// Invariant: a pure function; if it gives b as a neighbour of a, it gives a as a neighbour of b.
#pragma once

#include <vector>

namespace collectives {

// Ranks at the distances 1, 4, 16, ... in both directions around the ring of ranks, ascending. A rank of 64
// has six neighbours, one of 1024 has ten; a notice reaches every rank over at most 5 and 8 links.
std::vector<int> control_neighbours(int rank, int size);

}  // namespace collectives
