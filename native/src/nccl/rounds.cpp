#include "nccl/rounds.hpp"

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "cuda/kernel_arguments.hpp"

namespace collectives::nccl {

namespace {

// So that kernels can read and write whole vectors.
constexpr std::uint64_t operand_alignment = 256;

std::uint64_t aligned_operand(std::uint64_t bytes) {
    return (bytes + operand_alignment - 1) / operand_alignment * operand_alignment;
}

[[noreturn]] void do_not_fit() { throw Error(ErrorKind::invalid, "the rounds do not fit the schedule"); }

}  // namespace

Rounds::Rounds(std::shared_ptr<const Operation> operation,
               const std::vector<std::vector<std::uint32_t>>& of_steps)
    : operation_(std::move(operation)) {
    const std::vector<Operation::Task>& tasks = operation_->tasks();
    if (of_steps.size() != tasks.size() || operation_->sections() != 1) do_not_fit();
    const std::uint64_t operands_begin = aligned_operand(operation_->scratch_bytes());
    const auto flat = [&](const Place& place) {
        if (place.buffer < buffer_scratch) return place;
        const auto slot = static_cast<std::size_t>(place.buffer - buffer_scratch);
        return Place{buffer_scratch, operation_->scratch_offsets()[slot] + place.offset};
    };
    struct Filling {
        Round round;
        std::uint64_t operands = 0;  // bytes of messages that are operands, which live as long as the round
    };
    std::map<std::uint32_t, Filling> found;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        const Operation::Task& task = tasks[i];
        const std::vector<std::uint32_t>& numbers = of_steps[i];
        if (numbers.size() != (task.kind == StepKind::send ? task.peers.size() : 1)) do_not_fit();
        if (task.length == 0) continue;  // nothing moves, on both sides of a message
        if (task.kind == StepKind::send) {
            for (std::size_t peer = 0; peer < task.peers.size(); ++peer) {
                found[numbers[peer]].round.messages.push_back(
                    {true, task.peers[peer], flat(task.dst), task.length});
            }
            continue;
        }
        Filling& filling = found[numbers[0]];
        if (task.kind == StepKind::recv) {
            filling.round.messages.push_back({false, task.peers[0], flat(task.dst), task.length});
            continue;
        }
        if (task.sources.size() > cuda::most_ranks) {
            throw Error(ErrorKind::invalid, "a reduction on a device has at most " +
                                                std::to_string(cuda::most_ranks) + " operands");
        }
        Work work{task.final, flat(task.dst), {}, task.length};
        for (const Operation::Source& source : task.sources) {
            if (source.peer < 0) {
                work.operands.push_back(flat(source.place));
                continue;
            }
            const Place into{buffer_scratch, operands_begin + filling.operands};
            filling.operands += aligned_operand(task.length);
            filling.round.messages.push_back({false, source.peer, into, task.length});
            work.operands.push_back(into);
        }
        reduces_ |= work.operands.size() > 1;
        filling.round.works.push_back(std::move(work));
    }
    std::uint64_t operands = 0;
    for (auto& [number, filling] : found) {
        operands = std::max(operands, filling.operands);
        rounds_.push_back(std::move(filling.round));
    }
    temporary_ = operands_begin + operands;
}

}  // namespace collectives::nccl
