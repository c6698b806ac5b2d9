// The executor: runs any operation over any mix of links, on the thread that calls it.
//
// Invariant: every task has one watermark, the number of its bytes that are done: received, reduced, copied,
// or sent so that their memory may change again. Tasks advance as far as the watermarks of the tasks they
// depend on allow, so slices flow through dependent steps and nothing waits for whole chunks. A task is
// looked at only while it is at the head of all its queues. When nothing moves the executor spins, yields and
// sleeps, and every wait ends at the deadline, at a signal, or when a peer it waits for is gone.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "program.hpp"
#include "reduce.hpp"
#include "shm_link.hpp"
#include "sleeper.hpp"
#include "wait.hpp"

namespace collectives {

class Executor {
  public:
    struct Settings {
        std::size_t slice = 0;  // the most that one reduction or copy does before others get their turn
        int spins = 0;          // looks before the first yield; 0 where ranks outnumber cores
    };

    // One run of an operation. The clock is read only once something has to be waited for.
    struct Request {
        const Operation* operation = nullptr;
        Call call;  // the operation's, with sequence and epoch
        std::byte* in = nullptr;
        std::byte* out = nullptr;
        std::span<Link* const> links;                        // by rank; null where the operation needs none
        double timeout = 0;                                  // seconds
        const std::function<bool()>* interrupted = nullptr;  // asked now and then; true ends the operation
    };

    Executor(Settings settings, Sleeper& sleeper, const std::atomic<bool>& closing);

    // Sends to several peers that share memory with us are staged in `arena`.
    void share(std::shared_ptr<Arena> arena) { caster_ = std::make_unique<Caster>(std::move(arena)); }

    // Let go of the arena; nothing can be run any more.
    void close() { caster_.reset(); }

    // Run to the end.
    void run(const Request& request);

  private:
    using Task = Operation::Task;

    struct State {
        std::uint64_t done = 0;    // the watermark
        std::uint64_t taken = 0;   // sends: bytes handed to the link
        std::uint32_t before = 0;  // queues in which others come first
        bool started = false;
        bool complete = false;
    };

    void prepare();
    bool pass();
    bool advance(const Task& task, State& state);
    void start(const Task& task);
    void send(const Task& task, State& state);
    void cast(const Task& task, State& state);
    void recv(const Task& task, State& state);
    void reduce(const Task& task, State& state);
    void copy(const Task& task, State& state);
    bool is_complete(const Task& task, const State& state);
    void release_successors(std::uint32_t index);

    // How far the tasks it depends on let this one go, in whole elements.
    std::uint64_t limit(const Task& task) const;
    std::byte* at(const Operation::Place& place) const {
        return buffers_[static_cast<std::size_t>(place.buffer)] + place.offset;
    }
    Link& link(int peer) const { return *links()[static_cast<std::size_t>(peer)]; }
    std::span<Link* const> links() const { return request_->links; }
    // Large results that no later step reads go around the caches.
    Stores stores(const Task& task) const;
    std::byte* scratch(std::uint64_t bytes);

    void wait();
    void sleep();
    // Throws if the operation has to end: closed, interrupted, timed out, or a peer it needs is gone.
    void check();
    [[noreturn]] void throw_timeout(std::vector<int> peers) const;
    // Peers without whose doing nothing moves.
    std::vector<int> waiting_for();

    Settings settings_;
    Sleeper& sleeper_;
    const std::atomic<bool>& closing_;
    Backoff backoff_;
    std::unique_ptr<Caster> caster_;

    // The operation in hand.
    const Request* request_ = nullptr;
    Context context_;                    // links refer to it between operations
    std::array<ReduceFn, 2> kernels_{};  // by Stores
    double scale_ = 1.0;
    bool sockets_ = false;
    bool armed_ = false;
    bool timed_ = false;  // the two below are set
    Clock::time_point began_{};
    Deadline deadline_;
    Clock::time_point asked_{};
    std::vector<std::byte*> buffers_;
    std::vector<State> states_;
    std::vector<std::uint32_t> active_;
    std::size_t unfinished_ = 0;

    // Kept between operations to save allocations.
    std::vector<const std::byte*> operands_;
    std::vector<pollfd> awaited_;
    std::vector<ShmLink*> cast_links_;
    std::vector<std::uint64_t> cast_taken_;  // by rank: bytes handed over, in the one cast under way
    std::unique_ptr<std::byte[]> scratch_;
    std::uint64_t scratch_size_ = 0;
};

}  // namespace collectives
