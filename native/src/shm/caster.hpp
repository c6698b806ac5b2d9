// Staging that several peers read at once: the copy is made once, each link announces it.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "shm/link.hpp"

namespace collectives {

class Caster {
  public:
    explicit Caster(std::shared_ptr<Arena> own) : own_(std::move(own)) {}

    // Take up to n bytes as the next bytes of the message that was begun on all of `links`.
    std::size_t write(std::span<ShmLink* const> links, const std::byte* data, std::size_t n);

  private:
    struct Use {
        ShmLink* link;
        std::uint64_t line;
    };

    std::shared_ptr<Arena> own_;
    std::array<std::vector<Use>, cast_slots> uses_;
    std::size_t next_ = 0;
    StagingCopy stage_;
};

}  // namespace collectives
