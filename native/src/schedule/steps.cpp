// The steps of a schedule: sending, receiving, reducing and copying as many bytes as possible at the time.
#include <algorithm>

#include "base/copy.hpp"
#include "schedule/schedule_task.hpp"

namespace collectives {

bool ScheduleTask::is_streamed(const Step& step) const {
    // In place, a sum overwrites an operand, which is still in the caches.
    const bool cached = step.kind == StepKind::reduce && request_->is_in_place();
    return request_->stores == Stores::streaming && step.dst.buffer == buffer_out && !cached;
}

Stores ScheduleTask::stores(const Step& step) const {
    return is_streamed(step) && !program().needed[index_of(step)] ? Stores::streaming : Stores::cached;
}

void ScheduleTask::send(const Step& step, State& state) {
    if (is_relayed(step, step.peers[0])) return multicast(step, state);
    Link& to = link(step.peers[0]);
    if (state.written < step.length || step.length == 0) {
        const auto n = static_cast<std::size_t>(limit(step) - state.written);
        state.written += to.write(at(step.dst) + state.written, n);
    }
    state.done = to.released();
}

void ScheduleTask::recv(const Step& step, State& state) {
    const auto n = static_cast<std::size_t>(limit(step) - state.done);
    state.done += link(step.peers[0]).read(at(step.dst) + state.done, n, stores(step));
}

bool ScheduleTask::all_there(const Step& step, State& state) {
    const auto has_come = [&](const Operation::Source& source) {
        return source.peer < 0 ||
               !link(source.peer).lend(static_cast<std::size_t>(operation().unit())).empty();
    };
    const auto missing = std::find_if_not(step.sources.begin() + state.there, step.sources.end(), has_come);
    state.there = static_cast<std::uint32_t>(missing - step.sources.begin());
    if (missing == step.sources.end()) return true;
    // Receive from other sockets, too, while this operand is awaited.
    if (uses_sockets()) std::for_each(missing + 1, step.sources.end(), has_come);
    return false;
}

std::size_t ScheduleTask::slice() const {
    const std::size_t unit = operation().unit();
    return std::max(settings_.slice - settings_.slice % unit, unit);
}

bool ScheduleTask::is_ready(const Operation::Source& source) {
    const std::size_t unit = operation().unit();
    if (!gathers()) return link(source.peer).ready(unit);
    return gathered(source).held == unit || link(source.peer).ready(1);
}

std::uint64_t ScheduleTask::gather(const Step& step, State& state, std::uint64_t n) {
    const std::size_t unit = operation().unit();
    bool complete = true;
    operands_.clear();
    for (const Operation::Source& source : step.sources) {
        if (source.peer < 0) {
            operands_.push_back(at(source.place) + state.done);
            continue;
        }
        Link& from = link(source.peer);
        Gathered& part = gathered(source);
        std::span<const std::byte> data;
        while (part.held < unit) {
            data = from.lend(1);
            if (data.empty() || (part.held == 0 && data.size() >= unit)) break;
            const std::size_t some = std::min(unit - part.held, data.size());
            copy_bytes(part.bytes.data() + part.held, data.data(), some);
            from.consume(some);
            part.held += some;
            data = {};
        }
        if (part.held == unit) data = {part.bytes.data(), unit};
        complete &= !data.empty();
        n = std::min<std::uint64_t>(n, data.size());
        operands_.push_back(data.data());
    }
    return complete ? n : 0;
}

void ScheduleTask::reduce(const Step& step, State& state) {
    const std::uint64_t unit = operation().unit();
    std::uint64_t n = limit(step) - state.done;
    if (n == 0) return;
    if (gathers()) {
        n = gather(step, state, n);
        if (n == 0) return;
    } else {
        if (!all_there(step, state)) return;
        operands_.clear();
        for (const Operation::Source& source : step.sources) {
            if (source.peer >= 0) {
                const auto data = link(source.peer).lend(static_cast<std::size_t>(unit));
                n = std::min<std::uint64_t>(n, data.size());
                operands_.push_back(data.data());
            } else {
                operands_.push_back(at(source.place) + state.done);
            }
        }
    }
    n = std::min<std::uint64_t>(n - n % unit, slice());
    if (relays(step)) {
        reduce_and_relay(step, state.done, static_cast<std::size_t>(n));
    } else {
        apply(step, at(step.dst) + state.done, static_cast<std::size_t>(n), stores(step));
    }
    for (const Operation::Source& source : step.sources) {
        if (source.peer < 0) continue;
        if (gathers() && gathered(source).held > 0) {
            gathered(source).held = 0;
        } else {
            link(source.peer).consume(static_cast<std::size_t>(n));
        }
    }
    state.done += n;
    state.there = 0;
}

void ScheduleTask::apply(const Step& step, std::byte* dst, std::size_t n, Stores stores) const {
    const ReduceFn kernel = operation().kernel(stores);
    const double scale = step.final ? operation().scale() : 1.0;
    kernel(dst, operands_.data(), operands_.size(), n / operation().unit(), scale);
}

void ScheduleTask::copy(const Step& step, State& state) {
    const std::byte* from = at(step.sources[0].place);
    std::byte* to = at(step.dst);
    if (from == to) {
        state.done = limit(step);
        return;
    }
    const std::uint64_t n = std::min<std::uint64_t>(limit(step) - state.done, settings_.copied);
    if (n == 0) return;
    copy_by(stores(step))(to + state.done, from + state.done, static_cast<std::size_t>(n));
    state.done += n;
}

}  // namespace collectives
