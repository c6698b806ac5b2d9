#include "shm_link.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "error.hpp"
#include "wait.hpp"

namespace collectives {

ShmLink::ShmLink(Peer peer, int rank, std::shared_ptr<Arena> own, std::shared_ptr<Arena> theirs,
                 bool same_process, pid_t pid)
    : Link(std::move(peer)),
      rank_(rank),
      same_process_(same_process),
      own_(std::move(own)),
      theirs_(std::move(theirs)),
      out_(own_->outlet(this->peer().rank)),
      in_(theirs_->outlet(rank)),
      places_(*own_, rank, *theirs_, this->peer().rank),
      remote_(pid) {
    const Reads how = own_->header().reads;
    if (same_process || how == Reads::never) return;
    Header& header = theirs_->header();
    std::array<std::uint64_t, 2> cookie{};
    constexpr std::size_t at = offsetof(Header, cookie);
    const bool read =
        remote_.read(reinterpret_cast<std::byte*>(cookie.data()), header.address + at, sizeof(cookie));
    if (!read || cookie != header.cookie) return;
    out_.reads_memory.store(how, std::memory_order_release);
}

void ShmLink::wake_peers(std::span<ShmLink* const> links) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (ShmLink* const link : links) link->wake_peer();
}

void ShmLink::wake_peer() {
    // Between what we have stored and what we look at here there is a full fence, as there is between the
    // peer's "set sleeping" and its "look once more": one of the two sees the other's store.
    Header& header = theirs_->header();
    const auto sleep = static_cast<Sleep>(header.sleeping.load(std::memory_order_seq_cst));
    if (sleep == Sleep::awake) return;
    header.doorbell.fetch_add(1, std::memory_order_release);
    if (sleep == Sleep::on_doorbell) {
        futex_wake(header.doorbell);
    } else {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto n = ::write(theirs_->wake_fd(), &one, sizeof(one));
    }
}

void ShmLink::abandon(bool shown) {
    end_joint();
    if (shown || !direct_.empty()) out_.abandoned.store(1, std::memory_order_seq_cst);
}

void ShmLink::ensure_valid(const Call& call) {
    // Whoever fails says so before its memory can be in other use.
    if (in_.abandoned.load(std::memory_order_acquire) != 0) throw_lost(call, "it gave the operation up");
}

void ShmLink::throw_other_length() const {
    throw_desync(expected_->call, their_call(expected_->call), ", with a message of another length");
}

void ShmLink::throw_other_pieces() const {
    throw_desync(expected_->call, their_call(expected_->call), ", in pieces of another length");
}

Call ShmLink::their_call(const Call& mine) const {
    const std::optional<Call> same =
        mine.is_message() ? std::nullopt : theirs_->collective_call(mine.sequence);
    return same && *same != mine ? *same : theirs_->current_call();
}

void ShmLink::compare(const Call& mine) const {
    if (mine.is_message()) return;
    // Those who disagreed may both have gone on: a root that only sends waits for nobody.
    const std::uint64_t next = mine.sequence + 1;
    for (std::uint64_t s = next - std::min<std::uint64_t>(next, calls_told); s < next; ++s) {
        const std::optional<Call> ours = own_->collective_call(s);
        const std::optional<Call> theirs = theirs_->collective_call(s);
        if (ours && theirs && *ours != *theirs) throw_desync(*ours, *theirs);
    }
}

void ShmLink::throw_other_call(const Call& mine) const { throw_desync(mine, their_call(mine)); }

const char* ShmLink::lost() {
    if (lost_.load(std::memory_order_acquire)) return "its process ended or closed the communicator";
    if (theirs_->header().closed.load(std::memory_order_acquire) != 0) return "it closed the communicator";
    return nullptr;
}

std::optional<int> ShmLink::blamed() const {
    const auto first = static_cast<int>(theirs_->header().lost.load(std::memory_order_acquire)) - 1;
    return first < 0 || first == rank_ ? std::nullopt : std::optional(first);
}

// The header says the rest, to all peers at once.
void ShmLink::shut_down(std::optional<int>) { wake_peer(); }

}  // namespace collectives
