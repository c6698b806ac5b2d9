#include "schedule/buffers.hpp"

namespace collectives {

namespace {

// Scratch memory up to this size is kept for the next operation.
constexpr std::uint64_t kept_scratch = 1 << 20;
constexpr std::uint64_t scratch_alignment = 64;

}  // namespace

void Buffers::begin(const Operation& operation, std::byte* in, std::byte* out) {
    places_.clear();
    places_.push_back(in);
    places_.push_back(out);
    if (operation.scratch_offsets().empty()) return;
    std::byte* const base = scratch(operation.scratch_bytes());
    for (const std::uint64_t offset : operation.scratch_offsets()) places_.push_back(base + offset);
}

void Buffers::end() {
    if (scratch_size_ > kept_scratch) free_scratch();
}

void Buffers::free_scratch() {
    lasting_.end();
    scratch_.reset();
    scratch_size_ = 0;
}

std::byte* Buffers::scratch(std::uint64_t bytes) {
    if (bytes > scratch_size_) {
        free_scratch();
        scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes + scratch_alignment);
        scratch_size_ = bytes;
        lasting_ = LastingBlock({scratch_.get(), bytes + scratch_alignment});
    }
    const auto address = reinterpret_cast<std::uintptr_t>(scratch_.get());
    return scratch_.get() + (-address & (scratch_alignment - 1));
}

}  // namespace collectives
