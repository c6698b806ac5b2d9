// Operations on a board in which ranks that share cores add up what all say, core by core.
#include "schedule/run.hpp"

namespace collectives {

bool Run::adds_by_core() const {
    if (way_ != Way::flat || !workshop_.crowded || !has(Mechanism::by_core)) return false;
    // All that it depends on is the same on every rank. In an allreduce in which all say all that they have,
    // and nobody passes anything on, all add up all.
    const Program& program = operation().program();
    const auto others = static_cast<std::size_t>(program.size) - 1;
    const Operation::Flat& flat = *operation().flat();
    return request_.call.collective == static_cast<std::uint8_t>(Collective::allreduce) && others > 1 &&
           program.sources.size() == others && flat.part == flat.length &&
           !rounds_each_time(operation().dtype());
}

void Run::say_by_core() {
    if (board_->cores() == 0) board_->share_cores(arenas());
    const std::byte* const own = at(operation().flat()->said);
    const std::size_t n = length_said();
    switch (board_->arrive(number_, context_.fingerprint, own, n)) {
        case Flat::Arrival::early:
            break;
        case Flat::Arrival::unexpected:
            has_come_ = true;  // so that its mates are awaited
            look_for_other_calls();
            shared_memory(operation().program().sources.front())->throw_other_call(request_.call);
        case Flat::Arrival::last:
            operands_.clear();
            for (const std::size_t rank : board_->mates()) {
                const bool ours = static_cast<int>(rank) == operation().program().rank;
                operands_.push_back(ours ? own : board_->said(number_, rank, n));
            }
            reduce_operands(board_->place_of_sum(number_, n), n, 1.0, Stores::cached);
            board_->say_sum(number_, context_.fingerprint, n);
            break;
    }
    // It counts as late until then.
    board_->say(number_, context_.fingerprint, nullptr, 0);
}

bool Run::has_every_sum() {
    for (; said_ < board_->cores(); ++said_) {
        std::uint32_t fingerprint = 0;
        if (!board_->has_sum(number_, said_, fingerprint)) return false;
        if (fingerprint != context_.fingerprint) {
            shared_memory(static_cast<int>(board_->adder(number_, said_)))->throw_other_call(request_.call);
        }
    }
    return true;
}

void Run::add_sums() {
    const std::size_t n = length_said();
    operands_.clear();
    for (std::size_t core = 0; core < board_->cores(); ++core) {
        operands_.push_back(board_->sum(number_, core, n));
    }
    reduce_operands(buffers_[buffer_out], n, scale_, Stores::cached);
}

}  // namespace collectives
