// The transport "shm": processes of one machine that map each other's arenas. The sockets of the handshakes
// pass the descriptors, and are closed when a process ends.
#include <utility>

#include "link/registry.hpp"
#include "shm/link.hpp"
#include "shm/memory.hpp"
#include "shm/room.hpp"

namespace collectives {

namespace {

constexpr std::uint8_t offer_version = 1;

struct ArenaOffer {
    std::array<std::uint64_t, 2> cookie{};
    std::uint64_t slot_bytes = 0;
    std::uint64_t staging_bytes = 0;
    std::uint64_t heap_bytes = 0;
};
static_assert(sizeof(ArenaOffer) == 40);

Geometry geometry_of(const ArenaOffer& offer, int size) {
    constexpr std::uint64_t largest_slot = std::uint64_t{1} << 30;
    constexpr std::uint64_t largest_heap = std::uint64_t{1} << 46;
    if (offer.slot_bytes == 0 || offer.slot_bytes > largest_slot || offer.staging_bytes == 0 ||
        offer.staging_bytes > largest_slot || offer.heap_bytes > largest_heap) {
        throw Error(ErrorKind::transport_unavailable, "a peer offered shared memory of an impossible size");
    }
    return {static_cast<std::uint32_t>(size), static_cast<std::size_t>(offer.slot_bytes),
            static_cast<std::size_t>(offer.staging_bytes), static_cast<std::size_t>(offer.heap_bytes)};
}

class ShmTransport final : public Transport {
  public:
    explicit ShmTransport(const Setup& setup)
        : rank_(setup.rank), size_(setup.size), memory_(memory_of(setup)), arena_(memory_->arena()) {}

    const Capabilities& capabilities() const override {
        static constexpr Capabilities answer{.reads_remote_memory = true,
                                             .writes_remote_memory = true,
                                             .shares_memory = true,
                                             .inline_up_to = Line::inline_bytes};
        return answer;
    }
    Meeting meeting() const override { return Meeting::local; }
    int connections() const override { return 1; }

    Offer offer(int, int) override {
        const Geometry& geometry = arena_->geometry();
        Offer offer = Offer::of(offer_version, ArenaOffer{arena_->header().cookie, geometry.slot_bytes,
                                                          geometry.staging_bytes, geometry.heap_bytes});
        offer.descriptors = {arena_->fd(), arena_->wake_fd()};
        return offer;
    }

    std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) override {
        PeerOffer& theirs = connections.at(0).offer;
        const auto offer = theirs.as<ArenaOffer>(offer_version);
        if (theirs.descriptors.size() != 2) {
            throw Error(ErrorKind::transport_unavailable, peer.name() + " sent no shared memory");
        }
        std::shared_ptr<Arena> arena = Arena::map(theirs.descriptors[0].get(), geometry_of(offer, size_),
                                                  offer.cookie, std::move(theirs.descriptors[1]));
        return std::make_unique<ShmLink>(peer, rank_, arena_, std::move(arena), connections[0].pid, &grant_,
                                         memory_.get());
    }

    std::shared_ptr<Colocation> colocation() override { return memory_; }

  private:
    int rank_;
    int size_;
    std::shared_ptr<GroupMemory> memory_;
    std::shared_ptr<Arena> arena_;
    WriteGrant grant_;  // lets peers in other processes write to this process's memory
};

const RegisteredTransport registered(
    "shm", {[](const Setup& setup) { return std::make_unique<ShmTransport>(setup); },
            [](int ranks, std::size_t segment) { return why_no_room(geometry_for(ranks, segment)); }});

}  // namespace

}  // namespace collectives
