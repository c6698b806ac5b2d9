// The pool engine: allreduces of ranks that all share memory, added up in one place, see Pool.
//
// Ranks announce the operation on a board. One whose arrays lie where others can read and write says so
// there: where all ranks' arrays do, exchanging messages is faster, and each rank's task goes on with another
// engine's. Invariant: all ranks decide alike, since each decides by what all have announced.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.hpp"
#include "shm/board_entry.hpp"

namespace collectives {

class PoolTask final : public Task {
  public:
    // `messages`: does what is not pooled after all.
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
    // Undecided: until all ranks have announced where their arrays lie.
    enum class Path : std::uint8_t { undecided, pool, messages };

    const Operation& operation() const { return *request_->operation; }
    // Whether peers can read and write our arrays.
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
    bool has_all_ = false;  // all have announced
    bool in_pool_ = false;
    std::vector<int> ranks_;  // kept to save allocations
};

class PoolEngine final : public Engine {
  public:
    // `messages`: the engine of those tasks that are not pooled after all.
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
