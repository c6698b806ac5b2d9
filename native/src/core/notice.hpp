// The messages of the control plane, which ranks of a job exchange over control links, see Monitor.
//
// Invariant: a fixed head, the ranks and the text that it announces, all within fixed limits. Nothing is used
// before `decode` has checked it. Like frames, notices are in the byte order of the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "link/frame.hpp"

namespace collectives {

// Identifies a communicator of a run, see Identity::group.
using GroupId = std::array<std::byte, 16>;

struct Notice {
    enum class Kind : std::uint8_t {
        beat = 1,  // to neighbours: the sender lives
        last,      // to neighbours: `call` is the sender's last collective in `group`
        bye,       // to neighbours: the sender leaves the job in order
        // To all ranks:
        dead,     // the process of rank `subject` of the job is gone; `text`: why
        abort,    // `group` is broken: `error`, `ranks` of the group, `text`
        stalled,  // the origin waits in `call` of `group`
        inquiry,  // which ranks have not begun `call` of `group`?
        late,     // the origin has not
    };

    Kind kind = Kind::beat;
    ErrorKind error = ErrorKind::aborted;
    int origin = -1;           // the rank of the job that sent it first
    std::uint32_t number = 0;  // of the origin's notices to all ranks
    int subject = -1;
    GroupId group{};
    Call call{};
    std::uint32_t fingerprint = 0;  // of `call` and all before it; 0: not known
    std::vector<int> ranks{};
    std::string text{};

    bool is_to_all() const { return kind >= Kind::dead; }
    // Whether the origin gives up because it has lost its path to another rank, which may live and say the
    // same of the origin at the same time. So all ranks wait a short time for other claims, and give up for
    // that of the lowest rank.
    bool is_claim() const { return kind == Kind::abort && error == ErrorKind::peer_lost && subject < 0; }
};

inline constexpr std::size_t longest_notice = 2048;

// Ranks and text beyond the limits are left out.
std::vector<std::byte> encode(const Notice& notice);

// What the first bytes of a stream hold: a notice of `length` bytes; no notice yet, then `length` is 0.
struct Decoded {
    std::optional<Notice> notice;
    std::size_t length = 0;
};
// `size`: the number of ranks of the job. Throws Error(invalid) for bytes that no rank sends.
Decoded decode(std::span<const std::byte> bytes, int size);

}  // namespace collectives
