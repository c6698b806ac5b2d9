// Which of two ways to move bytes is the faster one, found out as they are used.
//
// Machines differ in it, and a virtual machine may change within seconds. Sizes do, too, as there are caches.
//
// Invariant: the choice changes the speed only. One user at a time, who says how long it took before the
// next.
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

    // The way to go with n bytes, 0 or 1, from now on.
    std::size_t begin(std::size_t n);
    // They have been moved.
    void end();

  private:
    struct Choice {
        std::array<double, 2> rate{};  // bytes per second
        std::uint32_t uses = 0;
    };

    std::size_t smallest_;
    std::array<Choice, 4> choices_;  // by size

    std::size_t class_ = 0;  // of the size at hand
    std::size_t bytes_ = 0;
    std::size_t way_ = 0;
    bool looking_ = false;  // how fast a way is that has not been in use
    Clock::time_point began_;
};

}  // namespace collectives
