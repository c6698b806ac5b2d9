// Operations that are pooled: who brings which memory, and their way through the Pool.
#include <algorithm>

#include "schedule/run.hpp"

namespace collectives {

namespace {

// From this size on.
constexpr std::uint64_t smallest_pooled = 4 << 10;
// Where nobody knows how large the last cache is: results of all ranks together that are larger than this go
// around the caches.
constexpr std::uint64_t most_cached = 4 << 20;

}  // namespace

bool Run::may_be_pooled() const {
    // All that it depends on is the same on every rank.
    const Program& program = operation().program();
    const bool busy = workshop_.crowded || program.size <= static_cast<int>(Pool::most_with_cores);
    return has(Mechanism::pool) && program.pooled && workshop_.pooling && busy && operation().out_bytes() >= smallest_pooled &&
           (program.size == 2 || !rounds_each_time(operation().dtype()));
}

bool Run::is_in_heap() const {
    return workshop_.arena->in_heap(request_.in, operation().in_bytes()) &&
           workshop_.arena->in_heap(request_.out, operation().out_bytes());
}

bool Run::advance_pool() {
    if (!in_pool_) {
        in_pool_ = true;
        if (!workshop_.pool) {
            workshop_.pool = std::make_unique<Pool>(operation().program().rank, arenas(), workshop_.crowded,
                                                     has(Mechanism::pool_copies));
        }
        const Pool::Kernel kernel{operation().kernel(Stores::cached), scale_, operation().unit()};
        const std::uint64_t bytes = operation().out_bytes();
        // In place a result goes where the caches still hold what was added.
        const auto size = static_cast<std::uint64_t>(operation().program().size);
        const bool around =
            !is_in_place() && (workshop_.results.knows_caches() ? results_.stores == Stores::streaming
                                                                : bytes * size > most_cached);
        workshop_.pool->open(request_.in, request_.out, bytes, kernel,
                             around ? Stores::streaming : Stores::cached);
    }
    owing_.clear();
    const bool moved = workshop_.pool->advance(owing_);
    if (!owing_.empty()) wake(owing_);
    return moved;
}

}  // namespace collectives
