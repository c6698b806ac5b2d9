// Drives the operations of one rank on the calling thread. It knows no engine by name: the first engine in
// its list that can run an operation runs it.
//
// Invariant: operations are complete in the order in which they were added. When none of them can move, the
// executor spins, yields and sleeps. Every wait ends at the oldest operation's deadline, at a signal, or when
// an awaited peer is gone. An error of another operation is thrown when that operation has become the oldest.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/wait.hpp"
#include "core/health.hpp"
#include "core/in_flight.hpp"
#include "core/recorder.hpp"
#include "core/result_stores.hpp"
#include "core/sleeper.hpp"
#include "core/vigil.hpp"
#include "link/colocation.hpp"

namespace collectives {

// The largest number of operations that a group has in progress; more operations wait.
inline constexpr std::size_t most_at_a_time = 32;

class Executor {
  public:
    struct Settings {
        std::uint64_t cache = 0;   // bytes of this rank's share of the last-level cache; 0: unknown
        int spins = 0;             // looks before the first yield, if no awaited rank needs the core
        int home = -1;             // this rank's home core; -1 for none
        bool shares_home = false;  // other ranks have the same home core
    };

    // `engines`: in the order in which they are asked; the last one can run everything.
    Executor(Settings settings, Engines engines, const Surroundings& surroundings, Recorder& recorder,
             Sleeper& sleeper, Health& health, const std::atomic<bool>& closing);

    // Use what this rank shares with peers; `colocation` must stay until `close`.
    void share(Colocation& colocation);

    // One of the links goes to another machine.
    void use_network() { backoff_.expect_network(); }

