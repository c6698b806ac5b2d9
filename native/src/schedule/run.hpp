// One operation under way: what each of its tasks has done, and the memory it works on.
//
// Invariant: every task has one watermark, the number of its bytes that are done: received, reduced, copied,
// or sent so that their memory may change again. Tasks advance as far as the watermarks of the tasks they
// depend on allow, so slices flow through dependent steps and nothing waits for whole chunks. A task is
// looked at only while it is at the head of all its queues. On each direction of a link operations take turns
// in the order in which they were started; an operation on memory that an earlier one works on waits for it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "reduce/reduce.hpp"
#include "schedule/program.hpp"
#include "schedule/result_stores.hpp"
#include "shm/caster.hpp"
#include "shm/flat.hpp"
#include "shm/mechanisms.hpp"
#include "shm/pool.hpp"
#include "shm/relay.hpp"
#include "shm/together.hpp"

namespace collectives {

// Operations that a group has under way; more wait.
inline constexpr std::size_t most_at_a_time = 32;

// What the calling thread keeps from others of its process, such as Python's lock, until it has to wait.
class Held {
  public:
    virtual void let_go() = 0;  // once is enough

  protected:
    ~Held() = default;
};

// Of a message that was received: from whom, and how many elements.
struct Receipt {
    int source = -1;
    std::uint64_t count = 0;
};

// What is to be run. The clock is read only once something has to be waited for.
struct Request {
    const Operation* operation = nullptr;
    Call call;                      // the operation's, with sequence and epoch
    std::uint32_t fingerprint = 0;  // of the call, and of those before it
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::span<Link* const> links;                        // by rank; null where the operation needs none
    double timeout = 0;                                  // seconds
    const std::function<bool()>* interrupted = nullptr;  // asked now and then; true ends the operation
    Held* held = nullptr;
    Receipt* receipt = nullptr;  // of a message: written once it is known
    std::uint64_t record = 0;    // its number in the Recorder; 0: it has none yet
    std::uint64_t queued = 0;    // when it was started, in ticks, if somebody has looked
};

// What the runs of one executor have in common.
struct Workshop {
    std::size_t slice = 0;           // the most that one reduction does before others get their turn
    std::size_t copied = 0;          // the most that one copy does
    ResultStores results;            // how they are written
    std::shared_ptr<Arena> arena;    // memory shared with peers, or null
    std::unique_ptr<Caster> caster;  // stages what several of them read
    bool together = false;           // all ranks share memory: shared reductions are done together
    std::uint32_t pieces = 0;        // of these so far
    bool crowded = false;            // ranks outnumber cores
    Mechanisms mechanisms = Mechanisms::from_environment();
    bool pooling = false;            // all ranks are processes that share memory: allreduces may be pooled
    std::unique_ptr<Pool> pool;      // once there was one
    std::vector<Flat> boards;        // by the rank that owns the board; empty where none can be
};

class Run {
  public:
    // A peer that has to do something: to take what we send it, or to send.
    struct Awaited {
        int peer = -1;
        bool sending = false;
    };

    // The shortest message that the receiver copies out of the sender's process.
    static constexpr std::uint64_t pulled_from = 32 << 10;
    // Up to so many ranks write to each peer by itself what all are to have.
    static constexpr std::uint32_t most_apart = 4;

    explicit Run(Workshop& workshop) : workshop_(workshop) {}

    // Take up a request, behind `earlier` ones, oldest first. The request must not change until the end.
    void begin(const Request& request, std::span<const std::unique_ptr<Run>> earlier);
    // Held back, it takes its turns and does nothing: its links are not there yet.
    void hold(bool held) {
        held_ = held;
        sockets_.reset();  // what links there are may be known only now
    }
    bool held() const { return held_; }
    // Whether any one of those that are awaited will do.
    bool is_open() const { return sender_ < 0 && request_.operation->is_open(); }
    // It can't be run; `error` is thrown when its time has come.
    void fail(std::exception_ptr error) { error_ = std::move(error); }
    const std::exception_ptr& error() const { return error_; }

