#include "schedule/schedule_task.hpp"

#include <algorithm>

#include "base/round.hpp"
#include "engine/registry.hpp"

namespace collectives {

namespace {

// For smaller results it does not pay to post their destinations.
constexpr std::uint64_t smallest_posted = 8 << 10;

constexpr std::size_t default_slice = 128 << 10;
// As many bytes as shared memory stages at a time, so that data which is both sent and copied is still in the
// caches for the copy.
constexpr std::size_t copied_with_cores = 256 << 10;

const RegisteredEngine schedule_engine("schedule", EngineOrder::schedules,
                                       [](const Surroundings& surroundings) {
                                           return std::make_unique<ScheduleEngine>(surroundings);
                                       });

}  // namespace

ScheduleSettings settings_for(const Surroundings& surroundings) {
    const std::size_t segment = surroundings.segment;
    ScheduleSettings settings;
    settings.slice = segment > 0 ? round_up(segment, largest_scalar) : default_slice;
    settings.copied = segment > 0 || surroundings.oversubscribed ? settings.slice : copied_with_cores;
    return settings;
}

void ScheduleTask::begin(Request& request, const Position& position) {
    request_ = &request;
    begin_section(0, request.in, request.out);
    set_contexts();
    sockets_.reset();
    sender_ = -1;
    written_.resize(static_cast<std::size_t>(program().size));
    relay_.reset();
    if (position.owns_memory && !is_in_sections() && operation().out_bytes() >= smallest_posted) {
        post_receptions();
    }
    begin_steps();
}

void ScheduleTask::set_contexts() {
    const Program& program = this->program();
    context_ = Context(request_->call, request_->fingerprint);
    context_.traffic = {.ranks = program.size,
                        .combined = static_cast<std::uint32_t>(program.combines),
                        .sends = program.says,
                        .receives = !program.sources.empty(),
                        .in_place = request_->is_in_place()};
    multicast_context_ = context_;
    multicast_context_.traffic.to_several = true;
}

void ScheduleTask::begin_section(std::uint64_t section, std::byte* in, std::byte* out) {
    section_ = section;
    operation_ = &request_->operation->section(section);
    buffers_.begin(operation(), in, out);
    if (request_->transfer != nullptr) output_.begin(operation(), out);
}

void ScheduleTask::begin_steps() {
    states_.assign(program().steps.size(), State{});
    active_.clear();
    unfinished_ = program().steps.size();
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
        states_[i].before = program().predecessors[i];
        if (states_[i].before == 0) active_.push_back(i);
    }
    gathered_.clear();
    if (gathers()) gathered_.resize(operation().sources().size());
}

bool ScheduleTask::is_through_with(std::uint32_t channel) const {
    return is_last_section() && states_[program().use_of(channel)->last].complete;
}

void ScheduleTask::block(std::uint32_t step) {
    if (states_[step].before++ == 0) std::erase(active_, step);
}

void ScheduleTask::unblock(std::uint32_t step) {
    if (--states_[step].before == 0) active_.push_back(step);
}

bool ScheduleTask::uses_sockets() {
    if (!sockets_) {
        sockets_ = std::ranges::any_of(program().peers, [&](int peer) {
            const Link* const to = request_->links[static_cast<std::size_t>(peer)];
            return to != nullptr && to->uses_sockets();
        });
    }
    return *sockets_;
}

void ScheduleTask::abandon() {
    for (const int peer : program().peers) {
        Link* const to = request_->links[static_cast<std::size_t>(peer)];
        if (to != nullptr) to->abandon();
    }
}

bool ScheduleTask::reclaim() {
    bool alone = true;
    for (const int peer : program().peers) {
        Link* const to = request_->links[static_cast<std::size_t>(peer)];
        if (to != nullptr) alone &= to->quiesce();
    }
    posted_.clear();
    return alone;
}

void ScheduleTask::end() {
    for (Link* const to : posted_) to->withdraw();
    posted_.clear();
    buffers_.end();
}

bool ScheduleTask::progress() {
    const std::vector<Step>& all = steps();
    bool moved = false;
    for (std::size_t i = 0; i < active_.size();) {
        const std::uint32_t index = active_[i];
        State& state = states_[index];
        moved |= advance(all[index], state);
        if (state.complete) {
            active_[i] = active_.back();
            active_.pop_back();
            --unfinished_;
            for (const std::uint32_t next : program().successors[index]) unblock(next);
        } else {
            ++i;
        }
    }
    if (moved && request_->transfer != nullptr) {
        output_.tell(
            *request_->transfer, [&](std::uint32_t step) { return states_[step].done; }, unfinished_ == 0);
    }
    if (unfinished_ == 0 && !is_last_section()) {
        begin_section(section_ + 1, buffers_.in() + operation().in_bytes(),
                      buffers_.out() + operation().out_bytes());
        begin_steps();
    }
    return moved;
}

