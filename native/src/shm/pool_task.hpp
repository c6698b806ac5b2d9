// The pool engine: allreduces of ranks that all share memory, summed in accumulators, see Pool.
//
// Ranks announce the operation on a board, and whether peers can read and write their arrays. If this is true
// for all ranks, exchanging messages is faster, and the task continues as a task of another engine.
// Invariant: all ranks decide in the same way, because each uses the announcements of all ranks.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.hpp"
#include "shm/board_entry.hpp"

namespace collectives {

class PoolTask final : public Task {
  public:
    // `messages`: the task that runs operations which are not pooled after all.
    PoolTask(Colocated& colocated, std::unique_ptr<Task> messages)
        : colocated_(colocated), messages_(std::move(messages)), entry_(colocated) {}

    void begin(Request& request, const Position& position) override;
    bool progress() override;
    bool complete() const override { return path_ == Path::messages ? messages_->complete() : complete_; }
    void awaited(std::vector<Awaited>& result) override;
    void abandon() override;
    bool reclaim() override { return !may_exchange_ || messages_->reclaim(); }
    void end() override;

    bool waits_for(PeerTest test) override;
    bool depends_on_all() const override { return path_ == Path::messages && messages_->depends_on_all(); }
    void set_asleep(bool asleep) override { entry_.set_asleep(asleep); }
    Channels* channels() override { return path_ == Path::pool ? nullptr : messages_->channels(); }

  private:
    // Undecided until all ranks have announced where their arrays are.
    enum class Path : std::uint8_t { undecided, pool, messages };

    const Operation& operation() const { return *request_->operation; }
    // Whether peers can read and write this rank's arrays.
    bool is_in_heap() const;
    void announce();
    bool advance_pool();

    Colocated& colocated_;
    std::unique_ptr<Task> messages_;
    BoardEntry entry_;
    Request* request_ = nullptr;
    Path path_ = Path::pool;
    bool may_exchange_ = false;  // `messages_` has begun
    bool complete_ = false;
    bool announced_ = false;
    bool has_all_ = false;  // all ranks have announced
    bool in_pool_ = false;
    std::vector<int> ranks_;  // kept to save allocations
};

class PoolEngine final : public Engine {
  public:
    // `messages`: the engine for operations that are not pooled after all.
    PoolEngine(Colocated& colocated, std::unique_ptr<Engine> messages)
        : colocated_(colocated), messages_(std::move(messages)) {}
    const char* name() const override { return "pool"; }
    const char* refuses(const Request& request) const override;
    std::unique_ptr<Task> make_task() override {
        return std::make_unique<PoolTask>(colocated_, messages_->make_task());
    }

  private:
    Colocated& colocated_;
    std::unique_ptr<Engine> messages_;
};

}  // namespace collectives
