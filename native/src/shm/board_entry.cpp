#include "shm/board_entry.hpp"

#include <algorithm>

namespace collectives {

void BoardEntry::begin(const Request& request) {
    request_ = &request;
    if (colocated_.boards.empty()) {
        const auto size = static_cast<std::size_t>(program().size);
        const auto rank = static_cast<std::size_t>(program().rank);
        colocated_.boards.assign(size, Colocated::Owned{MessageBoard(rank, size), {}});
    }
    owned_ = &colocated_.boards[request.call.root];
    number_ = board().next();
    seen_ = 0;
    asleep_ = false;
    owned_->queue.push_back(this);
}

void BoardEntry::leave() {
    if (request_ == nullptr) return;
    set_asleep(false);
    std::erase(owned_->queue, this);
    request_ = nullptr;
}

void BoardEntry::open() {
    if (board().is_open()) return;
    const auto owner = static_cast<int>(request_->call.root);
    const bool ours = owner == program().rank;
    board().open(ours ? colocated_.arena() : colocated_.link(owner)->arena_of_peer());
}

bool BoardEntry::is_late(int peer) const {
    std::uint32_t fingerprint = 0;
    // A rank that is in another operation publishes nothing in this one.
    return !board().has_published(number_, static_cast<std::size_t>(peer), fingerprint) ||
           fingerprint != request_->fingerprint;
}

void BoardEntry::finish() {
    if (!program().says) {
        board().publish(number_, request_->fingerprint, nullptr, 0);
        wake_sleepers();
    } else if (program().sources.size() + 1 == static_cast<std::size_t>(program().size)) {
        board().all_published(number_);
    }
}

void BoardEntry::wake_sleepers() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (board().sleepers().load(std::memory_order_seq_cst) > 0) colocated_.wake(program().peers);
}

void BoardEntry::set_asleep(bool asleep) {
    const bool counted = asleep && request_ != nullptr && board().is_open();
    if (counted == asleep_) return;
    asleep_ = counted;
    if (counted) {
        board().sleepers().fetch_add(1, std::memory_order_seq_cst);
    } else {
        board().sleepers().fetch_sub(1, std::memory_order_seq_cst);
    }
}

}  // namespace collectives
