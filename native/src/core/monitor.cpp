#include "core/monitor.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "link/sockets.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

// The control thread is late by less on a busy machine; if it is late by more, this process did not run.
constexpr auto absence = 500ms;
constexpr std::size_t most_lasting = 64;
// A neighbour that has missed so many is in doubt.
constexpr int missed_beats = 2;
constexpr std::size_t read_at_once = 16 << 10;

}  // namespace

Monitor::Monitor(int rank, int size, const std::map<int, bool>& neighbours, Local local,
                 Heartbeats heartbeats)
    : rank_(rank),
      size_(size),
      local_(std::move(local)),
      heartbeats_(heartbeats),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      next_beat_(Clock::now() + heartbeats.interval),
      planned_(next_beat_) {
    if (!epoll_) throw_system("epoll_create1", errno);
    for (const auto& [neighbour, is_local] : neighbours) {
        neighbours_[neighbour] = {State::expected, is_local, Clock::now()};
    }
    const Notice greeting{.kind = Notice::Kind::beat, .origin = rank_};
    for (auto& [number, neighbour] : neighbours_) {
        if (neighbour.is_local && local_(number, greeting)) neighbour.state = State::linked;
    }
}

Clock::time_point Monitor::due() const {
    Clock::time_point soonest = Clock::time_point::max();
    if (expelled_) return soonest;
    for (const auto& [number, neighbour] : neighbours_) {
        if (neighbour.is_local || neighbour.state > State::linked) continue;
        soonest = std::min({soonest, next_beat_, neighbour.heard + heartbeats_.limit});
    }
    return soonest;
}

Clock::time_point Monitor::in_doubt_until() const {
    const auto silent_since = Clock::now() - missed_beats * heartbeats_.interval;
    Clock::time_point latest{};
    for (const auto& [number, neighbour] : neighbours_) {
        if (neighbour.is_local || neighbour.state > State::linked || neighbour.heard > silent_since) continue;
        latest = std::max(latest, neighbour.heard + heartbeats_.limit + heartbeats_.interval);
    }
    return latest;
}

void Monitor::adopt(int neighbour, UniqueFd socket) {
    const auto place = neighbours_.find(neighbour);
    if (place == neighbours_.end() || place->second.state > State::linked) return;
    place->second.state = State::linked;
    place->second.heard = Clock::now();
    const Id id = next_id_++;
    set_interest(epoll_.get(), socket.get(), id, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_ADD);
    links_[id] = {neighbour, std::move(socket), {}, {}, false};
    for (const Notice& notice : lasting_) send(neighbour, notice);
}

void Monitor::unreachable(int neighbour, const std::string& why) {
    const auto place = neighbours_.find(neighbour);
    if (place != neighbours_.end() && place->second.state == State::expected) declare_dead(neighbour, why);
}

void Monitor::receive(int neighbour, const Notice& notice) {
    const auto place = neighbours_.find(neighbour);
    if (place == neighbours_.end()) return;
    if (place->second.state == State::expected) {
        place->second.state = State::linked;
        for (const Notice& kept : lasting_) send(neighbour, kept);
    }
    on_notice(neighbour, notice);
}

std::vector<int> Monitor::missing() const {
    std::vector<int> found;
    for (const auto& [number, neighbour] : neighbours_) {
        if (neighbour.state == State::expected && !neighbour.is_local) found.push_back(number);
    }
    return found;
}

void Monitor::send_to_all(Notice notice) {
    notice.origin = rank_;
    notice.number = ++sent_;
    keep(notice);
    forward(rank_, notice);
}

void Monitor::send_to_neighbours(const Notice& notice) {
    for (const auto& [number, neighbour] : neighbours_) send(number, notice);
}

void Monitor::progress(std::vector<Notice>& news) {
    const auto now = Clock::now();
    forgive_own_absence(now);
    std::array<epoll_event, 32> ready{};
    const int n = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
    for (int i = 0; i < n; ++i) {
        const Id id = ready[static_cast<std::size_t>(i)].data.u64;
        if (!links_.contains(id)) continue;
        if ((ready[static_cast<std::size_t>(i)].events & EPOLLOUT) != 0) flush(id, links_.at(id));
        if (links_.contains(id)) drain(id);
    }
    if (next_beat_ <= now) {
        next_beat_ = std::max(next_beat_ + heartbeats_.interval, now);
        send_to_neighbours({.kind = Notice::Kind::beat, .origin = rank_});
    }
    judge(now);
    planned_ = due();
    news.insert(news.end(), std::make_move_iterator(news_.begin()), std::make_move_iterator(news_.end()));
    news_.clear();
}

void Monitor::leave() {
    send_to_neighbours({.kind = Notice::Kind::bye, .origin = rank_});
    links_.clear();
}

bool Monitor::is_fresh(const Notice& notice) {
    if (notice.origin < 0 || notice.origin == rank_) return false;
    Seen& seen = seen_[notice.origin];
    if (notice.number > seen.highest) {
        const std::uint32_t ahead = notice.number - seen.highest;
        seen.before = ahead < 64 ? seen.before << ahead : 0;
        if (ahead <= 64) seen.before |= 1ULL << (ahead - 1);
        seen.highest = notice.number;
        return true;
    }
    const std::uint32_t behind = seen.highest - notice.number;
    if (behind == 0 || behind > 64) return false;
    const std::uint64_t bit = 1ULL << (behind - 1);
    if ((seen.before & bit) != 0) return false;
    seen.before |= bit;
    return true;
}

