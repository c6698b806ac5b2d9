#include "schedule/program.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.hpp"

namespace collectives {

namespace {

[[noreturn]] void bad(std::uint32_t step, const char* what) {
    throw Error(ErrorKind::invalid, "step " + std::to_string(step) + " of the schedule " + what);
}

// The queues, as in form.py: one for each peer and direction, one for sends to several peers, one for local
// work.
enum class Lane : std::uint8_t { to_peer, from_peer, cast, local };
using Queue = std::pair<Lane, int>;

std::vector<Queue> queues_of(const Step& step) {
    std::vector<Queue> queues;
    switch (step.kind) {
        case StepKind::send:
            for (const int peer : step.peers) queues.emplace_back(Lane::to_peer, peer);
            if (step.peers.size() > 1) queues.emplace_back(Lane::cast, 0);
            break;
        case StepKind::recv:
            for (const int peer : step.peers) queues.emplace_back(Lane::from_peer, peer);
            break;
        case StepKind::reduce:
            for (const Operand& operand : step.operands) {
                if (operand.peer >= 0) queues.emplace_back(Lane::from_peer, operand.peer);
            }
            if (queues.empty()) queues.emplace_back(Lane::local, 0);
            break;
        case StepKind::copy:
            queues.emplace_back(Lane::local, 0);
            break;
    }
    return queues;
}

constexpr std::uint64_t alignment = 64;  // bytes of scratch slots, elements of sections

std::uint64_t aligned(std::uint64_t n) { return (n + alignment - 1) / alignment * alignment; }

}  // namespace

Program::Program(int rank_, int size_, std::uint32_t in_blocks_, std::uint32_t out_blocks_,
                 std::vector<std::vector<Block>> scratch_, std::vector<Step> steps_, bool pooled_,
                 std::optional<Exchange> flat_)
    : rank(rank_),
      size(size_),
      in_blocks(in_blocks_),
      out_blocks(out_blocks_),
      scratch(std::move(scratch_)),
      steps(std::move(steps_)),
      pooled(pooled_),
      flat(flat_),
      successors(steps.size()),
      needed(steps.size(), false),
      predecessors(steps.size()) {
    if (size < 1 || rank < 0 || rank >= size) throw Error(ErrorKind::invalid, "rank is not within size");
    for (const auto& slot : scratch) {
        for (const Block& block : slot) {
            const bool known = block.buffer == buffer_in    ? block.index < in_blocks
                               : block.buffer == buffer_out ? block.index < out_blocks
                                                            : false;
            if (!known) throw Error(ErrorKind::invalid, "a scratch slot names a block that is not there");
        }
    }
    std::map<Queue, std::pair<std::uint32_t, std::uint32_t>> spans;  // first and last step so far
    std::map<Queue, std::uint32_t> lengths;                          // steps so far
    std::vector<std::vector<Ordinal>> ordinals(steps.size());
    std::set<int> seen;
    for (std::uint32_t i = 0; i < steps.size(); ++i) {
        check(i);
        for (const Dependency& dependency : steps[i].dependencies) needed[dependency.step] = true;
        for (const Queue& queue : queues_of(steps[i])) {
            ordinals[i].push_back(++lengths[queue]);
            if (queue.first == Lane::to_peer || queue.first == Lane::from_peer) seen.insert(queue.second);
            const auto [place, first] = spans.try_emplace(queue, i, i);
            if (!first) {
                std::uint32_t& last = place->second.second;
                successors[last].push_back(i);
                ++predecessors[i];
                last = i;
            }
        }
        if (steps[i].kind == StepKind::send && !relay) find_relay(i, ordinals);
        if (steps[i].kind == StepKind::recv && steps.size() > 1) find_reception(i, ordinals);
    }
    keeps_what_it_sends = finds_kept_send();
    peers.assign(seen.begin(), seen.end());
    const auto others = static_cast<std::size_t>(size - 1);
    if (pooled && (size < 2 || in_blocks != out_blocks || combines != others || peers.size() != others)) {
        throw Error(ErrorKind::invalid, "a schedule that is no allreduce among all ranks cannot be pooled");
    }
    for (const int peer : peers) {
        if (spans.contains({Lane::from_peer, peer})) sources.push_back(peer);
    }
    says = std::any_of(steps.begin(), steps.end(), [](const Step& s) { return s.kind == StepKind::send; });
    if (flat) check_flat();
    for (const int peer : peers) {
        for (const Lane direction : {Lane::to_peer, Lane::from_peer}) {
            const auto place = spans.find({direction, peer});
            if (place == spans.end()) continue;
            const std::uint32_t channel =
                2 * static_cast<std::uint32_t>(peer) + (direction == Lane::from_peer ? 1 : 0);
            channels.push_back({channel, place->second.first, place->second.second});
        }
    }
}

void Program::find_relay(std::uint32_t send, const std::vector<std::vector<Ordinal>>& ordinals) {
    const Step& step = steps[send];
    if (step.dependencies.size() != 1) return;
    const Dependency& after = step.dependencies[0];
    const Step& source = steps[after.step];
    const bool whole = source.kind == StepKind::reduce && source.dst == step.dst &&
                       after.buffer == step.dst.buffer && after.there == after.here;
    if (!whole) return;
    relay = Relay{after.step, send, {}};
    const std::vector<Queue> taken = queues_of(source);
    for (std::size_t i = 0; i < step.peers.size(); ++i) {
        const auto from = std::find(taken.begin(), taken.end(), Queue{Lane::from_peer, step.peers[i]});
        const Ordinal read =
            from == taken.end() ? 0 : ordinals[after.step][static_cast<std::size_t>(from - taken.begin())];
        relay->messages.push_back({step.peers[i], ordinals[send][i], read});
    }
}

void Program::find_reception(std::uint32_t recv, const std::vector<std::vector<Ordinal>>& ordinals) {
    const Step& step = steps[recv];
    const int peer = step.peers[0];
    Ordinal replaces = 0;
    if (!step.dependencies.empty()) {
        const Dependency& after = step.dependencies[0];
        const Step& reader = steps[after.step];
        const bool same = step.dependencies.size() == 1 && after.there == after.here &&
                          reader.dst.first == step.dst.first && reader.dst.count == step.dst.count;
        const bool read_by_peer = reader.kind == StepKind::send && reader.peers == step.peers;
        if (!same || !read_by_peer) return;
        replaces = ordinals[after.step][0];
    }
    receptions.push_back({recv, peer, ordinals[recv][0], replaces});
}

bool Program::finds_kept_send() const {
    const auto find = [&](StepKind kind, auto&& fits) {
        std::uint32_t i = 0;
        while (i < steps.size() && (steps[i].kind != kind || predecessors[i] > 0 ||
                                    !steps[i].dependencies.empty() || !fits(steps[i]))) {
            ++i;
        }
        return i;
    };
    const std::uint32_t copy = find(StepKind::copy, [](const Step&) { return true; });
    if (copy == steps.size()) return false;
    const Chunk& copied = steps[copy].operands[0].chunk;
    const std::uint32_t send = find(StepKind::send, [&](const Step& step) { return step.dst == copied; });
    return send < steps.size();
}

const ChannelUse* Program::use_of(std::uint32_t channel) const {
    const auto place = std::ranges::lower_bound(channels, channel, {}, &ChannelUse::channel);
    return place != channels.end() && place->channel == channel ? &*place : nullptr;
}

std::uint32_t Program::blocks_of(int buffer) const {
    if (buffer == buffer_in) return in_blocks;
    if (buffer == buffer_out) return out_blocks;
    return static_cast<std::uint32_t>(scratch[static_cast<std::size_t>(buffer - buffer_scratch)].size());
}

void Program::check(std::uint32_t index) {
    const Step& step = steps[index];
    const auto check_chunk = [&](const Chunk& chunk) {
        if (chunk.buffer < 0 || chunk.buffer >= buffer_scratch + static_cast<int>(scratch.size())) {
            bad(index, "names a buffer that is not there");
        }
        if (std::uint64_t{chunk.first} + chunk.count > blocks_of(chunk.buffer)) {
            bad(index, "names a block that is not there");
        }
    };
    std::set<int> distinct;
    const bool alone = steps.size() == 1;  // a single message, which a rank may send to itself
    const auto check_peer = [&](int peer) {
        if (peer < 0 || peer >= size || (peer == rank && !alone))
            bad(index, "names a rank that is not a peer");
        if (!distinct.insert(peer).second) bad(index, "names a peer twice");
    };
    check_chunk(step.dst);
    for (const int peer : step.peers) check_peer(peer);
    for (const Operand& operand : step.operands) {
        if (operand.peer >= 0) {
            check_peer(operand.peer);
            combines = std::max(combines, distinct.size());
        } else {
            check_chunk(operand.chunk);
        }
    }
    for (const Dependency& dependency : step.dependencies) {
        if (dependency.step >= index) bad(index, "waits for a step that does not come before it");
        check_chunk({dependency.buffer, dependency.there, 0});
        check_chunk({dependency.buffer, dependency.here, 0});
    }
    const bool fits = step.kind == StepKind::send   ? !step.peers.empty()
                      : step.kind == StepKind::recv ? step.peers.size() == 1 || (alone && !step.peers.empty())
                      : step.kind == StepKind::reduce
                          ? step.operands.size() >= 2
                          : step.operands.size() == 1 && step.operands[0].peer < 0;
    if (!fits) bad(index, "has a wrong number of peers or operands");
}

void Program::check_flat() const {
    for (const Chunk& chunk : {flat->said, flat->taken}) {
        const bool inside = (chunk.buffer == buffer_in || chunk.buffer == buffer_out) &&
                            std::uint64_t{chunk.first} + chunk.count <= blocks_of(chunk.buffer);
        if (!inside) throw Error(ErrorKind::invalid, "a flat exchange names a block that is not there");
    }
    const bool within = flat->taken.buffer == flat->said.buffer && flat->taken.first >= flat->said.first &&
                        flat->taken.first + flat->taken.count <= flat->said.first + flat->said.count;
    if (!within) throw Error(ErrorKind::invalid, "a flat exchange takes what is not said");
    for (std::uint32_t i = 0; i < steps.size(); ++i) {
        // A rank must not send data that it has received.
        if (steps[i].kind == StepKind::send && !steps[i].dependencies.empty()) {
            bad(i, "passes something on, so it is not flat");
        }
    }
}

Bounds::Bounds(std::uint64_t n, std::uint32_t blocks) {
    offsets_.reserve(blocks + 1);
    for (std::uint64_t b = 0; b <= blocks; ++b) {
        // n*b/blocks without overflow; with no blocks there is one bound, 0.
        offsets_.push_back(blocks == 0 ? 0 : n / blocks * b + n % blocks * b / blocks);
    }
}

Operation::Operation(std::shared_ptr<const Program> program, DType dtype, Op op, const Bounds& in,
                     const Bounds& out, const Call& call, Part part)
    : program_(std::move(program)),
      dtype_(dtype),
      op_(op),
      unit_(size_of(dtype)),
      kernels_{reduce_kernel(dtype, op, Stores::cached), reduce_kernel(dtype, op, Stores::streaming)},
      spread_(spread_kernel(dtype, op)),
      in_bytes_(in.total() * unit_),
      out_bytes_(out.total() * unit_),
      call_(call),
      part_(part) {
    const Program& plan = *program_;
    if (in.blocks() != plan.in_blocks || out.blocks() != plan.out_blocks) {
        throw Error(ErrorKind::invalid, "the bounds do not fit the schedule's blocks");
    }
    // For each scratch slot, the offsets of its blocks in bytes.
    std::vector<std::vector<std::uint64_t>> slots;
    for (const auto& slot : plan.scratch) {
        std::vector<std::uint64_t> offsets{0};
        for (const Block& block : slot) {
            const Bounds& like = block.buffer == buffer_in ? in : out;
            offsets.push_back(offsets.back() + (like.at(block.index + 1) - like.at(block.index)) * unit_);
        }
        scratch_offsets_.push_back(scratch_bytes_);
        scratch_bytes_ += aligned(offsets.back());
        slots.push_back(std::move(offsets));
    }
    const auto offset = [&](int buffer, std::uint32_t block) {
        if (buffer == buffer_in) return in.at(block) * unit_;
        if (buffer == buffer_out) return out.at(block) * unit_;
        return slots[static_cast<std::size_t>(buffer - buffer_scratch)][block];
    };
    const auto place = [&](const Chunk& chunk) {
        return Place{chunk.buffer, offset(chunk.buffer, chunk.first)};
    };
    const auto length = [&](const Chunk& chunk) {
        return offset(chunk.buffer, chunk.first + chunk.count) - offset(chunk.buffer, chunk.first);
    };
    std::size_t n_sources = 0;
    std::size_t n_gates = 0;
    for (const Step& step : plan.steps) {
        n_sources += step.operands.size();
        n_gates += step.dependencies.size();
    }
    sources_.reserve(n_sources);
    gates_.reserve(n_gates);
    tasks_.reserve(plan.steps.size());
    for (std::uint32_t i = 0; i < plan.steps.size(); ++i) {
        const Step& step = plan.steps[i];
        const std::size_t first_source = sources_.size();
        const std::size_t first_gate = gates_.size();
        for (const Operand& operand : step.operands) {
            if (operand.peer < 0 && length(operand.chunk) != length(step.dst)) {
                bad(i, "combines chunks of different sizes");
            }
            sources_.push_back({operand.peer, operand.peer < 0 ? place(operand.chunk) : Place{}});
        }
        for (const Dependency& d : step.dependencies) {
            const auto there = static_cast<std::int64_t>(offset(d.buffer, d.there));
            const auto here = static_cast<std::int64_t>(offset(d.buffer, d.here));
            gates_.push_back({d.step, there - here});
        }
        tasks_.push_back({step.kind, step.final, length(step.dst), place(step.dst), step.peers,
                          std::span(sources_).subspan(first_source), std::span(gates_).subspan(first_gate)});
    }
    for (const Task& task : tasks_) {
        const auto operands = std::count_if(task.sources.begin(), task.sources.end(),
                                            [](const Source& source) { return source.peer >= 0; });
        if (task.kind == StepKind::send) traffic_.sent += task.length * task.peers.size();
        if (task.kind == StepKind::recv) traffic_.received += task.length;
        traffic_.received += task.length * static_cast<std::uint64_t>(operands);
    }
    if (plan.flat && in.are_even() && out.are_even() && std::max(in_bytes_, out_bytes_) <= most_flat) {
        const Place said = place(plan.flat->said);
        const Place taken = place(plan.flat->taken);
        flat_ = Flat{said, length(plan.flat->said), taken.offset - said.offset, length(plan.flat->taken)};
        for (std::uint32_t i = 0; i < tasks_.size(); ++i) {
            const bool receives = std::any_of(plan.steps[i].operands.begin(), plan.steps[i].operands.end(),
                                              [](const Operand& operand) { return operand.peer >= 0; }) ||
                                  plan.steps[i].kind == StepKind::recv;
            if (receives && tasks_[i].length != flat_->part) {
                bad(i, "takes another part than the flat exchange says");
            }
        }
    }
}

Operation Operation::in_sections(const std::shared_ptr<const Program>& program, DType dtype, Op op,
                                 std::uint64_t n, std::uint64_t at_a_time, const Call& call) {
    const auto of = [&](std::uint64_t count) {
        return Operation(program, dtype, op, Bounds(count, program->in_blocks),
                         Bounds(count, program->out_blocks), call);
    };
    if (n <= at_a_time) return of(n);
    const std::uint64_t each = std::min(at_a_time, aligned((n - 1) / ((n - 1) / at_a_time + 1) + 1));
    Operation whole = of(0);
    whole.alike_ = (n - 1) / each;
    whole.section_ = std::make_shared<const Operation>(of(each));
    whole.last_ = std::make_shared<const Operation>(of(n - whole.alike_ * each));
    whole.in_bytes_ = whole.out_bytes_ = n * whole.unit_;
    const Traffic& first = whole.section_->traffic_;
    const Traffic& last = whole.last_->traffic_;
    whole.traffic_ = {whole.alike_ * first.sent + last.sent, whole.alike_ * first.received + last.received};
    return whole;
}

std::size_t Operation::memory() const {
    const auto of = [](const auto& values) { return values.size() * sizeof(values[0]); };
    std::size_t total = sizeof(Operation) + of(scratch_offsets_) + of(sources_) + of(gates_) + of(tasks_);
    if (section_) total += section_->memory() + last_->memory();
    const Program& plan = *program_;
    total += sizeof(Program) + of(plan.peers) + of(plan.sources) + of(plan.channels) + of(plan.receptions) +
             of(plan.predecessors);
    for (const Step& step : plan.steps) {
        total += sizeof(Step) + of(step.peers) + of(step.operands) + of(step.dependencies);
    }
    for (const auto& next : plan.successors) total += sizeof(next) + of(next);
    return total;
}

}  // namespace collectives
