// A relay writes the result of a reduction straight into the shared memory of the peers to which it is sent.
//
// A receiver posts the destination when the operation begins. If the same memory is also the source of a
// message (in place), the post names that message, and a byte may be written only after it was read. The
// reduction writes each slice to the posted destinations as well, while the slice is in the caches; the
// message that follows carries no data. A receiver that posts too late gets an ordinary message. Invariant: a
// peer's memory is written only for the message for which it was posted, only where bytes that it sends from
// there have been read, and not after its owner has withdrawn the post. This is checked before each slice. If
// an operation fails, the slice in progress may still be written, but to pages that its owner has given up by
// then (see Link::quiesce).
#pragma once

#include <span>
#include <vector>

#include "link/link.hpp"
#include "schedule/program.hpp"

namespace collectives {

// The tag that identifies a message in posts, never 0.
std::uint64_t post_tag(const Call& call, Program::Ordinal ordinal);

class Relay {
  public:
    void reset() { begun_ = false; }
    // Find the peers that have posted destinations for the messages with the result, of `length` bytes.
    void begin(const Program::Relay& relay, const Call& call, std::span<Link* const> links,
               std::uint64_t length);
    bool has_begun() const { return begun_; }
    bool is_used() const { return begun_ && !targets_.empty(); }

    // Add to `places` the destinations of byte `at` of the result, one for each peer that has posted.
    void find_places(std::uint64_t at, std::vector<std::byte*>& places) const;
    // Whether that peer gets the result by this relay.
    bool reaches(int peer) const;

  private:
    struct Target {
        int peer;
        Link* link;
        std::uint64_t tag;
        Program::Ordinal read;
    };

    bool begun_ = false;
    std::uint64_t length_ = 0;
    std::vector<Target> targets_;
};

}  // namespace collectives
