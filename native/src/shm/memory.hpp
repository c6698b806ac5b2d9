// The shared memory of one rank in one communicator: its arena, and the links to ranks that map the arena.
//
// Invariant: each communicator has one such object, made by the transport. It lives longer than the links and
// the tasks of the engines.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "link/transport.hpp"
#include "shm/arena.hpp"
#include "shm/caster.hpp"

namespace collectives {

class GroupMemory final : public Colocation {
  public:
    GroupMemory(const Setup& setup, std::shared_ptr<Arena> own);

    const std::shared_ptr<Arena>& arena() const { return arena_; }
    // Whether ranks outnumber cores on some host; the same on all ranks.
    bool is_oversubscribed() const { return oversubscribed_; }
    // The link to that peer; null if there is none. Each link adds and removes itself.
    ShmLink* link(int peer) const { return links_[static_cast<std::size_t>(peer)]; }
    void set_link(int peer, ShmLink* link) { links_.at(static_cast<std::size_t>(peer)) = link; }
    Caster& caster() { return caster_; }

    // --- Colocation
    void publish(const Call& call) override { arena_->calls().publish(call); }
    std::optional<Call> last_collective() const override { return arena_->calls().last_collective(); }
    std::optional<int> accuser() const override;
    void mark_closed(std::optional<int> lost) override;
    Presence* presence() override { return &arena_->presence(); }
    Doorbell* doorbell() override { return &doorbell_; }
    std::atomic<std::uint64_t>* passes() override { return nullptr; }
    std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
    SharedMemoryUse memory() const override;

  private:
    class ArenaDoorbell final : public Doorbell {
      public:
        explicit ArenaDoorbell(Arena& arena) : arena_(arena) {}
        void arm(bool at_descriptor) override;
        void disarm() override;
        void wait(std::chrono::nanoseconds timeout) override;
        void ring() override;
        int descriptor() const override { return arena_.wake_fd(); }

      private:
        Arena& arena_;
        std::uint32_t seen_ = 0;
    };

    std::shared_ptr<Arena> arena_;
    bool oversubscribed_;
    std::vector<ShmLink*> links_;  // by rank
    Caster caster_;
    ArenaDoorbell doorbell_;
};

// The geometry of arenas in a group of that size, without a heap; `segment` as in Setup.
Geometry geometry_for(int size, std::size_t segment);

// The shared memory of the communicator, made at the first call.
std::shared_ptr<GroupMemory> memory_of(const Setup& setup);

}  // namespace collectives
