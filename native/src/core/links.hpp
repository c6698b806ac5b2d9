// The links of one communicator, and the addresses at which each peer can be reached.
//
// Invariant: a connection is made when an operation first needs the peer, and always by the same side, so
// that two connections never cross. Only the thread that runs operations opens links; any thread may ask
// which links there are. The control thread's reports are kept here until the thread that runs operations
// reads them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "core/executor.hpp"
#include "core/health.hpp"
#include "core/job.hpp"
#include "link/transport.hpp"

namespace collectives {

using Interrupted = std::function<bool()>;

class Links {
  public:
    // `job_ranks`: by rank, the rank in the job; empty if they are equal. `setup`: without its commons.
    // `closing` ends every wait. The executor is told of new links; the sleeper is rung when a peer is gone.
    // `health` learns what the control plane finds, which compares the calls in `recorder`.
    Links(std::shared_ptr<Job> job, Identity identity, std::vector<int> job_ranks, Setup setup,
          Surroundings& surroundings, Executor& executor, std::shared_ptr<Sleeper> sleeper, Health& health,
          const Recorder& recorder, const std::atomic<bool>& closing);
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;
    ~Links() { close(); }

    // All functions that name a transport throw Error(transport_unavailable) if there is none of that name.
    // Listen for all communicators of the job that accept that transport.
    void listen(const std::string& transport, UniqueFd socket);
    // Let peers connect to this communicator over that transport.
    void accept(const std::string& transport);
    // The address at which peers in this process find this communicator over that transport.
    std::string listen_in_process(const std::string& transport);
    // Which port of this rank, as the transport names it, reaches that peer. Before peers can connect, that
    // is, before `listen` and `accept`.
    void use_port(int peer, const std::string& transport, const std::string& port);
    void route(int peer, const std::string& transport, std::vector<std::string> addresses, std::string host);

    // --- for the thread that runs operations
    // Start connecting to the peers without a link, and make links of finished connections, for a short time.
    // What is left then is for the next call, to which the executor's attention is called. A transport may
    // take a second for one link. Returns whether all peers are linked.
    bool seek(const std::vector<int>& peers);
    // The same if one of the peers suffices: throws only if none can be reached. `sends_to_itself`: this
    // rank, which may be among them, is about to send to itself.
    bool seek_any(const std::vector<int>& peers, bool sends_to_itself);
    bool are_there(const std::vector<int>& peers) const {
        return owned_.size() == links_.size() || have_come(peers);
    }
    // Wait until all these peers are linked. `interrupted` is called at intervals. `call`: the call that
    // needs the links, if there is one.
    void open(const std::vector<int>& peers, double timeout, const Interrupted& interrupted,
              const Call* call = nullptr);
    std::span<Link* const> by_rank() const { return links_; }
    // Throws if a rank that shares memory with this one has begun another collective under the same number.
    // Waits up to `grace` seconds for ranks that have begun fewer collectives.
    void compare_calls(double grace) const;
    // Report to all ranks, through the control plane, that this communicator is broken. Returns when that is
    // sent. `sequence`: of the first collective that this rank has not completed.
    void report_broken(const Error& cause, std::uint64_t sequence);
    // Report that this rank has lost its path to another one. Within Control::settles there is a cause, which
    // is the same on all ranks even if others have lost theirs at the same time.
    void claim(const Error& cause, std::uint64_t sequence);
    // Tell peers that nothing more will be sent, and, in `lost`, the rank whose loss is the reason.
    void shut_down(std::optional<int> lost = std::nullopt);
    // Release everything. Arrays from the heap keep the arena as long as they need it.
    void close();

    // --- from any thread
    // Memory that peers on this host can read, see Colocation; null if there is none.
    std::shared_ptr<std::byte> allocate(std::size_t bytes) const;
    SharedMemoryUse shared_memory() const;
    const char* scheme(int peer) const;
    std::uint64_t bytes_sent() const;
    // What the link to that rank counts; nothing if there is none.
    std::vector<LinkCount> counts(int peer) const;
    // Between which ports the link to that rank runs; empty if there is none, or if it uses no ports.
    std::string path(int peer) const;
    // Whether links register callers' memory.
    bool register_memory() const { return register_memory_.load(std::memory_order_relaxed); }
    // Bytes of the buffers in which links receive.
    std::uint64_t inbox_bytes() const;

  private:
    struct Route {
        std::string transport;  // its name
        std::vector<std::string> addresses;
        std::string host;
    };

    Control& control();
    // The part of the control plane that concerns this communicator.
    void watch_over(Control::Events& events);
    void begin_control_plane();
    Notice notice_of(const Error& cause, std::uint64_t sequence) const;
    Notice notice_of(Notice::Kind kind, const Call& call, std::uint32_t fingerprint = 0) const;
    // The transport of that name, made at the first call.
    Transport& transport(const std::string& name);
    void share(std::shared_ptr<Colocation> colocation);
    bool have_come(const std::vector<int>& peers) const;
    // Whether this rank has sent itself a message that it has not received.
    bool has_own_message() const;
    void dial(int peer);
    void throw_if_out_of_descriptors(Clock::time_point now) const;
    // Make links of finished connections, until one cannot be made, or some time has passed.
    void take_up_news();
    void take_up(Connected connected);
    void add(int peer, std::unique_ptr<Link> link);
    Peer describe(int peer) const;
    // "rank 3 (host7)", of this rank, too
    std::string name(int rank) const;
    std::string host_of(int rank) const;

    std::shared_ptr<Job> job_;
    Identity identity_;
    std::vector<int> job_ranks_;
    Setup setup_;
    Surroundings& surroundings_;
    std::map<std::string, std::unique_ptr<Transport>> transports_;  // by name; they outlive their links
    Executor& executor_;
    std::shared_ptr<Sleeper> sleeper_;
    Health& health_;
    const Recorder& recorder_;
    const std::atomic<bool>& closing_;
    std::atomic<bool> register_memory_{false};
    bool is_first_ = false;                     // of the job: its routes are those of the control plane
    std::map<std::string, std::string> ports_;  // by transport: this communicator's address in this process
    mutable std::mutex routing_;                // for `routes_`, of which the control thread reads hosts
    std::map<int, Route> routes_;               // only the thread that makes the group changes them
    std::vector<bool> dialled_;
    std::map<int, std::vector<std::optional<Connection>>>
        connections_;  // of links without all their connections

    mutable std::mutex linking_;  // for the three below, which only the thread that runs operations changes
    std::vector<std::shared_ptr<Colocation>> colocations_;
    std::vector<Link*> links_;                  // by rank
    std::vector<std::unique_ptr<Link>> owned_;  // the first is the link of this rank to itself

    // Reports of the control thread.
    std::mutex news_;
    std::condition_variable news_came_;
    bool unread_ = false;
    std::vector<Connected> arrived_;
    std::map<int, Error> failed_;
    std::map<int, Link*> watched_;
    std::vector<bool> gone_;  // by rank: the connection was lost before there was a link

    Control* control_ = nullptr;  // the job's, once this communicator has joined
};

}  // namespace collectives
