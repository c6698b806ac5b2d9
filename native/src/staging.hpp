// Copies into staging memory that another core has just read.
//
// How fast such lines can be overwritten depends on where the reader's core is: between near cores plain
// stores are the fastest, between far ones they run at a fifteenth of the speed of streaming stores. So both
// are timed as they are used.
#pragma once

#include <cstddef>

#include "faster.hpp"

namespace collectives {

class StagingCopy {
  public:
    void operator()(std::byte* dst, const std::byte* src, std::size_t n);

  private:
    static constexpr std::size_t smallest_timed = 8 << 10;  // below, streaming stores do not pay anywhere

    Faster faster_{smallest_timed};
};

}  // namespace collectives
