// Whether results are stored through the caches or around them.
//
// A plain store to a line that is not in the cache reads the line first, so results that do not stay in the
// caches are written around them. Whether they stay follows from their size and the caches. One case is
// timed: results somewhat larger than the caches of ranks that have a core each. A part of these stays from
// one call to the next, and whether that pays depends on where the cores lie, which changes on virtual
// machines.
//
// Invariant: the choice changes the speed only. When there are trials, and which stores are tried first,
// follows from the calls alone: in a trial all ranks use the same stores, whatever each has chosen before.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/copy.hpp"

namespace collectives {

inline constexpr std::uint64_t unknown_size = ~std::uint64_t{0};

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
        bool timed = false;  // the caller reports how long it takes
    };

    // `cache`: this rank's share of the last cache, bytes; 0: unknown. `oversubscribed`: ranks share cores,
    // so each leaves the caches to the next one, nothing of what does not fit stays, and nothing is timed.
    explicit ResultStores(std::uint64_t cache = 0, bool oversubscribed = false);

    bool knows_caches() const { return fitting_ != unknown_size; }
    // How the next one writes its results.
    Turn next(const Work& work);
    // How long it took.
    void took(const Work& work, Stores stores, Clock::duration taken);

  private:
    struct Kept {
        Work work;
        Stores chosen = Stores::streaming;
        std::uint32_t interval = 0;                 // uses from one trial to the next
        std::uint32_t uses = 0;                     // since the last one
        std::array<Clock::duration, 2> shortest{};  // since then, by Stores
    };

    bool fits(const Work& work) const;
    // Whether a part of what does not fit may stay all the same.
    bool is_timed(const Work& work) const;
    Kept* find(const Work& work);
    // After a trial.
    static void settle(Kept& kept);

    std::uint64_t fitting_;  // arrays of fewer bytes stay in the caches, beside those of others
    bool oversubscribed_;
    std::array<Kept, 32> kept_;
    std::size_t oldest_ = 0;
};

}  // namespace collectives
