// The control thread of a job: accepts and makes connections for all its communicators, and watches one
// connection to each process that shares memory with this one.
//
// Invariant: the thread never uses Python, blocks only in epoll, and owns every socket until the handshake
// has succeeded. Listeners serve all communicators: a hello names its communicator. A connection is closed if
// its handshake takes longer than two seconds; if too many handshakes are in progress, the oldest is closed.
// So unknown callers cannot keep ranks out. The thread reports its results through `Events`.
#pragma once

#include <algorithm>
#include <compare>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "base/wait.hpp"
#include "link/dial.hpp"
#include "link/hello.hpp"
#include "link/sockets.hpp"
#include "link/transport.hpp"

namespace collectives {

// Identifies a communicator of a run, see Identity::group.
using GroupId = std::array<std::byte, 16>;

// A connection to a peer that has proved its identity.
struct Connected {
    int peer = -1;
    int number = 0;  // number of the connection in its link
    Transport* transport = nullptr;
    Connection connection;
};

class Control {
  public:
    // Called on the control thread. Ranks are those of the communicator.
    struct Events {
        std::function<void(Connected)> connected;
        std::function<void(int peer, const Error&)> failed;  // the peer, or any peer (-1), cannot be reached
        std::function<void(int peer)> lost;                  // the peer's process has ended or left the job
    };

    Control();
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
        std::map<std::string, Transport*> accepted;
        std::map<Channel, Calling> dials;
        std::set<Channel> linked;

        int job_rank(int rank) const {
            return job_ranks.empty() ? rank : job_ranks.at(static_cast<std::size_t>(rank));
        }
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

    void run();
    void loop();
    void post(Order order);
    void run_orders();
    void watch(int fd, std::uint32_t events, Id id, int operation);
    int next_timeout();
    void on_timers();
    void resume_listeners();

    void end(const GroupId& group);
    // Continue the handshakes that have waited for that communicator.
    void admit_waiting(const GroupId& group);
    Registration* find(const GroupId& group);
    void on_lost(int job_rank);

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
    Id next_id_ = 1;
    std::map<Id, Listener> listeners_;
    std::map<Id, Handshake> connections_;
    std::deque<Id> pending_;                          // accepted, without a proof so far; oldest first
    std::map<Id, std::pair<int, UniqueFd>> watched_;  // rank in the job, and its connection
    bool paused_ = false;                             // not accepting for a moment: no free descriptors
    Clock::time_point resume_at_{};

    std::thread thread_;  // the last member, because it uses all others
};

}  // namespace collectives
