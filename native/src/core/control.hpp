// The control thread of a job: accepts and makes connections for all its communicators, watches one
// connection to each process that shares memory with this one, and runs the control plane, see Monitor.
//
// Invariant: the thread never uses Python, blocks only in epoll, and owns every socket until the handshake
// has succeeded. Listeners serve all communicators: a hello names its communicator. A connection is closed if
// its handshake takes longer than two seconds; if too many handshakes are in progress, the oldest is closed.
// So unknown callers cannot keep ranks out. The thread reports its results through `Events`.
#pragma once

#include <algorithm>
#include <atomic>
#include <compare>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "base/wait.hpp"
#include "core/monitor.hpp"
#include "core/notice.hpp"
#include "core/recorder.hpp"
#include "link/dial.hpp"
#include "link/hello.hpp"
#include "link/sockets.hpp"
#include "link/transport.hpp"

namespace collectives {

// A connection to a peer that has proved its identity.
struct Connected {
    int peer = -1;
    int number = 0;  // number of the connection in its link
    Transport* transport = nullptr;
    Connection connection;
};

class Control {
  public:
    // The reason to give up that rank `by` has found (-1: a rank outside of the communicator). `gone`: the
    // rank that is gone, or -1.
    struct Finding {
        ErrorKind kind = ErrorKind::aborted;
        std::vector<int> ranks;
        std::string why;
        int by = -1;
        int gone = -1;
        std::uint64_t sequence = 0;  // of the collective in which `by` has given up
        bool is_shared = true;       // with the other ranks
    };

    // Called on the control thread. Ranks are those of the communicator.
    struct Events {
        std::function<void(Connected)> connected{};
        std::function<void(int peer, const Error&)>
            failed{};                          // the peer, or any peer (-1), cannot be reached
        std::function<void(int peer)> lost{};  // the peer's process has ended or left the job

        // --- from the control plane
        // All ranks give up.
        std::function<void(const Finding&)> condemned{};
        // A neighbour has left the job in order, so no cause will come from it.
        std::function<void(int rank)> left{};
        // A neighbour is silent, and is judged at that time at the latest; zero: none is any more.
        std::function<void(Clock::time_point until)> doubted{};
        // The other ranks count this one as dead, as rank `by` has found.
        std::function<void(int by, const std::string& why)> expelled{};
        // The collective of that number, or the last one, if it is known.
        std::function<std::optional<BegunCall>(std::optional<std::uint64_t> sequence)> begun{};
        // That rank and this one have called different operations.
        std::function<void(int other, const Call& theirs, const Call& mine)> disagreed{};
        // That rank has not begun the collective of that number.
        std::function<void(std::uint64_t sequence, int rank)> late{};
    };

    // A neighbour in the control plane, and how to reach it.
    struct Neighbour {
        std::string transport;  // its name
        Meeting meeting = Meeting::network;
        std::vector<std::string> addresses;
    };

    explicit Control(Heartbeats heartbeats = {});
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;
    // Ends the thread and closes all it owns.
    ~Control();

    // May be called from any thread. The control thread runs the calls soon, in this order; `leave` waits for
    // it.

    // Serve a communicator until `leave`. `job_ranks[r]`: the rank in the job of the communicator's rank r;
    // empty if they are equal.
    void join(const Identity& identity, std::vector<int> job_ranks, Events events);
    // After `leave` has returned, no event of the communicator is called, and sockets that only it used are
    // closed.
    void leave(const GroupId& group);
    // Let peers that call a communicator which has not joined yet wait, until it joins or `forget` is called.
    void expect(const GroupId& group);
    void forget(const GroupId& group);
    // Let peers connect to the communicator over that transport, which must live until `leave`.
    void accept(const GroupId& group, const std::string& name, Transport& transport);
    // Listen on this socket, for all communicators that accept that transport.
    void listen(const std::string& name, Meeting meeting, UniqueFd socket);
    // Make all connections of a link over a transport, which must live until `leave`.
    void dial(const GroupId& group, int peer, Transport& transport,
              const std::vector<std::string>& addresses);

    // Since when this process has had no file descriptor for a connection that it was to make or to accept;
    // zero if it has some. From any thread.
    Clock::time_point out_of_descriptors() const {
        return Clock::time_point(Clock::duration(out_of_descriptors_.load(std::memory_order_relaxed)));
    }

    // Begin the control plane, after the job's first communicator has joined. Called once.
    void begin_control_plane(std::map<int, Neighbour> neighbours);
    // Send to all ranks. If `wait`, return when it is sent, or is in the queues of the control links.
    void notify(Notice notice, bool wait = false);
    // Send to all ranks that this one has lost its path to another, see Notice::is_claim. Within `settles`
    // all of them, this one too, are condemned for the same claim.
    void claim(Notice notice);
    static constexpr std::chrono::milliseconds settles{100};

  private:
    static constexpr std::size_t longest_message = std::max(sizeof(Proof), sizeof(Closing)) + most_offered;
    static_assert(longest_message >= sizeof(Reply));

    // What a handshake waits for: a message, or, in `group`, that the communicator which the peer has called
    // joins.
    enum class Stage : std::uint8_t { connect, hello, group, reply, proof, closing };

    // One connection of a link: the peer, and its number in the link.
    using Channel = std::pair<int, int>;

    struct Calling {
        Transport* transport = nullptr;
        Dial dial;
    };

    struct Registration {
        Identity identity;
        std::vector<int> job_ranks;
        Events events;
        std::uint64_t published = 0;  // collectives whose last one the neighbours know
        // Of all claims since the first one, that of the lowest rank; this time is when it counts.
        std::optional<Notice> claim;
        Clock::time_point claim_due = Clock::time_point::max();
        std::map<std::string, Transport*> accepted;
        std::map<Channel, Calling> dials;
        std::set<Channel> linked;

