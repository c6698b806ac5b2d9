#include "schedule/run.hpp"

#include <algorithm>

namespace collectives {

namespace {

// Scratch memory up to this size is kept for the next operation.
constexpr std::uint64_t kept_scratch = 1 << 20;
constexpr std::uint64_t scratch_alignment = 64;
// Results smaller than this are not worth saying where they are wanted.
constexpr std::uint64_t smallest_posted = 8 << 10;

bool overlap(const std::byte* a, std::uint64_t a_bytes, const std::byte* b, std::uint64_t b_bytes) {
    const auto from_a = reinterpret_cast<std::uintptr_t>(a);
    const auto from_b = reinterpret_cast<std::uintptr_t>(b);
    return a_bytes > 0 && b_bytes > 0 && from_a < from_b + b_bytes && from_b < from_a + a_bytes;
}

}  // namespace

std::byte* Run::scratch(std::uint64_t bytes) {
    if (bytes > scratch_size_) {
        scratch_.reset();
        scratch_size_ = 0;
        scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes + scratch_alignment);
        scratch_size_ = bytes;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(scratch_.get());
    return scratch_.get() + (-address & (scratch_alignment - 1));
}

void Run::begin(const Request& request, std::span<const std::unique_ptr<Run>> earlier) {
    request_ = request;
    begin_section(0, request.in, request.out);
    const Program& program = operation().program();
    set_contexts();
    scale_ = 1.0 / program.size;
    results_ = workshop_.results.next(results());
    results_.timed &= earlier.empty();
    if (results_.timed) began_ = ResultStores::Clock::now();
    sockets_.reset();
    held_ = false;
    sender_ = -1;
    error_ = nullptr;
    asleep_ = false;
    if (workshop_.arena) {
        workshop_.arena->publish_call(request_.call);
        if (workshop_.arena->header().accuser.load(std::memory_order_relaxed) != 0) learn_of_disagreement();
    }
    find_memory_shared(earlier);
    turns_.clear();
    active_.clear();
    shows_memory_ = false;
    way_ = choose_way();
    by_core_ = adds_by_core();
    if (way_ != Way::links) take_number(earlier);
    if (together_) together_->abandon();
    if (program.shared && workshop_.together) number_pieces();
    if (is_on_board()) {
        unfinished_ = 1;
        return;
    }
    cast_taken_.resize(static_cast<std::size_t>(program.size));
    reset_tasks();
    take_turns(earlier);
    relay_.reset();
    if (behind_ == nullptr && !is_in_sections() && operation().out_bytes() >= smallest_posted) {
        post_receptions();
    }
    find_active();
}

void Run::begin_section(std::uint64_t section, std::byte* in, std::byte* out) {
    section_ = section;
    operation_ = &request_.operation->section(section);
    buffers_.clear();
    buffers_.push_back(in);
    buffers_.push_back(out);
    if (operation().scratch_offsets().empty()) return;
    std::byte* base = scratch(operation().scratch_bytes());
    for (const std::uint64_t offset : operation().scratch_offsets()) buffers_.push_back(base + offset);
}

void Run::reset_tasks() {
    const Program& program = operation().program();
    states_.assign(program.steps.size(), State{});
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) states_[i].before = program.predecessors[i];
    unfinished_ = program.steps.size();
}

void Run::find_active() {
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
        if (states_[i].before == 0) active_.push_back(i);
    }
}

void Run::go_to_next_section() {
    begin_section(section_ + 1, buffers_[buffer_in] + operation().in_bytes(),
                  buffers_[buffer_out] + operation().out_bytes());
    reset_tasks();
    find_active();
}

ResultStores::Work Run::results() const {
    const Operation& whole = *request_.operation;
    return {&whole.program(), is_in_place() ? 0 : whole.in_bytes(), whole.out_bytes()};
}

Run::Way Run::choose_way() const {
    if (is_in_sections()) return Way::links;
    if (may_be_flat()) return Way::flat;
    if (may_exchange()) return Way::exchange;
    if (!may_be_pooled()) return Way::links;
    return is_in_heap() ? Way::open : Way::pool;
}

