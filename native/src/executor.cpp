#include "executor.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "copy.hpp"
#include "error.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

// While all goes well the clock is read once in so many passes.
constexpr unsigned passes_per_check = 64;
// Signals and silent deaths are noticed this often.
constexpr auto longest_sleep = 50ms;
// Scratch memory up to this size is kept for the next operation.
constexpr std::uint64_t kept_scratch = 1 << 20;
constexpr std::uint64_t scratch_alignment = 64;
// Outputs from this size on are written around the caches: they would not stay there.
constexpr std::uint64_t streaming_from = 12 << 20;

}  // namespace

Executor::Executor(Settings settings, Sleeper& sleeper, const std::atomic<bool>& closing)
    : settings_(settings), sleeper_(sleeper), closing_(closing), backoff_(settings.spins) {}

std::byte* Executor::scratch(std::uint64_t bytes) {
    if (bytes > scratch_size_) {
        scratch_.reset();
        scratch_size_ = 0;
        scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes + scratch_alignment);
        scratch_size_ = bytes;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(scratch_.get());
    return scratch_.get() + (-address & (scratch_alignment - 1));
}

void Executor::prepare() {
    const Operation& operation = *request_->operation;
    const Program& program = operation.program();
    context_ = Context(request_->call);
    buffers_.clear();
    buffers_.push_back(request_->in);
    buffers_.push_back(request_->out);
    if (!operation.scratch_offsets().empty()) {
        std::byte* base = scratch(operation.scratch_bytes());
        for (const std::uint64_t offset : operation.scratch_offsets()) buffers_.push_back(base + offset);
    }
    for (const Stores stores : {Stores::cached, Stores::streaming}) {
        kernels_[static_cast<std::size_t>(stores)] = reduce_kernel(operation.dtype(), operation.op(), stores);
    }
    scale_ = 1.0 / program.size;
    states_.assign(program.steps.size(), State{});
    cast_taken_.resize(static_cast<std::size_t>(program.size));
    active_.clear();
    unfinished_ = program.steps.size();
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
        states_[i].before = program.predecessors[i];
        if (states_[i].before == 0) active_.push_back(i);
    }
    sockets_ = std::any_of(program.peers.begin(), program.peers.end(),
                           [&](int peer) { return link(peer).fd() >= 0; });
    backoff_.reset();
    armed_ = false;
    timed_ = false;
}

void Executor::run(const Request& request) {
    request_ = &request;
    prepare();
    unsigned passes = 0;
    try {
        while (unfinished_ > 0) {
            if (!pass()) {
                wait();
                continue;
            }
            if (armed_) {
                sleeper_.disarm();
                armed_ = false;
            }
            backoff_.reset();
            if (++passes % passes_per_check == 0) check();
        }
    } catch (...) {
        sleeper_.disarm();
        throw;
    }
    if (armed_) sleeper_.disarm();
    if (scratch_size_ > kept_scratch) {
        scratch_.reset();
        scratch_size_ = 0;
    }
}

bool Executor::pass() {
    const std::vector<Task>& tasks = request_->operation->tasks();
    bool moved = false;
    for (std::size_t i = 0; i < active_.size();) {
        const std::uint32_t index = active_[i];
        State& state = states_[index];
        moved |= advance(tasks[index], state);
        if (state.complete) {
            active_[i] = active_.back();
            active_.pop_back();
            --unfinished_;
            release_successors(index);
        } else {
            ++i;
        }
    }
    return moved;
}

void Executor::release_successors(std::uint32_t index) {
    for (const std::uint32_t next : request_->operation->program().successors[index]) {
        if (--states_[next].before == 0) active_.push_back(next);
    }
}

bool Executor::advance(const Task& task, State& state) {
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
            reduce(task, state);
            break;
        case StepKind::copy:
            copy(task, state);
            break;
    }
    state.complete = is_complete(task, state);
    return state.complete || state.done != done || state.taken != taken;
}

