#include "leader/exports.hpp"

#include "cuda/heap.hpp"

namespace collectives::leader {

namespace {
// More allocations than this are only remembered if their descriptors were sent.
constexpr std::size_t most_known = 4096;
}  // namespace

bool Exports::is_reached(cuda::Pointer address, std::size_t bytes) const {
    if (leader_ == Leader::on_this_device || cuda::block_of(address, bytes) != nullptr) return true;
    // Peer access is for memory of cuMemAlloc, which is also what can be exported by a handle.
    return cuda::describe(address, bytes, device_).route == cuda::Route::handle;
}

Place Exports::place_of(cuda::Pointer address, std::size_t bytes, const Meeting& meeting) {
    Place place;
    place.bytes = bytes;
    if (leader_ != Leader::elsewhere) {
        place.allocation.start = address;
        if (is_reached(address, bytes)) place.allocation.route = cuda::Route::address;
        return place;
    }
    if (const auto block = cuda::block_of(address, bytes)) {
        place.allocation = block->exported();
        place.offset = address - place.allocation.start;
        return place;
    }
    place.allocation = cuda::describe(address, bytes, device_);
    place.offset = address - place.allocation.start;
    if (place.allocation.route == cuda::Route::none) return place;
    const auto found = known_.find(place.allocation.buffer);
    if (found != known_.end()) {
        place.allocation = found->second;
        return place;
    }
    const UniqueFd descriptor = cuda::complete(place.allocation);
    if (place.allocation.route == cuda::Route::descriptor &&
        !meeting.send(place.allocation.buffer, descriptor.get())) {
        place.allocation.route = cuda::Route::none;
        return place;  // the socket is full: this call is staged, and the next one tries again
    }
    if (known_.size() >= most_known) {
        std::erase_if(known_, [](const auto& one) { return one.second.route == cuda::Route::handle; });
    }
    known_.emplace(place.allocation.buffer, place.allocation);
    return place;
}

}  // namespace collectives::leader
