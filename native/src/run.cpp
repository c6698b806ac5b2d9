#include "run.hpp"

#include <algorithm>
#include <cstring>

#include "copy.hpp"

namespace collectives {

namespace {

// Scratch memory up to this size is kept for the next operation.
constexpr std::uint64_t kept_scratch = 1 << 20;
constexpr std::uint64_t scratch_alignment = 64;
// Outputs from this size on are written around the caches: they would not stay there.
constexpr std::uint64_t streaming_from = 12 << 20;
// From these sizes on one copy by the kernel is cheaper than one to staging and one from there. What is not
// copied but reduced is copied once more that way.
constexpr std::uint64_t pulled_from = 32 << 10;
constexpr std::uint64_t combined_from = 256 << 10;
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
    const Program& program = operation().program();
    context_ = Context(request.call);
    context_.pulled_from = program.shared     ? ~std::uint64_t{0}  // everyone would read all of it
                           : program.combines ? combined_from
                                              : pulled_from;
    buffers_.clear();
    buffers_.push_back(request.in);
    buffers_.push_back(request.out);
    if (!operation().scratch_offsets().empty()) {
        std::byte* base = scratch(operation().scratch_bytes());
        for (const std::uint64_t offset : operation().scratch_offsets()) buffers_.push_back(base + offset);
    }
    for (const Stores stores : {Stores::cached, Stores::streaming}) {
        kernels_[static_cast<std::size_t>(stores)] =
            reduce_kernel(operation().dtype(), operation().op(), stores);
    }
    scale_ = 1.0 / program.size;
    told_ = false;
    sockets_.reset();
    held_ = false;
    error_ = nullptr;
    states_.assign(program.steps.size(), State{});
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) states_[i].before = program.predecessors[i];
    cast_taken_.resize(static_cast<std::size_t>(program.size));
    unfinished_ = program.steps.size();
    if (together_) together_->abandon();
    if (program.shared && workshop_.together) number_pieces();
    take_turns(earlier);
    relay_.reset();
    if (behind_ == nullptr && operation().out_bytes() >= smallest_posted) post_receptions();
    active_.clear();
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
        if (states_[i].before == 0) active_.push_back(i);
    }
}

void Run::take_turns(std::span<const std::unique_ptr<Run>> earlier) {
    behind_ = nullptr;
    turns_.clear();
    if (earlier.empty()) return;
    const auto last = std::find_if(earlier.rbegin(), earlier.rend(),
                                   [&](const auto& run) { return shares_memory_with(*run); });
    if (last != earlier.rend()) behind_ = last->get();
    for (const Program::LaneUse& use : operation().program().lanes) {
        // The last one that uses the lane has waited for all before it.
        const auto ahead = std::find_if(earlier.rbegin(), earlier.rend(), [&](const auto& run) {
            return run->operation().program().use_of(use.lane) != nullptr;
        });
        if (ahead == earlier.rend() || (*ahead)->through_with(use.lane)) continue;
        turns_.push_back({ahead->get(), use.lane, use.first});
        ++states_[use.first].before;
    }
}

bool Run::through_with(std::uint32_t lane) const {
    return states_[operation().program().use_of(lane)->last].complete;
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
}

bool Run::uses_sockets() {
    if (!sockets_) {
        const std::vector<int>& peers = operation().program().peers;
        sockets_ = std::any_of(peers.begin(), peers.end(), [&](int peer) {
            const Link* to = request_.links[static_cast<std::size_t>(peer)];
            return to != nullptr && to->fd() >= 0;
        });
    }
    return *sockets_;
}

void Run::release(std::uint32_t step) {
    if (--states_[step].before == 0) active_.push_back(step);
}

