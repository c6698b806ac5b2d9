// The control plane of a job on its control thread: control links, and what notices mean for communicators.
#include <sys/epoll.h>

#include <algorithm>
#include <string_view>

#include "base/sha256.hpp"
#include "core/control.hpp"
#include "core/local_ranks.hpp"
#include "core/overlay.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

// A neighbour that should have called is called after this time, to see whether it is there.
constexpr auto patience_with_callers = 500ms;
constexpr auto between_comparisons = 100ms;
constexpr auto most_unbegun = 64;

GroupId control_id(const GroupId& first) {
    constexpr std::string_view label = "pycollectives control plane";
    std::vector<std::byte> text(first.begin(), first.end());
    const auto bytes = std::as_bytes(std::span(label));
    text.insert(text.end(), bytes.begin(), bytes.end());
    const auto digest = sha256(text);
    GroupId id{};
    std::copy_n(digest.begin(), id.size(), id.begin());
    return id;
}

// The handshakes of control links, whose sockets go to the monitor.
class ControlTransport final : public Transport {
  public:
    explicit ControlTransport(Meeting meeting) : meeting_(meeting) { capabilities_.takes_sockets = true; }

    const Capabilities& capabilities() const override { return capabilities_; }
    Meeting meeting() const override { return meeting_; }
    int connections() const override { return 1; }
    Offer offer(int /*peer*/, int /*connection*/) override { return {}; }
    std::unique_ptr<Link> connect(const Peer& /*peer*/, std::vector<Connection> /*connections*/) override {
        throw Error(ErrorKind::transport_unavailable, "control links carry no operations");
    }

  private:
    Capabilities capabilities_;
    Meeting meeting_;
};

}  // namespace

int Control::Registration::rank_of(int job_rank) const {
    if (job_ranks.empty()) return job_rank < identity.size ? job_rank : -1;
    const auto place = std::ranges::find(job_ranks, job_rank);
    return place == job_ranks.end() ? -1 : static_cast<int>(place - job_ranks.begin());
}

void Control::expect_control_plane() {
    control_id_ = control_id(first_.group);
    expected_.insert(control_id_);
}

void Control::begin_control_plane(std::map<int, Neighbour> neighbours) {
    post(Order([this, neighbours = std::move(neighbours)]() mutable {
        neighbours_ = std::move(neighbours);
        Registration plane;
        plane.identity = first_;
        plane.identity.group = control_id_;
        plane.events.connected = [this](Connected connected) {
            monitor_->adopt(connected.peer, std::move(connected.connection.socket));
        };
        plane.events.failed = [this](int peer, const Error& error) {
            if (error.kind() == ErrorKind::peer_lost) monitor_->unreachable(peer, error.what());
        };
        plane.events.lost = [](int) {};
        std::map<int, bool> overlay;
        for (const auto& [rank, neighbour] : neighbours_) {
            overlay[rank] = neighbour.meeting == Meeting::process;
            if (overlay[rank]) continue;
            auto& transport = control_transports_[neighbour.meeting];
            if (!transport) transport = std::make_unique<ControlTransport>(neighbour.meeting);
            plane.accepted.emplace(neighbour.transport, transport.get());
        }
        groups_.insert_or_assign(control_id_, std::move(plane));
        expected_.erase(control_id_);
        local_ranks::enter(control_id_, first_.rank, [this](int from, const Notice& notice) {
            post(Order([this, from, notice] {
                if (monitor_) monitor_->receive(from, notice);
            }));
        });
        monitor_.emplace(
            first_.rank, first_.size, overlay,
            [this](int to, const Notice& notice) {
                return local_ranks::send(control_id_, to, first_.rank, notice);
            },
            heartbeats_);
        watch(monitor_->descriptor(), EPOLLIN, monitor_id, EPOLL_CTL_ADD);
        const auto now = Clock::now();
        next_call_on_missing_ = now + patience_with_callers;
        next_publication_ = now + heartbeats_.interval;
        for (const auto& [rank, is_local] : overlay) {
            if (!is_local && first_.rank < rank) dial_neighbour(rank);
        }
        admit_waiting(control_id_);
    }));
}

void Control::dial_neighbour(int rank) {
    const Neighbour& neighbour = neighbours_.at(rank);
    Registration& plane = groups_.at(control_id_);
    plane.dials.try_emplace(Channel(rank, 0), Calling{control_transports_.at(neighbour.meeting).get(),
                                                      Dial(rank, neighbour.addresses)});
}

void Control::notify(Notice notice, bool wait) {
    auto work = [this, notice = std::move(notice)] {
        if (monitor_) monitor_->send_to_all(notice);
    };
    if (wait) return run_and_wait(std::move(work));
    post(Order(std::move(work)));
}

void Control::claim(Notice notice) {
    run_and_wait([this, notice = std::move(notice)]() mutable {
        Registration* const group = find(notice.group);
        // It is late if another rank's claim is known.
        if (!monitor_ || group == nullptr || group->claim) return;
        monitor_->send_to_all(notice);
        notice.origin = first_.rank;
        hold_claim(*group, notice);
    });
}