    // Advance every task that can; whether anything moved.
    bool pass();
    bool complete() const { return unfinished_ == 0; }
    // Those without whose doing nothing moves.
    void awaited(std::vector<Awaited>& result);
    // Whether `predicate(peer)` of one of them. `kept` saves an allocation.
    template <typename Predicate>
    bool any_awaited(Predicate predicate, std::vector<Awaited>& kept) {
        if (waits_for_lines()) {
            const std::span<const int> sources = operation().program().sources;
            const std::size_t seen = by_core_ ? 0 : said_;
            return std::any_of(sources.begin() + static_cast<std::ptrdiff_t>(seen), sources.end(),
                               [&](int peer) { return predicate(peer) && is_late(peer); });
        }
        kept.clear();
        awaited(kept);
        return std::any_of(kept.begin(), kept.end(), [&](const Awaited& one) { return predicate(one.peer); });
    }
    // Whether `predicate(arena)` of a rank that has not begun this operation, where each depends on all, over
    // links.
    template <typename Predicate>
    bool any_to_come(Predicate predicate) const {
        const Program& program = operation().program();
        const bool mutual = program.says || program.combines > 0;
        if (way_ != Way::links || !mutual || request_.call.is_message()) return false;
        for (std::size_t rank = 0; rank < request_.links.size(); ++rank) {
            const Arena* const arena = arena_of(static_cast<int>(rank));
            if (arena == nullptr || !predicate(*arena)) continue;
            if (!arena->collective_call(request_.call.sequence)) return true;
        }
        return false;
    }
    // What a peer tells in the memory that it shares; null where it shares none.
    const Arena* arena_of(int peer) const {
        const ShmLink* const shm = shared_memory(peer);
        return shm == nullptr ? nullptr : shm->arena_of_peer().get();
    }
    // `run` is over, as are all before it, and about to be forgotten.
    void forget(const Run* run);
    // The group is broken, and this run may not be complete. Peers that read our memory must not take it for
    // what was sent;
    void abandon();
    // and after that has been said for all runs, peers that may be writing to the caller's memory in our
    // arena reach it no more. False where the kernel does not let us see to that.
    bool reclaim();
    // Give back what is not worth keeping.
    void end();
    // This rank goes to sleep, or has woken: those who do what it waits for have to know.
    void set_asleep(bool asleep);
    // Throws if one of those that are awaited is in another operation than this one, or a peer has told of
    // such.
    void look_for_other_calls();

    const Request& request() const { return request_; }
    bool uses_sockets();
    // What runs it, as records name it.
    const char* engine() const {
        switch (way_) {
            case Way::flat:
            case Way::exchange:
                return "board";
            case Way::pool:
                return "pool";
            case Way::links:
            case Way::open:
                break;
        }
        return "schedule";
    }

  private:
    using Task = Operation::Task;

    struct State {
        std::uint64_t done = 0;    // the watermark
        std::uint64_t taken = 0;   // sends: bytes handed to the link
        std::uint32_t before = 0;  // queues in which others come first
        std::uint32_t there = 0;   // reductions: of the next slice's operands, the first so many have come
        bool started = false;
        bool complete = false;
    };
    // `step` has its turn once `ahead` is through with `lane`.
    struct Turn {
        const Run* ahead = nullptr;
        std::uint32_t lane = 0;
        std::uint32_t step = 0;
    };

    // How the operation is done: task by task over links, or in a Flat, by two ranks there what is longer,
    // or, announced there, in a Pool. Open: over links or in a Pool, which depends on ranks that have not
    // come yet.
    enum class Way : std::uint8_t { links, flat, exchange, pool, open };

    Way choose_way() const;
    void set_contexts();
    // Throws if a peer has told this rank of ranks that called different things; or this operation fails so.
    void throw_disagreement() const;
    void learn_of_disagreement();

