// Memory whose end is announced, so that links may keep what they have registered of it: arrays of callers,
// and memory of this library.
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
#include <utility>
#include <vector>

#include "base/export.hpp"

namespace collectives {

class COLLECTIVES_API LastingMemory {
  public:
    struct Stretch {
        std::uint64_t id = 0;  // never used again
        std::span<std::byte> bytes;
        bool is_of_library = false;
    };

    // Keeps something of stretches.
    class Keeper {
      public:
        virtual ~Keeper() = default;
        // Drop what is kept of that stretch.
        virtual void forget(std::uint64_t stretch) = 0;
    };

    static LastingMemory& of_process();

    enum class Owner : std::uint8_t { caller, library };

    // Returns the id of the new stretch. Those that overlap it end, since memory has one owner.
    std::uint64_t begin(std::span<std::byte> bytes, Owner owner = Owner::caller);
    // Without effect for a stretch that has ended.
    void end(std::uint64_t stretch);
    bool lasts(std::uint64_t stretch) const;
    // These bytes have an owner who announces nothing, unless they are the library's.
    void end_overlapping(std::span<const std::byte> bytes);
    // These bytes are about to get other pages, whoever owns them.
    void end_pages(std::span<const std::byte> bytes);
    // The stretch to which all of these bytes belong.
    std::optional<Stretch> find(std::span<const std::byte> bytes) const;
    void add(std::weak_ptr<Keeper> keeper);

  private:
    using ByAddress = std::map<const std::byte*, Stretch>;

    LastingMemory();
    bool is_inherited() const;
    void end_overlapping(std::span<const std::byte> bytes, bool of_library);
    // With the lock: take out the stretches that overlap these bytes, the library's only if `of_library`.
    void take_out(std::span<const std::byte> bytes, bool of_library, std::vector<std::uint64_t>& ended);
    // Without the lock, since a keeper may be waiting for a device.
    void forget(const std::vector<std::uint64_t>& ended);

    pid_t process_;
    mutable std::mutex mutex_;
    std::uint64_t last_ = 0;
    ByAddress stretches_;                                    // by their first byte
    std::map<std::uint64_t, const std::byte*> first_bytes_;  // by id
    std::vector<std::weak_ptr<Keeper>> keepers_;
};

// Memory of this library, which lasts as long as this object.
class LastingBlock {
  public:
    LastingBlock() = default;
    explicit LastingBlock(std::span<std::byte> bytes)
        : stretch_(LastingMemory::of_process().begin(bytes, LastingMemory::Owner::library)) {}
    LastingBlock(LastingBlock&& other) noexcept : stretch_(std::exchange(other.stretch_, 0)) {}
    LastingBlock& operator=(LastingBlock&& other) noexcept {
        std::swap(stretch_, other.stretch_);
        other.end();
        return *this;
    }
    ~LastingBlock() { end(); }

    void end() {
        if (stretch_ != 0) LastingMemory::of_process().end(std::exchange(stretch_, 0));
    }

  private:
    std::uint64_t stretch_ = 0;
};

}  // namespace collectives