void Run::find_memory_shared(std::span<const std::unique_ptr<Run>> earlier) {
    const auto last = std::find_if(earlier.rbegin(), earlier.rend(),
                                   [&](const auto& run) { return shares_memory_with(*run); });
    behind_ = last == earlier.rend() ? nullptr : last->get();
}

void Run::take_turns(std::span<const std::unique_ptr<Run>> earlier) {
    for (const Program::LaneUse& use : operation().program().lanes) {
        // The last one that uses the lane has waited for all before it.
        const auto ahead = std::find_if(earlier.rbegin(), earlier.rend(), [&](const auto& run) {
            return !run->is_on_board() && run->operation().program().use_of(use.lane) != nullptr;
        });
        if (ahead == earlier.rend() || (*ahead)->through_with(use.lane)) continue;
        turns_.push_back({ahead->get(), use.lane, use.first});
        ++states_[use.first].before;
    }
}

bool Run::through_with(std::uint32_t lane) const {
    return is_last_section() && states_[operation().program().use_of(lane)->last].complete;
}

bool Run::shares_memory_with(const Run& other) const {
    const Request& a = request_;
    const Request& b = other.request_;
    const std::uint64_t a_in = a.in == nullptr ? 0 : a.operation->in_bytes();
    const std::uint64_t a_out = a.out == nullptr ? 0 : a.operation->out_bytes();
    const std::uint64_t b_in = b.in == nullptr ? 0 : b.operation->in_bytes();
    const std::uint64_t b_out = b.out == nullptr ? 0 : b.operation->out_bytes();
    return overlap(a.out, a_out, b.out, b_out) || overlap(a.out, a_out, b.in, b_in) ||
           overlap(a.in, a_in, b.out, b_out);
}

void Run::look_at_turns(const Run* gone) {
    std::erase_if(turns_, [&](const Turn& turn) {
        if (turn.ahead != gone && !turn.ahead->through_with(turn.lane)) return false;
        release(turn.step);
        return true;
    });
}

void Run::forget(const Run* run) {
    look_at_turns(run);
    if (behind_ == run) behind_ = nullptr;
    if (before_there_ == run) before_there_ = nullptr;
}

bool Run::uses_sockets() {
    if (!sockets_) {
        const std::vector<int>& peers = operation().program().peers;
        sockets_ = std::any_of(peers.begin(), peers.end(), [&](int peer) {
            const Link* to = request_.links[static_cast<std::size_t>(peer)];
            return to != nullptr && to->uses_sockets();
        });
    }
    return *sockets_;
}

void Run::release(std::uint32_t step) {
    if (--states_[step].before == 0) active_.push_back(step);
}

void Run::end() {
    if (unfinished_ > 0) {
        abandon();
    } else if (results_.timed) {
        report_time_taken();
    }
    for (ShmLink* const link : posted_) link->withdraw();
    posted_.clear();
    if (scratch_size_ <= kept_scratch) return;
    scratch_.reset();
    scratch_size_ = 0;
}

void Run::report_time_taken() {
    workshop_.results.took(results(), results_.stores, ResultStores::Clock::now() - began_);
}

bool Run::pass() {
    if (!turns_.empty()) look_at_turns();
    if (held_ || behind_ != nullptr || error_) return false;
    if (way_ != Way::links) return advance_on_board();
    const Program& program = operation().program();
    const std::vector<Task>& all = tasks();
    bool moved = false;
    for (std::size_t i = 0; i < active_.size();) {
        const std::uint32_t index = active_[i];
        State& state = states_[index];
        moved |= advance(all[index], state);
        if (state.complete) {
            active_[i] = active_.back();
            active_.pop_back();
            --unfinished_;
            for (const std::uint32_t next : program.successors[index]) release(next);
        } else {
            ++i;
        }
    }
    if (unfinished_ == 0 && !is_last_section()) go_to_next_section();
    return moved;
}

