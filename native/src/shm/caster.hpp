// Sends one message to several peers that share memory with this rank: the message is staged once, and each
// link announces the copy.
//
// Invariant: links that share a copy are at the same byte of the message, from its beginning on.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "link/multicast.hpp"
#include "shm/link.hpp"

namespace collectives {

class Caster final : public Multicast {
  public:
    explicit Caster(const GroupMemory& memory) : memory_(memory) {}

    void write(std::span<const Target> targets, const std::byte* data, std::uint64_t ready,
               std::uint64_t length) override;

  private:
    struct Use {
        ShmLink* link;
        std::uint64_t line;
    };

    // Send up to n bytes as the next bytes of the message on all of `links`.
    void stage(std::span<ShmLink* const> links, const std::byte* data, std::size_t n);
    bool shares(const Target& target, ShmLink& link, const std::byte* data, std::uint64_t length) const;

    const GroupMemory& memory_;
    std::array<std::vector<Use>, cast_slots> uses_;
    std::size_t next_ = 0;
    StagingCopy stage_;
    // Kept to save allocations.
    std::vector<ShmLink*> sharing_;
    std::vector<ShmLink*> woken_;
};

}  // namespace collectives
