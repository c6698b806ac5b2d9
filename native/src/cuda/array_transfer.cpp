#include "cuda/array_transfer.hpp"

#include <algorithm>
#include <utility>

namespace collectives::cuda {

namespace {
constexpr std::uint64_t slice_bytes = 1 << 20;
}  // namespace

bool ArrayTransfer::Passing::is_coming() {
    while (arrived < slices.size() && slices[arrived].arrival.is_set()) ++arrived;
    return arrived < slices.size();
}

ArrayTransfer::ArrayTransfer(std::span<const Array> arrays, bool ordered) : ordered_(ordered) {
    for (const Array& array : arrays) arrays_.push_back({.array = array});
}

void ArrayTransfer::begin(std::span<const std::span<const std::byte>> reads, bool early) {
    early_ = early;
    for (const Passing& passing : arrays_) passing.array.staging->begin(passing.array.stream);
    if (!early) {
        for (Passing& passing : arrays_) {
            if (passing.array.read) fetch(passing, 0, passing.array.bytes);
        }
        return;
    }
    for (const std::span<const std::byte> read : reads) {
        Passing* const passing = find(read.data());
        if (passing == nullptr || !passing->array.read) continue;
        const auto begin = static_cast<std::uint64_t>(read.data() - passing->array.memory);
        fetch(*passing, begin, begin + read.size());
    }
}

void ArrayTransfer::finish() {
    put_waiting();
    for (Passing& passing : arrays_) {
        if (!early_ && passing.array.written) put({&passing, 0, passing.array.bytes});
        passing.array.staging->end(passing.array.stream);
    }
    arrays_.clear();
}

std::uint64_t ArrayTransfer::there(const std::byte* at, std::uint64_t n) {
    Passing* const passing = find(at);
    if (passing == nullptr || !passing->is_coming()) return n;
    const auto begin = static_cast<std::uint64_t>(at - passing->array.memory);
    for (const Slice& slice : std::span(passing->slices).subspan(passing->arrived)) {
        if (slice.end <= begin || begin + n <= slice.begin) continue;
        n = slice.begin > begin ? slice.begin - begin : 0;
    }
    return n;
}

void ArrayTransfer::leave(const std::byte* at, std::uint64_t n) {
    Passing* const passing = find(at);
    if (!early_ || passing == nullptr || !passing->array.written) return;
    waiting_.push_back({passing, static_cast<std::uint64_t>(at - passing->array.memory), n});
    if (!ordered_ || !is_coming()) put_waiting();
}

bool ArrayTransfer::is_coming() {
    return std::ranges::any_of(arrays_, [](Passing& passing) { return passing.is_coming(); });
}

void ArrayTransfer::fetch(Passing& passing, std::uint64_t begin, std::uint64_t end) {
    const Array& array = passing.array;
    for (; begin < end; begin += slice_bytes) {
        const std::uint64_t bytes = std::min(slice_bytes, end - begin);
        const Staging::Copy copy{begin, array.on_device + begin, bytes};
        passing.slices.push_back({begin, begin + bytes, array.staging->fetch({&copy, 1})});
    }
}

void ArrayTransfer::put(const Leaving& leaving) {
    const Array& array = leaving.of->array;
    const Staging::Copy copy{leaving.offset, array.on_device + leaving.offset, leaving.bytes};
    array.staging->put({&copy, 1});
}

void ArrayTransfer::put_waiting() {
    for (const Leaving& leaving : std::exchange(waiting_, {})) put(leaving);
}

ArrayTransfer::Passing* ArrayTransfer::find(const std::byte* at) {
    const auto found = std::ranges::find_if(arrays_, [&](const Passing& one) {
        return at >= one.array.memory && at < one.array.memory + one.array.bytes;
    });
    return found == arrays_.end() ? nullptr : &*found;
}

}  // namespace collectives::cuda
