// What the steps of an operation do when they have their turn: bytes sent, received, reduced and copied, as
// many as can be at the time.
#include <algorithm>

#include "base/copy.hpp"
#include "schedule/run.hpp"

namespace collectives {

namespace {

// Up to this size sharing out a reduction of what lies there anyway costs more than making it.
constexpr std::uint64_t reduced_alone = 2 << 10;
// From this size on one copy for several ranks of a core is cheaper than one for each.
constexpr std::uint64_t by_core_from = 16 << 10;

}  // namespace

bool Run::is_streamed(const Task& task) const {
    // In place a sum goes where the caches still hold what was added.
    const bool held = task.kind == StepKind::reduce && is_in_place();
    return results_.stores == Stores::streaming && task.dst.buffer == buffer_out && !held;
}

Stores Run::stores(const Task& task) const {
    return is_streamed(task) && !operation().program().needed[index_of(task)] ? Stores::streaming
                                                                              : Stores::cached;
}

void Run::send(const Task& task, State& state) {
    if (is_relayed(task, task.peers[0])) return cast(task, state);
    Link& to = link(task.peers[0]);
    if (state.taken < task.length || task.length == 0) {
        const auto n = static_cast<std::size_t>(limit(task) - state.taken);
        state.taken += to.write(at(task.dst) + state.taken, n);
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
                                            ? shm->announce_posted(static_cast<std::size_t>(n))
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
    if (!woken_.empty()) ShmLink::wake_peers(woken_);
    state.taken = total;
    state.done = released;
}

void Run::stage_cast(const Task& task, const std::byte* data, std::uint64_t ready) {
    cast_links_.clear();
    if (!workshop_.caster || !has(Mechanism::multicast) || task.length <= Line::inline_bytes) return;
    for (const int peer : task.peers) {
        ShmLink* const shm = link(peer).shared_memory();
        if (shm != nullptr && shm->stages(data, static_cast<std::size_t>(task.length)) &&
            !is_relayed(task, peer)) {
            cast_links_.push_back(shm);
        }
    }
    const auto first = is_cast_by_core(task) ? cast_by_core(task, data, ready) : cast_links_.begin();
    const auto places = [](const ShmLink* to) { return to->changes_places(); };
    cast_links_.erase(std::remove_if(first, cast_links_.end(), places), cast_links_.end());
    if (cast_links_.end() - first >= 2) {
        offer(data, ready, {first, cast_links_.end()}, false);
    } else {
        cast_links_.erase(first, cast_links_.end());
    }
}

bool Run::is_cast_by_core(const Task& task) const {
    return has(Mechanism::core_copies) && task.length >= by_core_from && task.length <= cast_by_core_up_to_;
}

std::vector<ShmLink*>::iterator Run::cast_by_core(const Task& task, const std::byte* data,
                                                  std::uint64_t ready) {
    const auto home = [](const ShmLink* to) { return to->arena_of_peer()->presence().home(); };
    const auto is_at = [&](int core) {
        return [&home, core](const ShmLink* to) { return home(to) == core; };
    };
    const auto begin = cast_links_.begin(), end = cast_links_.end();
    // A rank without others on its core is not the one that is waited for.
    const auto others = std::partition(begin, end, is_at(workshop_.arena->presence().home()));
    if (others == begin) return begin;
    auto offered = begin;
    for (auto left = others; left != end;) {
        const auto next = std::partition(left, end, is_at(home(*left)));
        if (next - left >= 2) {
            offer(data, ready, {left, next}, true);
            std::rotate(offered, left, next);
            offered += next - left;
        }
        left = next;
    }
    return offered;
}

void Run::offer(const std::byte* data, std::uint64_t ready, std::span<ShmLink* const> to, bool on_one_core) {
    const std::uint64_t from = to[0]->written();
    workshop_.caster->write(to, data + from, static_cast<std::size_t>(ready - from), on_one_core);
}

void Run::recv(const Task& task, State& state) {
    const auto n = static_cast<std::size_t>(limit(task) - state.done);
    state.done += link(task.peers[0]).read(at(task.dst) + state.done, n, stores(task));
}

void Run::reduce(const Task& task, State& state) {
    const std::uint64_t unit = operation().unit();
    std::uint64_t n = limit(task) - state.done;
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
    n = std::min<std::uint64_t>(n - n % unit, workshop_.slice);
    reduce_slice(task, state.done, static_cast<std::size_t>(n));
    for (const Operation::Source& source : task.sources) {
        if (source.peer >= 0) link(source.peer).consume(static_cast<std::size_t>(n));
    }
    state.done += n;
    state.there = 0;
}

void Run::reduce_slice(const Task& task, std::uint64_t begin, std::size_t n) {
    if (relays(task)) {
        reduce_and_relay(task, begin, n);
    } else {
        apply(task, at(task.dst) + begin, n, stores(task));
    }
}

void Run::apply(const Task& task, std::byte* dst, std::size_t n, Stores stores) const {
    reduce_operands(dst, n, task.final ? scale_ : 1.0, stores);
}

void Run::reduce_operands(std::byte* dst, std::size_t n, double scale, Stores stores) const {
    const ReduceFn kernel = operation().kernel(stores);
    kernel(dst, operands_.data(), operands_.size(), n / operation().unit(), scale);
}

void Run::post_receptions() {
    if (!has(Mechanism::relay)) return;
    for (const Program::Reception& reception : operation().program().receptions) {
        const Task& task = tasks()[reception.step];
        ShmLink* const shm = shared_memory(reception.peer);
        const std::uint64_t tag = post_tag(request_.call, reception.ordinal);
        if (shm != nullptr && shm->post(tag, at(task.dst), task.length, reception.replaces)) {
            posted_.push_back(shm);
        }
    }
}

bool Run::relays(const Task& task) const {
    const auto& relay = operation().program().relay;
    return relay && relay->reduction == index_of(task) && !is_in_sections();
}

void Run::reduce_and_relay(const Task& task, std::uint64_t begin, std::size_t n) {
    std::byte* const dst = at(task.dst) + begin;
    if (!relay_.has_begun()) {
        relay_.begin(*operation().program().relay, request_.call, request_.links, task.length);
    }
    if (!relay_.is_used()) return apply(task, dst, n, stores(task));
    places_.assign(1, dst);
    relay_.find_places(begin, places_);
    if (!is_streamed(task)) {
        apply(task, dst, n, Stores::cached);
        for (std::size_t i = 1; i < places_.size(); ++i) copy_bytes(places_[i], dst, n);
        return;
    }
    if (spread_streaming(task, n)) return;
    // Neither our place nor the peers' stays in the caches; what is read again does.
    if (!relayed_) relayed_ = std::make_unique_for_overwrite<std::byte[]>(workshop_.slice);
    apply(task, relayed_.get(), n, Stores::cached);
    for (std::byte* const place : places_) copy_streaming(place, relayed_.get(), n);
}

bool Run::spread_streaming(const Task& task, std::size_t n) const {
    const SpreadFn spread = operation().spread();
    if (spread == nullptr || !has(Mechanism::spread)) return false;
    const auto behind_line = [](const std::byte* place) {
        return reinterpret_cast<std::uintptr_t>(place) % cache_line;
    };
    const bool alike = std::ranges::all_of(
        places_, [&](const std::byte* place) { return behind_line(place) == behind_line(places_.front()); });
    if (!alike) return false;
    spread(places_.data(), places_.size(), operands_.data(), operands_.size(), n / operation().unit(),
           task.final ? scale_ : 1.0);
    return true;
}

bool Run::is_relayed(const Task& task, int peer) const {
    const auto& relay = operation().program().relay;
    return relay && relay->send == index_of(task) && relay_.reaches(peer);
}

// Links may not be there yet, so only what every rank knows alike decides.
bool Run::is_done_together(const Task& task) const {
    if (!has(Mechanism::shared_sums) || !task.shared || !workshop_.together || by_core_ || is_in_sections()) return false;
    // What is said lies there whole, so it is one piece, or it is not shared out.
    if (way_ == Way::flat) {
        return task.length > reduced_alone && task.length <= workshop_.arena->geometry().slot_bytes;
    }
    return task.length > Line::inline_bytes;
}

void Run::number_pieces() {
    const std::vector<Task>& all = tasks();
    const std::size_t piece = workshop_.arena->geometry().slot_bytes;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!is_done_together(all[i])) continue;
        piece_ = workshop_.pieces + 1;
        workshop_.pieces += static_cast<std::uint32_t>((all[i].length + piece - 1) / piece);
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
        together_->open(piece_, operands_, at(task.dst) + state.done, n, operation().unit());
    }
    if (!work_together(task)) return;
    for (const Operation::Source& source : task.sources) {
        if (source.peer >= 0) link(source.peer).consume(n);
    }
    state.done += n;
    state.there = 0;
    ++piece_;
}

