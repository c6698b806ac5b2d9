// Results that go straight to where others want them: a reduction whose result is sent on at once, to peers
// that have said where in their shared memory they will receive it.
//
// A receiver posts its place when the operation begins, if it may be written to from the beginning, or, in
// place, as soon as the peer has read what is sent to it from there. The reduction then writes each slice
// there as well, while it is in the caches, and the message that follows only says so. Whoever has posted
// nothing in time gets an ordinary message. Invariant: a peer's memory is written to only for the message for
// which it was posted, byte by byte after what it has sent from there was read, and not once its owner has
// withdrawn the post. That is looked at before each slice: of an operation that fails, the slice under way
// may still be written, to pages that the owner has left by then (see Link::quiesce).
#pragma once

#include <span>
#include <vector>

#include "link/link.hpp"
#include "schedule/program.hpp"

namespace collectives {

// The name of a message for posts, never 0.
std::uint64_t post_tag(const Call& call, Program::Ordinal ordinal);

class Relay {
  public:
    void reset() { begun_ = false; }
    // Find out who has posted for the messages that follow the reduction, of `length` bytes.
    void begin(const Program::Relay& relay, const Call& call, std::span<Link* const> links,
               std::uint64_t length);
    bool has_begun() const { return begun_; }
    bool is_used() const { return begun_ && !targets_.empty(); }

    // Add where byte `at` of the result is wanted to `places`, for all who have posted.
    void find_places(std::uint64_t at, std::vector<std::byte*>& places) const;
    // Whether that peer gets the message this way.
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
