// The memory of devices that this process allocates for itself and for its users, and uses again.
//
// Invariant: memory is never given back to the driver, because other processes may have it mapped, and
// because the driver would wait for all streams of the device. Whoever holds a Block is its only owner.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/ipc.hpp"
#include "cuda/memory.hpp"
#include "cuda/signal.hpp"

namespace collectives::cuda {

class Block {
  public:
    Block(std::unique_ptr<DeviceMemory> memory, const Exported& exported)
        : memory_(std::move(memory)), exported_(exported) {}
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block();

    Pointer address() const { return memory_->address(); }
    std::size_t bytes() const { return memory_->bytes(); }
    // How other processes open it.
    const Exported& exported() const { return exported_; }

  private:
    std::unique_ptr<DeviceMemory> memory_;
    Exported exported_;
};

enum class For { this_process, all_processes };

// Not initialised. Throws Error, also if it is for all processes, and they cannot open memory of this device.
std::shared_ptr<const Block> allocate(const std::shared_ptr<const PrimaryContext>& context, std::size_t bytes,
                                      For whom);
// Keep a block, which a stream may use, until the stream has set the signal.
void keep_until(std::shared_ptr<const Block> block, std::shared_ptr<const Signal> signal);
// The block that holds these bytes; null if there is none. Asks no driver.
std::shared_ptr<const Block> block_of(Pointer address, std::size_t bytes);
// The bytes of all blocks on the device, in use and not.
std::size_t heap_bytes(int device);

}  // namespace collectives::cuda