bool Run::advance(const Task& task, State& state) {
    if (receives_message(task)) return recv_message(task, state);
    if (!state.started) {
        start(task);
        state.started = true;
    }
    const std::uint64_t done = state.done;
    const std::uint64_t taken = state.taken;
    switch (task.kind) {
        case StepKind::send:
            task.peers.size() == 1 ? send(task, state) : cast(task, state);
            break;
        case StepKind::recv:
            recv(task, state);
            break;
        case StepKind::reduce:
            is_done_together(task) ? reduce_together(task, state) : reduce(task, state);
            break;
        case StepKind::copy:
            copy(task, state);
            break;
    }
    state.complete = is_complete(task, state);
    return state.complete || state.done != done || state.taken != taken;
}

void Run::start(const Task& task) {
    switch (task.kind) {
        case StepKind::send:
            for (const int peer : task.peers) {
                link(peer).begin(task.peers.size() > 1 ? cast_context_ : context_, task.length);
                cast_taken_[static_cast<std::size_t>(peer)] = 0;
            }
            break;
        case StepKind::recv:
            link(task.peers[0]).expect(context_, task.length);
            break;
        case StepKind::reduce:
            for (const Operation::Source& source : task.sources) {
                if (source.peer < 0) continue;
                link(source.peer).expect(context_, task.length);
                link(source.peer).prefetch();
            }
            break;
        case StepKind::copy:
            break;
    }
}

bool Run::is_complete(const Task& task, const State& state) {
    if (state.done < task.length) return false;
    switch (task.kind) {
        case StepKind::send:
            return std::all_of(task.peers.begin(), task.peers.end(),
                               [&](int peer) { return link(peer).finished(); });
        case StepKind::recv:
            return link(task.peers[0]).received();
        case StepKind::reduce:
            return std::all_of(task.sources.begin(), task.sources.end(),
                               [&](const Operation::Source& source) {
                                   return source.peer < 0 || link(source.peer).received();
                               });
        case StepKind::copy:
            return true;
    }
    return true;
}

std::uint64_t Run::limit(const Task& task) const {
    const std::vector<Task>& all = tasks();
    std::uint64_t most = task.length;
    for (const Operation::Gate& gate : task.gates) {
        const State& other = states_[gate.task];
        if (other.done == all[gate.task].length) continue;
        const std::int64_t reach = gate.delta + static_cast<std::int64_t>(other.done);
        if (reach <= 0) return 0;
        most = std::min(most, static_cast<std::uint64_t>(reach));
    }
    return most == task.length ? most : most - most % operation().unit();
}

void Run::awaited(std::vector<Awaited>& result) {
    if (behind_ != nullptr || error_ || complete()) return;
    if (held_) {
        for (const int peer : operation().program().peers) {
            if (request_.links[static_cast<std::size_t>(peer)] == nullptr) result.push_back({peer, false});
        }
        return;
    }
    if (way_ != Way::links) {
        owing_.clear();
        late_on_board(owing_);
        for (const int peer : owing_) result.push_back({peer, false});
        return;
    }
    for (const std::uint32_t index : active_) {
        const Task& task = tasks()[index];
        const State& state = states_[index];
        if (!state.started) continue;
        const std::uint64_t ready = limit(task);
        switch (task.kind) {
            case StepKind::send:
                for (const int peer : task.peers) {
                    Link& to = link(peer);
                    const bool stuck = to.released() < ready || (ready == task.length && !to.finished());
                    if (stuck) result.push_back({peer, true});
                }
                break;
            case StepKind::recv:
                if (receives_message(task)) {
                    if (sender_ >= 0) result.push_back({sender_, false});
                    for (std::size_t i = 0; sender_ < 0 && i < task.peers.size(); ++i) {
                        result.push_back({task.peers[i], false});
                    }
                    break;
                }
                if (state.done < ready || ready == task.length) result.push_back({task.peers[0], false});
                break;
            case StepKind::reduce:
                if (state.done == ready && ready < task.length) break;
                if (together_ && together_->is_open() && is_done_together(task)) {
                    owing_.clear();
                    together_->awaited(owing_);
                    for (const int peer : owing_) result.push_back({peer, false});
                    break;
                }
                for (const Operation::Source& source : task.sources) {
                    if (source.peer >= 0 && !link(source.peer).ready(operation().unit())) {
                        result.push_back({source.peer, false});
                    }
                }
                break;
            case StepKind::copy:
                break;
        }
    }
}

}  // namespace collectives
