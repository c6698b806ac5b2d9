// Which of two modes of moving bytes is the faster one, measured as they are used.
//
// Machines differ in it, a virtual machine may change within seconds, and sizes differ as there are caches. A
// mode may be slow for a while only because others have had the caches. So it is left only after the other
// mode and then it have been tried once more, each long enough for the caches to be as it leaves them.
//
// Invariant: the choice changes the speed only. One user at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace collectives {

class Faster {
  public:
    using Clock = std::chrono::steady_clock;

    // For `smallest` bytes or more.
    explicit Faster(std::size_t smallest) : smallest_(smallest) {}

    // The mode for the next n bytes, 0 or 1.
    std::size_t next(std::size_t n);
    // How long n bytes took in that mode.
    void took(std::size_t n, std::size_t mode, std::chrono::duration<double> duration);

  private:
    struct Choice {
        std::array<double, 2> rate{};  // bytes per second
        bool settled = false;          // on the chosen one
        std::size_t chosen = 0;
        std::uint32_t interval = 0;  // between two trials, in trials
        std::uint32_t uses = 0;      // since the last trial,
        std::uint32_t behind = 0;    // the last of which found it the slower one
        std::size_t tried = 0;       // otherwise
        std::uint32_t trial = 0;     // so many uses on end,
        std::uint32_t left = 0;      // so many of them from now on,
        bool confirm = false;        // and then the chosen one

        void start_trial(std::size_t mode, std::size_t n);
        std::size_t settle(std::size_t mode);
        std::size_t next(std::size_t n);
    };

    Choice& choice_for(std::size_t n);

    std::size_t smallest_;
    std::array<Choice, 4> choices_;  // by classes of sizes
};

}  // namespace collectives
