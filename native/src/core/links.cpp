#include "core/links.hpp"

#include <algorithm>
#include <utility>

#include "base/wait.hpp"
#include "inproc/ports.hpp"
#include "link/self_link.hpp"
#include "tcp/link.hpp"

namespace collectives {

namespace {
constexpr auto between_looks = std::chrono::microseconds(200);
}  // namespace

Links::Links(std::shared_ptr<Job> job, Identity identity, std::vector<int> job_ranks, Geometry geometry,
             std::size_t slice, Executor& executor, Sleeper& sleeper, const std::atomic<bool>& closing)
    : identity_(std::move(identity)),
      job_ranks_(std::move(job_ranks)),
      geometry_(geometry),
      slice_(slice),
      executor_(executor),
      sleeper_(sleeper),
      closing_(closing),
      dialled_(static_cast<std::size_t>(identity_.size), false),
      links_(static_cast<std::size_t>(identity_.size), nullptr),
      gone_(static_cast<std::size_t>(identity_.size), false) {
    add(identity_.rank, std::make_unique<SelfLink>(describe(identity_.rank)));
    job->enter();
    job_ = std::move(job);  // to be left
}

void Links::share(std::shared_ptr<Arena> arena) {
    {
        const std::lock_guard lock(linking_);
        arena_ = std::move(arena);
    }
    sleeper_.share(arena_);
    executor_.share(arena_);
}

Control& Links::control() {
    if (control_ == nullptr) {
        Control::Events events;
        events.connected = [this](Connected connected) {
            const std::lock_guard lock(news_);
            arrived_.push_back(std::move(connected));
            unread_ = true;
            news_came_.notify_all();
            executor_.call_attention();
        };
        events.failed = [this](int peer, const Error& error) {
            const std::lock_guard lock(news_);
            failed_.emplace(peer, error);
            unread_ = true;
            news_came_.notify_all();
            executor_.call_attention();
        };
        events.lost = [this](int peer) {
            const std::lock_guard lock(news_);
            gone_[static_cast<std::size_t>(peer)] = true;
            if (const auto place = watched_.find(peer); place != watched_.end()) place->second->mark_lost();
            sleeper_.ring();
        };
        control_ = &job_->control();
        control_->join(identity_, job_ranks_, std::move(events), arena_);
    }
    return *control_;
}

void Links::listen(Scheme scheme, UniqueFd socket) {
    accept(scheme);
    control().listen(scheme, std::move(socket));
}

void Links::accept(Scheme scheme) {
    if (scheme == Scheme::shm) {
        if (!arena_) share(Arena::create_shared(geometry_));
        if (arena_->fd() < 0) throw Error(ErrorKind::invalid, "listen for processes before threads");
        control().share(identity_.group, arena_);
    }
    control();
}

std::string Links::listen_inproc() {
    if (!arena_) share(Arena::create_private(geometry_));
    if (port_.empty()) port_ = ports::open(arena_);
    return port_;
}

void Links::route(int peer, Scheme scheme, std::vector<std::string> addresses, std::string host) {
    if (peer < 0 || peer >= identity_.size || peer == identity_.rank) {
        throw Error(ErrorKind::invalid, "rank " + std::to_string(peer) + " is not a peer");
    }
    if (addresses.empty()) throw Error(ErrorKind::invalid, "a route needs an address");
    routes_[peer] = {scheme, std::move(addresses), std::move(host)};
    if (routes_.size() + 1 < static_cast<std::size_t>(identity_.size)) return;
    const auto count = [this](Scheme s) {
        return std::count_if(routes_.begin(), routes_.end(),
                             [s](const auto& r) { return r.second.scheme == s; });
    };
    if (count(Scheme::tcp) == 0) executor_.work_together(count(Scheme::inproc) == 0);
}

Peer Links::describe(int peer) const {
    const auto place = routes_.find(peer);
    return {peer, place == routes_.end() ? std::string() : place->second.host};
}

bool Links::have_come(const std::vector<int>& peers) const {
    return std::all_of(peers.begin(), peers.end(),
                       [&](int peer) { return links_[static_cast<std::size_t>(peer)] != nullptr; });
}

void Links::dial(int peer) {
    if (dialled_[static_cast<std::size_t>(peer)]) return;
    const auto place = routes_.find(peer);
    if (place == routes_.end()) throw Error(ErrorKind::invalid, "no route to " + describe(peer).name());
    const Route& route = place->second;
    dialled_[static_cast<std::size_t>(peer)] = true;
    if (route.scheme == Scheme::inproc) {
        std::shared_ptr<Arena> theirs = ports::find(route.addresses[0]);
        if (!theirs) {
            throw Error(ErrorKind::peer_lost, describe(peer).name() + " is gone: it closed the communicator",
                        {peer});
        }
        executor_.use_threads();
        add(peer, std::make_unique<ShmLink>(describe(peer), identity_.rank, arena_, std::move(theirs), true));
    } else if (identity_.rank < peer) {
        const int connections = route.scheme == Scheme::tcp ? identity_.connections() : 1;
        control().dial(identity_.group, peer, route.scheme, route.addresses, connections);
    }
}

void Links::add(int peer, std::unique_ptr<Link> link) {
    if (link->leaves_machine()) executor_.use_network();
    const std::lock_guard lock(linking_);
    links_[static_cast<std::size_t>(peer)] = link.get();
    owned_.push_back(std::move(link));
}

void Links::add_connection(Connected connected) {
    std::vector<UniqueFd>& sockets = connections_[connected.peer];
    sockets.resize(static_cast<std::size_t>(identity_.connections()));
    sockets[static_cast<std::size_t>(connected.lane)] = std::move(connected.socket);
    if (!std::all_of(sockets.begin(), sockets.end(), [](const UniqueFd& s) { return bool(s); })) return;
    const Peer peer = describe(connected.peer);
    UniqueFd farewell = std::move(sockets.back());
    sockets.pop_back();
    add(peer.rank, std::make_unique<TcpLink>(peer, std::move(sockets), std::move(farewell), slice_));
    connections_.erase(peer.rank);
}

void Links::take_up(Connected connected) {
    const int peer = connected.peer;
    if (connected.scheme == Scheme::tcp) return add_connection(std::move(connected));
    auto link = std::make_unique<ShmLink>(describe(peer), identity_.rank, arena_, std::move(connected.arena),
                                          false, connected.pid, &grant_);
    watched_[peer] = link.get();
    if (gone_[static_cast<std::size_t>(peer)]) link->mark_lost();
    add(peer, std::move(link));
}

void Links::take_up_news() {
    const std::lock_guard lock(news_);
    unread_ = false;
    for (Connected& connected : arrived_) take_up(std::move(connected));
    arrived_.clear();
}

bool Links::seek_any(const std::vector<int>& peers) {
    if (are_there(peers)) return true;
    for (const int peer : peers) {
        if (links_[static_cast<std::size_t>(peer)] != nullptr) continue;
        try {
            dial(peer);
        } catch (const Error& error) {
            const std::lock_guard lock(news_);
            failed_.emplace(peer, error);
        }
    }
    take_up_news();
    const std::lock_guard lock(news_);
    const bool all_failed = std::ranges::all_of(
        peers, [&](int peer) { return peer == identity_.rank || failed_.contains(peer); });
    if (!failed_.empty() && (all_failed || failed_.begin()->first < 0)) throw failed_.begin()->second;
    return are_there(peers);
}

bool Links::seek(const std::vector<int>& peers) {
    if (are_there(peers)) return true;
    for (const int peer : peers) {
        if (links_[static_cast<std::size_t>(peer)] == nullptr) dial(peer);
    }
    take_up_news();
    if (are_there(peers)) return true;
    const std::lock_guard lock(news_);
    for (const auto& [peer, error] : failed_) {
        if (peer < 0 || std::find(peers.begin(), peers.end(), peer) != peers.end()) throw error;
    }
    return false;
}

void Links::open(const std::vector<int>& peers, double timeout, const Interrupted& interrupted) {
    if (are_there(peers)) return;
    const auto began = Clock::now();
    const Deadline deadline(timeout);
    while (!seek(peers)) {
        if (closing_) throw Error(ErrorKind::aborted, "this communicator is being closed");
        if (deadline.passed()) {
            std::vector<int> missing;
            for (const int peer : peers) {
                if (links_[static_cast<std::size_t>(peer)] == nullptr) missing.push_back(peer);
            }
            throw Error(ErrorKind::op_timeout,
                        "no connection to " + name_ranks(missing) + " within " +
                            std::to_string(static_cast<int>(seconds_since(began))) + " s",
                        missing);
        }
        {
            std::unique_lock lock(news_);
            news_came_.wait_for(lock, deadline.left(look_for_signals), [&] { return unread_; });
        }
        if (interrupted && interrupted()) {
            throw Error(ErrorKind::interrupted, "connecting was interrupted");
        }
    }
}

void Links::compare_calls(double grace) const {
    const std::optional<Call> last = arena_ ? arena_->last_collective() : std::nullopt;
    if (!last) return;
    const Deadline deadline(grace);
    for (Link* const link : links_) {
        ShmLink* const shm = link == nullptr ? nullptr : link->shared_memory();
        if (shm == nullptr) continue;
        while (!shm->has_begun(last->sequence) && shm->lost() == nullptr && !deadline.passed() && !closing_) {
            std::this_thread::sleep_for(between_looks);
        }
        shm->throw_disagreement(*last);
        shm->compare(*last);
    }
}

void Links::shut_down(std::optional<int> lost) {
    if (arena_) {
        Header& header = arena_->header();
        if (lost) header.lost.store(static_cast<std::uint32_t>(*lost) + 1, std::memory_order_relaxed);
        header.closed.store(1, std::memory_order_release);
    }
    for (const auto& link : owned_) link->shut_down(lost);
}

void Links::close() {
    if (!job_) return;
    if (control_ != nullptr) control_->leave(identity_.group);
    if (!port_.empty()) ports::close(port_);
    shut_down();
    arrived_.clear();
    connections_.clear();
    const std::lock_guard lock(linking_);
    owned_.clear();
    grant_.revoke();
    std::fill(links_.begin(), links_.end(), nullptr);
    arena_.reset();
    control_ = nullptr;
    std::exchange(job_, nullptr)->exit();
}

std::shared_ptr<Arena> Links::arena() const {
    const std::lock_guard lock(linking_);
    return arena_;
}

const char* Links::scheme(int peer) const {
    const std::lock_guard lock(linking_);
    const Link* link = links_.at(static_cast<std::size_t>(peer));
    return link == nullptr ? nullptr : link->scheme();
}

std::uint64_t Links::bytes_sent() const {
    const std::lock_guard lock(linking_);
    std::uint64_t total = 0;
    for (const auto& link : owned_) total += link->bytes_sent();
    return total;
}

}  // namespace collectives