bool Run::work_together(const Task& task) {
    for (const Operation::Source& source : task.sources) {
        if (ShmLink* const shm = source.peer < 0 ? nullptr : shared_memory(source.peer)) {
            shm->ensure_there(request_.call);
        }
    }
    if (together_->work(operation().kernel(stores(task)), task.final ? scale_ : 1.0)) {
        // Others may have gone to sleep for what we have done, or for the next piece's turn.
        wake(operation().program().peers);
    }
    return together_->gather();
}

std::unique_ptr<Together> Run::make_together() const {
    return std::make_unique<Together>(operation().program().rank, arenas());
}

std::vector<std::shared_ptr<Arena>> Run::arenas() const {
    std::vector<std::shared_ptr<Arena>> all;
    const Program& program = operation().program();
    for (int r = 0; r < program.size; ++r) {
        all.push_back(r == program.rank ? workshop_.arena : shared_memory(r)->arena_of_peer());
    }
    return all;
}

void Run::wake(std::span<const int> peers) {
    woken_.clear();
    for (const int peer : peers) woken_.push_back(shared_memory(peer));
    ShmLink::wake_peers(woken_);
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
    const std::uint64_t n = std::min<std::uint64_t>(limit(task) - state.done, workshop_.copied);
    if (n == 0) return;
    copy_by(stores(task))(to + state.done, from + state.done, static_cast<std::size_t>(n));
    state.done += n;
}

}  // namespace collectives