bool ScheduleTask::advance(const Step& step, State& state) {
    if (receives_message(step)) return recv_message(step, state);
    if (!state.started) {
        start(step);
        state.started = true;
    }
    const std::uint64_t done = state.done;
    const std::uint64_t written = state.written;
    switch (step.kind) {
        case StepKind::send:
            step.peers.size() == 1 ? send(step, state) : multicast(step, state);
            break;
        case StepKind::recv:
            recv(step, state);
            break;
        case StepKind::reduce:
            reduce(step, state);
            break;
        case StepKind::copy:
            copy(step, state);
            break;
    }
    state.complete = is_complete(step, state);
    return state.complete || state.done != done || state.written != written;
}

void ScheduleTask::start(const Step& step) {
    switch (step.kind) {
        case StepKind::send:
            for (const int peer : step.peers) {
                link(peer).begin(step.peers.size() > 1 ? multicast_context_ : context_, step.length);
                written_[static_cast<std::size_t>(peer)] = 0;
            }
            break;
        case StepKind::recv:
            link(step.peers[0]).expect(context_, step.length);
            break;
        case StepKind::reduce:
            for (const Operation::Source& source : step.sources) {
                if (source.peer < 0) continue;
                link(source.peer).expect(context_, step.length);
                link(source.peer).prefetch();
            }
            break;
        case StepKind::copy:
            break;
    }
}

bool ScheduleTask::is_complete(const Step& step, const State& state) {
    if (state.done < step.length) return false;
    switch (step.kind) {
        case StepKind::send:
            return std::ranges::all_of(step.peers, [&](int peer) { return link(peer).finished(); });
        case StepKind::recv:
            return link(step.peers[0]).received();
        case StepKind::reduce:
            return std::ranges::all_of(step.sources, [&](const Operation::Source& source) {
                return source.peer < 0 || link(source.peer).received();
            });
        case StepKind::copy:
            return true;
    }
    return true;
}

std::uint64_t ScheduleTask::limit(const Step& step) const {
    const std::vector<Step>& all = steps();
    std::uint64_t most = step.length;
    for (const Operation::Gate& gate : step.gates) {
        const State& other = states_[gate.task];
        if (other.done == all[gate.task].length) continue;
        const std::int64_t reach = gate.delta + static_cast<std::int64_t>(other.done);
        if (reach <= 0) return 0;
        most = std::min(most, static_cast<std::uint64_t>(reach));
    }
    if (request_->transfer != nullptr) most = there(step, most);
    return most == step.length ? most : most - most % operation().unit();
}

std::uint64_t ScheduleTask::there(const Step& step, std::uint64_t n) const {
    visit_reads(step, [&](const Operation::Place& place) {
        if (place.buffer <= buffer_out) n = request_->transfer->there(at(place), n);
    });
    return n;
}

void ScheduleTask::awaited(std::vector<Awaited>& result) {
    for (const std::uint32_t index : active_) {
        const Step& step = steps()[index];
        const State& state = states_[index];
        if (!state.started) continue;
        const std::uint64_t ready = limit(step);
        switch (step.kind) {
            case StepKind::send:
                for (const int peer : step.peers) {
                    Link& to = link(peer);
                    const bool stuck = to.released() < ready || (ready == step.length && !to.finished());
                    if (stuck) result.push_back({peer, true});
                }
                break;
            case StepKind::recv:
                if (receives_message(step)) {
                    if (sender_ >= 0) result.push_back({sender_, false});
                    for (std::size_t i = 0; sender_ < 0 && i < step.peers.size(); ++i) {
                        result.push_back({step.peers[i], false});
                    }
                    break;
                }
                if (state.done < ready || ready == step.length) result.push_back({step.peers[0], false});
                break;
            case StepKind::reduce:
                if (state.done == ready && ready < step.length) break;
                for (const Operation::Source& source : step.sources) {
                    if (source.peer >= 0 && !is_ready(source)) result.push_back({source.peer, false});
                }
                break;
            case StepKind::copy:
                break;
        }
    }
}

}  // namespace collectives
