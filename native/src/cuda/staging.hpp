// Pinned host memory through which arrays of a device pass, by copies on two streams of its own.
//
// Invariant: copies to the host and copies to the device have a stream each, so that both directions of the
// bus are used at once. The memory stays registered as long as the object exists, and its owner ends it only
// once all copies are over.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "cuda/registered.hpp"
#include "cuda/signal.hpp"
#include "cuda/stream.hpp"

namespace collectives::cuda {

class Staging {
  public:
    // Registers host memory, which its owner keeps mapped. Throws Error.
    Staging(std::shared_ptr<const PrimaryContext> context, std::byte* memory, std::size_t bytes);
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    // Between the memory at `offset` and the device.
    struct Copy {
        std::size_t offset = 0;
        Pointer on_device = 0;
        std::size_t bytes = 0;
    };

    // Copies from now on begin after what is in the caller's stream.
    void begin(StreamHandle stream);
    // Copy to the memory; the signal is set when all bytes are there. Throws Error(invalid) if they do not
    // fit.
    Signal fetch(std::span<const Copy> copies);
    // Copy to the device.
    void put(std::span<const Copy> copies);
    // Copies to the host from now on begin after the copies to the device until now: these have read the
    // memory.
    void reuse();
    // What is put into the caller's stream from now on begins after all copies.
    void end(StreamHandle stream);
    // Whether all copies of earlier calls are over, so that the memory can be written.
    bool is_free() const { return !last_ || last_->is_set(); }
    // Waits some seconds until all copies are over, and returns whether they are. If not, a stream holds them
    // up, and the object has to stay: they may still read and write the memory. Call it last.
    bool drain() noexcept;

  private:
    Pointer at(const Copy& copy) const;

    std::shared_ptr<const PrimaryContext> context_;
    std::size_t bytes_;
    std::shared_ptr<Signals> signals_;
    std::optional<RegisteredMemory> memory_;
    OwnStream to_host_;
    OwnStream to_device_;
    std::optional<Signal> last_;
};

}  // namespace collectives::cuda
