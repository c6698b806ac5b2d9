// The allocations of other ranks that the leader has mapped.
//
// Invariant: an allocation is mapped once, at the first call that uses it. Since the driver may wait for the
// device when a mapping is closed, and streams on it may wait for the leader, mappings are closed only while
// no call is under way.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "cuda/ipc.hpp"
#include "leader/board.hpp"
#include "leader/meeting.hpp"

namespace collectives::leader {

class Imports {
  public:
    Imports(std::shared_ptr<const cuda::PrimaryContext> context, Meeting& meeting)
        : context_(std::move(context)), meeting_(meeting) {}

    // Where the leader finds an array of that rank; 0 if the rank has none. `number`: of the call. `rest` is
    // called while a descriptor is awaited. Throws Error.
    cuda::Pointer find(int rank, const Place& place, std::uint64_t number, const std::function<void()>& rest);
    // All calls are complete: close the mappings that were not used for the longest time, if there are many,
    // and those of memory that its owner has freed.
    void trim();
    // Mappings that graphs use stay.
    void keep_for_graphs(std::uint64_t number);
    std::size_t count() const { return mapped_.size(); }

  private:
    struct Key {
        int rank;
        std::uint64_t buffer;
        auto operator<=>(const Key&) const = default;
    };
    struct Mapped {
        std::unique_ptr<cuda::Imported> memory;
        cuda::Exported allocation;
        std::uint64_t last = 0;  // the last call that used it
        bool is_kept = false;
        bool is_stale = false;  // its owner has other memory there now
    };

    std::shared_ptr<const cuda::PrimaryContext> context_;
    Meeting& meeting_;
    std::map<Key, Mapped> mapped_;
};

}  // namespace collectives::leader
