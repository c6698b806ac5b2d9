// The links of one communicator: where each peer can be reached, and what has come of it.
//
// Invariant: a peer is called when an operation first needs it, by one side only, so that two calls never
// cross. One thread at a time opens links, the one that runs operations; which there are any thread may ask.
// What the control thread finds out lies here until that one looks.
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
#include "core/job.hpp"
#include "link/transport.hpp"

namespace collectives {

using Interrupted = std::function<bool()>;

class Links {
  public:
    // `job_ranks`: by rank, that of the job; empty where they are the same. `setup`: without its commons.
    // `closing` ends every wait. The executor learns of all that comes; the sleeper is rung when a peer is
    // gone.
    Links(std::shared_ptr<Job> job, Identity identity, std::vector<int> job_ranks, Setup setup,
          Surroundings& surroundings, Executor& executor, std::shared_ptr<Sleeper> sleeper,
          const std::atomic<bool>& closing);
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;
    ~Links() { close(); }

    // All that name a transport: Error(transport_unavailable) where there is none of that name.
    // For this communicator and all others of the job, as `accept` says for each.
    void listen(const std::string& transport, UniqueFd socket);
    // Peers may call this communicator over that transport.
    void accept(const std::string& transport);
    // The address at which peers in this process find this communicator over that transport.
    std::string listen_in_process(const std::string& transport);
    void route(int peer, const std::string& transport, std::vector<std::string> addresses, std::string host);

    // --- for the one who runs operations
    // Call the peers that are not linked yet and make links of the connections that are there; whether all
    // are.
    bool seek(const std::vector<int>& peers);
    // The same where any one of them will do: throws only if none can be reached. `sends_to_itself`: this
    // rank, which may be one of them, is about to send to itself.
    bool seek_any(const std::vector<int>& peers, bool sends_to_itself);
    bool are_there(const std::vector<int>& peers) const {
        return owned_.size() == links_.size() || have_come(peers);
    }
    // Wait until all are there. `interrupted` is asked now and then.
    void open(const std::vector<int>& peers, double timeout, const Interrupted& interrupted);
    std::span<Link* const> by_rank() const { return links_; }
    // Throws if a rank that shares memory with this one has begun another collective under the same number.
    // Waits up to `grace` seconds for those that have not begun as many.
    void compare_calls(double grace) const;
    // Let peers know that nothing more will come.
    // `lost`: the rank whose loss is the reason, which peers are told.
    void shut_down(std::optional<int> lost = std::nullopt);
    // Let go of everything. Arrays from the heap keep the arena as long as they need it.
    void close();

    // --- from any thread
    // Memory that peers on this host can read, see Colocation; null where there is none.
    std::shared_ptr<std::byte> allocate(std::size_t bytes) const;
    SharedMemoryUse shared_memory() const;
    const char* scheme(int peer) const;
    std::uint64_t bytes_sent() const;
    // Of the buffers in which links receive.
    std::uint64_t inbox_bytes() const;

  private:
    struct Route {
        std::string transport;  // its name
        std::vector<std::string> addresses;
        std::string host;
    };

    Control& control();
    // Made when it is first named.
    Transport& transport(const std::string& name);
    void share(std::shared_ptr<Colocation> colocation);
    bool have_come(const std::vector<int>& peers) const;
    // This rank has sent itself a message that it has not received.
    bool has_own_message() const;
    void dial(int peer);
    // Make links of the connections that are there.
    void take_up_news();
    void take_up(Connected connected);
    void add(int peer, std::unique_ptr<Link> link);
    Peer describe(int peer) const;

    std::shared_ptr<Job> job_;
    Identity identity_;
    std::vector<int> job_ranks_;
    Setup setup_;
    Surroundings& surroundings_;
    std::map<std::string, std::unique_ptr<Transport>> transports_;  // by name; they outlive their links
    Executor& executor_;
    std::shared_ptr<Sleeper> sleeper_;
    const std::atomic<bool>& closing_;
    std::map<std::string, std::string> ports_;  // by transport: our address in this process
    std::map<int, Route> routes_;
    std::vector<bool> dialled_;
    std::map<int, std::vector<std::optional<Connection>>> connections_;  // of links that are not whole yet

    mutable std::mutex linking_;  // for the three below: only who runs operations changes them
    std::vector<std::shared_ptr<Colocation>> colocations_;
    std::vector<Link*> links_;                  // by rank
    std::vector<std::unique_ptr<Link>> owned_;  // the one to this rank itself comes first

    // What the control thread has found out.
    std::mutex news_;
    std::condition_variable news_came_;
    bool unread_ = false;
    std::vector<Connected> arrived_;
    std::map<int, Error> failed_;
    std::map<int, Link*> watched_;
    std::vector<bool> gone_;  // whose connection was lost before we had made a link of it

    Control* control_ = nullptr;  // the job's, once this communicator has joined
};

}  // namespace collectives
