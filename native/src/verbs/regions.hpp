// Memory of callers that is registered with a device, so that it sends from there, and peers write to it.
//
// Memory that lasts (link/lasting_memory.hpp) is registered as a whole, and stays so until it ends, or until
// others need the room. Other memory is registered for one message.
//
// Invariant: a registration that is kept is of memory that has had the same owner since it was made. What is
// kept never exceeds its bounds. Whoever uses a region holds it, and its memory, meanwhile. The
// device is never asked with a lock held, since that may take long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "link/lasting_memory.hpp"
#include "verbs/device.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs {

class Region {
  public:
    // Null, and errno is set, if the device refuses this memory, for example because it is read-only and has
    // to be written.
    static std::shared_ptr<const Region> make(std::shared_ptr<Device> device, std::span<std::byte> bytes,
                                              bool is_written);
    // The new object ends that registration.
    static std::shared_ptr<const Region> adopt(std::shared_ptr<Device> device, abi::Region* region,
                                               std::size_t size);
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region();

    std::size_t size() const { return size_; }
    std::uint32_t local_key() const { return region_->local_key; }
    std::uint32_t remote_key() const { return region_->remote_key; }

  private:
    Region(std::shared_ptr<Device> device, abi::Region* region, std::size_t size);

    std::shared_ptr<Device> device_;
    abi::Region* region_;
    std::size_t size_;
    pid_t process_;
};

class Regions final : public LastingMemory::Keeper {
  public:
    // What was done since the process began, and what is kept now.
    struct Use {
        std::uint64_t made = 0;
        std::uint64_t reused = 0;
        std::uint64_t refused = 0;
        std::size_t kept = 0;        // regions
        std::size_t kept_bytes = 0;  // of their memory
    };

    // The most that is kept.
    struct Bounds {
        std::size_t regions = most_kept;
        std::size_t bytes = most_kept_bytes;
    };

    // Of that device, shared by all links of the process.
    static std::shared_ptr<Regions> of(const std::shared_ptr<Device>& device);
    // Of that device, for the caller alone.
    static std::shared_ptr<Regions> make(std::shared_ptr<Device> device, const Bounds& bounds);

    // A region with all of these bytes, which the caller keeps in place until it releases the region. Null if
    // they cannot be registered, or if that does not pay. `is_written`: by the peer; otherwise the device
    // only reads them.
    std::shared_ptr<const Region> find(std::span<std::byte> bytes, bool is_written);
    void forget(std::uint64_t stretch) override;
    Use use() const;

  private:
    struct Kept {
        std::uint64_t stretch = 0;
        std::shared_ptr<const Region> region;
    };
    using Order = std::list<Kept>;

    Regions(std::shared_ptr<Device> device, const Bounds& bounds);
    using Dropped = std::vector<std::shared_ptr<const Region>>;  // to be released without the lock
    std::shared_ptr<const Region> keep(const LastingMemory::Stretch& stretch);
    // All with the lock.
    std::shared_ptr<const Region> reuse(std::uint64_t stretch);
    void make_room(std::size_t bytes, Dropped& dropped);
    void drop_oldest(Dropped& dropped);

    std::shared_ptr<Device> device_;
    Bounds bounds_;
    bool is_safe_;  // a fork leaves registered memory in place
    mutable std::mutex mutex_;
    Order order_;  // what was used last comes first
    std::unordered_map<std::uint64_t, Order::iterator> by_stretch_;
    Use use_;
};

}  // namespace collectives::verbs
