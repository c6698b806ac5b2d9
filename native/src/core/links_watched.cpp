// What a communicator and the control plane of its job report to each other.
#include "core/links.hpp"
#include "core/overlay.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

// What an operation in progress still needs may be on its way when a rank is gone, or has given up.
constexpr auto grace_after_death = 1s;
constexpr auto grace_after_abort = 100ms;

}  // namespace

void Links::watch_over(Control::Events& events) {
    events.begun = [this](std::optional<std::uint64_t> sequence) {
        return sequence ? recorder_.collective(*sequence) : recorder_.last_collective();
    };
    events.condemned = [this](const Control::Finding& finding) {
        Cause cause{.kind = finding.kind, .ranks = finding.ranks, .text = finding.why};
        cause.sequence = finding.sequence;
        cause.is_shared = finding.is_shared;
        const bool is_death = finding.gone >= 0 && finding.by != finding.gone;
        cause.grace = is_death ? grace_after_death : grace_after_abort;
        if (finding.gone >= 0) cause.gone = name(finding.gone);
        if (finding.by >= 0 && finding.by != identity_.rank)
            cause.text += "; " + name(finding.by) + " has reported it";
        health_.condemn(std::move(cause));
    };
    events.doubted = [this](Clock::time_point until) { health_.note_doubt(until); };
    events.left = [this](int rank) { health_.note_left(rank); };
    events.expelled = [this](int by, const std::string& why) {
        const std::string who = by < 0 ? "another rank" : name(by);
        health_.condemn({.kind = ErrorKind::stale_epoch,
                         .text = "the other ranks have given up this communicator without this rank, since " +
                                 who + " found it dead: " + why});
    };
    events.disagreed = [this](int other, const Call& theirs, const Call& mine) {
        const Cause* const known = health_.cause();
        if (known != nullptr && known->sequence <= mine.sequence) return;
        const std::string text = "ranks called different operations: " + name(identity_.rank) + " is in " +
                                 mine.describe() + "; " + name(other) + " is in " + theirs.describe() +
                                 (theirs == mine ? ", after other operations than this rank" : "");
        Notice notice = notice_of(Notice::Kind::abort, mine);
        notice.error = ErrorKind::desync;
        notice.ranks = {identity_.rank, other};
        notice.text = text;
        control_->notify(std::move(notice));
        health_.condemn({.kind = ErrorKind::desync,
                         .ranks = {identity_.rank, other},
                         .text = text,
                         .sequence = mine.sequence});
    };
    events.late = [this](std::uint64_t sequence, int rank) { health_.add_late(sequence, rank); };
    health_.watch_over(
        {.stalled =
             [this](const Call& call, std::uint32_t fingerprint) {
                 control_->notify(notice_of(Notice::Kind::stalled, call, fingerprint));
             },
         .ask_for_late =
             [this](const Call& call) { control_->notify(notice_of(Notice::Kind::inquiry, call)); },
         .name = [this](int rank) { return name(rank); },
         .self = name(identity_.rank)});
}

Notice Links::notice_of(Notice::Kind kind, const Call& call, std::uint32_t fingerprint) const {
    return {.kind = kind, .group = identity_.group, .call = call, .fingerprint = fingerprint};
}

void Links::begin_control_plane() {
    if (!is_first_) return;
    std::map<int, Control::Neighbour> neighbours;
    for (const int rank : control_neighbours(identity_.rank, identity_.size)) {
        const Route& route = routes_.at(rank);
        neighbours[rank] = {route.transport, transport(route.transport).meeting(), route.addresses};
    }
    control().begin_control_plane(std::move(neighbours));
}

Notice Links::notice_of(const Error& cause, std::uint64_t sequence) const {
    Call call;
    call.sequence = sequence;
    Notice notice = notice_of(Notice::Kind::abort, call);
    notice.error = cause.kind();
    notice.ranks = cause.ranks();
    notice.text = cause.what();
    return notice;
}

void Links::claim(const Error& cause, std::uint64_t sequence) { control_->claim(notice_of(cause, sequence)); }

void Links::report_broken(const Error& cause, std::uint64_t sequence) {
    if (!health_.is_watched()) return;
    Notice notice = notice_of(cause, sequence);
    const bool is_own = cause.kind() == ErrorKind::interrupted || cause.kind() == ErrorKind::aborted;
    if (is_own) {
        // For the others, it is this rank that is gone.
        notice.error = ErrorKind::peer_lost;
        notice.ranks = {identity_.rank};
        notice.subject = identity_.rank;
        notice.text = std::string("it has given up: ") + cause.what();
    }
    control_->notify(std::move(notice), true);
}

}  // namespace collectives
