// A transport makes the links of one communicator to the peers that it can connect.
//
// Invariant: a transport opens no connection and runs no handshake: the control thread does both, in the same
// way for every transport. A transport defines how peers meet and what a peer has to know of this rank. It
// makes a link from the peer's offer, after this has been proved. One object serves one communicator, and
// lives longer than its links.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "base/unique_fd.hpp"
#include "link/colocation.hpp"
#include "link/commons.hpp"
#include "link/link.hpp"
#include "link/offer.hpp"
#include "link/waker.hpp"

namespace collectives {

// The largest number of sockets that carry data for one link.
inline constexpr int most_sockets = 16;

// The properties of the communicator that a transport knows.
struct Setup {
    int rank = 0;
    int size = 0;
    std::string host;             // of this rank, for messages
    std::size_t segment = 0;      // bytes per slice, as the user asked; 0: the transport's own choice
    std::size_t slice = 0;        // most bytes that one reduction processes at a time
    int sockets = 1;              // sockets for data, of each link that can use several
    bool oversubscribed = false;  // ranks outnumber cores on some host; the same on all ranks
    bool large_maps = true;       // all peers have address space for maps as large as the machine's memory
    std::chrono::nanoseconds silence{0};  // after which a peer counts as gone; 0: never
    Commons* commons = nullptr;
    std::shared_ptr<Waker> waker;  // ends the sleep of this rank
    std::size_t rendezvous =
        0;  // bytes of the shortest message for a rendezvous protocol; 0: the transport's choice
};

// How peers connect to each other.
enum class Meeting : std::uint8_t {
    network,  // at "address port"
    local,    // at the name of an abstract unix socket, over which descriptors can be passed
    process,  // within this process, without a connection
};

// A connection of a link that is being made, after its handshake.
struct Connection {
    UniqueFd socket;  // empty if the control thread keeps it
    pid_t pid = 0;    // the peer's pid in this process's namespace, 0 if unknown; for local meetings
    PeerOffer offer;
};

class COLLECTIVES_API Transport {
  public:
    Transport() = default;
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;
    virtual ~Transport() = default;

    // The same at each call and for all links. May be called from any thread.
    virtual const Capabilities& capabilities() const = 0;
    virtual Meeting meeting() const = 0;
    // The number of connections of each link, at least one. Both sides number them in the same way.
    virtual int connections() const = 0;
    // Which port of this rank reaches that peer, for transports that use ports; named as the transport's
    // Python side knows it. Called before any connection is made. Throws Error(transport_unavailable).
    virtual void use_port(int /*peer*/, const std::string& /*port*/) {}
    // What the peer has to know of this rank. Called on the control thread, once for each connection, after
    // the peer has proved its identity; for meetings in one process, once for all peers, with `peer` -1.
    // Throws Error.
    virtual Offer offer(int peer, int connection) = 0;
    // Makes the link, after the handshakes of all its connections. Called on the thread that runs operations.
    // Throws Error(transport_unavailable) for an invalid offer.
    virtual std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) = 0;
    // What this rank shares with the peers of these links; null if they share no memory. The same at each
    // call.
    virtual std::shared_ptr<Colocation> colocation() { return nullptr; }
};

}  // namespace collectives
