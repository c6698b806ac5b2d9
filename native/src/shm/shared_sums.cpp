#include "shm/shared_sums.hpp"

namespace collectives {

void SharedSums::begin(const Request& request) {
    request_ = &request;
    if (shared_) shared_->abandon();
}

void SharedSums::add(std::uint64_t bytes) {
    piece_ = colocated_.pieces + 1;
    colocated_.pieces += static_cast<std::uint32_t>((bytes + piece_bytes() - 1) / piece_bytes());
}

void SharedSums::open(std::span<const std::byte* const> operands, std::byte* dst, std::size_t n) {
    const Operation& operation = *request_->operation;
    if (!shared_) {
        shared_ = std::make_unique<SharedReduction>(operation.program().rank, colocated_.arenas(*request_));
    }
    shared_->open(piece_++, operands, dst, n, operation.unit());
}

bool SharedSums::work(const Operation::Task& step, ReduceFn kernel, double scale) {
    for (const Operation::Source& source : step.sources) {
        if (ShmLink* const link = source.peer < 0 ? nullptr : shm_link(*request_, source.peer)) {
            link->ensure_there(request_->call);
        }
    }
    if (shared_->work(kernel, scale)) {
        // Others may have gone to sleep for what we have done, or for the next piece's turn.
        colocated_.wake(*request_, request_->operation->program().peers);
    }
    return shared_->gather();
}

}  // namespace collectives
