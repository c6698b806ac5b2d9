// The control thread of a job: accepts and makes connections for all its communicators, and watches one
// connection to each process that shares memory with this one.
//
// Invariant: it never touches Python, never blocks but in epoll, and owns every socket until the handshake
// has succeeded. Listeners serve all communicators: a hello names the one that it is for. A caller that does
// not finish its handshake within two seconds is dropped, and so is the oldest one when too many are pending,
// so that unknown callers cannot keep ranks out. What the thread finds out it reports through `Events`.
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

// Names a communicator of a run and epoch, as Identity::group.
using GroupId = std::array<std::byte, 16>;

// A peer that has proved who it is.
struct Connected {
    int peer = -1;
    int number = 0;  // of the connection in its link
    Transport* transport = nullptr;
    Connection connection;
};

class Control {
  public:
    // Called on the control thread. Ranks are those of the communicator.
    struct Events {
        std::function<void(Connected)> connected;
        std::function<void(int peer, const Error&)> failed;  // no connection to be had; -1: to anybody
        std::function<void(int peer)> lost;                  // its process ended, or has left the job
    };

    Control();
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;
    // Ends the thread and closes all it owns.
    ~Control();

    // From any thread; done in this order, soon, but for `leave`.

    // A communicator, from now until `leave`. `job_ranks`: by rank of the communicator, that of the job;
    // empty where they are the same.
    void join(const Identity& identity, std::vector<int> job_ranks, Events events);
    // After it has returned none of its events is called, and the sockets that only it needs are closed.
    void leave(const GroupId& group);
    // Callers of a communicator that has not joined yet wait for it, until `forget`.
    void expect(const GroupId& group);
    void forget(const GroupId& group);
    // Peers may call the communicator over that transport, which lives until `leave`.
    void accept(const GroupId& group, const std::string& name, Transport& transport);
    // For all communicators that accept that transport.
    void listen(const std::string& name, Meeting meeting, UniqueFd socket);
    // All connections of a link over a transport that lives until `leave`.
    void dial(const GroupId& group, int peer, Transport& transport,
              const std::vector<std::string>& addresses);

  private:
    static constexpr std::size_t longest_message = std::max(sizeof(Proof), sizeof(Closing)) + most_offered;
    static_assert(longest_message >= sizeof(Reply));

    // What a connection under way is waiting for. `group`: that the communicator which the caller wants
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
        // Null as long as it accepts no callers over that transport.
        Transport* transport(const std::string& name) const {
            const auto place = accepted.find(name);
            return place == accepted.end() ? nullptr : place->second;
        }
    };

    // A connection until its handshake is over.
    struct Handshake {
        std::string transport;  // its name; of a caller
        UniqueFd socket;
        Stage stage = Stage::hello;
        Registration* group = nullptr;  // these three are known at once on the calling side,
        Channel channel{-1, 0};         // after the hello on the other
        Transport* by = nullptr;
        bool caller = false;
        bool watched = false;  // both ends keep it, to notice when the other one ends
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
    // Those who have waited for it go on.
    void admit_waiting(const GroupId& group);
    Registration* find(const GroupId& group);
    void on_lost(int job_rank);

    void accept_all(Id id);
    void start_dial(Registration& group, const Channel& channel, Calling& calling);
    void dial_failed(Registration& group, const Channel& channel, const Problem& problem);

    void on_ready(Id id);
    bool receive(Id id, Handshake& connection);
    // Each handles one complete message; false ends the connection, or lets it wait.
    bool on_hello(Id id, Handshake& connection);
    bool on_reply(Id id, Handshake& connection);
    bool on_proof(Id id, Handshake& connection);
    bool on_closing(Id id, Handshake& connection);
    // Why a caller of no communicator that is here is refused; welcome: it is to wait.
    Verdict verdict_on_unknown(const Hello& hello) const;
    void drop(Id id, const Problem& problem);
    // Its transport cannot make a link: who waits for the peer learns why.
    void fail(Id id, const Error& error);
    void erase(Id id);
    // The offer that has come behind a message.
    static std::span<const std::byte> offer_behind(const Handshake& connection, std::size_t message);
    void establish(Id id, Handshake& connection, const OfferHead& head, std::span<const std::byte> offer);
    bool is_watched(int job_rank) const;

    UniqueFd epoll_;
    UniqueFd order_;  // eventfd: there are orders

    std::mutex mutex_;
    std::vector<Order> orders_;
    bool stop_ = false;
    bool over_ = false;  // the thread takes no orders any more

    // The thread's own.
    std::map<GroupId, Registration> groups_;
    std::set<GroupId> expected_;
    std::deque<GroupId> ended_;  // the last ones, oldest first
    Identity first_;             // of the first one that joined: in its name unknown callers are refused
    Id next_id_ = 1;
    std::map<Id, Listener> listeners_;
    std::map<Id, Handshake> connections_;
    std::deque<Id> pending_;                          // accepted and not yet proved, oldest first
    std::map<Id, std::pair<int, UniqueFd>> watched_;  // by rank of the job
    bool paused_ = false;                             // out of descriptors: not accepting for a moment
    Clock::time_point resume_at_{};

    std::thread thread_;  // last: starts when all else is there
};

}  // namespace collectives
