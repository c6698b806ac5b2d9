// The native side of one communicator: its operations, in their order, and its progress thread.
//
// Invariant: one thread at a time drives operations: the caller's while nothing is under way, else the
// progress thread. They are complete in the order in which they were started. The first error of an operation
// breaks the group: links are shut down so that peers notice, and every later operation throws that first
// cause. No member here touches Python.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "core/executor.hpp"
#include "core/links.hpp"
#include "engine/generalized.hpp"
#include "schedule/program.hpp"

namespace collectives {

// One operation for the progress thread.
struct Work {
    std::shared_ptr<const Operation> operation;
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    double timeout = 0;
    std::uint64_t queued = 0;  // when, in ticks
    bool joined = false;       // taken up together with the one before it, however many are under way
    Receipt receipt;           // of a message that was received
    std::shared_ptr<GeneralizedRequest> generalized;  // where code outside of the core does it
    bool done = false;                                // under the group's queue mutex
    std::optional<Error> error;
};

// An operation with its memory.
struct Item {
    const std::shared_ptr<const Operation>& operation;
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    Receipt* receipt = nullptr;
};

class Group {
  public:
    struct Options {
        Identity identity;
        std::shared_ptr<Job> job;    // that it belongs to; null: one of its own
        std::vector<int> job_ranks;  // by rank, that of the job; empty where they are the same
        std::size_t segment = 0;     // bytes per slice; 0: the default
        int sockets = 1;             // that carry data, of each link that can use several
        bool heap = true;            // whether peers have address space for all arrays from `empty`
        std::size_t cache = 0;       // bytes of the last cache that this rank has; 0: unknown
        bool oversubscribed = false;
        bool crowded = false;  // some ranks do, on some host; the same on all ranks
        int home = -1;         // the core for this rank's threads where ranks leave none to others; -1: any
    };

    explicit Group(Options options);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group() { close(); }

    // Listening, routes, and what there is of links.
    Links& links() { return links_; }
    // What transports and engines share; empty once it is closed.
    const Commons& commons() const { return surroundings_.commons; }

    void connect(const std::vector<int>& peers, double timeout, const Interrupted& interrupted);
    void run(const std::shared_ptr<const Operation>& operation, std::byte* in, std::byte* out, double timeout,
             const Interrupted& interrupted, CallerLock* lock = nullptr, Receipt* receipt = nullptr);
    // Several at once, which are complete when all are.
    void run_all(std::span<const Item> items, double timeout, const Interrupted& interrupted,
                 CallerLock* lock = nullptr);
    // `joined`: it is under way no later than the one started before it.
    std::shared_ptr<Work> start(std::shared_ptr<const Operation> operation, std::byte* in, std::byte* out,
                                double timeout, bool joined = false);
    // An operation that code outside of the core does, once all ranks have made the same call: they find that
    // out by running `agreement`.
    std::shared_ptr<Work> start_generalized(std::shared_ptr<const Operation> agreement, std::byte* in,
                                            std::byte* out, double timeout, const std::string& engine);
    bool done(const Work& work);
    // False if it is not done after `timeout`. Throws the operation's error.
    bool wait(const Work& work, double timeout, const Interrupted& interrupted);

    // Throws, and breaks the group, if a rank that shares memory with this one has begun another collective
    // under the number of one of this rank's: operations that wait for nobody do not find that. Waits up to
    // `grace` seconds until all such ranks have begun as many. Does nothing while another thread is inside.
    void confirm(double grace);

    // What each engine says to such an operation, in the order in which they are asked. Waits for operations
    // that are under way.
    std::vector<EngineChoice> engines(const Operation& operation);

    std::optional<Error> broken();
    void close();

    // From any thread, also afterwards: the last operations, oldest first, then those that the progress
    // thread has not come to yet.
    std::vector<Record> records();
    const Recorder& recorder() const { return recorder_; }

  private:
    void run_locked(std::span<const Item> items, double timeout, const Interrupted& interrupted,
                    CallerLock* lock);
    // Whether it is a message from this rank to itself.
    bool is_to_itself(const Operation& operation) const;
    bool sends_to_itself(std::span<const Item> items) const;
    Request request(const Operation& operation, std::byte* in, std::byte* out, double timeout);
    // What the next one would be.
    Call peek_call(const Operation& operation) const;
    Call next_call(const Operation& operation);
    // Of that call, which is the next one, and of those before it.
    std::uint32_t fingerprint(const Operation& operation, const Call& call);
    void break_with(const Error& cause);
    // All that is under way failed for that cause; what to throw.
    Error give_up(const Error& cause);
    void throw_if_unusable();

    std::shared_ptr<Work> start(std::shared_ptr<Work> work);

    // --- the progress thread
    using Works = std::deque<std::shared_ptr<Work>>;
    void serve();
    // Run works until there are none left.
    void drive();
    void take_works(Works& under_way);
    // Let those go on whose links are there now.
    void release_linked();
    // The oldest is over.
    void retire();
    // The oldest one failed; unless the fault was in the call itself, all others do.
    void fail(Works& under_way, const Error& error);
    // The oldest one is done; or this one.
    void finish(Works& under_way, std::optional<Error> error);
    void finish(Work& work, std::optional<Error> error);

    Identity identity_;
    std::atomic<bool> closing_{false};
    std::shared_ptr<Sleeper> sleeper_ = std::make_shared<Sleeper>();
    Recorder recorder_;
    Surroundings surroundings_;

    // The one who runs an operation holds this.
    std::mutex running_;
    Executor executor_;
    std::vector<InFlight*> unlinked_;             // under way, without all their links
    std::uint64_t sequence_ = 0;                  // collectives so far
    std::uint32_t history_ = 0;                   // the last one's fingerprint,
    std::uint32_t before_ = 0;                    // and that of the one before
    std::vector<std::uint64_t> sent_, received_;  // point-to-point messages, by peer
    bool closed_ = false;
    std::optional<Error> broken_;  // the first cause, for good; others may read it once the flag is set
    std::atomic<bool> is_broken_{false};

    std::mutex queue_;
    std::condition_variable queued_;
    std::condition_variable finished_;
    Works works_;                    // not yet taken up
    std::atomic<bool> busy_{false};  // there are some, or the progress thread has some in hand
    bool stop_ = false;
    bool serving_ = false;  // the progress thread takes up what is started
    std::thread progress_;

    Links links_;  // last: the control thread calls the two above
};

}  // namespace collectives
