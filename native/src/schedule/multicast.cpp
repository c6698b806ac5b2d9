// One message to several peers: one call passes it to all links that can share a copy.
#include <algorithm>

#include "schedule/schedule_task.hpp"

namespace collectives {

void ScheduleTask::multicast(const Step& step, State& state) {
    const std::uint64_t ready = limit(step);
    const std::byte* data = at(step.dst);
    Multicast* together = nullptr;
    targets_.clear();
    for (const int peer : step.peers) {
        Link& to = link(peer);
        std::uint64_t& written = written_[static_cast<std::size_t>(peer)];
        if (written == step.length && (step.length > 0 || to.finished())) continue;
        Multicast* const with = to.multicast();
        if (with != nullptr && (together == nullptr || with == together)) {
            together = with;
            targets_.push_back({peer, is_relayed(step, peer), &written});
        } else {
            written += to.write(data + written, static_cast<std::size_t>(ready - written));
        }
    }
    if (together != nullptr) together->write(targets_, data, ready, step.length);
    std::uint64_t released = step.length;
    std::uint64_t total = 0;
    for (const int peer : step.peers) {
        total += written_[static_cast<std::size_t>(peer)];
        released = std::min(released, link(peer).released());
    }
    state.written = total;
    state.done = released;
}

}  // namespace collectives
