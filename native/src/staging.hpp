// Copies into staging memory that another core has just read.
//
// How fast such lines can be overwritten depends on where the reader's core is: between near cores plain
// stores are the fastest, between far ones they run at a fifteenth of the speed of streaming stores, and a
// virtual machine moves between the two within seconds. So both are timed as they are used.
//
// Invariant: the choice changes the speed only. One user at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace collectives {

class StagingCopy {
  public:
    void operator()(std::byte* dst, const std::byte* src, std::size_t n);

  private:
    static constexpr std::size_t methods = 2;
    struct Choice {
        std::array<double, methods> rate{};  // bytes per second, a moving average; 0: never tried
        std::uint32_t copies = 0;
    };

    std::array<Choice, 4> choices_;  // by size
};

}  // namespace collectives
