// Memory of a device in several processes: how its owner exports an allocation, and how others map it.
//
// Invariant: whole allocations are exported, since a handle of an address inside one opens at its beginning.
// An allocation is named by the id that the driver gives each, so memory that was freed and allocated again
// is never taken for the same. What cannot be exported is reported, and is no error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/unique_fd.hpp"
#include "cuda/api.hpp"
#include "cuda/context.hpp"

namespace collectives::cuda {

enum class Route : std::uint32_t {
    none = 0,        // it cannot be exported
    address = 1,     // within the owner's process
    handle = 2,      // a handle of CUDA IPC
    descriptor = 3,  // a file descriptor, which is sent apart
};

// An allocation, as its owner describes it to other processes. Plain bytes, for shared memory.
struct Exported {
    Route route = Route::none;
    std::uint32_t device = 0;  // the owner's number of the device
    std::uint64_t buffer = 0;  // the driver's id of the allocation, unique in the owner's process
    std::uint64_t start = 0;   // where the owner has it
    std::uint64_t bytes = 0;
    IpcHandle handle{};
};

// What the driver knows about the allocation at `address`, without exporting it: route, buffer, start, bytes.
// `route` is `none` for memory of which no other process can be given a handle, such as that of
// cudaMallocAsync, and for arrays that reach beyond one allocation.
Exported describe(Pointer address, std::size_t bytes, int device);
// Fill in the handle of an allocation that was described, or return its descriptor. The route becomes `none`
// if the driver refuses.
UniqueFd complete(Exported& exported);

// Another process's allocation, mapped here as long as the object exists.
class Imported {
  public:
    // `descriptor`: for Route::descriptor. Throws Error if the driver refuses. The context need not be
    // current.
    Imported(std::shared_ptr<const PrimaryContext> context, const Exported& exported, UniqueFd descriptor);
    Imported(const Imported&) = delete;
    Imported& operator=(const Imported&) = delete;
    // Nothing on the device may use it any more.
    ~Imported();

    Pointer start() const { return start_; }

  private:
    void map(const UniqueFd& descriptor);

    std::shared_ptr<const PrimaryContext> context_;
    Route route_;
    std::size_t bytes_;
    Pointer start_ = 0;
};

}  // namespace collectives::cuda
