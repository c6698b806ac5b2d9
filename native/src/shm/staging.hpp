// Copies into staging memory that another core has just read.
//
// How fast such lines can be overwritten, and read again, depends on where the reader's core is: between near
// cores plain stores are the fastest, between far ones they run at a fifteenth of the speed of streaming
// stores. Streaming stores may be the faster ones for who writes, and not for who then reads from memory. So
// both ways are timed as they are used, by those who write and by those who read, and the readers say what it
// costs them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/copy.hpp"
#include "base/faster.hpp"

namespace collectives {

// How bytes came to where they lie. `handed_over`: through the caches, for readers of one core, who take the
// lines from the one that has written them.
enum class Staged : std::uint32_t { unsaid = 0, cached = 1, streamed = 2, handed_over = 3 };

// What staged bytes cost a rank to read, in its own memory: it writes, those who stage for it look.
class alignas(64) ReadCosts {
  public:
    static constexpr std::size_t classes = Faster::classes;
    static constexpr std::size_t smallest_noted = 4 << 10;

    // Whether reading n bytes that were staged like this is worth the look at the clock.
    static bool are_noted(Staged how, std::size_t n);
    // How long n bytes took to read, which were staged with what lies beside them: `staged` bytes.
    void note(Staged how, std::size_t staged, std::size_t n, Faster::Clock::duration taken);
    // Call `read`, which reads so many bytes, and note what it took if that is worth it.
    template <typename Read>
    void time(Staged how, std::size_t staged, std::size_t n, Read read) {
        if (!are_noted(how, n)) return read();
        const auto began = Faster::Clock::now();
        read();
        note(how, staged, n, Faster::Clock::now() - began);
    }
    // Seconds a byte for what is staged in sizes of that class, by the ways of StagingCopy; 0 where nothing
    // is known.
    std::array<double, 2> of(std::size_t size_class) const;

  private:
    std::array<std::array<std::atomic<float>, 2>, classes> costs_;
};

// Copy what somebody has staged like that.
void read_staged(Staged how, Stores stores, std::byte* dst, std::byte* src, std::size_t n);

class StagingCopy {
  public:
    // Copy n bytes, which somebody whose costs are `reader` will read, and others `on_one_core` with it or
    // nobody else, and to a second place. How, to be told to who reads.
    Staged operator()(std::byte* dst, const std::byte* src, std::size_t n, const ReadCosts& reader,
                      bool on_one_core, Second second = {});

  private:
    static constexpr std::size_t smallest_timed = 8 << 10;  // below, streaming stores do not pay anywhere
    friend class ReadCosts;

    Faster faster_{smallest_timed};
    std::uint32_t uses_ = 0;
};

}  // namespace collectives
