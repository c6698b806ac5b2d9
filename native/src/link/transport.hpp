// A transport: how the links of one communicator to those peers that it connects come about.
//
// Invariant: it opens no connection and proves nothing: the control thread does both, the same way for every
// transport. A transport says how its peers meet, what a peer has to know of this rank, and makes the link of
// what the peer has said, once that is proved. One object serves one communicator, and lives longer than its
// links.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/export.hpp"
#include "base/unique_fd.hpp"
#include "link/colocation.hpp"
#include "link/commons.hpp"
#include "link/link.hpp"
#include "link/offer.hpp"
#include "link/waker.hpp"

namespace collectives {

// Sockets of one link that carry data, at most.
inline constexpr int most_sockets = 16;

// What a transport may know of the communicator.
struct Setup {
    int rank = 0;
    int size = 0;
    std::size_t segment = 0;      // bytes per slice, as the user asked; 0: the transport's own choice
    std::size_t slice = 0;        // the most that one reduction does at a time
    int sockets = 1;              // that carry data, of each link that can use several
    bool oversubscribed = false;  // ranks outnumber cores, on some host; the same on all ranks
    bool large_maps = true;  // whether every peer has address space for as much as this machine has memory
    Commons* commons = nullptr;
    std::shared_ptr<Waker> waker;  // ends the sleep of this rank
};

// How peers find each other.
enum class Meeting : std::uint8_t {
    network,  // at "address port"
    local,    // at the name of an abstract unix socket, over which descriptors can be passed
    process,  // within this process, without a connection
};

// Of a link under way: one of its connections, proved.
struct Connection {
    UniqueFd socket;  // empty where the control thread keeps it
    pid_t pid = 0;    // of the peer as this process sees it, 0 where it does not; local meetings
    PeerOffer offer;
};

class COLLECTIVES_API Transport {
  public:
    Transport() = default;
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;
    virtual ~Transport() = default;

    // The same at each call, for all links, and from any thread.
    virtual const Capabilities& capabilities() const = 0;
    virtual Meeting meeting() const = 0;
    // Of each link, at least one. Where it is more, they are numbered alike on both sides.
    virtual int connections() const = 0;
    // What the peer has to know of this rank. Called on the control thread, once for each connection, after
    // the peer has proved itself, or, for meetings in one process, once for all peers, which are -1 then.
    // Throws Error.
    virtual Offer offer(int peer, int connection) = 0;
    // The link, once all its connections are proved. Called on the thread that runs operations. Throws
    // Error(transport_unavailable) for an offer that cannot be right.
    virtual std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) = 0;
    // What this rank shares with the peers of these links; null where their memory cannot be seen. The same
    // at each call.
    virtual std::shared_ptr<Colocation> colocation() { return nullptr; }
};

}  // namespace collectives
