// The control thread of a job: accepts and makes connections for all its communicators, and watches one
// connection to each process that shares memory with this one.
//
// Invariant: it never touches Python, never blocks but in epoll, and owns every socket until the handshake
// has succeeded. Listeners serve all communicators: a hello names the one that it is for. A caller that does
// not finish its handshake within two seconds is dropped, and so is the oldest one when too many are pending,
// so that unknown callers cannot keep ranks out. What the thread finds out it reports through `Events`.
#pragma once

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
#include "shm/arena.hpp"

namespace collectives {

enum class Scheme : std::uint8_t { shm, tcp, inproc };

// Names a communicator of a run and epoch, as Identity::group.
using GroupId = std::array<std::byte, 16>;

// A peer that has proved who it is.
struct Connected {
    int peer = -1;
    int lane = 0;
    Scheme scheme = Scheme::tcp;
    UniqueFd socket;               // tcp: for data
    std::shared_ptr<Arena> arena;  // shm: the peer's
    pid_t pid = 0;                 // shm: the peer's process as we see it; 0: we do not
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
    // empty where they are the same. `arena`: see `share`.
    void join(const Identity& identity, std::vector<int> job_ranks, Events events,
              std::shared_ptr<Arena> arena);
    // After it has returned none of its events is called, and the sockets that only it needs are closed.
    void leave(const GroupId& group);
    // Callers of a communicator that has not joined yet wait for it, until `forget`.
    void expect(const GroupId& group);
    void forget(const GroupId& group);
    // The arena that is handed to peers which share memory with us.
    void share(const GroupId& group, std::shared_ptr<Arena> arena);
    // For all communicators.
    void listen(Scheme scheme, UniqueFd socket);
    // So many connections of one link.
    void dial(const GroupId& group, int peer, Scheme scheme, const std::vector<std::string>& addresses,
              int connections);

  private:
    // What a connection under way is waiting for. `group`: that the communicator which the caller wants
    // joins.
    enum class Stage : std::uint8_t { connect, hello, group, reply, proof, closing };

    // One connection of a link: the peer, and its number in the link.
    using Channel = std::pair<int, int>;

    struct Calling {
        Scheme scheme = Scheme::tcp;
        Dial dial;
    };

    struct Registration {
        Identity identity;
        std::vector<int> job_ranks;
        Events events;
        std::shared_ptr<Arena> arena;
        std::map<Channel, Calling> dials;
        std::set<Channel> linked;

        int job_rank(int rank) const {
            return job_ranks.empty() ? rank : job_ranks.at(static_cast<std::size_t>(rank));
        }
        // Whether it can answer a caller over that transport.
        bool is_ready(Scheme scheme) const { return scheme != Scheme::shm || arena != nullptr; }
    };

    struct Connection {
        Scheme scheme = Scheme::tcp;
        UniqueFd socket;
        Stage stage = Stage::hello;
        Registration* group = nullptr;  // these two are known at once on the calling side,
        Channel channel{-1, 0};         // after the hello on the other
        bool caller = false;
        bool watched = false;  // both ends keep it, to notice when the other one ends
        Clock::time_point deadline{};
        std::array<std::byte, 128> buffer{};
        std::size_t have = 0;
        std::vector<UniqueFd> descriptors;
        Hello hello;
        Reply reply;
    };

    struct Listener {
        Scheme scheme = Scheme::tcp;
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
    bool receive(Id id, Connection& connection);
    // Each handles one complete message; false ends the connection, or lets it wait.
    bool on_hello(Id id, Connection& connection);
    bool on_reply(Id id, Connection& connection);
    bool on_proof(Id id, Connection& connection);
    bool on_closing(Id id, Connection& connection);
    // Why a caller of no communicator that is here is refused; welcome: it is to wait.
    Verdict verdict_on_unknown(const Hello& hello) const;
    void drop(Id id, const Problem& problem);
    void erase(Id id);
    void establish(Id id, Connection& connection, const Offer& offer);
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
    std::map<Id, Connection> connections_;
    std::deque<Id> pending_;                          // accepted and not yet proved, oldest first
    std::map<Id, std::pair<int, UniqueFd>> watched_;  // by rank of the job
    bool paused_ = false;                             // out of descriptors: not accepting for a moment
    Clock::time_point resume_at_{};

    std::thread thread_;  // last: starts when all else is there
};

}  // namespace collectives