void Run::end() {
    if (unfinished_ > 0) {
        for (const int peer : operation().program().peers) {
            Link* const to = request_.links[static_cast<std::size_t>(peer)];
            if (to != nullptr && to->shared_memory() != nullptr) to->shared_memory()->abandon();
        }
    }
    for (ShmLink* const link : posted_) link->withdraw();
    posted_.clear();
    if (scratch_size_ <= kept_scratch) return;
    scratch_.reset();
    scratch_size_ = 0;
}

bool Run::pass() {
    if (!turns_.empty()) look_at_turns();
    if (held_ || behind_ != nullptr || error_) return false;
    const Program& program = operation().program();
    const std::vector<Task>& tasks = operation().tasks();
    bool moved = false;
    for (std::size_t i = 0; i < active_.size();) {
        const std::uint32_t index = active_[i];
        State& state = states_[index];
        moved |= advance(tasks[index], state);
        if (state.complete) {
            active_[i] = active_.back();
            active_.pop_back();
            --unfinished_;
            for (const std::uint32_t next : program.successors[index]) release(next);
        } else {
            ++i;
        }
    }
    return moved;
}

bool Run::advance(const Task& task, State& state) {
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
            if (!told_ && workshop_.arena) workshop_.arena->set_current_call(request_.call);
            told_ = true;
            for (const int peer : task.peers) {
                link(peer).begin(context_, task.length);
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
    const std::vector<Task>& tasks = operation().tasks();
    std::uint64_t most = task.length;
    for (const Operation::Gate& gate : task.gates) {
        const State& other = states_[gate.task];
        if (other.done == tasks[gate.task].length) continue;
        const std::int64_t reach = gate.delta + static_cast<std::int64_t>(other.done);
        if (reach <= 0) return 0;
        most = std::min(most, static_cast<std::uint64_t>(reach));
    }
    return most == task.length ? most : most - most % operation().unit();
}

bool Run::is_large(const Task& task) const {
    return operation().out_bytes() >= streaming_from && task.dst.buffer == buffer_out;
}

Stores Run::stores(const Task& task) const {
    return is_large(task) && !operation().program().needed[index_of(task)] ? Stores::streaming
                                                                           : Stores::cached;
}

void Run::send(const Task& task, State& state) {
    if (is_relayed(task, task.peers[0])) return cast(task, state);
    Link& to = link(task.peers[0]);
    if (state.taken < task.length || task.length == 0) {
        const std::uint64_t ready = limit(task);
        state.taken += to.write(at(task.dst) + state.taken, static_cast<std::size_t>(ready - state.taken));
    }
    state.done = to.released();
}

void Run::cast(const Task& task, State& state) {
    const std::uint64_t ready = limit(task);
    const std::byte* data = at(task.dst);
    stage_cast(task, data, ready);
    std::uint64_t released = task.length;
    std::uint64_t total = 0;
    woken_.clear();
    for (const int peer : task.peers) {
        Link& to = link(peer);
        ShmLink* const shm = to.shared_memory();
        std::uint64_t& taken = cast_taken_[static_cast<std::size_t>(peer)];
        if (std::find(cast_links_.begin(), cast_links_.end(), shm) != cast_links_.end()) {
            taken = shm->written();
        } else if (taken < task.length || (task.length == 0 && !to.finished())) {
            const std::uint64_t n = ready - taken;
            if (shm != nullptr) {
                const std::size_t put = is_relayed(task, peer)
                                            ? shm->announce_placed(static_cast<std::size_t>(n))
                                            : shm->put(data + taken, static_cast<std::size_t>(n));
                taken += put;
                if (put > 0 || task.length == 0) woken_.push_back(shm);
            } else {
                taken += to.write(data + taken, static_cast<std::size_t>(n));
            }
        }
        total += taken;
        released = std::min(released, to.released());
    }
    if (!woken_.empty()) {
        std::atomic_thread_fence(std::memory_order_seq_cst);
        for (ShmLink* const shm : woken_) shm->wake_peer();
    }
    state.taken = total;
    state.done = released;
}

void Run::stage_cast(const Task& task, const std::byte* data, std::uint64_t ready) {
    cast_links_.clear();
    if (!workshop_.caster || task.length <= Line::inline_bytes) return;
    for (const int peer : task.peers) {
        ShmLink* const shm = link(peer).shared_memory();
        if (shm != nullptr && shm->stages(data, static_cast<std::size_t>(task.length)) &&
            !is_relayed(task, peer)) {
            cast_links_.push_back(shm);
        }
    }
    if (cast_links_.size() < 2) {
        cast_links_.clear();
        return;
    }
    const std::uint64_t from = cast_links_[0]->written();
    workshop_.caster->write(cast_links_, data + from, static_cast<std::size_t>(ready - from));
}

void Run::recv(const Task& task, State& state) {
    const auto n = static_cast<std::size_t>(limit(task) - state.done);
    state.done += link(task.peers[0]).read(at(task.dst) + state.done, n, stores(task));
}

void Run::reduce(const Task& task, State& state) {
    const std::uint64_t unit = operation().unit();
    std::uint64_t n = std::min<std::uint64_t>(limit(task) - state.done, workshop_.slice);
    if (n == 0 || !all_there(task, state)) return;
    operands_.clear();
    for (const Operation::Source& source : task.sources) {
        if (source.peer >= 0) {
            const std::span<const std::byte> data = link(source.peer).peek(static_cast<std::size_t>(unit));
            n = std::min<std::uint64_t>(n, data.size());
            operands_.push_back(data.data());
        } else {
            operands_.push_back(at(source.place) + state.done);
        }
    }
    n -= n % unit;
    const auto& relay = operation().program().relay;
    if (relay && relay->reduction == index_of(task)) {
        reduce_and_relay(task, state.done, static_cast<std::size_t>(n));
    } else {
        apply(task, at(task.dst) + state.done, static_cast<std::size_t>(n), stores(task));
    }
    for (const Operation::Source& source : task.sources) {
        if (source.peer >= 0) link(source.peer).consume(static_cast<std::size_t>(n));
    }
    state.done += n;
    state.there = 0;
}

void Run::apply(const Task& task, std::byte* dst, std::size_t n, Stores stores) const {
    const ReduceFn kernel = kernels_[static_cast<std::size_t>(stores)];
    kernel(dst, operands_.data(), operands_.size(), n / operation().unit(), task.final ? scale_ : 1.0);
}

void Run::post_receptions() {
    for (const Program::Reception& reception : operation().program().receptions) {
        const Task& task = operation().tasks()[reception.step];
        Link* const from = request_.links[static_cast<std::size_t>(reception.peer)];
        ShmLink* const shm = from == nullptr ? nullptr : from->shared_memory();
        const std::uint64_t tag = post_tag(request_.call, reception.ordinal);
        if (shm != nullptr && shm->post(tag, at(task.dst), task.length)) posted_.push_back(shm);
    }
}

void Run::reduce_and_relay(const Task& task, std::uint64_t done, std::size_t n) {
    std::byte* const dst = at(task.dst) + done;
    if (!relay_.has_begun()) {
        relay_.begin(*operation().program().relay, request_.call, request_.links, task.length);
    }
    if (!relay_.is_used()) return apply(task, dst, n, stores(task));
    if (!is_large(task)) {
        apply(task, dst, n, Stores::cached);
        relay_.push(dst, done, n, Stores::cached);
        return;
    }
    // Neither our place nor the peers' stays in the caches; what is read again does.
    if (!relayed_) relayed_ = std::make_unique_for_overwrite<std::byte[]>(workshop_.slice);
    apply(task, relayed_.get(), n, Stores::cached);
    copy_streaming(dst, relayed_.get(), n);
    relay_.push(relayed_.get(), done, n, Stores::streaming);
}

bool Run::is_relayed(const Task& task, int peer) const {
    const auto& relay = operation().program().relay;
    return relay && relay->send == index_of(task) && relay_.reaches(peer);
}

// Links may not be there yet, so only what every rank knows alike decides.
bool Run::is_done_together(const Task& task) const {
    return task.shared && workshop_.together && task.length > Line::inline_bytes;
}

void Run::number_pieces() {
    const std::vector<Task>& tasks = operation().tasks();
    const std::size_t piece = workshop_.arena->geometry().slot_bytes;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (!is_done_together(tasks[i])) continue;
        states_[i].piece = workshop_.pieces + 1;
        workshop_.pieces += static_cast<std::uint32_t>((tasks[i].length + piece - 1) / piece);
    }
}

