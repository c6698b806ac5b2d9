// Copies into and out of staging memory that another core has just read or written.
//
// How fast a core overwrites lines that another core has read depends on where that core is. Between near
// cores plain stores are the fastest; between far ones streaming stores are up to four times as fast. So each
// sender times both as it stages. Plain stores leave the message in the caches, from where it is read; a
// streaming store has to be much faster to be worth it.
//
// A processor of AMD's Zen passes a line that another core has written to the core that reads it together
// with the right to write to it. If the reader writes a byte of that line back, the writer gets the line
// again at the price of a read. If it does not, both cores share the line in the end, and each line costs the
// writer a message to the other core. So what one core alone reads is marked, and its reader takes ownership
// of the lines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/copy.hpp"
#include "base/faster.hpp"
#include "shm/tuning.hpp"

namespace collectives {

enum class Staged : std::uint32_t {
    shared = 0,       // readers leave the lines as they are
    single_core = 1,  // readers on one core, which take ownership of the lines
};

class StagingCopy {
  public:
    // Copies n bytes to staging memory. `on_one_core`: all who read them share a core.
    // The result is for the readers.
    Staged operator()(std::byte* dst, const std::byte* src, std::size_t n, bool on_one_core);

  private:
    Faster modes_{tuning::timed_from};
};

// Copies what was staged like that.
void read_staged(Staged how, Stores stores, std::byte* dst, std::byte* src, std::size_t n);

}  // namespace collectives
