// NCCL's communicator of one of this library's communicators, on one device.
//
// Invariant: it is created without blocking, so that a rank that does not come costs no more than the
// deadline. Only calls that are inside NCCL at the same moment as `abort` can meet it, and `abort` lets them
// return before it frees what they use, if this NCCL can do so.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/context.hpp"
#include "cuda/heap.hpp"
#include "cuda/signal.hpp"
#include "engine/stream_engine.hpp"
#include "nccl/library.hpp"

namespace collectives::nccl {

// Called again and again while ranks meet; throws the Error for which this rank gives up.
using Patience = std::function<void()>;

class Communicator final : public StreamEngine {
  public:
    struct Member {
        int rank = 0;
        int size = 1;
        int device = 0;
        int capability = 0;  // of the oldest device of all ranks, 90 for 9.0
    };

    // How many thread blocks NCCL uses for an operation; 0 for its own choice. Memory grows with them.
    struct Blocks {
        int least = 0;
        int most = 0;
    };

    // All ranks create it together, with the `id` of one of them. Throws Error.
    Communicator(const Library& library, const UniqueId& id, const Member& member, const Blocks& blocks,
                 const Patience& patience);
    ~Communicator() override { close(); }

    const char* name() const override { return "nccl"; }
    std::optional<std::string> failure() override;
    void abort() noexcept override;
    void close() noexcept override;

    // Those who use it: with the last one that leaves it, it is closed.
    void join() { users_.fetch_add(1); }
    void leave_it() noexcept {
        if (users_.fetch_sub(1) == 1) close();
    }
    // Whether it was aborted or closed.
    bool is_over() {
        const std::lock_guard lock(mutex_);
        return ending_;
    }

    // Call a function of NCCL, which gets the handle. Throws Error, Error(aborted) after `abort`.
    using Function = std::function<Result(const Api&, Handle)>;
    void call(const char* name, const Function& function);

    const std::shared_ptr<const cuda::PrimaryContext>& context() const { return context_; }
    // A graph holds an operation of this communicator, which NCCL frees only after the graph.
    void note_captured() { is_captured_.store(true); }
    // Memory that graphs use, which is kept as long as the communicator.
    void keep(std::shared_ptr<const cuda::Block> block) {
        const std::lock_guard lock(mutex_);
        kept_.push_back(std::move(block));
    }
    // A signal for an operation of this communicator. Throws Error(aborted) once it was ended.
    cuda::Signal take_signal();
    const Member& member() const { return member_; }
    int version() const { return library_.version(); }
    // Bytes of the device's memory that it holds: as NCCL counts them, or, where this NCCL does not, what
    // became less on the device while it was made. 0 once it is closed.
    std::uint64_t memory();

  private:
    // Wait until the state of a communicator that does not block is known.
    void settle(Handle handle, const char* function, const Patience& patience) const;
    // Makes a communicator `second` from that one, whose calls block. NCCL may write `second` until the first
    // one is freed.
    void make_blocking_twin(Handle first, Handle& second, Config config, const Patience& patience) const;
    // Frees the communicator on a thread of its own, by that function of NCCL.
    void free_by(Result (*function)(Handle), Handle handle) noexcept;
    // Throws if the communicator is ending.
    Handle enter(const char* name);
    void leave();

    const Library& library_;
    Member member_;
    std::shared_ptr<const cuda::PrimaryContext> context_;
    std::shared_ptr<cuda::Signals> signals_;  // null once the communicator was ended

    std::atomic<int> users_{0};
    std::atomic<bool> is_captured_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    Handle handle_ = nullptr;  // null once it is freed
    std::vector<std::shared_ptr<const cuda::Block>> kept_;
    int inside_ = 0;           // calls inside NCCL
    std::uint64_t taken_ = 0;  // bytes, while it was made
    bool ending_ = false;      // no further calls
};

}  // namespace collectives::nccl
