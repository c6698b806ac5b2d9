// Memory of callers whose end is announced, so that links may keep what they have registered of it.
//
// A stretch of memory lasts from `begin` to `end`. Whoever calls `begin` calls `end` before the memory is
// freed or gets another owner. Memory that nobody announces lasts for one message only.
//
// Invariant: stretches do not overlap, and when `end` returns, no keeper has anything left of that stretch.
// Calls may come from any thread; a forked process does nothing, since what is registered is its parent's.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/export.hpp"

namespace collectives {

class COLLECTIVES_API LastingMemory {
  public:
    struct Stretch {
        std::uint64_t id = 0;  // never used again
        std::span<std::byte> bytes;
    };

    // Keeps something of stretches.
    class Keeper {
      public:
        virtual ~Keeper() = default;
        // Drop what is kept of that stretch.
        virtual void forget(std::uint64_t stretch) = 0;
    };

    static LastingMemory& of_process();

    // Returns the id of the new stretch. Those that overlap it end, since memory has one owner.
    std::uint64_t begin(std::span<std::byte> bytes);
    // Without effect for a stretch that has ended.
    void end(std::uint64_t stretch);
    bool lasts(std::uint64_t stretch) const;
    // These bytes have an owner who announces nothing.
    void end_overlapping(std::span<const std::byte> bytes);
    // The stretch to which all of these bytes belong.
    std::optional<Stretch> find(std::span<const std::byte> bytes) const;
    void add(std::weak_ptr<Keeper> keeper);

  private:
    using ByAddress = std::map<const std::byte*, Stretch>;

    LastingMemory();
    bool is_inherited() const;
    // With the lock: take out the stretches that overlap these bytes.
    void take_out(std::span<const std::byte> bytes, std::vector<std::uint64_t>& ended);
    // Without the lock, since a keeper may be waiting for a device.
    void forget(const std::vector<std::uint64_t>& ended);

    pid_t process_;
    mutable std::mutex mutex_;
    std::uint64_t last_ = 0;
    ByAddress stretches_;                                    // by their first byte
    std::map<std::uint64_t, const std::byte*> first_bytes_;  // by id
    std::vector<std::weak_ptr<Keeper>> keepers_;
};

}  // namespace collectives