    // Publish that this rank begins that call. Throws if a peer has found that ranks called different
    // operations.
    void publish(const Request& request);
    // Start an operation, which completes after all earlier ones. The result is valid until `retire`.
    InFlight& add(const Request& request);
    // For each engine, whether it runs such an operation.
    std::vector<EngineChoice> explain(const Request& request) const;
    // Work until the oldest operation is complete, then return true, or until `call_attention`, then return
    // false. Throws if the oldest operation has to end.
    bool work();
    enum class Stop : std::uint8_t { complete, attention, idle };
    // The same, but returns also when nothing has moved for that time. Does not sleep or yield.
    Stop work_unless_idle(std::chrono::nanoseconds patience);
    // Peer and direction of a message, for its record.
    static Recorder::Way way_of(const Operation& operation);
    // Make the record of an operation that waits for links before it is added; returns its number.
    std::uint64_t record_queued(const Operation& operation, const Call& call);
    // Set whether the operation waits for links.
    void hold(InFlight& one, bool waits_for_links);
    // Record that all operations in progress, or only the oldest one, have failed for that reason.
    void record_failure(const std::string& why);
    void record_failure_of_oldest(const std::string& why);
    // Remove the oldest operation, which is complete or cannot be run.
    void retire();
    const InFlight& oldest() const { return *under_way_.front(); }
    std::size_t under_way() const { return under_way_.size(); }
    // Of the oldest operation, once it has waited.
    Clock::time_point deadline() const { return timed_ ? vigil_.deadline().at() : Clock::time_point::max(); }
    // Whether the test holds for one of the operations in progress.
    bool any_of(FunctionRef<bool(const InFlight&)> test) const {
        return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& one) { return test(*one); });
    }
    // The error of an operation in progress for which the test holds, of the oldest such one. It is not
    // thrown yet if the operation is not the oldest of all.
    std::optional<Error> find_error(FunctionRef<bool(const Error&)> test) const;
    // Remove all operations in progress, which have failed.
    void clear();
    // The same if the group is broken. Returns false if peers may still write to the caller's memory, see
    // Task::reclaim.
    bool give_up();

    // There are new links, which operations in progress may use.
    void notice_links() {
        for (const auto& one : under_way_) one->hold(one->waits_for_links());
    }

    // Throws as `work` does if the oldest operation has to end: it is closed, interrupted or timed out, it
    // needs a peer that is gone, or all ranks give up.
    void check();
    // The caller was busy since `check`, which counts as waiting.
    void note_busy() {
        if (timed_) vigil_.rest(Clock::now());
    }

    // From any thread: make `work` return soon, also from its sleep.
    void call_attention();

    // After this no operation can run.
    void close();

  private:
    bool pass();
    // Whether `call_attention` was called. Throws the error of the oldest operation, if there is one.
    bool is_called();
    // Something has moved.
    void note_moves(unsigned& passes);
    void wait();
    // Whether an awaited rank needs this rank's core.
    bool keeps_from_running();
    // Release the caller's lock, unless the wait may end at once.
    void release_lock_unless_soon();
    // The last yield took long. If another program had the core while this rank needed it, move to another
    // core, or stop yielding for a while.
    void look_into_lost_slice();
    // Whether `predicate` holds for the presence of an awaited rank.
    template <typename Predicate>
    bool any_awaited(Predicate predicate);
    // Whether all ranks depend on each other in the oldest operation, and `predicate` holds for the presence
    // of a rank that has not begun it.
    template <typename Predicate>
    bool any_to_come(Predicate predicate);
    // The presence of that peer; null if it has none, or no link.
    const Presence* presence_of(const Request& request, int peer);
    void record_begun(Request& request, const char* engine, std::uint64_t now);
    // Whether waiting ranks use the core of this rank.
    bool publishes_core() const { return settings_.shares_home && presence_ != nullptr; }
    void sleep();
    void disarm();
    void ask_caller(Clock::time_point now);
    // The same for a peer that is gone, or for a cause from the control plane.
    void throw_if_lost(Clock::time_point now);
    // Receive what peers sent before they ended. Returns whether the oldest operation still waits for `peer`
    // (-1: for anyone).
    bool still_waits_for(int peer);
    void throw_if_accused(const Request& request) const;
    // Throws if the oldest operation waits for a rank that is in another operation.
    void look_for_other_calls();
    [[noreturn]] void throw_timeout(std::vector<int> peers);
    // The peers for which the oldest operation waits, ascending.
    std::vector<int> waiting_for();

    // The times of an operation in progress, for its record.
    struct Times {
        std::uint64_t begun = 0;
        std::uint64_t waited_before = 0;  // ticks that the executor had waited until it began
        bool tried = false;               // it could not move in an earlier pass
        bool moved = false;
        bool recorded = false;  // the time of its first move is recorded
    };
    bool note(Times& times, bool moved) {
        if (times.moved) return moved;
        (moved ? times.moved : times.tried) = true;
        new_moves_ |= moved;
        return moved;
    }
    // End the current wait, if there is one, because something has moved or is about to change.
    void end_wait();
    void begin_wait();
    // Record the first moves of operations, which were in the last pass.
    void record_first();

    Settings settings_;
    Recorder& recorder_;
    std::vector<Times> times_;       // of the operations in progress, oldest first
    std::uint64_t waited_ = 0;       // ticks of all waits so far
    std::uint64_t waits_since_ = 0;  // the beginning of the current wait; 0: there is none
    std::uint64_t just_looked_ = 0;  // the time after the last pass; 0 if the clock was not read
    bool new_moves_ = false;         // in the last pass, operations have moved for the first time
    Sleeper& sleeper_;
    Health& health_;
    const std::atomic<bool>& closing_;
    std::atomic<bool> attention_{false};
    std::vector<Colocation*> colocations_;
    Presence* presence_ = nullptr;  // this rank's
    // By rank, as far as known. Kept here, because reading them from the links touches a cache line for each.
    std::vector<const Presence*> presences_;
    std::atomic<std::uint64_t>* passes_ = nullptr;  // see Colocation
    ResultStores results_;
    Backoff backoff_;
    bool armed_ = false;
    // Whether an awaited rank needs this rank's core; reset when something has changed.
    std::optional<bool> needed_;
    unsigned looks_ = 0;

    // An engine, and its idle tasks. Tasks are kept, because links refer to the context of the last
    // operation.
    struct Row {
        std::unique_ptr<Engine> engine;
        std::vector<std::unique_ptr<Task>> idle;
    };
    // The name, for records, of the engine that does the work.
    static const char* name_of(const Row& row, const Request& request);
    std::vector<Row> engines_;
    std::vector<std::unique_ptr<InFlight>> under_way_;  // oldest first
    std::vector<std::unique_ptr<InFlight>> idle_;

    // The oldest operation, if it began while no other was in progress, and is timed for `results_`.
    ResultStores::Work timed_work_;
    ResultStores::Turn turn_;
    ResultStores::Clock::time_point work_began_{};

    bool timed_ = false;  // the oldest operation's deadline runs, and the two members below are set
    Vigil vigil_;
    Clock::time_point asked_{};

    // Kept to save allocations.
    std::vector<Awaited> awaited_;
    std::vector<pollfd> polled_;
};

}  // namespace collectives