    // --- operations on a board, see Flat
    bool may_be_flat() const;
    bool has(Mechanism mechanism) const { return workshop_.mechanisms.has(mechanism); }
    // Whether two ranks say there what is long, each only what the other takes.
    bool may_exchange() const;
    // Of two ranks, whether both read each other's memory as fast as their own.
    bool reads_quickly() const;
    bool is_said() const { return way_ == Way::flat || way_ == Way::exchange; }
    bool is_on_board() const { return is_said() || way_ == Way::pool; }
    // The next number there. Operations have their turns in its order.
    void take_number(std::span<const std::unique_ptr<Run>> earlier);
    bool has_its_turn();
    bool advance_on_board();
    // Say what this rank has to say; false as long as that must wait.
    bool say();
    bool has_everyone_said();
    // Whether that peer has still to say something, or to add up what its mates have said.
    bool is_late(int peer) const;
    // Ranks that share cores add up what all say core by core: say so, or, as the last one there, the sum.
    bool adds_by_core() const;
    void say_by_core();
    bool has_every_sum();
    void add_sums();
    // One of them has ordinary memory.
    void go_to_pool();
    // Whether all of it is done.
    bool take_what_was_said();
    void take_copy(const Task& task);
    bool reduce_what_was_said(const Task& task);
    // How many bytes it says.
    std::size_t length_said() const {
        if (way_ == Way::exchange) return static_cast<std::size_t>(operation().flat()->part);
        return way_ == Way::flat ? static_cast<std::size_t>(operation().flat()->length) : 1;
    }
    const std::byte* said_by(int peer) const;
    // Where in our arena peers can read what is said; 0 where it has to be copied.
    std::uint64_t shown_at() const;
    // Tell the peer whose memory was read; whether ours has been.
    bool has_exchanged();
    // Whether it is lines of others that are missing there, and nothing else.
    bool waits_for_lines() const {
        return way_ != Way::links && has_come_ && !in_pool_ && behind_ == nullptr && !error_ && !held_ &&
               said_ < (by_core_ ? board_->cores() : operation().program().sources.size());
    }
    // Whose doing is missing there.
    void late_on_board(std::vector<int>& ranks);
    void wake_sleepers();

    void find_memory_shared(std::span<const std::unique_ptr<Run>> earlier);
    void take_turns(std::span<const std::unique_ptr<Run>> earlier);
    // `gone`: a run that is over, whether or not it got through.
    void look_at_turns(const Run* gone = nullptr);
    bool through_with(std::uint32_t lane) const;
    bool shares_memory_with(const Run& other) const;
    void release(std::uint32_t step);
    // Take up a section of the operation, whose buffers begin here.
    void begin_section(std::uint64_t section, std::byte* in, std::byte* out);
    void go_to_next_section();
    void reset_tasks();
    void find_active();
    bool is_in_sections() const { return request_.operation->sections() > 1; }
    bool is_last_section() const { return section_ + 1 == request_.operation->sections(); }

    bool advance(const Task& task, State& state);
    void start(const Task& task);
    void send(const Task& task, State& state);
    void cast(const Task& task, State& state);
    // Where several peers read staging, one copy serves them: offer it to `cast_links_`.
    void stage_cast(const Task& task, const std::byte* data, std::uint64_t ready);
    // Where they do so on several cores, one for each other core may serve those there: they take its lines
    // from this one, and read them in turn from their own core's caches.
    bool is_cast_by_core(const Task& task) const;
    // Offer it to those, who come first among `cast_links_` then; where the rest begins.
    std::vector<ShmLink*>::iterator cast_by_core(const Task& task, const std::byte* data,
                                                 std::uint64_t ready);
    // `on_one_core`: that is where all of them are.
    void offer(const std::byte* data, std::uint64_t ready, std::span<ShmLink* const> to, bool on_one_core);
    void recv(const Task& task, State& state);
    // A message whose sender and length are known when it comes. Whether it moved.
    bool recv_message(const Task& task, State& state);
    // Whether one has come; then what it is.
    bool meet_message(const Task& task);
    bool receives_message(const Task& task) const {
        return task.kind == StepKind::recv && request_.call.is_message();
    }
    void reduce(const Task& task, State& state);
    // n bytes from `begin` on, to which `operands_` point.
    void reduce_slice(const Task& task, std::uint64_t begin, std::size_t n);
    void reduce_together(const Task& task, State& state);
    // Do a part of the piece that is open, and get the others'; whether all of it is there.
    bool work_together(const Task& task);
    bool is_done_together(const Task& task) const;
    void number_pieces();
    // Say where messages are wanted that may come at once.
    void post_receptions();
    // Whether peers know where they want what the task reduces.
    bool relays(const Task& task) const;
    // `operands_` to n bytes of the result, also where peers want them.
    void reduce_and_relay(const Task& task, std::uint64_t begin, std::size_t n);
    // `operands_` to n bytes at all `places_` at once, around the caches; false if that cannot be.
    bool spread_streaming(const Task& task, std::size_t n) const;
    // Whether that peer gets what the task sends from the relay.
    bool is_relayed(const Task& task, int peer) const;
    std::uint32_t index_of(const Task& task) const {
        return static_cast<std::uint32_t>(&task - tasks().data());
    }
    std::unique_ptr<Together> make_together() const;
    std::vector<std::shared_ptr<Arena>> arenas() const;
    bool may_be_pooled() const;
    // Whether our arrays are where others can read and write: if those of all ranks are, links do it.
    bool is_in_heap() const;
    bool advance_pool();
    const std::vector<Task>& tasks() const { return operation().tasks(); }
    // Wake those that sleep for what we have done.
    void wake(std::span<const int> peers);
    // Whether the next bytes of all operands are here.
    bool all_there(const Task& task, State& state);
    void copy(const Task& task, State& state);
    bool is_complete(const Task& task, const State& state);

