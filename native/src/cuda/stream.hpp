// Streams: those of callers, which are checked and written to, and the order between two of them.
//
// Invariant: nothing here waits on the host, and no event is ever asked whether it has occurred, which is
// slow and ends a capture. What a stream has reached is seen by a value that it writes (see signal.hpp).
#pragma once

#include <cstdint>

#include "cuda/api.hpp"
#include "cuda/context.hpp"

namespace collectives::cuda {

// Throws Error(invalid) unless `stream` is a stream of that context's device, and not being captured into a
// graph. The context must be current.
void check_stream(StreamHandle stream, const PrimaryContext& context);

// When the work that is in the stream now has ended, the stream writes `value` to `address`, four bytes that
// the device can reach. All writes of this work are visible before.
void write_value(StreamHandle stream, Pointer address, std::uint32_t value);
// What is put into the stream from now on begins when the four bytes at `address` have reached `value`, as
// counters do that may wrap around.
void wait_value(StreamHandle stream, Pointer address, std::uint32_t value);

// A point in a stream, for which another stream can wait.
class Event {
  public:
    // For streams of the current context.
    Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event();

    void record(StreamHandle stream);
    void make_wait(StreamHandle stream) const;

  private:
    EventHandle handle_ = nullptr;
};

// What is put into `later` from now on begins after the work that is in `earlier` now.
void order(StreamHandle earlier, StreamHandle later);

}  // namespace collectives::cuda
