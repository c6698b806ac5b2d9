// Control words of communicators that have ended, which other ranks may still have mapped.
//
// Invariant: a block of words is used again only when no stream of this process waits for one of them, and
// when all sockets to the ranks that had mapped it have ended. A rank ends its socket after it has closed its
// mapping, and the kernel does so when the rank dies.
#pragma once

#include <memory>
#include <vector>

#include "base/unique_fd.hpp"
#include "cuda/heap.hpp"
#include "cuda/signal.hpp"

namespace collectives::leader {

struct Grave {
    std::shared_ptr<const cuda::Block> words;
    std::vector<UniqueFd> sockets;
    std::vector<std::shared_ptr<cuda::Signal>> pending;  // of streams that may wait for the words
};

// Keep the words as long as necessary. Everything of others that this rank had mapped is closed.
void bury(Grave grave);
// Let go what nobody has mapped any more; returns how many blocks are left.
std::size_t unearth();

}  // namespace collectives::leader
