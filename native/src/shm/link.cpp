#include "shm/link.hpp"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "shm/memory.hpp"

namespace collectives {

ShmLink::ShmLink(Peer peer, int rank, std::shared_ptr<Arena> own, std::shared_ptr<Arena> theirs, pid_t pid,
                 WriteGrant* grant, GroupMemory* memory)
    : Link(std::move(peer)),
      rank_(rank),
      memory_(memory),
      own_(std::move(own)),
      theirs_(std::move(theirs)),
      out_(own_->outlet(this->peer().rank)),
      in_(theirs_->outlet(rank)),
      calls_(*this, rank, own_->calls(), theirs_->calls()),
      places_(*own_, rank, *theirs_, this->peer().rank),
      remote_(pid),
      grant_(grant) {
    if (memory_ != nullptr) memory_->set_link(this->peer().rank, this);
    const Reads how = own_->header().reads;
    if (how == Reads::never || !is_peer(remote_)) return;
    out_.reads_memory.store(how, std::memory_order_release);
}

ShmLink::~ShmLink() {
    if (memory_ != nullptr) memory_->set_link(peer().rank, nullptr);
}

Multicast* ShmLink::multicast() { return memory_ == nullptr ? nullptr : &memory_->caster(); }

bool ShmLink::is_oversubscribed() const { return memory_ != nullptr && memory_->is_oversubscribed(); }

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
    // There is a full fence between this rank's last store and this load. There is another one between the
    // peer's store of `sleeping` and its last check. So one of the two ranks sees the store of the other.
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

void ShmLink::abandon() {
    end_joint();
    if (!direct_.empty()) out_.abandoned.store(1, std::memory_order_seq_cst);
}

void ShmLink::ensure_valid(const Call& call) {
    // A rank that fails sets this before its memory may be used for something else.
    if (in_.abandoned.load(std::memory_order_seq_cst) != 0) throw_lost(call, "it gave the operation up");
}

void ShmLink::throw_other_length() const {
    throw_desync(expected_->call, calls_.instead_of(expected_->call), ", with a message of another length");
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

// The header tells all peers the rest. A peer that waits for nobody reads only its own header, so an
// accusation is stored there.
void ShmLink::shut_down(std::optional<int>) {
    if (own_->calls().disagreement()) {
        theirs_->calls().accuse(rank_);
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    wake_peer();
}

}  // namespace collectives
