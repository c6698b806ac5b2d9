// Whether results go through the caches or around them.
//
// Around is right for what does not stay there: a plain store reads its line first. Of what is somewhat
// larger than the caches a part stays, from one call to the next, and that is worth more or less as the cores
// share a cache and a way to memory or have their own, which changes on virtual machines. And what should fit
// may not, where strangers use most of a cache that the kernel says is ours. So there both ways are timed,
// whole operations. What fits is read from the caches afterwards, which no operation sees: there a pass over
// the result is timed as well.
//
// Invariant: the choice changes the speed only. When there are trials, and which way is tried first, follows
// from the calls alone: in a trial all ranks go the same way, whatever each has chosen before.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/copy.hpp"

namespace collectives {

inline constexpr std::uint64_t unknown_size = ~std::uint64_t{0};

// A rank's share of its core's second cache and of the last one, bytes; 0 for that one where nobody knows.
struct Caches {
    std::uint64_t second = 0;
    std::uint64_t last = 0;
};

class ResultStores {
  public:
    using Clock = std::chrono::steady_clock;

    // Operations that write their results in the same way each time. `in`: bytes, 0 in place.
    struct Work {
        const void* program = nullptr;
        std::uint64_t in = 0;
        std::uint64_t out = 0;

        bool operator==(const Work&) const = default;
    };
    struct Turn {
        Stores stores = Stores::cached;
        bool timed = false;  // what it takes is to be told
        bool read = false;   // and what it takes to read the result afterwards
    };

    // `crowded`: ranks share cores, and each leaves the caches to the next one: of what does not fit nothing
    // stays, and nothing is tried, and what may fit goes around them until both ways have been tried.
    explicit ResultStores(Caches caches = {}, bool crowded = false);

    bool knows_caches() const { return fitting_ != unknown_size; }
    // How the next one writes them.
    Turn next(const Work& work);
    // How long it took; `reading`: its result, 0 where nobody asked.
    void took(const Work& work, Stores stores, Clock::duration taken, Clock::duration reading);

  private:
    struct Spent {
        Clock::duration operation = Clock::duration::max();
        Clock::duration reading = Clock::duration::max();
    };
    struct Kept {
        Work work;
        Stores chosen = Stores::cached;
        std::uint32_t interval = 0;    // uses from one trial to the next
        std::uint32_t uses = 0;        // since the last one
        std::array<Spent, 2> least{};  // since then, of each way
    };

    bool fits(const Work& work) const;
    // Whether what fits may not do so, or of what does not a part may stay all the same.
    bool is_doubtful(const Work& work) const;
    Kept* find(const Work& work);
    // After a trial.
    void settle(Kept& kept) const;

    std::uint64_t fitting_;   // arrays of fewer bytes stay in the caches, beside those of others
    std::uint64_t doubtful_;  // those of as many or more may not
    bool crowded_;
    std::array<Kept, 32> kept_;
    std::size_t oldest_ = 0;
};

// How long it takes to read so many bytes once.
ResultStores::Clock::duration time_reading(const std::byte* result, std::uint64_t n);

}  // namespace collectives