void Control::hold_claim(Registration& group, const Notice& notice) {
    if (!group.claim) group.claim_due = Clock::now() + settles;
    if (!group.claim || notice.origin < group.claim->origin) group.claim = notice;
}

void Control::judge_claims(Clock::time_point now) {
    for (auto& [id, group] : groups_) {
        if (group.claim_due > now) continue;
        group.claim_due = Clock::time_point::max();
        const Notice& notice = *group.claim;
        group.events.condemned({notice.error, notice.ranks, notice.text, group.rank_of(notice.origin), -1,
                                notice.call.sequence});
    }
}

Clock::time_point Control::control_plane_due() const {
    if (!monitor_) return Clock::time_point::max();
    Clock::time_point soonest = std::min({monitor_->due(), next_publication_, next_call_on_missing_});
    for (const auto& [id, group] : groups_) soonest = std::min(soonest, group.claim_due);
    if (!unbegun_.empty()) soonest = std::min(soonest, next_comparison_);
    return soonest;
}

void Control::progress_control_plane() {
    const auto now = Clock::now();
    if (next_call_on_missing_ <= now) {
        // Those that should have called this rank may have ended before they could.
        next_call_on_missing_ = Clock::time_point::max();
        for (const int rank : monitor_->missing()) dial_neighbour(rank);
    }
    std::vector<Notice> news;
    monitor_->progress(news);
    if (const auto until = monitor_->in_doubt_until(); until != in_doubt_until_) {
        in_doubt_until_ = until;
        for (auto& [id, group] : groups_) {
            if (id != control_id_) group.events.doubted(until);
        }
    }
    for (const Notice& notice : news) {
        for (auto& [id, group] : groups_) {
            if (id != control_id_) on_notice(group, notice);
        }
    }
    judge_claims(now);
    if (next_publication_ <= now) {
        next_publication_ = now + heartbeats_.interval;
        publish_last_calls();
    }
    if (!unbegun_.empty() && next_comparison_ <= now) {
        next_comparison_ = now + between_comparisons;
        std::erase_if(unbegun_, [&](const Notice& notice) {
            Registration* const group = find(notice.group);
            return group == nullptr || compare(*group, notice);
        });
    }
}

void Control::on_notice(Registration& group, const Notice& notice) {
    const int origin = group.rank_of(notice.origin);
    if (notice.kind == Notice::Kind::dead) {
        const int gone = group.rank_of(notice.subject);
        if (gone == group.identity.rank) {
            group.events.expelled(origin, notice.text);
        } else if (gone >= 0) {
            group.events.condemned(
                {ErrorKind::peer_lost, {gone}, notice.text, origin, gone, 0, notice.number != 0});
        }
        return;
    }
    if (notice.kind == Notice::Kind::bye && origin >= 0) group.events.left(origin);
    if (notice.group != group.identity.group || origin < 0) return;
    switch (notice.kind) {
        case Notice::Kind::abort:
            if (notice.is_claim()) {
                hold_claim(group, notice);
                break;
            }
            group.events.condemned(
                {notice.error, notice.ranks, notice.text, origin, notice.subject, notice.call.sequence});
            break;
        case Notice::Kind::last:
            compare(group, notice);
            break;
        case Notice::Kind::stalled:
            if (compare(group, notice)) break;
            std::erase_if(unbegun_, [&](const Notice& other) { return other.group == notice.group; });
            if (unbegun_.size() < most_unbegun) unbegun_.push_back(notice);
            next_comparison_ = Clock::now() + between_comparisons;
            break;
        case Notice::Kind::inquiry: {
            const std::optional<BegunCall> last = group.events.begun(std::nullopt);
            if (last && last->call.sequence >= notice.call.sequence) break;
            monitor_->send_to_all({.kind = Notice::Kind::late, .group = notice.group, .call = notice.call});
            break;
        }
        case Notice::Kind::late:
            group.events.late(notice.call.sequence, origin);
            break;
        default:
            break;
    }
}

bool Control::compare(Registration& group, const Notice& notice) {
    const int other = group.rank_of(notice.origin);
    if (other < 0 || other == group.identity.rank) return true;
    const std::optional<BegunCall> last = group.events.begun(std::nullopt);
    if (!last || last->call.sequence < notice.call.sequence) return false;
    const std::optional<BegunCall> mine = group.events.begun(notice.call.sequence);
    if (!mine) return true;
    const bool same_history =
        mine->fingerprint == notice.fingerprint || mine->fingerprint == 0 || notice.fingerprint == 0;
    if (mine->call != notice.call || !same_history) group.events.disagreed(other, notice.call, mine->call);
    return true;
}

void Control::publish_last_calls() {
    for (auto& [id, group] : groups_) {
        if (id == control_id_) continue;
        const std::optional<BegunCall> last = group.events.begun(std::nullopt);
        if (!last || last->call.sequence + 1 == group.published) continue;
        group.published = last->call.sequence + 1;
        monitor_->send_to_neighbours({.kind = Notice::Kind::last,
                                      .origin = first_.rank,
                                      .group = id,
                                      .call = last->call,
                                      .fingerprint = last->fingerprint});
    }
}

}  // namespace collectives