        int job_rank(int rank) const {
            return job_ranks.empty() ? rank : job_ranks.at(static_cast<std::size_t>(rank));
        }
        // The communicator's rank of that rank of the job; -1 if it has none.
        int rank_of(int job_rank) const;
        // Null if it accepts no peers over that transport (yet).
        Transport* transport(const std::string& name) const {
            const auto place = accepted.find(name);
            return place == accepted.end() ? nullptr : place->second;
        }
    };

    // A connection until its handshake is over.
    struct Handshake {
        std::string transport;  // the transport's name, if the peer has called
        UniqueFd socket;
        Stage stage = Stage::hello;
        Registration* group = nullptr;  // `group`, `channel` and `by` are known from the beginning if this
        Channel channel{-1, 0};         // side has called, else after the hello
        Transport* by = nullptr;
        bool caller = false;
        bool watched = false;  // both sides keep the connection, to notice the end of the other
        Clock::time_point deadline{};
        std::array<std::byte, longest_message> buffer{};
        std::size_t have = 0;
        std::vector<UniqueFd> descriptors;
        Hello hello;
        Reply reply;
        Proof proof;  // of the caller
    };

    struct Listener {
        std::string transport;  // its name
        Meeting meeting = Meeting::network;
        UniqueFd socket;
    };

    using Id = std::uint64_t;
    using Order = std::packaged_task<void()>;
    static constexpr Id order_id = 0;    // of the eventfd
    static constexpr Id monitor_id = 1;  // of the monitor's descriptor

    void run();
    void loop();
    void post(Order order);
    void run_orders();
    // Run it on the control thread, and return when it is done, or when that thread has ended.
    void run_and_wait(std::function<void()> work);
    void watch(int fd, std::uint32_t events, Id id, int operation);
    int next_timeout();
    void on_timers();
    void resume_listeners();

    void end(const GroupId& group);
    // Continue the handshakes that have waited for that communicator.
    void admit_waiting(const GroupId& group);
    Registration* find(const GroupId& group);
    void on_lost(int job_rank);

    // --- the control plane, see control_plane.cpp
    // Neighbours may call before it begins here.
    void expect_control_plane();
    void dial_neighbour(int rank);
    Clock::time_point control_plane_due() const;
    void progress_control_plane();
    void on_notice(Registration& group, const Notice& notice);
    static void hold_claim(Registration& group, const Notice& notice);
    void judge_claims(Clock::time_point now);
    // Compare a rank's collective with that of this rank. False if this rank has not begun it yet.
    static bool compare(Registration& group, const Notice& notice);
    void publish_last_calls();

    void accept_all(Id id);
    void start_dial(Registration& group, const Channel& channel, Calling& calling);
    void dial_failed(Registration& group, const Channel& channel, const Problem& problem);

    void on_ready(Id id);
    bool receive(Id id, Handshake& connection);
    // Each function handles one complete message. False if the connection was closed, or has to wait.
    bool on_hello(Id id, Handshake& connection);
    bool on_reply(Id id, Handshake& connection);
    bool on_proof(Id id, Handshake& connection);
    bool on_closing(Id id, Handshake& connection);
    // The reason to refuse a peer that calls an unknown communicator; `welcome` if the peer has to wait.
    Verdict verdict_on_unknown(const Hello& hello) const;
    void drop(Id id, const Problem& problem);
    // The transport cannot make a link: report the error to the communicator, and close the connection.
    void fail(Id id, const Error& error);
    void erase(Id id);
    // The offer that follows a message.
    static std::span<const std::byte> offer_behind(const Handshake& connection, std::size_t message);
    void establish(Id id, Handshake& connection, const OfferHead& head, std::span<const std::byte> offer);
    bool is_watched(int job_rank) const;

    // The outcome of making a socket.
    void note_descriptors(int error);

    std::atomic<Clock::rep> out_of_descriptors_{0};
    UniqueFd epoll_;
    UniqueFd order_;  // eventfd: there are orders

    std::mutex mutex_;
    std::vector<Order> orders_;
    bool stop_ = false;
    bool over_ = false;  // the thread runs no more orders

    // Used by the control thread only.
    std::map<GroupId, Registration> groups_;
    std::set<GroupId> expected_;
    std::deque<GroupId> ended_;  // the last communicators that have left, oldest first
    Identity first_;             // of the first communicator, used to refuse callers of unknown ones
    Id next_id_ = 2;             // after those of orders and of the monitor
    std::map<Id, Listener> listeners_;
    std::map<Id, Handshake> connections_;
    std::deque<Id> pending_;                          // accepted, without a proof so far; oldest first
    std::map<Id, std::pair<int, UniqueFd>> watched_;  // rank in the job, and its connection
    Heartbeats heartbeats_;
    GroupId control_id_{};  // of the control plane, in handshakes
    std::optional<Monitor> monitor_;
    std::map<int, Neighbour> neighbours_;
    std::map<Meeting, std::unique_ptr<Transport>> control_transports_;
    std::vector<Notice> unbegun_;  // collectives that this rank has not begun
    Clock::time_point in_doubt_until_{};
    Clock::time_point next_comparison_{};
    Clock::time_point next_call_on_missing_{};
    Clock::time_point next_publication_{};

    bool paused_ = false;  // not accepting for a moment: no free descriptors
    Clock::time_point resume_at_{};

    std::thread thread_;  // the last member, because it uses all others
};

}  // namespace collectives
