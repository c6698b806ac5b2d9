// Drives the operations of one rank on the thread that calls it. It knows no engine by name: the first one of
// its table that can run an operation does.
//
// Invariant: operations are complete in the order in which they were added. When none of them can move, the
// executor spins, yields and sleeps. Every wait ends at the oldest operation's deadline, at a signal, or when
// a peer that it waits for is gone. An error of another operation is thrown when that has become the oldest.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/wait.hpp"
#include "core/in_flight.hpp"
#include "core/recorder.hpp"
#include "core/result_stores.hpp"
#include "core/sleeper.hpp"
#include "link/colocation.hpp"

namespace collectives {

// Operations that a group has under way; more wait.
inline constexpr std::size_t most_at_a_time = 32;

class Executor {
  public:
    struct Settings {
        std::uint64_t cache = 0;   // this rank's share of the last cache, bytes; 0: unknown
        int spins = 0;             // looks before the first yield, where nobody waited for needs the core
        int home = -1;             // the core to be on; -1 for any
        bool shares_home = false;  // others are at home there, too
    };

    // `engines`: in the order in which they are asked; the last one can run everything.
    Executor(Settings settings, Engines engines, const Surroundings& surroundings, Recorder& recorder,
             Sleeper& sleeper, const std::atomic<bool>& closing);

    // Peers see memory of this rank. It must stay until `close`.
    void share(Colocation& colocation);

    // One of the links leaves the machine.
    void use_network() { backoff_.expect_network(); }

    // Take up an operation, to be complete after those under way. It is there until it is retired.
    InFlight& add(const Request& request);
    // What each engine says to such an operation.
    std::vector<EngineChoice> explain(const Request& request) const;
    // Work until the oldest operation is complete: true; or until somebody calls for attention: false. Throws
    // if the oldest operation has to end.
    bool work();
    // What a record says of it if it is a message.
    static Recorder::Way way_of(const Operation& operation);
    // The record of one that waits for links before it is added.
    std::uint64_t record_queued(const Operation& operation, const Call& call);
    // It waits for links, or no longer does.
    void hold(InFlight& one, bool waits_for_links);
    // Those under way have failed for that reason, or the oldest one alone.
    void record_failure(const std::string& why);
    void record_failure_of_oldest(const std::string& why);
    // Forget the oldest operation, which is complete or can't be run.
    void retire();
    const InFlight& oldest() const { return *under_way_.front(); }
    std::size_t under_way() const { return under_way_.size(); }
    // Whether the test holds for one of those under way.
    bool any_of(FunctionRef<bool(const InFlight&)> test) const {
        return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& one) { return test(*one); });
    }
    // Forget all that is under way: it failed.
    void clear();
    // The same where the group is broken; false where peers may still write to memory that is the caller's,
    // see Task::reclaim.
    bool give_up();

    // Links have come that some of those under way can use.
    void notice_links() {
        for (const auto& one : under_way_) one->hold(one->waits_for_links());
    }

    // From any thread: make `work` return soon, also from its sleep.
    void call_attention();

    // Nothing can be run any more.
    void close();

  private:
    bool pass();
    void wait();
    // Whether a rank that is waited for needs the core that this one is on.
    bool keeps_from_running();
    // Release the caller's lock, unless what is waited for may come at once.
    void release_lock_unless_soon();
    // The last yield took long: if others than ranks of this group had the core, when it was needed, act on
    // it.
    void look_into_lost_slice();
    // Whether `predicate` holds for the presence of a rank that is waited for.
    template <typename Predicate>
    bool any_awaited(Predicate predicate);
    // Whether, where ranks depend on all others, it holds for one that has not begun the oldest operation.
    template <typename Predicate>
    bool any_to_come(Predicate predicate);
    // Of that peer; null where it has none, or no link.
    const Presence* presence_of(const Request& request, int peer);
    void record_begun(Request& request, const char* engine, std::uint64_t now);
    // Whether ranks that wait want to know where this one is.
    bool publishes_core() const { return settings_.shares_home && presence_ != nullptr; }
    void sleep();
    void disarm();
    // Throws if the oldest operation has to end: closed, interrupted, timed out, or a peer it needs is gone.
    void check();
    // This rank begins that call. Throws where a peer has found that ranks called different things.
    void publish(const Request& request);
    void throw_if_accused(const Request& request) const;
    // Throws if the oldest operation waits for a rank that is in another one.
    void look_for_other_calls();
    [[noreturn]] void throw_timeout(std::vector<int> peers) const;
    // Peers without whose doing the oldest operation does not move, ascending.
    std::vector<int> waiting_for();

    // What records need of each operation under way.
    struct Times {
        std::uint64_t begun = 0;
        std::uint64_t waited_before = 0;  // all waiting of the executor until then
        bool tried = false;               // in vain, before it moved
        bool moved = false;
        bool recorded = false;  // when it first moved
    };
    bool note(Times& times, bool moved) {
        if (times.moved) return moved;
        (moved ? times.moved : times.tried) = true;
        new_moves_ |= moved;
        return moved;
    }
    // Something has moved, or is about to change: a wait, if there is one, ends here.
    void end_wait();
    void begin_wait();
    // The last pass was the first one in which some have moved.
    void record_first();

    Settings settings_;
    Recorder& recorder_;
    std::vector<Times> times_;       // of those under way, oldest first
    std::uint64_t waited_ = 0;       // ticks, so far
    std::uint64_t waits_since_ = 0;  // 0: it does not wait
    std::uint64_t just_looked_ = 0;  // the clock, read after the last pass; 0: it was not
    bool new_moves_ = false;         // some have moved for the first time in the last pass
    Sleeper& sleeper_;
    const std::atomic<bool>& closing_;
    std::atomic<bool> attention_{false};
    std::vector<Colocation*> colocations_;
    Presence* presence_ = nullptr;  // this rank's
    // By rank, as far as is known: the links' own places are as many lines of memory as there are links.
    std::vector<const Presence*> presences_;
    std::atomic<std::uint64_t>* passes_ = nullptr;  // see Colocation
    ResultStores results_;
    Backoff backoff_;
    bool armed_ = false;
    // Whether those that are waited for need our core; unknown again whenever something has changed.
    std::optional<bool> needed_;
    unsigned looks_ = 0;

    // An engine, and tasks that it made: they are kept, since links refer to the last operation's context.
    struct Row {
        std::unique_ptr<Engine> engine;
        std::vector<std::unique_ptr<Task>> idle;
    };
    // For records: that of whoever does the work.
    static const char* name_of(const Row& row, const Request& request);
    std::vector<Row> engines_;
    std::vector<std::unique_ptr<InFlight>> under_way_;  // oldest first
    std::vector<std::unique_ptr<InFlight>> idle_;

    // The oldest one, where it began while nothing else was under way and is timed for `results_`.
    ResultStores::Work timed_work_;
    ResultStores::Turn turn_;
    ResultStores::Clock::time_point work_began_{};

    bool timed_ = false;  // the oldest one's clock runs, and the three below are set
    Clock::time_point began_{};
    Deadline deadline_;
    Clock::time_point asked_{};

    // Kept to save allocations.
    std::vector<Awaited> awaited_;
    std::vector<pollfd> polled_;
};

}  // namespace collectives
