// Which bytes of the caller's memory the steps of an operation read before they write them, and when the
// bytes that they write are final.
//
// Invariant: nothing here moves data or knows links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.hpp"
#include "base/transfer.hpp"
#include "schedule/program.hpp"

namespace collectives {

// Calls `visit` for each place that a step reads; all are of the step's length.
template <typename Visitor>
void visit_reads(const Operation::Task& task, Visitor visit) {
    if (task.kind == StepKind::send) return visit(task.dst);
    for (const Operation::Source& source : task.sources) {
        if (source.peer < 0) visit(source.place);
    }
}

using Bytes = std::span<const std::byte>;

// What the operation reads of its input, and of its output before it writes there, in the order of its steps;
// each byte once. `in`, `out`: the caller's memory, null if there is none.
std::vector<Bytes> first_reads(const Operation& operation, const std::byte* in, const std::byte* out);

// The output of one section of an operation, in parts that one or several steps write.
class Output {
  public:
    // Its memory begins at `out`.
    void begin(const Operation& section, const std::byte* out);
    // Pass on the parts that became final. `done`: the watermark of a step. `complete`: no step goes on.
    void tell(Transfer& transfer, FunctionRef<std::uint64_t(std::uint32_t step)> done, bool complete);

  private:
    struct Writer {
        std::uint32_t step = 0;
        std::uint64_t begin = 0;  // of what it writes
        std::uint64_t end = 0;
    };
    // What is written by `count` of the writers from `first` on.
    struct Part {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        std::size_t first = 0;
        std::size_t count = 0;
    };

    const std::byte* out_ = nullptr;
    std::vector<Writer> writers_;  // those of the first part, then those of the next one
    std::vector<Part> parts_;      // that are not final
};

}  // namespace collectives
