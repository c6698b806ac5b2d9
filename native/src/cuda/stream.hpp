// Streams: those of callers, which are checked and written to, and the order between two of them.
//
// Invariant: nothing here waits on the host, and no event is ever asked whether it has occurred, which is
// slow and ends a capture. What a stream has reached is seen by a value that it writes (see signal.hpp).
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/api.hpp"
#include "cuda/context.hpp"

namespace collectives::cuda {

// Throws Error(invalid) unless `stream` is a stream of that context's device. The context must be current.
void check_stream(StreamHandle stream, const PrimaryContext& context);
// Whether the stream is being captured into a graph. Throws Error(invalid) if nothing can be put into it,
// since the capture has failed, or since it waits for another stream that is being captured.
bool is_capturing(StreamHandle stream, const PrimaryContext& context);
// Whether a stream, whose work a captured call has to follow, is being captured, too. What a stream has done
// that is not captured is no part of the graph.
bool is_in_capture(StreamHandle stream, const PrimaryContext& context);
// Throws Error(invalid), which ends with `why`, if the stream is being captured into a graph.
void refuse_capture(StreamHandle stream, const PrimaryContext& context, const char* why);

// Why a stream that is being captured cannot be the producer of a call in another one.
inline constexpr const char* from_capture =
    "and the call is for another one, which is not: capture both, or neither";
// Why the host cannot wait for a stream that is being captured.
inline constexpr const char* not_waited_for = "and cannot be waited for before the graph is launched";

// When the work that is in the stream now has ended, the stream writes `value` to `address`, four bytes that
// the device can reach. All writes of this work are visible before.
void write_value(StreamHandle stream, Pointer address, std::uint32_t value);
// What is put into the stream from now on begins when the four bytes at `address` have reached `value`, as
// counters do that may wrap around.
void wait_value(StreamHandle stream, Pointer address, std::uint32_t value);
// The same until the four bytes are `value`.
void wait_equal_value(StreamHandle stream, Pointer address, std::uint32_t value);

// A stream of this library, which does not wait for the legacy stream.
class OwnStream {
  public:
    explicit OwnStream(std::shared_ptr<const PrimaryContext> context);
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    ~OwnStream();

    StreamHandle handle() const { return handle_; }

  private:
    std::shared_ptr<const PrimaryContext> context_;
    StreamHandle handle_ = nullptr;
};

// While it exists, the calling thread may do during a capture what a graph does not contain, such as to
// allocate memory, without ending the capture. The capture may be another thread's: usually, such a call of
// any thread ends it.
class RelaxedCapture {
  public:
    RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;
    ~RelaxedCapture();

  private:
    int before_;
};

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
