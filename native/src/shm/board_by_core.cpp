// The part of the board engine for sums that are added up for each core first, if ranks share cores.
#include "shm/board_task.hpp"

namespace collectives {

bool adds_by_core(const Request& request, Colocated& colocated) {
    if (!colocated.is_oversubscribed() || !colocated.has(Mechanism::by_core)) return false;
    // The result depends only on data that is the same on every rank. In an allreduce in which all ranks
    // publish all their data, every rank adds up everything.
    const Operation& operation = *request.operation;
    const Program& program = operation.program();
    const auto others = static_cast<std::size_t>(program.size) - 1;
    const Operation::Flat& flat = *operation.flat();
    return request.call.collective == static_cast<std::uint8_t>(Collective::allreduce) && others > 1 &&
           program.sources.size() == others && flat.part == flat.length &&
           !rounds_each_time(operation.dtype());
}

void BoardTask::publish_by_core() {
    if (board().cores() == 0) board().share_cores(colocated_.arenas(*request_));
    const std::byte* const own = buffers_.at(operation().flat()->said);
    const std::size_t n = published_bytes();
    const std::uint64_t number = entry_.number();
    switch (board().arrive(number, request_->fingerprint, own, n)) {
        case MessageBoard::Arrival::early:
            break;
        case MessageBoard::Arrival::unexpected: {
            published_ = true;  // makes `awaited` return the other ranks of its core
            std::vector<Awaited> peers;
            awaited(peers);
            colocated_.look_for_other_calls(*request_, peers);
            colocated_.link(program().sources.front())->calls().throw_other_call(request_->call);
        }
        case MessageBoard::Arrival::last:
            operands_.clear();
            for (const std::size_t rank : board().core_ranks()) {
                const bool ours = static_cast<int>(rank) == program().rank;
                operands_.push_back(ours ? own : board().published(number, rank, n));
            }
            reduce_operands(board().place_of_sum(number, n), n, 1.0);
            board().publish_sum(number, request_->fingerprint, n);
            break;
    }
    // This rank counts as late until its line is published.
    board().publish(number, request_->fingerprint, nullptr, 0);
}

bool BoardTask::has_every_sum() {
    for (; sums_seen_ < board().cores(); ++sums_seen_) {
        std::uint32_t fingerprint = 0;
        if (!board().has_sum(entry_.number(), sums_seen_, fingerprint)) return false;
        if (fingerprint != request_->fingerprint) {
            const auto adder = static_cast<int>(board().adder(entry_.number(), sums_seen_));
            colocated_.link(adder)->calls().throw_other_call(request_->call);
        }
    }
    return true;
}

void BoardTask::add_sums() {
    const std::size_t n = published_bytes();
    operands_.clear();
    for (std::size_t core = 0; core < board().cores(); ++core) {
        operands_.push_back(board().sum(entry_.number(), core, n));
    }
    reduce_operands(buffers_.out(), n, operation().scale());
}

}  // namespace collectives
