#include "shm/joint.hpp"

#include "base/page.hpp"

namespace collectives {

std::size_t JointCopy::middle(std::size_t n) {
    // The kernel looks up each page of a half, so halves begin at a page.
    return n / 2 / page_size * page_size;
}

void JointCopy::open(std::uint64_t place, std::int32_t grant) {
    shared_.place.store(place, std::memory_order_relaxed);
    shared_.grant.store(grant, std::memory_order_relaxed);
    shared_.back.store(word(State::open), std::memory_order_release);
}

void JointCopy::end(bool written) {
    shared_.back.store(word(written ? State::written : State::open), std::memory_order_release);
}

bool JointCopy::move(State from, State to) {
    if (!is(from)) return false;  // the sender calls often: a load does not move the cache line
    std::uint64_t expected = word(from);
    return shared_.back.compare_exchange_strong(expected, word(to), std::memory_order_acq_rel);
}

}  // namespace collectives
