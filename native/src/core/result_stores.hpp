// Chooses plain or streaming stores for results.
//
// A plain store to a line that is not in a cache reads the line first. So results that do not stay in the
// caches are written with streaming stores, which bypass them. Whether results stay is computed from their
// size and the caches. Only one case is timed: results somewhat larger than the caches, if each rank has a
// core. A part of such results stays from one call to the next; whether this helps depends on the distance of
// the cores, which changes on virtual machines.
//
// Invariant: the choice changes the speed only. The times of trials, and the stores that are tried first,
// depend only on the calls: in a trial all ranks use the same stores, whatever each has chosen before.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

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

    // `cache`: bytes of this rank's share of the last-level cache; 0: unknown. `oversubscribed`: ranks share
    // cores, so each rank overwrites the caches of another one; larger results never stay, and nothing is
    // timed.
    explicit ResultStores(std::uint64_t cache = 0, bool oversubscribed = false);

    bool knows_caches() const { return fitting_ != unknown_size; }
    // The stores for the next operation of this kind. `call_bytes`: bytes of the results of its whole call,
    // which may consist of several operations.
    Turn next(const Work& work, std::uint64_t call_bytes = 0);
    // Report how long the operation took.
    void took(const Work& work, Stores stores, Clock::duration taken);

  private:
    struct Kept {
        Work work;
        Stores chosen = Stores::streaming;
        std::uint32_t interval = 0;                 // uses from one trial to the next
        std::uint32_t uses = 0;                     // since the last trial
        std::array<Clock::duration, 2> shortest{};  // time since the last trial, by Stores
    };

    bool fits(const Work& work) const;
    // Whether a part of results that do not fit may stay in the caches.
    bool is_timed(const Work& work) const;
    Kept* find(const Work& work);
    // Choose the stores after a trial.
    static void settle(Kept& kept);

    std::uint64_t fitting_;  // arrays of fewer bytes stay in the caches, beside the arrays of other ranks
    bool oversubscribed_;
    std::vector<Kept> kept_;  // up to 32; most communicators have none
    std::size_t oldest_ = 0;
};

}  // namespace collectives
