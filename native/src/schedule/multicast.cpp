// One message to several peers: those that read staging read one copy of it.
#include <algorithm>

#include "base/copy.hpp"
#include "schedule/schedule_task.hpp"

namespace collectives {

void ScheduleTask::multicast(const Step& step, State& state) {
    const std::uint64_t ready = limit(step);
    const std::byte* data = at(step.dst);
    stage_multicast(step, data, ready);
    std::uint64_t released = step.length;
    std::uint64_t total = 0;
    woken_.clear();
    for (const int peer : step.peers) {
        Link& to = link(peer);
        ShmLink* const shm = to.shared_memory();
        std::uint64_t& sent = written_[static_cast<std::size_t>(peer)];
        if (std::find(staged_links_.begin(), staged_links_.end(), shm) != staged_links_.end()) {
            sent = shm->written();
        } else if (sent < step.length || (step.length == 0 && !to.finished())) {
            const std::uint64_t n = ready - sent;
            if (shm != nullptr) {
                const std::size_t put = is_relayed(step, peer)
                                            ? shm->announce_posted(static_cast<std::size_t>(n))
                                            : shm->put(data + sent, static_cast<std::size_t>(n));
                sent += put;
                if (put > 0 || step.length == 0) woken_.push_back(shm);
            } else {
                sent += to.write(data + sent, static_cast<std::size_t>(n));
            }
        }
        total += sent;
        released = std::min(released, to.released());
    }
    if (!woken_.empty()) ShmLink::wake_peers(woken_);
    state.written = total;
    state.done = released;
}

void ScheduleTask::stage_multicast(const Step& step, const std::byte* data, std::uint64_t ready) {
    staged_links_.clear();
    if (!colocated_.caster || !colocated_.has(Mechanism::multicast) || step.length <= Line::inline_bytes)
        return;
    for (const int peer : step.peers) {
        ShmLink* const shm = link(peer).shared_memory();
        if (shm != nullptr && shm->stages(data, static_cast<std::size_t>(step.length)) &&
            !is_relayed(step, peer)) {
            staged_links_.push_back(shm);
        }
    }
    std::erase_if(staged_links_, [](const ShmLink* to) { return to->changes_places(); });
    if (staged_links_.size() < 2) return staged_links_.clear();
    const std::uint64_t from = staged_links_.front()->written();
    colocated_.caster->write(staged_links_, data + from, static_cast<std::size_t>(ready - from));
}

}  // namespace collectives
