// One operation under way: its request, the task that does it, and its place among those that were started
// before.
//
// Invariant: an operation on memory that an earlier one works on waits for it. On each channel, a direction
// of a link, operations take turns in the order in which they were started.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.hpp"

namespace collectives {

class InFlight {
  public:
    // Take up a request, which may be changed until it begins.
    Request& take(const Request& request) { return request_ = request; }
    // Behind `earlier` ones, oldest first, with a task that has not begun.
    void begin(std::size_t engine, std::unique_ptr<Task> task,
               std::span<const std::unique_ptr<InFlight>> earlier);
    // It is over, complete or not. The task can be used again.
    std::unique_ptr<Task> end();
    // `other` is over, as are all before it, and about to be forgotten.
    void forget(const InFlight* other);

    // While its links are not there it keeps its turns and does nothing.
    void hold(bool waits_for_links) {
        waits_for_links_ = waits_for_links;
        sockets_.reset();  // what links there are may be known only now
    }
    bool waits_for_links() const { return waits_for_links_; }
    // It can't be run; `error` is thrown when it has become the oldest.
    void fail(std::exception_ptr error) { error_ = std::move(error); }
    const std::exception_ptr& error() const { return error_; }

    // Do what can be done now; whether anything moved.
    bool progress();
    bool complete() const { return task_->complete(); }
    // Those without whose doing nothing moves.
    void awaited(std::vector<Awaited>& result);
    // Whether `test` holds for one of them.
    bool waits_for(Task::PeerTest test);
    void abandon() {
        if (!complete()) task_->abandon();
    }
    bool reclaim() { return complete() || task_->reclaim(); }
    bool uses_sockets();

    const Request& request() const { return request_; }
    Task& task() const { return *task_; }
    std::size_t engine() const { return engine_; }

  private:
    // `step` has its turn once `ahead` is through with `channel`.
    struct Turn {
        const InFlight* ahead = nullptr;
        std::uint32_t channel = 0;
        std::uint32_t step = 0;
    };

    bool shares_memory_with(const InFlight& other) const;
    void take_turns(std::span<const std::unique_ptr<InFlight>> earlier);
    // `gone`: an operation that is over, whether or not it got through.
    void look_at_turns(const InFlight* gone = nullptr);
    bool is_blocked() const { return behind_ != nullptr || error_ != nullptr; }

    Request request_;
    std::size_t engine_ = 0;  // its row in the table
    std::unique_ptr<Task> task_;
    bool waits_for_links_ = false;
    const InFlight* behind_ = nullptr;  // the last earlier one that works on the same memory
    std::vector<Turn> turns_;           // not yet had
    std::exception_ptr error_;
    std::optional<bool> sockets_;  // whether it has links over them, once that was asked
};

}  // namespace collectives
