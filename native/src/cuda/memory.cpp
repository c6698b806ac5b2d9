#include "cuda/memory.hpp"

#include "base/error.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace collectives::cuda {

DeviceMemory::DeviceMemory(std::shared_ptr<const PrimaryContext> context, std::size_t bytes)
    : context_(std::move(context)), bytes_(bytes) {
    const Current current(*context_);
    const RelaxedCapture relaxed;
    check(driver().memory_allocate(&address_, bytes), "cuMemAlloc", context_->device());
}

DeviceMemory::~DeviceMemory() {
    try {
        const Current current(*context_);
        const RelaxedCapture relaxed;
        driver().memory_free(address_);
    } catch (const Error&) {
        return;  // the context is lost, and its memory with it
    }
}

void set_words(StreamHandle stream, Pointer address, std::uint32_t value, std::size_t bytes) {
    check(driver().memory_set(address, value, bytes / sizeof(value), stream), "cuMemsetD32Async");
}

void copy(StreamHandle stream, Pointer to, Pointer from, std::size_t bytes) {
    if (bytes != 0) check(driver().memory_copy(to, from, bytes, stream), "cuMemcpyAsync");
}

}  // namespace collectives::cuda
