#include "leader/imports.hpp"

#include <algorithm>
#include <optional>

#include "base/error.hpp"

namespace collectives::leader {

namespace {
// So many mappings stay open although other calls have come since.
constexpr std::size_t most_mapped = 256;
}  // namespace

cuda::Pointer Imports::find(int rank, const Place& place, std::uint64_t number,
                            const std::function<void()>& rest) {
    const cuda::Exported& allocation = place.allocation;
    if (allocation.route == cuda::Route::none) return 0;
    if (allocation.route == cuda::Route::address) return allocation.start + place.offset;
    const Key key{rank, allocation.buffer};
    auto found = mapped_.find(key);
    if (found == mapped_.end()) {
        UniqueFd descriptor;
        if (allocation.route == cuda::Route::descriptor) {
            std::optional<UniqueFd> sent = meeting_.take(rank, allocation.buffer);
            for (; !sent; sent = meeting_.take(rank, allocation.buffer)) rest();
            descriptor = UniqueFd(sent->release());
        }
        for (auto& [other, one] : mapped_) {
            one.is_stale |= other.rank == rank &&
                            one.allocation.start < allocation.start + allocation.bytes &&
                            allocation.start < one.allocation.start + one.allocation.bytes;
        }
        Mapped made;
        made.memory = std::make_unique<cuda::Imported>(context_, allocation, std::move(descriptor));
        made.allocation = allocation;
        found = mapped_.emplace(key, std::move(made)).first;
    }
    if (place.offset > allocation.bytes || place.bytes > allocation.bytes - place.offset) {
        throw Error(ErrorKind::aborted,
                    "rank " + std::to_string(rank) + " has described an array outside its memory");
    }
    found->second.last = number;
    return found->second.memory->start() + place.offset;
}

void Imports::keep_for_graphs(std::uint64_t number) {
    for (auto& [key, one] : mapped_) one.is_kept |= one.last == number;
}

void Imports::trim() {
    std::erase_if(mapped_, [](const auto& one) { return one.second.is_stale && !one.second.is_kept; });
    while (mapped_.size() > most_mapped) {
        const auto oldest = std::ranges::min_element(mapped_, {}, [](const auto& one) {
            return one.second.is_kept ? ~std::uint64_t{0} : one.second.last;
        });
        if (oldest->second.is_kept) return;
        mapped_.erase(oldest);
    }
}

}  // namespace collectives::leader
