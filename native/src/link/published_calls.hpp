// The latest calls of a rank, for peers that share memory with it, and a disagreement that it has found: two
// ranks that called different operations.
//
// Invariant: only the owner publishes, and any rank may read at any time. The object has no pointers, so it
// may be in memory that several processes map. Memory of zeros is a valid object without calls.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/cpu.hpp"
#include "base/export.hpp"
#include "link/link.hpp"

namespace collectives {

// Two ranks that called different operations under one sequence number. Any rank may find a disagreement.
struct Disagreement {
    std::array<std::int32_t, 2> ranks;
    std::array<Call, 2> calls;
};

class COLLECTIVES_API PublishedCalls {
  public:
    // The number of latest collectives that are kept.
    static constexpr std::size_t remembered = 32;

    // --- for the owner
    void publish(const Call& call);
    // Keeps the first reported disagreement.
    void report(const Disagreement& found);

    // --- for any rank
    // The call that the owner has begun last, and its collective of that number, if it is kept. Both may
    // change while another rank reads them.
    Call current() const;
    std::optional<Call> collective(std::uint64_t sequence) const;
    // The owner's collective with the highest number.
    std::optional<Call> last_collective() const;
    std::optional<Disagreement> disagreement() const;

    // The rank that has found a disagreement of which the owner does not know; -1 for none. A rank that finds
    // one stores itself here by `accuse`, since the owner may have returned from its call and wait for
    // nobody.
    int accuser() const { return static_cast<int>(accuser_.load(std::memory_order_acquire)) - 1; }
    void accuse(int by) { accuser_.store(static_cast<std::uint32_t>(by) + 1, std::memory_order_release); }

  private:
    // The words of a Call. `version` is odd while they change.
    struct Entry {
        std::atomic<std::uint32_t> version;
        std::array<std::atomic<std::uint64_t>, sizeof(Call) / sizeof(std::uint64_t)> words;
    };
    std::optional<Call> entry(std::size_t index) const;

    // The latest collectives, by sequence number, and in the last entry the latest message to or from a rank.
    alignas(cache_line) std::atomic<std::uint32_t> latest_;
    // In the cache line that the owner writes at each call, so that it costs nothing to read.
    std::atomic<std::uint32_t> accuser_;
    alignas(cache_line) std::array<Entry, remembered + 1> calls_;
    alignas(cache_line) std::atomic<std::uint32_t> disagrees_;  // stored last
    Disagreement disagreement_;
};

// Compares the calls of this rank and of one peer, for a link between them.
class COLLECTIVES_API CallComparison {
  public:
    CallComparison(const Link& link, int rank, PublishedCalls& own, PublishedCalls& theirs)
        : link_(link), rank_(rank), own_(own), theirs_(theirs) {}

    // Whether the peer has begun the collective of that number, or a later one.
    bool has_begun(std::uint64_t sequence) const {
        const std::optional<Call> last = theirs_.last_collective();
        return last && last->sequence >= sequence;
    }
    // Throws if the two ranks have begun different collectives under the same number, up to `mine`.
    void compare(const Call& mine) const;
    // The call that the peer is in instead of `mine`.
    Call instead_of(const Call& mine) const;
    [[noreturn]] void throw_other_call(const Call& mine) const;
    void report(const Call& mine, const Call& theirs) const {
        own_.report({{rank_, link_.peer().rank}, {mine, theirs}});
    }
    // Throws if the peer knows of ranks that called different operations.
    void throw_disagreement() const;
    // Whether the peer has found a disagreement in operations that this rank has begun; earlier operations
    // can be completed.
    bool is_accused() const;

  private:
    const Link& link_;
    int rank_;
    PublishedCalls& own_;
    PublishedCalls& theirs_;
};

// The rank that accuses this one, see Colocation::accuser. `links`: by rank, null if there is none. Without a
// link to that rank the result is nothing; a later call, when the link is open, returns the rank.
template <typename LinkOfKind>
std::optional<int> accuser_among(const PublishedCalls& own, const std::vector<LinkOfKind*>& links) {
    const int by = own.accuser();
    if (by < 0 || static_cast<std::size_t>(by) >= links.size()) return std::nullopt;
    const LinkOfKind* const to = links[static_cast<std::size_t>(by)];
    return to != nullptr && to->calls().is_accused() ? std::optional(by) : std::nullopt;
}

}  // namespace collectives
