// The stream-ordered operations of one communicator that are not complete, and the thread that watches them.
//
// Invariant: an operation is watched from before it is issued until it is over, so a rank that cannot go on
// while it issues one is freed like a stream that cannot. The thread exists only while there is something to
// watch. The first reason to end one operation ends all of them, and nobody is told before the engine has
// nothing on the device any more. An operation is complete, or it was aborted, and never both.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "core/recorder.hpp"
#include "core/vigil.hpp"
#include "engine/stream_engine.hpp"

namespace collectives {

// One operation that is ordered by a stream; or, without a call, all that a stream holds, replays of graphs
// included.
struct StreamWork {
    std::optional<Call> call;
    std::uint32_t fingerprint = 0;
    std::vector<int> peers;              // of messages; empty: every rank takes part
    std::vector<std::uint64_t> records;  // of all calls that it runs; two if it sends and receives
    const char* engine = nullptr;
    std::unique_ptr<StreamTask> task;
    double timeout = 0;  // seconds, from `began` on
    Clock::time_point began = Clock::now();
    std::optional<Vigil> vigil;  // since it is the oldest; used by the watching thread alone

    std::optional<Clock::time_point> left_since;  // when a rank was found to have left

    std::atomic<bool> is_issued{false};
    // It is being aborted. The stream then goes on and passes the operation, whose arrays are undefined.
    std::atomic<bool> is_doomed{false};
    std::optional<Error> error;  // unchanged once `has_failed` is set
    std::atomic<bool> has_failed{false};

    // The call in which other ranks take part with their next ones; null if there is none.
    const Call* collective() const { return call && !call->is_message() ? &*call : nullptr; }
    std::string describe() const { return call ? call->describe() : "the work in a stream"; }

    // Whether the stream has passed it, and no abort was the reason: that is looked at last.
    bool is_complete() const {
        return is_issued.load(std::memory_order_acquire) && task->complete() &&
               !is_doomed.load(std::memory_order_acquire);
    }
};

class StreamWatch {
  public:
    // What the watching thread asks its communicator, and tells it.
    struct Owner {
        // Why this operation, the oldest that is not complete, has to end now; nothing if it goes on.
        std::function<std::optional<Error>(StreamWork&)> why_ended;
        // The communicator cannot be used any more. Returns false if it cannot take that now.
        std::function<bool(const Error&)> break_with;
        // The same, in a way that always works, but may not reach other ranks.
        std::function<void(const Error&)> condemn;
    };

    // `running` protects the recorder.
    StreamWatch(Owner owner, Recorder& recorder, std::mutex& running)
        : owner_(std::move(owner)), recorder_(recorder), running_(running) {}
    StreamWatch(const StreamWatch&) = delete;
    StreamWatch& operator=(const StreamWatch&) = delete;
    ~StreamWatch() { close(); }

    // --- with `running` held
    // An engine is ended with the communicator, and all engines together when an operation fails.
    void use(std::shared_ptr<StreamEngine> engine);
    // What one of the engines has found wrong by itself; nothing if all is well.
    std::optional<std::string> failure() const;
    // Watch an operation that is about to be issued.
    void add(std::shared_ptr<StreamWork> work);
    // The operation has failed while it was issued, and the communicator is broken: end all.
    void end_all(const Error& error);
    // Fill the records of operations that are over.
    void write_records();

    // --- from any thread
    // Why all operations were ended; nothing if they were not.
    std::optional<Error> why_ended();
    bool is_done(const StreamWork& work) const {
        return work.has_failed.load(std::memory_order_acquire) || work.is_complete();
    }
    // False if it is not done after `timeout` seconds. Throws the operation's error.
    bool wait(const StreamWork& work, double timeout, const std::function<bool()>& interrupted) const;
    // The first collective's sequence number; nothing if none is under way.
    std::optional<std::uint64_t> oldest();
    // End what is under way, and free the engine. Returns whether something was under way. `is_sound`: no
    // rank has failed, so that replays of graphs, which are not seen here, end by themselves. `running` must
    // not be held.
    bool close(bool is_sound = true);

  private:
    struct Over {
        std::uint64_t record;
        const char* engine;
        std::optional<Error> error;
        std::uint64_t at;  // ticks
    };
    using Lock = std::unique_lock<std::mutex>;

    void serve();
    std::vector<std::shared_ptr<StreamEngine>> engines() const;
    void abort_engines() const;
    // Forget operations that are complete.
    void collect(const Lock& lock);
    // An abort is about to begin: what is not complete now fails.
    void doom_all(const Lock& lock);
    // All these operations fail with that error.
    void fail_all(const Lock& lock, const Error& error);
    void note_over(const StreamWork& work, const std::optional<Error>& error);

    Owner owner_;
    Recorder& recorder_;
    std::mutex& running_;
    std::vector<std::shared_ptr<StreamEngine>> engines_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<StreamWork>> under_way_;  // in the order of calls
    std::vector<Over> over_;                             // whose records are not filled yet
    std::optional<Error> why_;
    bool stop_ = false;
    bool serving_ = false;
    std::thread thread_;
};

}  // namespace collectives
