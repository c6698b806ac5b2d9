// One message to several peers over links of one transport, which may share one staged copy of it.
//
// Invariant: each peer receives the message over its own link, in order with the other messages of that link.
// Nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/export.hpp"

namespace collectives {

class COLLECTIVES_API Multicast {
  public:
    struct Target {
        int peer = -1;
        bool in_place = false;             // the data is already in the destination that the peer has posted
        std::uint64_t* written = nullptr;  // bytes of the message that were passed to the link so far
    };

    virtual ~Multicast() = default;
    // Pass as much as possible of data[0, ready), the beginning of a message of `length` bytes, to the links
    // to these peers, on which the message was begun. Advances `written` of each target.
    virtual void write(std::span<const Target> targets, const std::byte* data, std::uint64_t ready,
                       std::uint64_t length) = 0;
};

}  // namespace collectives