void Run::reduce_together(const Task& task, State& state) {
    if (!together_) together_ = make_together();
    const bool opening = !together_->is_open();
    const std::size_t n = std::min<std::uint64_t>(together_->piece_bytes(), task.length - state.done);
    if (opening) {
        if (limit(task) < state.done + n || !all_there(task, state)) return;
        operands_.clear();
        for (const Operation::Source& source : task.sources) {
            if (source.peer < 0) {
                operands_.push_back(at(source.place) + state.done);
                continue;
            }
            const std::span<const std::byte> data = link(source.peer).peek(n);
            if (data.size() < n) link(source.peer).shared_memory()->throw_other_pieces();
            operands_.push_back(data.data());
        }
        together_->open(state.piece, operands_, at(task.dst) + state.done, n, operation().unit());
    }
    if (together_->work(kernels_[static_cast<std::size_t>(stores(task))], task.final ? scale_ : 1.0)) {
        // Others may have gone to sleep for what we have done, or for the next piece's turn.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        for (const int peer : operation().program().peers) link(peer).shared_memory()->wake_peer();
    }
    if (!together_->gather()) return;
    for (const Operation::Source& source : task.sources) {
        if (source.peer >= 0) link(source.peer).consume(n);
    }
    state.done += n;
    state.there = 0;
    ++state.piece;
}

