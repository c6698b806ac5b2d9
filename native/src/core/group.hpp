// The native side of one communicator: its operations, in their order, and its progress thread.
//
// Invariant: one thread at a time drives operations: the calling thread if nothing is in progress, else the
// progress thread. Operations complete in the order in which they were started. The first error of an
// operation breaks the group: links are shut down so that peers notice, and every later operation throws this
// error. Operations on device memory are issued in this order, too, and complete when their streams have
// passed them. No member here uses Python.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "core/executor.hpp"
#include "core/health.hpp"
#include "core/links.hpp"
#include "core/stream_watch.hpp"
#include "engine/generalized.hpp"
#include "engine/stream_engine.hpp"
#include "schedule/program.hpp"

namespace collectives {

// One operation for the progress thread.
struct Work {
    std::shared_ptr<const Operation> operation;
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    double timeout = 0;
    std::uint64_t queued = 0;  // time of the call, in ticks
    bool joined = false;       // starts together with the previous one, however many are in progress
    Receipt receipt;           // of a received message
    Transfer* transfer = nullptr;
    std::shared_ptr<GeneralizedRequest> generalized;  // set if code outside of the core runs it
    bool done = false;                                // protected by the group's queue mutex
    std::optional<Error> error;
};

// An operation with its memory.
struct Item {
    const std::shared_ptr<const Operation>& operation;
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    Receipt* receipt = nullptr;
    Transfer* transfer = nullptr;
};

class Group {
  public:
    struct Options {
        Identity identity;
        std::shared_ptr<Job> job;    // the job that the group belongs to; null: a new one
        std::vector<int> job_ranks;  // by rank, the rank in the job; empty if they are equal
        std::size_t segment = 0;     // bytes per slice; 0: the default
        int sockets = 1;             // sockets for data, of each link that can use several
        bool heap = true;            // whether peers have address space for all arrays from `empty`
        std::size_t cache = 0;       // bytes of this rank's share of the last-level cache; 0: unknown
        bool oversubscribed = false;
        bool crowded = false;        // ranks outnumber cores on some host; the same on all ranks
        int home = -1;               // this rank's home core; -1 for none
        std::string host;            // this rank's, for messages
        std::size_t rendezvous = 0;  // bytes, see Setup
    };

    explicit Group(Options options);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group() { close(); }

    int rank() const { return identity_.rank; }
    int size() const { return identity_.size; }

    // Listeners, routes and links.
    Links& links() { return links_; }
    // The objects that transports and engines share; empty after `close`.
    const Commons& commons() const { return surroundings_.commons; }

    void connect(const std::vector<int>& peers, double timeout, const Interrupted& interrupted);
    void run(const std::shared_ptr<const Operation>& operation, std::byte* in, std::byte* out, double timeout,
             const Interrupted& interrupted, CallerLock* lock = nullptr, Receipt* receipt = nullptr);
    // Run several operations at the same time; returns when all are complete.
    void run_all(std::span<const Item> items, double timeout, const Interrupted& interrupted,
                 CallerLock* lock = nullptr);
    // `joined`: start together with the previous operation, see Work.
    std::shared_ptr<Work> start(std::shared_ptr<const Operation> operation, std::byte* in, std::byte* out,
                                double timeout, bool joined = false, Transfer* transfer = nullptr);
    // Whether the operation may begin while its Transfer still copies. Engines for ranks that share memory
    // read the whole input at once.
    bool may_begin_early(const Operation& operation) const {
        return !surroundings_.all_share_memory || (!operation.program().pooled && !operation.flat());
    }
    // An operation that code outside of the core runs, after all ranks have made the same call, which they
    // check by running `agreement`.
    std::shared_ptr<Work> start_generalized(std::shared_ptr<const Operation> agreement, std::byte* in,
                                            std::byte* out, double timeout, const std::string& engine);

    // Makes an engine together with all other ranks. `patience` is called again and again meanwhile, and
    // throws the Error for which this rank gives up.
    using MakeStreamEngine =
        std::function<std::shared_ptr<StreamEngine>(const std::function<void()>& patience)>;
    // Make an engine of operations on device memory; `make` may return null, if this rank has no use for one
    // after all. An error breaks the group. `what` and `cure` are for the error if ranks do not come.
    void join(const std::string& what, const std::string& cure, const MakeStreamEngine& make, double timeout,
              const Interrupted& interrupted);
    // Issue an operation on device memory, which `engine` runs, after the operations in the background.
    // Returns when it is in its stream. `operations` describe the call, which other ranks make, too: one, two
    // if it sends and receives a message, or none if the task only marks what a stream has reached.
    std::shared_ptr<StreamWork> issue(const char* engine, std::span<const Operation* const> operations,
                                      std::unique_ptr<StreamTask> task, double timeout,
                                      const Interrupted& interrupted);
    bool done(const StreamWork& work) const { return streams_.is_done(work); }
    bool wait(const StreamWork& work, double timeout, const Interrupted& interrupted);

    // A call that consists of several operations has ended after some of them, so the next operation of this
    // rank would meet one of the others in the middle of that call. Breaks the group, also on other ranks.
    void abandon(const Error& error);

    bool done(const Work& work);
    // False if it is not done after `timeout`. Throws the operation's error.
    bool wait(const Work& work, double timeout, const Interrupted& interrupted);

