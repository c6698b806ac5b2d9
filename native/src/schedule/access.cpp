#include "schedule/access.hpp"

#include <algorithm>
#include <array>
#include <iterator>

namespace collectives {

namespace {

// Longer parts become final in pieces of this size, so that they can be passed on meanwhile.
constexpr std::uint64_t part_bytes = 1 << 20;

struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

bool writes_output(const Operation::Task& task) {
    return task.kind != StepKind::send && task.dst.buffer == buffer_out && task.length > 0;
}

// Calls `visit` for what is in `whole` and in none of `others`.
template <typename Visitor>
void visit_rest(Range whole, std::span<const Range> others, Visitor visit) {
    const auto covering = std::ranges::find_if(
        others, [&](const Range& other) { return other.begin < whole.end && whole.begin < other.end; });
    if (covering == others.end()) return visit(whole);
    const std::span later = others.subspan(static_cast<std::size_t>(covering - others.begin()) + 1);
    if (whole.begin < covering->begin) visit_rest({whole.begin, covering->begin}, later, visit);
    if (covering->end < whole.end) visit_rest({covering->end, whole.end}, later, visit);
}

}  // namespace

std::vector<Bytes> first_reads(const Operation& operation, const std::byte* in, const std::byte* out) {
    std::vector<Bytes> found;
    const auto add = [&](const std::byte* begin, std::uint64_t n) {
        if (!found.empty() && found.back().data() + found.back().size() == begin) {
            found.back() = {found.back().data(), found.back().size() + n};
        } else {
            found.emplace_back(begin, n);
        }
    };
    std::array<std::vector<Range>, 2> known;  // of this section: what is read or written already, by buffer
    for (std::uint64_t i = 0; i < operation.sections(); ++i) {
        const Operation& section = operation.section(i);
        for (auto& ranges : known) ranges.clear();
        const std::array base{in, out};
        for (const Operation::Task& task : section.tasks()) {
            visit_reads(task, [&](const Operation::Place& place) {
                if (place.buffer > buffer_out || task.length == 0) return;
                const auto buffer = static_cast<std::size_t>(place.buffer);
                const Range read{place.offset, place.offset + task.length};
                visit_rest(read, known[buffer],
                           [&](const Range& rest) { add(base[buffer] + rest.begin, rest.end - rest.begin); });
                known[buffer].push_back(read);
            });
            if (writes_output(task))
                known[buffer_out].push_back({task.dst.offset, task.dst.offset + task.length});
        }
        if (in != nullptr) in += section.in_bytes();
        if (out != nullptr) out += section.out_bytes();
    }
    return found;
}

void Output::begin(const Operation& section, const std::byte* out) {
    out_ = out;
    writers_.clear();
    parts_.clear();
    std::vector<Writer> all;
    std::vector<std::uint64_t> ends;
    for (std::uint32_t step = 0; step < section.tasks().size(); ++step) {
        const Operation::Task& task = section.tasks()[step];
        if (!writes_output(task)) continue;
        all.push_back({step, task.dst.offset, task.dst.offset + task.length});
        ends.push_back(all.back().begin);
        ends.push_back(all.back().end);
    }
    std::ranges::sort(ends);
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
        const std::size_t first = writers_.size();
        std::ranges::copy_if(all, std::back_inserter(writers_), [&](const Writer& writer) {
            return writer.begin <= ends[i] && ends[i + 1] <= writer.end;
        });
        const std::size_t count = writers_.size() - first;
        if (count == 0) continue;
        for (std::uint64_t begin = ends[i]; begin < ends[i + 1]; begin += part_bytes) {
            parts_.push_back({begin, std::min(begin + part_bytes, ends[i + 1]), first, count});
        }
    }
}

void Output::tell(Transfer& transfer, FunctionRef<std::uint64_t(std::uint32_t step)> done, bool complete) {
    std::erase_if(parts_, [&](const Part& part) {
        std::uint64_t end = part.end;
        for (const Writer& writer : std::span(writers_).subspan(part.first, part.count)) {
            end = std::min(end, writer.begin + done(writer.step));
        }
        if (end < part.end && !complete) return false;
        // A received message may be shorter than its memory.
        if (end > part.begin) transfer.leave(out_ + part.begin, end - part.begin);
        return true;
    });
}

}  // namespace collectives
