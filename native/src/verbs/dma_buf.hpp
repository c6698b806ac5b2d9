// Memory of another device, such as a GPU, that a network device reads and writes directly.
//
// The owner's driver shares such memory as a dma-buf: a file descriptor, which the registration needs only
// while it is made. Invariant: the memory counts as the owner's; whoever registers it keeps it until the
// region is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "verbs/regions.hpp"

namespace collectives::verbs {

struct DmaBuf {
    int descriptor = -1;
    std::uint64_t offset = 0;   // of the memory in the dma-buf, in bytes
    std::uint64_t address = 0;  // by which requests, and peers, name the first byte
    std::size_t length = 0;     // bytes
};

// Throws Error(transport_unavailable), with the reason, if libibverbs, the kernel or the device cannot do
// that.
std::shared_ptr<const Region> register_dma_buf(std::shared_ptr<Device> device, const DmaBuf& memory);

}  // namespace collectives::verbs