    // Throws, and breaks the group, if a rank that shares memory with this rank has begun another collective
    // under the same number; operations that wait for no rank do not notice that. Waits up to `grace` seconds
    // until all such ranks have begun as many collectives. Does nothing while another thread uses the group.
    void confirm(double grace);

    // For each engine, in the order in which they are asked, whether it runs such an operation. Waits for
    // operations in progress.
    std::vector<EngineChoice> engines(const Operation& operation);

    std::optional<Error> broken();
    void close();

    // From any thread, also after `close`: the last operations, oldest first, then those that the progress
    // thread has not started yet.
    std::vector<Record> records();
    const Recorder& recorder() const { return recorder_; }

  private:
    void run_locked(std::span<const Item> items, double timeout, const Interrupted& interrupted,
                    CallerLock* lock);
    // Whether it is a message from this rank to itself.
    bool is_to_itself(const Operation& operation) const;
    bool sends_to_itself(std::span<const Item> items) const;
    Request request(const Operation& operation, std::byte* in, std::byte* out, double timeout);
    // The next call of this operation, without counting it.
    Call peek_call(const Operation& operation) const;
    Call next_call(const Operation& operation);
    // The fingerprint of that call, which is the next one, and of all calls before.
    std::uint32_t fingerprint(const Operation& operation, const Call& call);
    void break_with(const Error& cause);
    // Ends what is under way with that error, of which no other rank knows yet. From any thread.
    void condemn(const Error& error);
    // break_with as soon as no operation is under way, within `patience`; returns whether the group is
    // broken.
    bool break_within(std::chrono::nanoseconds patience, const Error& error);
    // All operations in progress fail with that error, or with its first cause; returns the error to throw.
    Error give_up(const Error& error);
    // That error of an engine, with the name of this rank if the reason is here.
    Error named(const Error& error) const;
    // What all ranks raise instead of that error of this rank.
    Error first_cause(const Error& error);
    // Throws if the group is closed or broken, or if all ranks have given up. `operation`: the one that
    // begins.
    void throw_if_unusable(const Operation* operation = nullptr);
    // The sequence number of the first collective that this rank has not completed.
    std::uint64_t first_incomplete();

    std::shared_ptr<Work> start(std::shared_ptr<Work> work);

    // --- operations on device memory
    StreamWatch::Owner stream_owner();
    // Why that operation, the oldest that is not complete, ends now. The watching thread asks.
    std::optional<Error> why_ended(StreamWork& work);
    // Locks `running_` when all operations that were started before have got their sequence numbers.
    std::unique_lock<std::mutex> lock_in_order(const Interrupted& interrupted);

    // --- the progress thread
    using Works = std::list<std::shared_ptr<Work>>;  // takes no memory where there are none
    void serve();
    // Run works until there are none left. With `patience`, only until nothing has moved for that time.
    void drive(std::optional<std::chrono::nanoseconds> patience = std::nullopt);
    void take_works();
    // Run works on the calling thread as long as something moves, and leave the rest to the progress thread.
    void help();
    // Leave works to the progress thread; called with `queue_` locked.
    void hand_over();
    // The group is being closed: works that were left to the progress thread, which has ended, fail.
    void end_left_over();
    // Let operations continue whose links are open now.
    void release_linked();
    // The oldest operation is over.
    void retire();
    // The oldest operation has failed; unless only its call was wrong, all others fail, too.
    void fail(const Error& error);
    // The oldest operation is done, or `work` is.
    void finish(std::optional<Error> error);
    void finish(Work& work, std::optional<Error> error);

    Identity identity_;
    bool fills_core_;  // this rank has one core, so its progress thread has none of its own
    std::atomic<bool> closing_{false};
    std::shared_ptr<Sleeper> sleeper_ = std::make_shared<Sleeper>();
    Recorder recorder_;
    Health health_{[this] { sleeper_->ring(); }};
    Surroundings surroundings_;

    // Held by the thread that runs operations.
    std::mutex running_;
    Executor executor_;
    Works under_way_;                             // works in progress
    std::vector<InFlight*> unlinked_;             // operations in progress that wait for links
    std::uint64_t sequence_ = 0;                  // number of collectives so far
    std::uint32_t history_ = 0;                   // fingerprint of the last collective
    std::uint32_t before_ = 0;                    // fingerprint of the collective before it
    std::vector<std::uint64_t> sent_, received_;  // point-to-point messages, by peer
    bool closed_ = false;
    std::optional<Error> broken_;  // the first error; any thread may read it if `is_broken_` is set
    std::atomic<bool> is_broken_{false};

    std::mutex queue_;
    std::condition_variable queued_;
    std::condition_variable finished_;
    Works works_;                         // operations that the progress thread has not started
    std::atomic<bool> busy_{false};       // there are some, or the progress thread runs some
    std::shared_ptr<Work> last_started_;  // null if it was the first
    bool stop_ = false;
    bool left_over_ = false;  // works in progress were left to the progress thread
    bool serving_ = false;    // the progress thread is running
    std::thread progress_;

    Links links_;  // after all members that the control thread calls
    StreamWatch streams_{stream_owner(), recorder_, running_};  // uses all others
};

}  // namespace collectives
