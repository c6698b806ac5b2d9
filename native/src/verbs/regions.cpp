#include "verbs/regions.hpp"

#include <unistd.h>

#include <cerrno>
#include <map>
#include <string>
#include <utility>

#include "verbs/library.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs {

namespace {

struct AllRegions {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<Regions>> by_device;
};

AllRegions& all_regions() {
    static AllRegions all;
    return all;
}

// Whether a process may fork while memory is registered. Older kernels give the parent new pages when it
// writes after a fork, and the device goes on with the old ones. If somebody asked libibverbs to prevent
// that, children lack the pages, which the caller's may need.
bool survives_fork() {
    const auto asked = library().is_fork_initialized;
    return asked != nullptr && asked() == abi::fork_unneeded;
}

}  // namespace

std::shared_ptr<const Region> Region::make(std::shared_ptr<Device> device, std::span<std::byte> bytes,
                                           bool is_written) {
    const int access = is_written ? abi::access_local_write | abi::access_remote_write : 0;
    abi::Region* region = library().reg_mr(device->domain(), bytes.data(), bytes.size(), access);
    // So much may not be locked: then the device fetches pages when it needs them, if it can.
    if (const int why = errno; region == nullptr && why == ENOMEM) {
        if (device->pages_on_demand()) {
            region = library().reg_mr(device->domain(), bytes.data(), bytes.size(),
                                      access | abi::access_on_demand);
        }
        errno = why;
    }
    return region == nullptr ? nullptr : adopt(std::move(device), region, bytes.size());
}

std::shared_ptr<const Region> Region::adopt(std::shared_ptr<Device> device, abi::Region* region,
                                            std::size_t size) {
    return std::shared_ptr<const Region>(new Region(std::move(device), region, size));
}

Region::Region(std::shared_ptr<Device> device, abi::Region* region, std::size_t size)
    : device_(std::move(device)), region_(region), size_(size), process_(::getpid()) {}

Region::~Region() {
    // In a forked child it is still the parent's.
    if (::getpid() == process_) library().dereg_mr(region_);
}

std::shared_ptr<Regions> Regions::of(const std::shared_ptr<Device>& device) {
    const std::lock_guard lock(all_regions().mutex);
    std::weak_ptr<Regions>& place = all_regions().by_device[device->name()];
    std::shared_ptr<Regions> regions = place.lock();
    if (!regions) {
        regions = make(device, {});
        place = regions;
    }
    return regions;
}

std::shared_ptr<Regions> Regions::make(std::shared_ptr<Device> device, const Bounds& bounds) {
    std::shared_ptr<Regions> regions(new Regions(std::move(device), bounds));
    LastingMemory::of_process().add(regions);
    return regions;
}

Regions::Regions(std::shared_ptr<Device> device, const Bounds& bounds)
    : device_(std::move(device)), bounds_(bounds), is_safe_(survives_fork()) {}

std::shared_ptr<const Region> Regions::find(std::span<std::byte> bytes, bool is_written) {
    if (!is_safe_) return nullptr;
    if (const auto stretch = LastingMemory::of_process().find(bytes)) {
        if (stretch->bytes.size() <= bounds_.bytes) return keep(*stretch);
    }
    if (bytes.size() < registered_once_from) return nullptr;
    std::shared_ptr<const Region> region = Region::make(device_, bytes, is_written);
    const std::lock_guard lock(mutex_);
    ++(region ? use_.made : use_.refused);
    return region;
}

std::shared_ptr<const Region> Regions::keep(const LastingMemory::Stretch& stretch) {
    Dropped dropped;
    {
        const std::lock_guard lock(mutex_);
        if (auto kept = reuse(stretch.id)) return kept;
        make_room(stretch.bytes.size(), dropped);
    }
    dropped.clear();
    // Written, too: an array is often a source now and a destination then.
    std::shared_ptr<const Region> region = Region::make(device_, stretch.bytes, true);
    while (!region && errno == ENOMEM) {  // so much memory may not be locked
        {
            const std::lock_guard lock(mutex_);
            if (order_.empty()) break;
            drop_oldest(dropped);
        }
        dropped.clear();
        region = Region::make(device_, stretch.bytes, true);
    }
    const std::lock_guard lock(mutex_);
    if (!region) {
        ++use_.refused;
        return nullptr;
    }
    ++use_.made;
    if (auto kept = reuse(stretch.id)) {  // another thread has been faster
        dropped.push_back(std::exchange(region, kept));
        return region;
    }
    // If the stretch has ended meanwhile, nobody would say so again. If it ends from now on, `forget` waits.
    if (!LastingMemory::of_process().lasts(stretch.id)) return region;
    make_room(region->size(), dropped);
    use_.kept_bytes += region->size();
    order_.push_front({stretch.id, region});
    by_stretch_[stretch.id] = order_.begin();
    return region;
}

std::shared_ptr<const Region> Regions::reuse(std::uint64_t stretch) {
    const auto place = by_stretch_.find(stretch);
    if (place == by_stretch_.end()) return nullptr;
    order_.splice(order_.begin(), order_, place->second);
    ++use_.reused;
    return order_.front().region;
}

void Regions::make_room(std::size_t bytes, Dropped& dropped) {
    while (!order_.empty() && (order_.size() >= bounds_.regions || use_.kept_bytes + bytes > bounds_.bytes)) {
        drop_oldest(dropped);
    }
}

void Regions::drop_oldest(Dropped& dropped) {
    use_.kept_bytes -= order_.back().region->size();
    by_stretch_.erase(order_.back().stretch);
    dropped.push_back(std::move(order_.back().region));
    order_.pop_back();
}

void Regions::forget(std::uint64_t stretch) {
    std::shared_ptr<const Region> last;  // released without the lock
    const std::lock_guard lock(mutex_);
    const auto place = by_stretch_.find(stretch);
    if (place == by_stretch_.end()) return;
    last = std::move(place->second->region);
    use_.kept_bytes -= last->size();
    order_.erase(place->second);
    by_stretch_.erase(place);
}

Regions::Use Regions::use() const {
    const std::lock_guard lock(mutex_);
    Use found = use_;
    found.kept = order_.size();
    return found;
}

}  // namespace collectives::verbs
