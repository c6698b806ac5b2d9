// Which of two ways to move bytes is the faster one, found out as they are used.
//
// Machines differ in it, and a virtual machine may change within seconds. Sizes do, too, as there are caches.
// A way may be slow for a while only because others have had the caches. So it is left only after the other
// one and then it have been tried once more, each long enough for the caches to be as it leaves them; unless
// one of them takes several times as long as the other.
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

    // The way to go with the next n bytes, 0 or 1.
    std::size_t next(std::size_t n);
    // How long n bytes took on that way.
    void took(std::size_t n, std::size_t way, Clock::duration taken);

    // Sizes come in so many classes.
    static constexpr std::size_t classes = 4;
    static std::size_t class_of(std::size_t n, std::size_t smallest);
    // What each way costs later on, in seconds a byte, for sizes of that class. As long as it is not known of
    // both, 0, it does not count.
    void add(std::size_t size_class, const std::array<double, 2>& later);

  private:
    struct Choice {
        std::array<double, 2> rate{};  // bytes per second
        std::array<double, 2> later{};
        bool settled = false;  // on the chosen one
        std::size_t chosen = 0;
        std::uint32_t interval = 0;  // between two trials, in trials
        std::uint32_t uses = 0;      // since the last one,
        std::uint32_t behind = 0;    // the last of which found it the slower one
        std::size_t tried = 0;       // otherwise
        std::uint32_t looks = 0;     // so many times on end,
        std::uint32_t left = 0;      // so many of them from now on,
        bool again = false;          // and then the chosen one

        double cost(std::size_t way) const { return 1 / rate[way] + later[way]; }
        void look(std::size_t way, std::size_t n);
        // Whether the way that is tried has lost already.
        bool is_hopeless() const;
        // Go that way from now on.
        std::size_t settle(std::size_t way);
        std::size_t next(std::size_t n);
    };

    Choice& choice_for(std::size_t n) { return choices_[class_of(n, smallest_)]; }

    std::size_t smallest_;
    std::array<Choice, classes> choices_;
};

}  // namespace collectives