void Monitor::on_notice(int from, const Notice& notice) {
    Neighbour& sender = neighbours_.at(from);
    sender.heard = Clock::now();
    if (notice.kind == Notice::Kind::bye) {
        sender.state = State::left;
        close_links(from);
        news_.push_back(notice);
        return;
    }
    if (notice.kind == Notice::Kind::last) news_.push_back(notice);
    if (!notice.is_to_all() || !is_fresh(notice)) return;
    forward(from, notice);
    keep(notice);
    if (notice.kind == Notice::Kind::dead) mark_dead(notice.subject);
    news_.push_back(notice);
}

void Monitor::forward(int from, const Notice& notice) {
    for (const auto& [number, neighbour] : neighbours_) {
        if (number != from) send(number, notice);
    }
}

void Monitor::keep(const Notice& notice) {
    if (notice.kind != Notice::Kind::dead && notice.kind != Notice::Kind::abort) return;
    lasting_.push_back(notice);
    if (lasting_.size() > most_lasting) lasting_.pop_front();
}

void Monitor::declare_dead(int neighbour, const std::string& why) {
    if (expelled_ || neighbours_.at(neighbour).state >= State::left) return;
    Notice notice{.kind = Notice::Kind::dead, .subject = neighbour, .text = why};
    send_to_all(notice);  // also to that neighbour, which may be alive after all
    mark_dead(neighbour);
    notice.origin = rank_;
    notice.number = sent_;
    news_.push_back(std::move(notice));
}

void Monitor::mark_dead(int rank) {
    if (rank == rank_) {
        expelled_ = true;
        return;
    }
    const auto place = neighbours_.find(rank);
    if (place == neighbours_.end() || place->second.state == State::dead) return;
    place->second.state = State::dead;
    close_links(rank);
}

void Monitor::send(int neighbour, const Notice& notice) {
    const Neighbour& to = neighbours_.at(neighbour);
    if (to.state != State::linked) return;
    if (to.is_local) {
        local_(neighbour, notice);
        return;
    }
    const auto place =
        std::ranges::find_if(links_, [&](const auto& entry) { return entry.second.neighbour == neighbour; });
    if (place == links_.end()) return;
    ControlLink& link = place->second;
    // A heartbeat that would wait behind others says nothing.
    if (notice.kind == Notice::Kind::beat && !link.out.empty()) return;
    const std::vector<std::byte> bytes = encode(notice);
    link.out.insert(link.out.end(), bytes.begin(), bytes.end());
    flush(place->first, link);
}

void Monitor::flush(Id id, ControlLink& link) {
    while (!link.out.empty()) {
        const ssize_t n =
            ::send(link.socket.get(), link.out.data(), link.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) break;  // the link may have ended, which `drain` finds out
        link.out.erase(link.out.begin(), link.out.begin() + n);
    }
    if (link.writing == link.out.empty()) {
        link.writing = !link.out.empty();
        const std::uint32_t events = EPOLLIN | EPOLLRDHUP | (link.writing ? EPOLLOUT : 0U);
        set_interest(epoll_.get(), link.socket.get(), id, events, EPOLL_CTL_MOD);
    }
}

void Monitor::drain(Id id) {
    std::array<std::byte, read_at_once> room{};
    while (true) {
        ControlLink& link = links_.at(id);
        const ssize_t n = ::recv(link.socket.get(), room.data(), room.size(), MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) {
            on_end(id, n == 0 ? "its process has ended" : "its connection broke: " + errno_text(errno));
            return;
        }
        link.in.insert(link.in.end(), room.begin(), room.begin() + n);
        try {
            std::size_t used = 0;
            while (links_.contains(id)) {  // a notice may close the link
                const Decoded decoded = decode(std::span(links_.at(id).in).subspan(used), size_);
                if (!decoded.notice) break;
                used += decoded.length;
                on_notice(links_.at(id).neighbour, *decoded.notice);
            }
            if (!links_.contains(id)) return;
            std::vector<std::byte>& in = links_.at(id).in;
            in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(used));
        } catch (const Error& error) {
            on_end(id, error.what());
            return;
        }
    }
}

void Monitor::close_links(int neighbour) {
    std::erase_if(links_, [&](const auto& entry) { return entry.second.neighbour == neighbour; });
}

void Monitor::on_end(Id id, const std::string& why) {
    const int neighbour = links_.at(id).neighbour;
    links_.erase(id);
    const bool has_others =
        std::ranges::any_of(links_, [&](const auto& entry) { return entry.second.neighbour == neighbour; });
    if (!has_others) declare_dead(neighbour, why);
}

void Monitor::forgive_own_absence(Clock::time_point now) {
    if (planned_ == Clock::time_point::max() || now - planned_ < absence) return;
    for (auto& [number, neighbour] : neighbours_) neighbour.heard += now - planned_;
    planned_ = now;
}

void Monitor::judge(Clock::time_point now) {
    std::vector<int> silent;
    bool hears_anyone = false;
    for (const auto& [number, neighbour] : neighbours_) {
        if (neighbour.is_local || neighbour.state > State::linked) continue;
        if (now - neighbour.heard >= heartbeats_.limit) silent.push_back(number);
        hears_anyone = hears_anyone || now - neighbour.heard < heartbeats_.limit / 2;
    }
    for (const int number : silent) {
        const Neighbour& neighbour = neighbours_.at(number);
        const std::string time = seconds_text(now - neighbour.heard);
        const std::string why = neighbour.state == State::expected
                                    ? "it has made no control link within " + time
                                    : "nothing was heard of it for " + time;
        if (hears_anyone || size_ == 2) {
            declare_dead(number, why);
            continue;
        }
        // Others may hear this rank: they would believe that a healthy rank is gone.
        mark_dead(number);
        news_.push_back(
            {.kind = Notice::Kind::dead,
             .origin = rank_,
             .subject = number,
             .text = why + "; nothing was heard of any other neighbour, so this rank may be cut off"});
    }
}

}  // namespace collectives
