#include "cuda/heap.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.hpp"

namespace collectives::cuda {

namespace {

constexpr std::size_t smallest_block = 512;
// Larger blocks are multiples of this, the unit in which the driver divides a device's memory.
constexpr std::size_t large_unit = 2 << 20;
// A block is used again for arrays of at least this part of it.
constexpr std::size_t used_again_from = 2;

struct Free {
    std::unique_ptr<DeviceMemory> memory;
    Exported exported;
};

struct Heap {
    std::mutex mutex;
    std::vector<Free> free;
    std::map<Pointer, std::weak_ptr<const Block>> used;  // by the beginning
    std::map<int, std::size_t> bytes;                    // by device
};

Heap& heap() {
    static Heap& one = *new Heap;  // blocks may be given back while the process ends
    return one;
}

struct Kept {
    std::shared_ptr<const Block> block;
    std::shared_ptr<const Signal> signal;
};

struct InUse {
    std::mutex mutex;
    std::vector<Kept> all;
};

InUse& in_use() {
    static InUse& one = *new InUse;
    return one;
}

// Let go what no stream uses any more.
void sweep() {
    std::vector<Kept> over;  // blocks return to the heap without the lock
    InUse& u = in_use();
    const std::lock_guard lock(u.mutex);
    std::erase_if(u.all, [&](Kept& kept) {
        if (!kept.signal->is_set()) return false;
        over.push_back(std::move(kept));
        return true;
    });
}

std::size_t rounded(std::size_t bytes) {
    const std::size_t unit = bytes > large_unit / 2 ? large_unit : smallest_block;
    return std::max((bytes + unit - 1) / unit * unit, smallest_block);
}

}  // namespace

Block::~Block() {
    Heap& h = heap();
    const std::lock_guard lock(h.mutex);
    h.used.erase(memory_->address());
    h.free.push_back({std::move(memory_), exported_});
}

std::shared_ptr<const Block> allocate(const std::shared_ptr<const PrimaryContext>& context, std::size_t bytes,
                                      For whom) {
    sweep();
    Heap& h = heap();
    const std::size_t wanted = rounded(bytes);
    Free chosen;
    {
        const std::lock_guard lock(h.mutex);
        auto best = h.free.end();
        for (auto one = h.free.begin(); one != h.free.end(); ++one) {
            const std::size_t has = one->memory->bytes();
            if (one->memory->context() != context || has < wanted || has / used_again_from > wanted) continue;
            if (best == h.free.end() || has < best->memory->bytes()) best = one;
        }
        if (best != h.free.end()) {
            chosen = std::move(*best);
            h.free.erase(best);
        }
    }
    if (chosen.memory == nullptr) {
        chosen.memory = std::make_unique<DeviceMemory>(context, wanted);
        const Current current(*context);
        chosen.exported = describe(chosen.memory->address(), wanted, context->device());
        complete(chosen.exported);
        const std::lock_guard lock(h.mutex);
        h.bytes[context->device()] += wanted;
    }
    auto block = std::make_shared<const Block>(std::move(chosen.memory), chosen.exported);
    if (whom == For::all_processes && block->exported().route != Route::handle) {
        throw Error(ErrorKind::transport_unavailable,
                    "memory of device " + std::to_string(context->device()) +
                        " cannot be opened by other processes: CUDA IPC needs Linux, and containers that "
                        "share their IPC namespace");
    }
    const std::lock_guard lock(h.mutex);
    h.used[block->address()] = block;
    return block;
}

void keep_until(std::shared_ptr<const Block> block, std::shared_ptr<const Signal> signal) {
    if (signal->is_set()) return;
    InUse& u = in_use();
    const std::lock_guard lock(u.mutex);
    u.all.push_back({std::move(block), std::move(signal)});
}

std::shared_ptr<const Block> block_of(Pointer address, std::size_t bytes) {
    Heap& h = heap();
    std::shared_ptr<const Block> found;  // let go without the lock, which its end takes
    const std::lock_guard lock(h.mutex);
    auto next = h.used.upper_bound(address);
    if (next == h.used.begin()) return nullptr;
    --next;
    found = next->second.lock();
    const bool holds = found != nullptr && address - found->address() <= found->bytes() &&
                       bytes <= found->bytes() - (address - found->address());
    return holds ? found : nullptr;
}

std::size_t heap_bytes(int device) {
    Heap& h = heap();
    const std::lock_guard lock(h.mutex);
    return h.bytes[device];
}

}  // namespace collectives::cuda