void Executor::start(const Task& task) {
    switch (task.kind) {
        case StepKind::send:
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
                if (source.peer >= 0) link(source.peer).expect(context_, task.length);
            }
            break;
        case StepKind::copy:
            break;
    }
}

bool Executor::is_complete(const Task& task, const State& state) {
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

std::uint64_t Executor::limit(const Task& task) const {
    const std::vector<Task>& tasks = request_->operation->tasks();
    std::uint64_t most = task.length;
    for (const Operation::Gate& gate : task.gates) {
        const State& other = states_[gate.task];
        if (other.done == tasks[gate.task].length) continue;
        const std::int64_t reach = gate.delta + static_cast<std::int64_t>(other.done);
        if (reach <= 0) return 0;
        most = std::min(most, static_cast<std::uint64_t>(reach));
    }
    return most == task.length ? most : most - most % request_->operation->unit();
}

Stores Executor::stores(const Task& task) const {
    const Operation& operation = *request_->operation;
    const bool large = operation.out_bytes() >= streaming_from && task.dst.buffer == buffer_out;
    const auto index = static_cast<std::size_t>(&task - operation.tasks().data());
    return large && !operation.program().needed[index] ? Stores::streaming : Stores::cached;
}

void Executor::send(const Task& task, State& state) {
    Link& to = link(task.peers[0]);
    if (state.taken < task.length || task.length == 0) {
        const std::uint64_t ready = limit(task);
        state.taken += to.write(at(task.dst) + state.taken, static_cast<std::size_t>(ready - state.taken));
    }
    state.done = to.released();
}

void Executor::cast(const Task& task, State& state) {
    const std::uint64_t ready = limit(task);
    const std::byte* data = at(task.dst);
    // Where several peers read staging, one copy serves them; all others are written to one by one.
    cast_links_.clear();
    for (const int peer : task.peers) {
        auto* shm = dynamic_cast<ShmLink*>(&link(peer));
        if (shm != nullptr && caster_ && shm->stages(data, static_cast<std::size_t>(task.length))) {
            cast_links_.push_back(shm);
        }
    }
    if (cast_links_.size() < 2) cast_links_.clear();
    if (!cast_links_.empty()) {
        const std::uint64_t from = cast_links_[0]->written();
        caster_->write(cast_links_, data + from, static_cast<std::size_t>(ready - from));
    }
    std::uint64_t released = task.length;
    std::uint64_t total = 0;
    for (const int peer : task.peers) {
        Link& to = link(peer);
        const bool staged =
            std::any_of(cast_links_.begin(), cast_links_.end(), [&](ShmLink* l) { return l == &to; });
        std::uint64_t& taken = cast_taken_[static_cast<std::size_t>(peer)];
        if (staged) {
            taken = cast_links_[0]->written();
        } else if (taken < task.length || task.length == 0) {
            taken += to.write(data + taken, static_cast<std::size_t>(ready - taken));
        }
        total += taken;
        released = std::min(released, to.released());
    }
    state.taken = total;
    state.done = released;
}

void Executor::recv(const Task& task, State& state) {
    const auto n = static_cast<std::size_t>(limit(task) - state.done);
    state.done += link(task.peers[0]).read(at(task.dst) + state.done, n, stores(task));
}

void Executor::reduce(const Task& task, State& state) {
    const std::uint64_t unit = request_->operation->unit();
    std::uint64_t n = std::min<std::uint64_t>(limit(task) - state.done, settings_.slice);
    if (n == 0) return;
    operands_.clear();
    // All peers are asked, also when one has nothing yet: a socket is drained while others are waited for.
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
    if (n == 0) return;
    const double scale = task.final ? scale_ : 1.0;
    const ReduceFn kernel = kernels_[static_cast<std::size_t>(stores(task))];
    kernel(at(task.dst) + state.done, operands_.data(), operands_.size(), static_cast<std::size_t>(n / unit),
           scale);
    for (const Operation::Source& source : task.sources) {
        if (source.peer >= 0) link(source.peer).consume(static_cast<std::size_t>(n));
    }
    state.done += n;
}

void Executor::copy(const Task& task, State& state) {
    const std::byte* from = at(task.sources[0].place);
    std::byte* to = at(task.dst);
    if (from == to) {
        state.done = limit(task);
        return;
    }
    const std::uint64_t n = std::min<std::uint64_t>(limit(task) - state.done, settings_.slice);
    if (n == 0) return;
    copy_bytes(to + state.done, from + state.done, static_cast<std::size_t>(n));
    state.done += n;
}

void Executor::wait() {
    if (armed_) {
        check();
        sleep();
        check();
    } else if (backoff_.idle() == Backoff::Next::sleep) {
        sleeper_.arm(sockets_);
        armed_ = true;
    }
}

void Executor::sleep() {
    awaited_.clear();
    const auto watch = [&](int peer, bool sending) {
        const Link& on = link(peer);
        if (on.fd() >= 0) awaited_.push_back({on.fd(), on.events(sending, !sending), 0});
    };
    for (const std::uint32_t index : active_) {
        const Task& task = request_->operation->tasks()[index];
        for (const int peer : task.peers) watch(peer, task.kind == StepKind::send);
        for (const Operation::Source& source : task.sources) {
            if (source.peer >= 0) watch(source.peer, false);
        }
    }
    sleeper_.sleep(awaited_, deadline_.left(longest_sleep));
    sleeper_.disarm();
    armed_ = false;
}

void Executor::check() {
    const auto now = Clock::now();
    if (!timed_) {
        timed_ = true;
        began_ = asked_ = now;
        deadline_ = Deadline(request_->timeout);
    }
    if (closing_.load(std::memory_order_acquire)) {
        throw Error(ErrorKind::aborted,
                    request_->call.describe() + " was given up: this communicator is being closed");
    }
    if (now - asked_ >= longest_sleep) {
        asked_ = now;
        if (*request_->interrupted && (*request_->interrupted)()) {
            throw Error(ErrorKind::interrupted, request_->call.describe() + " was interrupted");
        }
    }
    std::vector<int> peers = waiting_for();
    for (const int peer : peers) {
        const char* why = link(peer).lost();
        if (why == nullptr) continue;
        // What it sent before it went still counts.
        while (pass()) {
        }
        peers = waiting_for();
        if (std::find(peers.begin(), peers.end(), peer) == peers.end()) return;
        link(peer).throw_lost(request_->call, why);
    }
    if (deadline_.passed()) throw_timeout(std::move(peers));
}

void Executor::throw_timeout(std::vector<int> peers) const {
    std::sort(peers.begin(), peers.end());
    std::array<char, 32> elapsed{};
    std::snprintf(elapsed.data(), elapsed.size(), "%.1f s", seconds_since(began_));
    throw Error(ErrorKind::op_timeout,
                request_->call.describe() + " timed out after " + elapsed.data() + ", waiting for " +
                    name_ranks(peers),
                peers);
}

std::vector<int> Executor::waiting_for() {
    const std::vector<Task>& tasks = request_->operation->tasks();
    std::vector<int> peers;
    const auto add = [&](int peer) {
        if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
    };
    for (const std::uint32_t index : active_) {
        const Task& task = tasks[index];
        const State& state = states_[index];
        if (!state.started) continue;
        const std::uint64_t ready = limit(task);
        switch (task.kind) {
            case StepKind::send:
                for (const int peer : task.peers) {
                    const bool stuck =
                        link(peer).released() < ready || (ready == task.length && !link(peer).finished());
                    if (stuck) add(peer);
                }
                break;
            case StepKind::recv:
                if (state.done < ready || ready == task.length) add(task.peers[0]);
                break;
            case StepKind::reduce:
                for (const Operation::Source& source : task.sources) {
                    if (source.peer < 0 || (state.done == ready && ready < task.length)) continue;
                    if (link(source.peer)
                            .peek(static_cast<std::size_t>(request_->operation->unit()))
                            .empty() &&
                        !link(source.peer).received()) {
                        add(source.peer);
                    }
                }
                break;
            case StepKind::copy:
                break;
        }
    }
    return peers;
}

}  // namespace collectives