    // How far the tasks it depends on let this one go, in whole elements.
    std::uint64_t limit(const Task& task) const;
    std::byte* at(const Operation::Place& place) const {
        return buffers_[static_cast<std::size_t>(place.buffer)] + place.offset;
    }
    const Operation& operation() const { return *operation_; }
    // The link to that peer if it is there and goes through shared memory.
    ShmLink* shared_memory(int peer) const {
        Link* const to = request_.links[static_cast<std::size_t>(peer)];
        return to == nullptr ? nullptr : to->shared_memory();
    }
    Link& link(int peer) const { return *request_.links[static_cast<std::size_t>(peer)]; }
    // The task's results do not stay in the caches.
    bool is_streamed(const Task& task) const;
    // Large results that no later step reads go around the caches.
    Stores stores(const Task& task) const;
    bool is_in_place() const { return request_.in == request_.out; }
    ResultStores::Work results() const;
    void report_time_taken();
    // n bytes of `operands_` reduced to `dst`.
    void apply(const Task& task, std::byte* dst, std::size_t n, Stores stores) const;
    void reduce_operands(std::byte* dst, std::size_t n, double scale, Stores stores) const;
    std::byte* scratch(std::uint64_t bytes);

    Workshop& workshop_;
    Request request_;
    std::uint64_t section_ = 0;             // under way
    const Operation* operation_ = nullptr;  // that of this section
    Context context_;                       // links refer to it between operations
    Context cast_context_;                  // the same, of messages to several peers,
    std::uint64_t cast_by_core_up_to_ = 0;  // and how long those are that cores get each for itself
    double scale_ = 1.0;
    std::optional<bool> sockets_;            // whether it has links over them, once somebody has asked
    int sender_ = -1;                        // of the message that is received, once that is known,
    std::uint64_t message_length_ = 0;       // and how long it is
    ResultStores::Turn results_;             // how they are written
    ResultStores::Clock::time_point began_;  // where that is timed
    bool held_ = false;
    const Run* behind_ = nullptr;  // the last earlier run that works on the same memory
    Way way_ = Way::links;
    bool shows_memory_ = false;  // the peer reads what we say where it is
    bool has_come_ = false;      // to its board: this rank has said what it has to say
    Flat* board_ = nullptr;
    std::uint64_t number_ = 0;           // there
    const Run* before_there_ = nullptr;  // the last earlier one there
    bool by_core_ = false;               // what is said is added up core by core
    std::size_t said_ = 0;               // of the sources so many have, in their order, or so many cores
    bool asleep_ = false;                // and those who say something know
    std::size_t taken_ = 0;              // of the tasks, so many are done
    std::uint32_t piece_ = 0;            // of the reduction done together, the next piece's number
    bool in_pool_ = false;
    std::vector<Turn> turns_;  // not yet had
    std::exception_ptr error_;
    std::vector<std::byte*> buffers_;
    std::vector<State> states_;
    std::vector<std::uint32_t> active_;
    std::size_t unfinished_ = 0;

    // Kept between operations to save allocations.
    std::unique_ptr<Together> together_;
    Relay relay_;
    std::unique_ptr<std::byte[]> relayed_;  // a slice on its way
    std::vector<ShmLink*> posted_;          // links on which we have posted
    std::vector<int> owing_;
    std::vector<const std::byte*> operands_;
    std::vector<std::byte*> places_;  // of a slice that is relayed: ours, then the peers'
    std::vector<ShmLink*> cast_links_;
    std::vector<ShmLink*> woken_;
    std::vector<std::uint64_t> cast_taken_;  // by rank: bytes handed over, in the one cast under way
    std::unique_ptr<std::byte[]> scratch_;
    std::uint64_t scratch_size_ = 0;
};

}  // namespace collectives
