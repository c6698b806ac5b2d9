// Operations that are pooled: who brings which memory, and their way through the Pool.
#include <algorithm>

#include "run.hpp"

namespace collectives {

namespace {

// From this size on.
constexpr std::uint64_t smallest_pooled = 4 << 10;
// Results of all ranks together that are larger than this go around the caches: with the inputs they would
// not fit.
constexpr std::uint64_t most_cached = 4 << 20;
// What a rank says of itself: how many of these operations it has begun, and of the last ones, the very last
// in the lowest bit, whether their arrays are in its heap. No rank is further ahead of another one than so.
constexpr unsigned kinds = 32;
static_assert(most_at_a_time <= kinds);

std::uint64_t begun(std::uint64_t before, bool in_heap) {
    const std::uint64_t count = (before >> kinds) + 1;
    const auto last = static_cast<std::uint32_t>(before) << 1;
    return count << kinds | last | (in_heap ? 1 : 0);
}

bool rounds_each_time(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

}  // namespace

bool Run::may_be_pooled() const {
    // All that it depends on is the same on every rank.
    const Program& program = operation().program();
    const bool busy = workshop_.crowded || program.size <= static_cast<int>(Pool::most_with_cores);
    return program.pooled && workshop_.pooling && busy && operation().out_bytes() >= smallest_pooled &&
           (program.size == 2 || !rounds_each_time(operation().dtype()));
}

void Run::propose_pooling(std::span<const std::unique_ptr<Run>> earlier) {
    pool_ = Place::before;
    pooled_before_ = nullptr;
    if (!may_be_pooled()) return;
    const auto last = std::find_if(earlier.rbegin(), earlier.rend(),
                                   [](const auto& run) { return run->pooling_ != Pooling::no; });
    if (last != earlier.rend()) pooled_before_ = last->get();
    Arena& arena = *workshop_.arena;
    const bool in_heap = arena.in_heap(request_.in, operation().in_bytes()) &&
                         arena.in_heap(request_.out, operation().out_bytes());
    std::atomic<std::uint64_t>& said = arena.header().begun;
    const std::uint64_t word = begun(said.load(std::memory_order_relaxed), in_heap);
    said.store(word, std::memory_order_release);
    number_ = static_cast<std::uint32_t>(word >> kinds);
    if (!in_heap) {
        pooling_ = Pooling::yes;
        ++unfinished_;
        return;
    }
    pooling_ = Pooling::open;
    proposed_ = false;
}

Run::Pooling Run::pooling_of(int peer) const {
    const std::uint64_t said =
        shared_memory(peer)->arena_of_peer()->header().begun.load(std::memory_order_acquire);
    const auto ahead = static_cast<std::int32_t>(static_cast<std::uint32_t>(said >> kinds) - number_);
    if (ahead < 0) return Pooling::open;
    return (said >> ahead & 1) != 0 ? Pooling::no : Pooling::yes;
}

void Run::settle_pooling() {
    const std::vector<int>& peers = operation().program().peers;
    if (!proposed_) {
        // They may sleep until they know. Those who bring ordinary memory tell by the tokens that they send.
        wake(peers);
        proposed_ = true;
    }
    Pooling settled = Pooling::no;
    for (const int peer : peers) {
        const Pooling theirs = pooling_of(peer);
        if (theirs == Pooling::yes) {
            pooling_ = Pooling::yes;
            ++unfinished_;
            return;
        }
        if (theirs == Pooling::open) settled = Pooling::open;
    }
    pooling_ = settled;
}

bool Run::advance_pool() {
    // One at a time, in the order in which they were begun: pieces have their numbers from it. One that
    // turned out not to be pooled may be over long before those that it is behind.
    while (pooled_before_ != nullptr && pooled_before_->pooling_ == Pooling::no) {
        pooled_before_ = pooled_before_->pooled_before_;
    }
    if (pooled_before_ != nullptr && !pooled_before_->complete()) return false;
    if (pool_ == Place::before) {
        if (!workshop_.pool) {
            workshop_.pool = std::make_unique<Pool>(operation().program().rank, arenas(), workshop_.crowded);
        }
        const Pool::Kernel kernel{kernels_[static_cast<std::size_t>(Stores::cached)], scale_,
                                  operation().unit()};
        const std::uint64_t bytes = operation().out_bytes();
        workshop_.pool->open(request_.in, request_.out, bytes, kernel,
                             bytes * static_cast<std::uint64_t>(operation().program().size) >= most_cached
                                 ? Stores::streaming
                                 : Stores::cached);
        pool_ = Place::inside;
    }
    owing_.clear();
    const bool moved = workshop_.pool->advance(owing_);
    if (!owing_.empty()) wake(owing_);
    if (workshop_.pool->is_complete()) {
        pool_ = Place::through;
        --unfinished_;
    }
    return moved;
}

}  // namespace collectives
