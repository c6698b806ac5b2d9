// Pinned host memory through which arrays of a device pass, by copies on two streams of its own.
//
// Invariant: copies to the host and copies to the device have a stream each, so that both directions of the
// bus are used at once. The memory stays registered until all copies are over.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

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
    ~Staging();

    // Copies from now on begin after what is in the caller's stream.
    void begin(StreamHandle stream);
    // Copy to the memory at `offset`; the signal is set when the bytes are there. Throws Error(invalid) if
    // they do not fit.
    Signal fetch(std::size_t offset, Pointer from, std::size_t bytes);
    // Copy from the memory at `offset`.
    void put(std::size_t offset, Pointer to, std::size_t bytes);
    // What is put into the caller's stream from now on begins after all copies.
    void end(StreamHandle stream);
    // Whether all copies of earlier calls are over, so that the memory can be written.
    bool is_free() const { return !last_ || last_->is_set(); }

  private:
    Pointer at(std::size_t offset, std::size_t bytes) const;

    std::shared_ptr<const PrimaryContext> context_;
    std::size_t bytes_;
    std::shared_ptr<Signals> signals_;
    std::optional<RegisteredMemory> memory_;
    OwnStream to_host_;
    OwnStream to_device_;
    std::optional<Signal> last_;
};

}  // namespace collectives::cuda
