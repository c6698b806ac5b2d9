// Copies into and out of staging memory that another core has just read or written.
//
// The speed at which a core overwrites lines that another core has read depends on the distance of the cores.
// Between near cores plain stores are the fastest; between far cores streaming stores are up to four times as
// fast. So each sender times both kinds while it stages. Plain stores leave the message in the caches, where
// it is read; so streaming stores must be much faster to be chosen.
//
// On AMD's Zen, a core that reads a line which another core has written also gets the right to write it. If
// the reader writes a byte of the line back, the writer gets the line again at the cost of a read. Otherwise
// both cores share the line, and the writer's next store needs a message to the other core. So data that only
// one core reads is marked, and its reader takes ownership of the lines.
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
    // Copies n bytes to staging memory. `on_one_core`: all readers share a core. The result must be passed to
    // the readers, for `read_staged`.
    Staged operator()(std::byte* dst, const std::byte* src, std::size_t n, bool on_one_core);

  private:
    Faster modes_{tuning::timed_from};
};

// Copies staged data; `how` is the result of StagingCopy.
void read_staged(Staged how, Stores stores, std::byte* dst, std::byte* src, std::size_t n);

}  // namespace collectives
