// A schedule as a device runs it: rounds of messages, and after each the reductions and copies that it
// allows.
//
// Invariant: both ranks of a message have it in the same round, and what it sends was complete in an earlier
// one. So a round's messages can go as one group: it ends as soon as all ranks have come to it. Messages
// between two ranks keep their order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "schedule/program.hpp"

namespace collectives::nccl {

class Rounds {
  public:
    // Byte `offset` of the input (0), the output (1) or the temporary memory (2).
    using Place = Operation::Place;
    struct Message {
        bool sends = false;
        int peer = 0;
        Place place;
        std::uint64_t bytes = 0;
    };
    // A reduction, or a copy if there is one operand.
    struct Work {
        bool final = false;
        Place to;
        std::vector<Place> operands;
        std::uint64_t bytes = 0;
    };
    struct Round {
        std::vector<Message> messages;
        std::vector<Work> works;
    };

    // `of_steps`: for each step of the operation's program the number of its round; for a send one for each
    // peer. Throws Error(invalid) if they do not fit the program, or a reduction has too many operands.
    Rounds(std::shared_ptr<const Operation> operation,
           const std::vector<std::vector<std::uint32_t>>& of_steps);

    const Operation& operation() const { return *operation_; }
    const std::vector<Round>& all() const { return rounds_; }
    // Bytes of temporary memory: scratch of the schedule, and messages that are operands.
    std::uint64_t temporary() const { return temporary_; }
    bool reduces() const { return reduces_; }

  private:
    std::shared_ptr<const Operation> operation_;
    std::vector<Round> rounds_;
    std::uint64_t temporary_ = 0;
    bool reduces_ = false;
};

}  // namespace collectives::nccl
