// One operation in progress: its request, its task, and its place among the operations started before.
//
// Invariant: an operation waits for earlier operations that work on the same memory. Each channel, a
// direction of a link, serves operations in the order in which they were started.
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
    // Store a request, which may be changed until `begin`.
    Request& take(const Request& request) { return request_ = request; }
    // Begin after the operations in `earlier`, oldest first, with a task that has not begun.
    void begin(std::size_t engine, std::unique_ptr<Task> task,
               std::span<const std::unique_ptr<InFlight>> earlier);
    // The operation is over, complete or not. Returns the task, which can be used again.
    std::unique_ptr<Task> end();
    // `other` and all operations before it are over, and `other` is about to be removed.
    void forget(const InFlight* other);

    // While the operation waits for links, it keeps its turns and does nothing.
    void hold(bool waits_for_links) {
        waits_for_links_ = waits_for_links;
        sockets_.reset();  // there may be new links
    }
    bool waits_for_links() const { return waits_for_links_; }
    // The operation cannot be run; `error` is thrown when it has become the oldest.
    void fail(std::exception_ptr error) { error_ = std::move(error); }
    const std::exception_ptr& error() const { return error_; }

    // Do as much as possible now; returns whether anything moved.
    bool progress();
    bool complete() const { return task_->complete(); }
    // Adds the peers for which the operation waits.
    void awaited(std::vector<Awaited>& result);
    // Whether `test` holds for one of these peers.
    bool waits_for(Task::PeerTest test);
    void abandon() {
        if (!complete()) task_->abandon();
    }
    bool reclaim() { return complete() || task_->reclaim(); }
    bool uses_sockets();
    bool waits_unseen() const { return !is_blocked() && !complete() && task_->waits_unseen(); }

    const Request& request() const { return request_; }
    Task& task() const { return *task_; }
    std::size_t engine() const { return engine_; }

  private:
    // `step` has its turn when `ahead` has finished with `channel`.
    struct Turn {
        const InFlight* ahead = nullptr;
        std::uint32_t channel = 0;
        std::uint32_t step = 0;
    };

    bool shares_memory_with(const InFlight& other) const;
    void take_turns(std::span<const std::unique_ptr<InFlight>> earlier);
    // `gone`: an operation that is over, complete or not.
    void look_at_turns(const InFlight* gone = nullptr);
    bool is_blocked() const { return behind_ != nullptr || error_ != nullptr; }

    Request request_;
    std::size_t engine_ = 0;  // its row in the table
    std::unique_ptr<Task> task_;
    bool waits_for_links_ = false;
    const InFlight* behind_ = nullptr;  // the last earlier operation on the same memory
    std::vector<Turn> turns_;           // turns for which steps wait
    std::exception_ptr error_;
    std::optional<bool> sockets_;  // whether it has links over sockets, after the first check
};

}  // namespace collectives
