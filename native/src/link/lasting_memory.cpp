#include "link/lasting_memory.hpp"

#include <unistd.h>

#include <iterator>
#include <utility>

namespace collectives {

LastingMemory& LastingMemory::of_process() {
    static auto* const memory = new LastingMemory;  // never destroyed: memory may end at the very end
    return *memory;
}

LastingMemory::LastingMemory() : process_(::getpid()) {}

bool LastingMemory::is_inherited() const { return ::getpid() != process_; }

std::uint64_t LastingMemory::begin(std::span<std::byte> bytes, Owner owner) {
    if (is_inherited() || bytes.empty()) return 0;
    std::vector<std::uint64_t> ended;
    std::uint64_t id = 0;
    {
        const std::lock_guard lock(mutex_);
        take_out(bytes, true, ended);
        id = ++last_;
        stretches_.emplace(bytes.data(), Stretch{id, bytes, owner == Owner::library});
        first_bytes_.emplace(id, bytes.data());
    }
    forget(ended);
    return id;
}

void LastingMemory::end(std::uint64_t stretch) {
    if (is_inherited()) return;
    {
        const std::lock_guard lock(mutex_);
        const auto place = first_bytes_.find(stretch);
        if (place == first_bytes_.end()) return;
        stretches_.erase(place->second);
        first_bytes_.erase(place);
    }
    forget({stretch});
}

bool LastingMemory::lasts(std::uint64_t stretch) const {
    if (is_inherited()) return false;
    const std::lock_guard lock(mutex_);
    return first_bytes_.contains(stretch);
}

void LastingMemory::end_overlapping(std::span<const std::byte> bytes) { end_overlapping(bytes, false); }

void LastingMemory::end_pages(std::span<const std::byte> bytes) { end_overlapping(bytes, true); }

void LastingMemory::end_overlapping(std::span<const std::byte> bytes, bool of_library) {
    if (is_inherited() || bytes.empty()) return;
    std::vector<std::uint64_t> ended;
    {
        const std::lock_guard lock(mutex_);
        take_out(bytes, of_library, ended);
    }
    forget(ended);
}

void LastingMemory::take_out(std::span<const std::byte> bytes, bool of_library,
                             std::vector<std::uint64_t>& ended) {
    const std::byte* const end = bytes.data() + bytes.size();
    auto place = stretches_.lower_bound(end);
    while (place != stretches_.begin()) {
        const auto before = std::prev(place);
        const Stretch& stretch = before->second;
        if (stretch.bytes.data() + stretch.bytes.size() <= bytes.data()) break;
        if (stretch.is_of_library && !of_library) {
            place = before;
            continue;
        }
        ended.push_back(stretch.id);
        first_bytes_.erase(stretch.id);
        place = stretches_.erase(before);
    }
}

std::optional<LastingMemory::Stretch> LastingMemory::find(std::span<const std::byte> bytes) const {
    if (is_inherited() || bytes.empty()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto after = stretches_.upper_bound(bytes.data());
    if (after == stretches_.begin()) return std::nullopt;
    const Stretch& found = std::prev(after)->second;
    const std::size_t offset = static_cast<std::size_t>(bytes.data() - found.bytes.data());
    const bool is_inside = offset <= found.bytes.size() && bytes.size() <= found.bytes.size() - offset;
    return is_inside ? std::optional(found) : std::nullopt;
}

void LastingMemory::add(std::weak_ptr<Keeper> keeper) {
    const std::lock_guard lock(mutex_);
    std::erase_if(keepers_, [](const auto& one) { return one.expired(); });
    keepers_.push_back(std::move(keeper));
}

void LastingMemory::forget(const std::vector<std::uint64_t>& ended) {
    if (ended.empty()) return;
    std::vector<std::weak_ptr<Keeper>> keepers;
    {
        const std::lock_guard lock(mutex_);
        keepers = keepers_;
    }
    for (const auto& weak : keepers) {
        const std::shared_ptr<Keeper> keeper = weak.lock();
        for (const std::uint64_t id : ended) {
            if (keeper) keeper->forget(id);
        }
    }
}

}  // namespace collectives
