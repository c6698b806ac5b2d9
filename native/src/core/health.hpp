// What a communicator knows of its ranks from the control plane: the first cause for which all of them give
// up, and the ranks that are late.
//
// Invariant: the first cause is never replaced. The control thread writes, and the thread that runs
// operations reads; a check that finds nothing is one load.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "link/frame.hpp"

namespace collectives {

// Why all ranks of a communicator give up.
struct Cause {
    ErrorKind kind = ErrorKind::aborted;
    std::vector<int> ranks{};
    // Of a rank that is gone: its name; else empty.
    std::string gone{};
    std::string text{};
    // Collectives before this one, which every rank that has given up has completed, can be completed.
    std::uint64_t sequence = 0;
    // Whether the other ranks know it, too. If not, this rank may be the one that is cut off.
    bool is_shared = true;
    // Whether this rank still has to tell them.
    bool is_untold = false;
    // An operation in progress may still be completed within this time: what it waits for may be on its way.
    std::chrono::nanoseconds grace{0};
    Clock::time_point since{};

    // The error to raise; `during`: the call in progress, if there is one.
    Error error(const Call* during = nullptr) const;
    // Whether a wait for `peers` in that call, which began at `began`, ends now. Messages between other ranks
    // go on after a loss.
    bool ends(const Call& call, const std::vector<int>& peers, Clock::time_point began,
              Clock::time_point now) const;
    // Whether it keeps such a call from beginning. After a loss a call may begin, since what it needs may
    // have been sent before.
    bool forbids(const Call& call) const { return kind != ErrorKind::peer_lost && concerns(call); }

  private:
    bool concerns(const Call& call) const { return call.is_message() || call.sequence >= sequence; }
};

class Health {
  public:
    // What a rank that waits reports to the others, and asks them; set before the first operation. Empty
    // without a control plane.
    struct Reports {
        // This rank waits in that collective.
        std::function<void(const Call&, std::uint32_t fingerprint)> stalled;
        // Which ranks have not begun it? They are added by `add_late`.
        std::function<void(const Call&)> ask_for_late;
        // "rank 3 (host7)"
        std::function<std::string(int rank)> name;
        std::string self;  // this rank's
    };
    explicit Health(std::function<void()> ring) : ring_(std::move(ring)) {}

    // --- before the first operation
    void watch_over(Reports reports) { reports_ = std::move(reports); }

    // --- from any thread
    // The first cause counts. Wakes the thread that runs operations.
    void condemn(Cause cause);
    void add_late(std::uint64_t sequence, int rank);
    // That rank has left in order.
    void note_left(int rank);
    // Some rank is silent: at that time at the latest it is heard of again, or counts as dead. Zero: none is.
    void note_doubt(Clock::time_point until);

    // --- for the thread that runs operations
    bool is_watched() const { return reports_.stalled != nullptr; }
    bool is_condemned() const { return condemned_.load(std::memory_order_acquire); }
    // Wait until there is a cause for which `gone` may have given up, up to `timeout`. If they have left in
    // order, there is none. While a rank is in doubt, that may be the cause: they have waited for it longer
    // than this rank. So wait until it is judged, but no longer than until `deadline`.
    void wait_for_cause(const std::vector<int>& gone, std::chrono::nanoseconds timeout,
                        Clock::time_point deadline);
    // The same, when nothing but the time ends the wait.
    void wait_for_cause(std::chrono::nanoseconds timeout);
    // Null if there is none.
    const Cause* cause() const { return is_condemned() ? &*cause_ : nullptr; }
    const Reports& reports() const { return reports_; }
    // The ranks that have left in order, as far as this rank knows, ascending. From any thread.
    std::vector<int> left();
    // The ranks that have answered that they have not begun the collective of that number, ascending.
    std::vector<int> late(std::uint64_t sequence);
    void forget_late();
    // Warn that this rank has waited in that collective for so long, for the ranks that are late, if any.
    void warn_of_late(const Call& call, std::chrono::nanoseconds waited);

  private:
    std::function<void()> ring_;
    Reports reports_;
    std::mutex mutex_;
    std::condition_variable found_;
    std::optional<Cause> cause_;  // unchanged once `condemned_` is set
    std::atomic<bool> condemned_{false};
    std::uint64_t sequence_ = 0;  // the collective of which `late_` speaks
    std::set<int> late_;
    std::set<int> left_;
    Clock::time_point in_doubt_until_{};
};

}  // namespace collectives
