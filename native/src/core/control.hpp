// The control thread: accepts and makes connections, and watches those that carry no data themselves.
//
// Invariant: it never touches Python, never blocks but in epoll, and owns every socket until the handshake
// has succeeded. A caller that does not finish its handshake within two seconds is dropped, and so is the
// oldest one when too many are pending, so that strangers cannot keep ranks out. What it finds out is told
// through `Events`, on this thread.
#pragma once

#include <deque>
#include <functional>
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

// A peer that has proved who it is.
struct Connected {
    int peer = -1;
    int lane = 0;
    Scheme scheme = Scheme::tcp;
    UniqueFd socket;               // tcp: for data; shm: kept by the control thread, which watches it
    std::shared_ptr<Arena> arena;  // shm: the peer's
    pid_t pid = 0;                 // shm: the peer's process as we see it; 0: we do not
};

class Control {
  public:
    struct Events {
        std::function<void(Connected)> connected;
        std::function<void(int peer, const Error&)> failed;  // no connection to be had; -1: to anybody
        std::function<void(int peer)> lost;                  // a watched connection ended
    };

    Control(Identity identity, Events events);
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;
    // Ends the thread and closes all it owns.
    ~Control();

    // `arena` is handed to peers that share memory with us; set before anything of scheme shm.
    void share(std::shared_ptr<Arena> arena);
    // From any thread.
    void listen(Scheme scheme, UniqueFd socket);
    // So many connections of one link, numbered by lanes.
    void dial(int peer, Scheme scheme, const std::vector<std::string>& addresses, int connections);

  private:
    // What a connection under way is waiting for.
    enum class Stage : std::uint8_t { connect, hello, reply, proof, closing };

    // One connection of a link: the peer, and the lane.
    using Place = std::pair<int, int>;

    struct Calling {
        Scheme scheme = Scheme::tcp;
        Dial dial;
    };

    struct Connection {
        Scheme scheme = Scheme::tcp;
        UniqueFd socket;
        Stage stage = Stage::hello;
        Place place{-1, 0};  // known at once on the calling side, after the hello on the other
        bool caller = false;
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

    void run();
    void loop();
    void order();
    void take_orders();
    void watch(int fd, std::uint32_t events, Id id, int operation);
    int next_timeout();
    void on_timers();
    void resume_listeners();

    void accept_all(Id id);
    void start_dial(const Place& place, Calling& calling);
    void dial_failed(const Place& place, const Problem& problem);

    void on_ready(Id id);
    bool receive(Id id, Connection& connection);
    // Each handles one complete message; false ends the connection.
    bool on_hello(Id id, Connection& connection);
    bool on_reply(Id id, Connection& connection);
    bool on_proof(Id id, Connection& connection);
    bool on_closing(Id id, Connection& connection);
    void drop(Id id, const Problem& problem);
    void establish(Id id, Connection& connection, const Offer& offer);

    Identity identity_;
    std::shared_ptr<Arena> arena_;
    Events events_;
    UniqueFd epoll_;
    UniqueFd order_;  // eventfd: there are orders

    std::mutex mutex_;
    std::vector<Listener> new_listeners_;
    std::vector<std::pair<Place, Calling>> new_dials_;
    bool stop_ = false;

    // The thread's own.
    Id next_id_ = 1;
    std::map<Id, Listener> listeners_;
    std::map<Id, Connection> connections_;
    std::deque<Id> pending_;  // accepted and not yet proved, oldest first
    std::map<Place, Calling> dials_;
    std::map<Id, std::pair<int, UniqueFd>> watched_;
    std::set<Place> linked_;
    bool paused_ = false;  // out of descriptors: not accepting for a moment
    Clock::time_point resume_at_{};

    std::thread thread_;  // last: starts when all else is there
};

}  // namespace collectives
