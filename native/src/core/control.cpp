#include "core/control.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "core/local_ranks.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

constexpr auto handshake_time = 2s;
constexpr std::size_t most_pending = 128;
constexpr auto pause_when_full = 100ms;      // without accepting, if there are no free descriptors
constexpr std::size_t most_ended = 1 << 10;  // number of communicators that are remembered after their end

}  // namespace

Control::Control(Heartbeats heartbeats)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      order_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      heartbeats_(heartbeats) {
    if (!epoll_ || !order_) throw_system("epoll_create1 or eventfd", errno);
    watch(order_.get(), EPOLLIN, order_id, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { run(); });
}

Control::~Control() {
    post(Order([this] { stop_ = true; }));
    thread_.join();
}

void Control::post(Order order) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    orders_.push_back(std::move(order));
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(order_.get(), &one, sizeof(one));
}

void Control::run_orders() {
    std::vector<Order> orders;
    {
        const std::lock_guard lock(mutex_);
        orders.swap(orders_);
    }
    for (Order& order : orders) {
        auto outcome = order.get_future();
        order();
        outcome.get();
    }
}

void Control::join(const Identity& identity, std::vector<int> job_ranks, Events events) {
    Registration fresh;
    fresh.identity = identity;
    fresh.job_ranks = std::move(job_ranks);
    fresh.events = std::move(events);
    post(Order([this, fresh = std::move(fresh)]() mutable {
        const GroupId group = fresh.identity.group;
        if (first_.size == 0) {
            first_ = fresh.identity;
            expect_control_plane();
        }
        expected_.erase(group);
        Registration& joined = groups_.insert_or_assign(group, std::move(fresh)).first->second;
        admit_waiting(group);
        if (!monitor_) return;
        for (const Notice& notice : monitor_->lasting()) on_notice(joined, notice);
    }));
}

void Control::run_and_wait(std::function<void()> work) {
    std::promise<void> promise;
    const std::future<void> done = promise.get_future();
    post(Order([work = std::move(work), promise = std::move(promise)]() mutable {
        work();
        promise.set_value();
    }));
    done.wait();  // returns also if the thread has failed: the promise is destroyed with the order
}

void Control::leave(const GroupId& group) {
    run_and_wait([this, group] { end(group); });
}

void Control::expect(const GroupId& group) {
    post(Order([this, group] { expected_.insert(group); }));
}

void Control::forget(const GroupId& group) {
    post(Order([this, group] {
        if (expected_.erase(group) == 0) return;
        end(group);
        admit_waiting(group);  // refuses them
    }));
}

void Control::accept(const GroupId& group, const std::string& name, Transport& transport) {
    post(Order([this, group, name, &transport] {
        if (Registration* const place = find(group)) place->accepted.insert_or_assign(name, &transport);
        admit_waiting(group);
    }));
}

void Control::listen(const std::string& name, Meeting meeting, UniqueFd socket) {
    post(Order([this, name, meeting, socket = std::move(socket)]() mutable {
        const Id id = next_id_++;
        watch(socket.get(), EPOLLIN, id, EPOLL_CTL_ADD);
        listeners_.emplace(id, Listener{name, meeting, std::move(socket)});
    }));
}

void Control::dial(const GroupId& group, int peer, Transport& transport,
                   const std::vector<std::string>& addresses) {
    post(Order([this, group, peer, calling = Calling{&transport, Dial(peer, addresses)}] {
        Registration* const place = find(group);
        const int connections = calling.transport->connections();
        for (int i = 0; place != nullptr && i < connections; ++i) {
            place->dials.emplace(Channel(peer, i), calling);
        }
    }));
}

void Control::watch(int fd, std::uint32_t events, Id id, int operation) {
    set_interest(epoll_.get(), fd, id, events, operation);
}

void Control::run() {
    try {
        loop();
        if (monitor_) monitor_->leave();
    } catch (const std::exception& error) {
        for (const auto& [id, group] : groups_) {
            group.events.failed(-1, Error(ErrorKind::transport_unavailable,
                                          std::string("connecting ranks: ") + error.what()));
        }
    }
    if (monitor_) local_ranks::leave(control_id_, first_.rank);
    const std::lock_guard lock(mutex_);
    over_ = true;
    orders_.clear();
}

void Control::loop() {
    std::array<epoll_event, 64> ready{};
    while (true) {
        const int n =
            ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), next_timeout());
        for (int i = 0; i < n; ++i) {
            const Id id = ready[static_cast<std::size_t>(i)].data.u64;
            if (id == order_id) {
                std::uint64_t count = 0;
                [[maybe_unused]] const auto got = ::read(order_.get(), &count, sizeof(count));
                run_orders();
                if (stop_) return;
            } else if (listeners_.contains(id)) {
                accept_all(id);
            } else if (connections_.contains(id)) {
                on_ready(id);
            } else if (const auto place = watched_.find(id); place != watched_.end()) {
                const int job_rank = place->second.first;
                watched_.erase(place);
                on_lost(job_rank);
            }
        }
        on_timers();
        if (monitor_) progress_control_plane();
    }
}

