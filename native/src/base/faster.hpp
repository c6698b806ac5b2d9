// Chooses the faster one of two modes of moving bytes, by measuring them while they are used.
//
// The faster mode depends on the machine and, because of the caches, on the size; on a virtual machine it may
// change within seconds. A mode may be slow for a while only because other programs have used the caches. So
// before the chosen mode is left, first the other mode and then the chosen one are tried again, each long
// enough to fill the caches in its own way.
//
// Invariant: the choice changes the speed only. Used by one thread at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace collectives {

class Faster {
  public:
    using Clock = std::chrono::steady_clock;

    // For moves of `smallest` bytes or more.
    explicit Faster(std::size_t smallest) : smallest_(smallest) {}

    // The mode for the next n bytes, 0 or 1.
    std::size_t next(std::size_t n);
    // Reports the time that n bytes took in that mode.
    void took(std::size_t n, std::size_t mode, std::chrono::duration<double> duration);

  private:
    struct Choice {
        std::array<double, 2> rate{};  // bytes per second
        bool settled = false;          // no trial is under way: the chosen mode is used
        std::size_t chosen = 0;
        std::uint32_t interval = 0;  // from one trial to the next, in lengths of a trial
        std::uint32_t uses = 0;      // since the last trial
        std::uint32_t behind = 0;    // latest uses in a row at which the chosen mode looked clearly slower
        std::size_t tried = 0;       // the mode on trial
        std::uint32_t trial = 0;     // length of a trial, in uses
        std::uint32_t left = 0;      // uses that are left of the trial
        bool confirm = false;        // whether a trial of the chosen mode follows

        void start_trial(std::size_t mode, std::size_t n);
        std::size_t settle(std::size_t mode);
        std::size_t next(std::size_t n);
    };

    Choice& choice_for(std::size_t n);

    std::size_t smallest_;
    std::array<Choice, 4> choices_;  // one for each class of sizes
};

}  // namespace collectives
