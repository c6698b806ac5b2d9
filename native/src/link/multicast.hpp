// One message to several peers over links of one transport, which may share one staged copy of it.
//
// Invariant: each peer gets the message over its own link, in order with what that link carries besides.
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
        bool in_place = false;             // what is sent lies in the peer's window already
        std::uint64_t* written = nullptr;  // bytes of the message handed over so far
    };

    virtual ~Multicast() = default;
    // Hand over what can be of data[0, ready), which belongs to the message of `length` bytes that was begun
    // on the links to all of these peers. Advances what is written.
    virtual void write(std::span<const Target> targets, const std::byte* data, std::uint64_t ready,
                       std::uint64_t length) = 0;
};

}  // namespace collectives