Control::Registration* Control::find(const GroupId& group) {
    const auto place = groups_.find(group);
    return place == groups_.end() ? nullptr : &place->second;
}

void Control::end(const GroupId& group) {
    if (Registration* const place = find(group)) {
        std::vector<Id> connections;
        for (const auto& [id, connection] : connections_) {
            if (connection.group == place) connections.push_back(id);
        }
        for (const Id id : connections) erase(id);
        groups_.erase(group);
    }
    ended_.push_back(group);
    if (ended_.size() > most_ended) ended_.pop_front();
}

void Control::on_lost(int job_rank) {
    for (const auto& [id, group] : groups_) {
        const int rank = group.rank_of(job_rank);
        if (rank >= 0 && rank != group.identity.rank) group.events.lost(rank);
    }
}

bool Control::is_watched(int job_rank) const {
    return std::any_of(watched_.begin(), watched_.end(),
                       [&](const auto& entry) { return entry.second.first == job_rank; });
}

int Control::next_timeout() {
    auto soonest = Clock::time_point::max();
    for (const auto& [id, connection] : connections_) soonest = std::min(soonest, connection.deadline);
    for (const auto& [id, group] : groups_) {
        for (const auto& [channel, calling] : group.dials) soonest = std::min(soonest, calling.dial.due());
    }
    if (paused_) soonest = std::min(soonest, resume_at_);
    soonest = std::min(soonest, control_plane_due());
    if (soonest == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(soonest - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

void Control::on_timers() {
    const auto now = Clock::now();
    std::vector<Id> late;
    for (const auto& [id, connection] : connections_) {
        if (connection.deadline <= now) late.push_back(id);
    }
    for (const Id id : late) drop(id, {"no answer within two seconds"});
    for (auto& [id, group] : groups_) {
        std::vector<Channel> due;
        for (const auto& [channel, calling] : group.dials) {
            if (calling.dial.due() <= now) due.push_back(channel);
        }
        for (const Channel& channel : due) start_dial(group, channel, group.dials.at(channel));
    }
    if (paused_ && resume_at_ <= now) resume_listeners();
}

void Control::resume_listeners() {
    paused_ = false;
    for (const auto& [id, listener] : listeners_) watch(listener.socket.get(), EPOLLIN, id, EPOLL_CTL_MOD);
}

void Control::accept_all(Id id) {
    const Listener& listener = listeners_.at(id);
    while (true) {
        int error = 0;
        UniqueFd socket = accept_from(listener.socket.get(), error);
        if (error != EAGAIN) note_descriptors(error);
        if (!socket) {
            if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
                paused_ = true;
                resume_at_ = Clock::now() + pause_when_full;
                for (const auto& [other, full] : listeners_)
                    watch(full.socket.get(), 0, other, EPOLL_CTL_MOD);
            }
            if (error == ECONNABORTED || error == EINTR) continue;
            return;
        }
        while (pending_.size() >= most_pending) drop(pending_.front(), {"too many callers"});
        prepare_stream(socket.get(), listener.meeting == Meeting::network, heartbeats_.limit);
        const Id fresh = next_id_++;
        watch(socket.get(), EPOLLIN, fresh, EPOLL_CTL_ADD);
        Handshake& connection = connections_[fresh];
        connection.transport = listener.transport;
        connection.socket = std::move(socket);
        connection.stage = Stage::hello;
        connection.deadline = Clock::now() + handshake_time;
        pending_.push_back(fresh);
    }
}

void Control::note_descriptors(int error) {
    const bool none = error == EMFILE || error == ENFILE;
    if (none == (out_of_descriptors_.load(std::memory_order_relaxed) != 0)) return;
    out_of_descriptors_.store(none ? Clock::now().time_since_epoch().count() : 0, std::memory_order_relaxed);
}

void Control::start_dial(Registration& group, const Channel& channel, Calling& calling) {
    const std::string& address = calling.dial.next();
    const bool over_tcp = calling.transport->meeting() == Meeting::network;
    int error = 0;
    UniqueFd socket = over_tcp ? connect_tcp(address, error) : connect_local(address, error);
    note_descriptors(error);
    if (error != 0) return dial_failed(group, channel, {errno_text(error), error == ECONNREFUSED});
    prepare_stream(socket.get(), over_tcp, heartbeats_.limit);
    const Id id = next_id_++;
    watch(socket.get(), EPOLLOUT, id, EPOLL_CTL_ADD);
    Handshake& connection = connections_[id];
    connection.by = calling.transport;
    connection.socket = std::move(socket);
    connection.stage = Stage::connect;
    connection.group = &group;
    connection.channel = channel;
    connection.caller = true;
    connection.deadline = Clock::now() + handshake_time;
}

void Control::dial_failed(Registration& group, const Channel& channel, const Problem& problem) {
    const auto place = group.dials.find(channel);
    if (place == group.dials.end()) return;  // the peer has called meanwhile
    if (place->second.dial.failed(problem)) return;
    const Error error = place->second.dial.error();
    group.dials.erase(place);
    group.events.failed(channel.first, error);
}

}  // namespace collectives