std::unique_ptr<Together> Run::make_together() const {
    std::vector<std::shared_ptr<Arena>> arenas;
    const int rank = operation().program().rank;
    for (int r = 0; r < operation().program().size; ++r) {
        arenas.push_back(r == rank ? workshop_.arena : link(r).shared_memory()->arena_of_peer());
    }
    return std::make_unique<Together>(rank, std::move(arenas));
}

bool Run::all_there(const Task& task, State& state) {
    const auto has_come = [&](const Operation::Source& source) {
        return source.peer < 0 ||
               !link(source.peer).peek(static_cast<std::size_t>(operation().unit())).empty();
    };
    const auto missing = std::find_if_not(task.sources.begin() + state.there, task.sources.end(), has_come);
    state.there = static_cast<std::uint32_t>(missing - task.sources.begin());
    if (missing == task.sources.end()) return true;
    // A socket is drained while others are waited for.
    if (uses_sockets()) std::for_each(missing + 1, task.sources.end(), has_come);
    return false;
}

void Run::copy(const Task& task, State& state) {
    const std::byte* from = at(task.sources[0].place);
    std::byte* to = at(task.dst);
    if (from == to) {
        state.done = limit(task);
        return;
    }
    const std::uint64_t n = std::min<std::uint64_t>(limit(task) - state.done, workshop_.slice);
    if (n == 0) return;
    copy_bytes(to + state.done, from + state.done, static_cast<std::size_t>(n));
    state.done += n;
}

void Run::awaited(std::vector<Awaited>& result) {
    if (behind_ != nullptr || error_) return;
    if (held_) {
        for (const int peer : operation().program().peers) {
            if (request_.links[static_cast<std::size_t>(peer)] == nullptr) result.push_back({peer, false});
        }
        return;
    }
    for (const std::uint32_t index : active_) {
        const Task& task = operation().tasks()[index];
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
