#include "shm/link.hpp"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.hpp"
#include "base/wait.hpp"

namespace collectives {

ShmLink::ShmLink(Peer peer, int rank, std::shared_ptr<Arena> own, std::shared_ptr<Arena> theirs,
                 bool same_process, pid_t pid, WriteGrant* grant)
    : Link(std::move(peer)),
      rank_(rank),
      same_process_(same_process),
      own_(std::move(own)),
      theirs_(std::move(theirs)),
      out_(own_->outlet(this->peer().rank)),
      in_(theirs_->outlet(rank)),
      places_(*own_, rank, *theirs_, this->peer().rank),
      remote_(pid),
      grant_(grant) {
    const Reads how = own_->header().reads;
    if (same_process || how == Reads::never || !is_peer(remote_)) return;
    out_.reads_memory.store(how, std::memory_order_release);
}

bool ShmLink::is_peer(Remote& process) const {
    const Header& header = theirs_->header();
    std::array<std::uint64_t, 2> cookie{};
    constexpr std::size_t at = offsetof(Header, cookie);
    return process.read(reinterpret_cast<std::byte*>(cookie.data()), header.address + at, sizeof(cookie)) &&
           cookie == header.cookie;
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
    if (!shown && direct_.empty()) return;
    out_.abandoned.store(1, std::memory_order_seq_cst);
    if (!same_process_) return;
    // One of the two sees the other's store. A pass waits for nobody, so it ends soon.
    const std::atomic<std::uint64_t>& passes = theirs_->header().passes;
    const std::uint64_t seen = passes.load(std::memory_order_seq_cst);
    while (seen % 2 != 0 && passes.load(std::memory_order_acquire) == seen) ::sched_yield();
}

void ShmLink::ensure_valid(const Call& call) {
    // Whoever fails says so before its memory can be in other use.
    if (in_.abandoned.load(std::memory_order_seq_cst) != 0) throw_lost(call, "it gave the operation up");
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
    for (std::uint64_t s = next - std::min<std::uint64_t>(next, calls_published); s < next; ++s) {
        const std::optional<Call> ours = own_->collective_call(s);
        const std::optional<Call> theirs = theirs_->collective_call(s);
        if (ours && theirs && *ours != *theirs) throw_desync(*ours, *theirs);
    }
}

void ShmLink::throw_other_call(const Call& mine) const {
    compare(mine);  // it may have been an earlier one
    const Call theirs = their_call(mine);
    throw_desync(mine, theirs, theirs == mine ? ", after other operations than this rank" : "");
}

void ShmLink::tell_disagreement(const Call& mine, const Call& theirs) const {
    own_->tell_disagreement({{rank_, peer().rank}, {mine, theirs}});
}

void ShmLink::throw_disagreement(const Call&) const {
    const std::optional<Disagreement> found = theirs_->disagreement();
    if (!found) return;
    own_->tell_disagreement(*found);
    const auto& [ranks, calls] = *found;
    for (const std::size_t mine : {0U, 1U}) {
        if (ranks[mine] == rank_ && ranks[1 - mine] == peer().rank)
            throw_desync(calls[mine], calls[1 - mine]);
    }
    const auto side = [&](std::size_t i) {
        return (ranks[i] == rank_ ? "this rank" : name_ranks({ranks[i]})) + " is in " + calls[i].describe();
    };
    throw Error(ErrorKind::desync,
                "ranks called different operations: " + side(0) + "; " + side(1) + ", as " + peer().name() +
                    " has found",
                {std::min(ranks[0], ranks[1]), std::max(ranks[0], ranks[1])});
}

const char* ShmLink::lost() {
    if (lost_.load(std::memory_order_acquire)) return "its process ended or closed the communicator";
    if (theirs_->header().closed.load(std::memory_order_acquire) != 0) return "it closed the communicator";
    return nullptr;
}

std::optional<int> ShmLink::blamed() const {
    const auto first = static_cast<int>(theirs_->header().lost.load(std::memory_order_acquire)) - 1;
    return first < 0 || first == rank_ ? std::nullopt : std::optional(first);
}

// The header says the rest, to all peers at once. But who waits for nobody looks at its own only.
void ShmLink::shut_down(std::optional<int>) {
    if (own_->disagreement()) {
        theirs_->header().accuser.store(static_cast<std::uint32_t>(rank_) + 1, std::memory_order_release);
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    wake_peer();
}

}  // namespace collectives
