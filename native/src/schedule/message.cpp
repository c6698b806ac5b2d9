// Receiving a message from one rank, or from one of several ranks: the message tells its sender and length.
#include <algorithm>

#include "schedule/schedule_task.hpp"

namespace collectives {

namespace {

// Bytes of a message that are fetched together with its announcement.
constexpr std::uint64_t most_eager = 4 << 10;

std::string text_of(std::uint64_t bytes, std::uint64_t room) {
    return ", with " + std::to_string(bytes) + " bytes for an array of " + std::to_string(room);
}

}  // namespace

bool ScheduleTask::meet_message(const Step& step) {
    const auto eager = static_cast<std::size_t>(std::min(step.length, most_eager));
    const int own = program().rank;
    const Link* elsewhere = nullptr;  // a link whose peer is in a collective
    std::optional<Announcement> there;
    bool all_elsewhere = true;
    for (const int peer : step.peers) {
        Link* const from = request_->links[static_cast<std::size_t>(peer)];
        std::optional<Announcement> next = from == nullptr ? std::nullopt : from->announced(context_, eager);
        if (!next || !next->point_to_point) {
            // The peer is ahead, or has called something else: a message can come only after that collective.
            all_elsewhere = all_elsewhere && (next || peer == own);
            if (next) {
                elsewhere = from;
                there = next;
            }
            continue;
        }
        if (next->call.dtype != request_->call.dtype) from->throw_unwanted(request_->call, *next, "");
        if (next->length > step.length) {
            from->throw_unwanted(request_->call, *next, text_of(next->length, step.length));
        }
        sender_ = peer;
        message_length_ = next->length;
        request_->call = next->call;
        request_->fingerprint = request_->call.fingerprint();
        set_contexts();
        if (request_->receipt != nullptr) *request_->receipt = {peer, next->length / operation().unit()};
        from->expect(context_, next->length);
        return true;
    }
    // In the background, another call of this rank may still send to itself.
    const bool to_itself = step.peers.size() > 1 && request_->interrupted == nullptr;
    if (elsewhere != nullptr && all_elsewhere && !to_itself) {
        elsewhere->throw_unwanted(request_->call, *there, "");
    }
    return false;
}

bool ScheduleTask::recv_message(const Step& step, State& state) {
    state.started = true;
    const bool met = sender_ < 0;
    if (met && !meet_message(step)) return false;
    Link& from = link(sender_);
    const std::size_t n = from.read(at(step.dst) + state.done,
                                    static_cast<std::size_t>(message_length_ - state.done), stores(step));
    state.done += n;
    state.complete = state.done == message_length_ && from.received();
    return met || n > 0 || state.complete;
}

}  // namespace collectives
