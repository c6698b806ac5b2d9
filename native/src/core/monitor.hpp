// Watches the ranks of a job over its control links, and carries notices to all of them.
//
// Invariant: used by the control thread only, and never blocks. A rank watches its neighbours in the overlay;
// all ranks learn of a death by a notice, which every rank forwards once. A neighbour is dead if its
// connection ends before it has said that it leaves, or if nothing was heard of it for `limit`. Time in which
// this process did not run (it was stopped, or the machine was suspended) counts against nobody: what has
// arrived meanwhile is read before anyone is judged. A rank that has heard none of several neighbours for
// half of the limit may be cut off itself: it sends no notice, and the one that it reports here has the
// number 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "base/wait.hpp"
#include "core/notice.hpp"

namespace collectives {

struct Heartbeats {
    std::chrono::nanoseconds interval = std::chrono::seconds(1);
    // Of silence; 0: the job has no control plane, and nobody is watched.
    std::chrono::nanoseconds limit = std::chrono::seconds(10);

    bool are_on() const { return limit > std::chrono::nanoseconds(0); }
};

class Monitor {
  public:
    // Sends a notice to a neighbour in this process; returns false if it is not there (yet).
    using Local = std::function<bool(int neighbour, const Notice&)>;

    // `neighbours`: of this rank; true for those in this process, which `local` reaches. The others get
    // control links, by `adopt`.
    Monitor(int rank, int size, const std::map<int, bool>& neighbours, Local local, Heartbeats heartbeats);
    Monitor(const Monitor&) = delete;
    Monitor& operator=(const Monitor&) = delete;

    // Becomes readable when `progress` has something to do.
    int descriptor() const { return epoll_.get(); }
    // When `progress` has something to do at the latest.
    Clock::time_point due() const;

    // A control link to that neighbour. There may be several, if both sides have made one.
    void adopt(int neighbour, UniqueFd socket);
    // No control link could be made.
    void unreachable(int neighbour, const std::string& why);
    // A notice from a neighbour in this process.
    void receive(int neighbour, const Notice& notice);
    // The neighbours in other processes that have made no control link so far.
    std::vector<int> missing() const;

    // Send to all ranks of the job, but not to this one.
    void send_to_all(Notice notice);
    // Send to all neighbours.
    void send_to_neighbours(const Notice& notice);
    // Receive and send, and judge the silent. Appends to `news` what this rank has learnt.
    void progress(std::vector<Notice>& news);
    // Tell the neighbours that this rank leaves the job in order, and close all links.
    void leave();

    // When all neighbours that have missed some heartbeats are judged at the latest; zero if none has.
    Clock::time_point in_doubt_until() const;

    // What a rank that joins now has to know: deaths and broken communicators, oldest first.
    const std::deque<Notice>& lasting() const { return lasting_; }

  private:
    struct ControlLink {
        int neighbour = -1;
        UniqueFd socket;
        std::vector<std::byte> in;
        std::vector<std::byte> out;
        bool writing = false;  // `out` waits until the socket takes more
    };
    enum class State : std::uint8_t { expected, linked, left, dead };
    struct Neighbour {
        State state = State::expected;
        bool is_local = false;
        Clock::time_point heard{};
    };
    // Which notices of one origin have been seen: the highest number, and, by bits, those before it.
    struct Seen {
        std::uint32_t highest = 0;
        std::uint64_t before = 0;
    };
    using Id = std::uint64_t;

    bool is_fresh(const Notice& notice);
    void on_notice(int from, const Notice& notice);
    void forward(int from, const Notice& notice);
    void keep(const Notice& notice);
    void declare_dead(int neighbour, const std::string& why);
    void mark_dead(int rank);
    void send(int neighbour, const Notice& notice);
    void flush(Id id, ControlLink& link);
    // Receive all that has arrived, which may end the link.
    void drain(Id id);
    void close_links(int neighbour);
    void on_end(Id id, const std::string& why);
    void forgive_own_absence(Clock::time_point now);
    void judge(Clock::time_point now);

    int rank_;
    int size_;
    Local local_;
    Heartbeats heartbeats_;
    UniqueFd epoll_;
    std::map<int, Neighbour> neighbours_;
    std::map<Id, ControlLink> links_;
    Id next_id_ = 1;
    std::map<int, Seen> seen_;  // by origin
    std::deque<Notice> lasting_;
    std::vector<Notice> news_;
    std::uint32_t sent_ = 0;  // notices to all ranks
    bool expelled_ = false;   // the others count this rank as dead
    Clock::time_point next_beat_;
    Clock::time_point planned_;  // when `progress` should have been called at the latest
};

}  // namespace collectives
