#include "core/control.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/frame.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

constexpr auto handshake_time = 2s;
constexpr std::size_t most_pending = 128;
constexpr auto breather = 100ms;  // when there are no descriptors left to accept with
constexpr std::uint64_t order_id = 0;

template <typename T>
T from_bytes(const std::byte* data) {
    T value;
    std::memcpy(static_cast<void*>(&value), data, sizeof(T));
    return value;
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
}

}  // namespace

Control::Control(Identity identity, Events events)
    : identity_(std::move(identity)),
      events_(std::move(events)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      order_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!epoll_ || !order_) throw_system("epoll_create1 or eventfd", errno);
    watch(order_.get(), EPOLLIN, order_id, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { run(); });
}

Control::~Control() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    order();
    thread_.join();
}

void Control::order() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(order_.get(), &one, sizeof(one));
}

void Control::share(std::shared_ptr<Arena> arena) {
    const std::lock_guard lock(mutex_);
    arena_ = std::move(arena);
}

void Control::listen(Scheme scheme, UniqueFd socket) {
    const std::lock_guard lock(mutex_);
    new_listeners_.push_back({scheme, std::move(socket)});
    order();
}

void Control::dial(int peer, Scheme scheme, const std::vector<std::string>& addresses, int connections) {
    const std::lock_guard lock(mutex_);
    for (int lane = 0; lane < connections; ++lane) {
        new_dials_.push_back({{peer, lane}, {scheme, Dial(peer, addresses)}});
    }
    order();
}

void Control::watch(int fd, std::uint32_t events, Id id, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    ::epoll_ctl(epoll_.get(), operation, fd, &event);
}

void Control::run() {
    try {
        loop();
    } catch (const std::exception& error) {
        events_.failed(
            -1, Error(ErrorKind::transport_unavailable, std::string("connecting ranks: ") + error.what()));
    }
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
                take_orders();
                if (const std::lock_guard lock(mutex_); stop_) return;
            } else if (listeners_.contains(id)) {
                accept_all(id);
            } else if (connections_.contains(id)) {
                on_ready(id);
            } else if (const auto place = watched_.find(id); place != watched_.end()) {
                const int peer = place->second.first;
                watched_.erase(place);
                events_.lost(peer);
            }
        }
        on_timers();
    }
}

void Control::take_orders() {
    const std::lock_guard lock(mutex_);
    for (Listener& listener : new_listeners_) {
        const Id id = next_id_++;
        watch(listener.socket.get(), EPOLLIN, id, EPOLL_CTL_ADD);
        listeners_.emplace(id, std::move(listener));
    }
    new_listeners_.clear();
    for (auto& [place, calling] : new_dials_) dials_.emplace(place, std::move(calling));
    new_dials_.clear();
}

int Control::next_timeout() {
    auto soonest = Clock::time_point::max();
    for (const auto& [id, connection] : connections_) soonest = std::min(soonest, connection.deadline);
    for (const auto& [place, calling] : dials_) soonest = std::min(soonest, calling.dial.due());
    if (paused_) soonest = std::min(soonest, resume_at_);
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
    std::vector<Place> due;
    for (const auto& [place, calling] : dials_) {
        if (calling.dial.due() <= now) due.push_back(place);
    }
    for (const Place& place : due) start_dial(place, dials_.at(place));
    if (paused_ && resume_at_ <= now) resume_listeners();
}

void Control::resume_listeners() {
    paused_ = false;
    for (const auto& [id, listener] : listeners_) watch(listener.socket.get(), EPOLLIN, id, EPOLL_CTL_MOD);
}

void Control::accept_all(Id id) {
    const Scheme scheme = listeners_.at(id).scheme;
    while (true) {
        int error = 0;
        UniqueFd socket = accept_from(listeners_.at(id).socket.get(), error);
        if (!socket) {
            if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
                paused_ = true;
                resume_at_ = Clock::now() + breather;
                for (const auto& [other, listener] : listeners_)
                    watch(listener.socket.get(), 0, other, EPOLL_CTL_MOD);
            }
            if (error == ECONNABORTED || error == EINTR) continue;
            return;
        }
        while (pending_.size() >= most_pending) drop(pending_.front(), {"too many callers"});
        prepare_stream(socket.get(), scheme == Scheme::tcp);
        const Id fresh = next_id_++;
        watch(socket.get(), EPOLLIN, fresh, EPOLL_CTL_ADD);
        Connection& connection = connections_[fresh];
        connection.scheme = scheme;
        connection.socket = std::move(socket);
        connection.stage = Stage::hello;
        connection.deadline = Clock::now() + handshake_time;
        pending_.push_back(fresh);
    }
}

void Control::start_dial(const Place& place, Calling& calling) {
    const std::string& address = calling.dial.next();
    const bool over_tcp = calling.scheme == Scheme::tcp;
    int error = 0;
    UniqueFd socket = over_tcp ? connect_tcp(address, error) : connect_local(address, error);
    if (error != 0) return dial_failed(place, {errno_text(error), error == ECONNREFUSED});
    prepare_stream(socket.get(), over_tcp);
    const Id id = next_id_++;
    watch(socket.get(), EPOLLOUT, id, EPOLL_CTL_ADD);
    Connection& connection = connections_[id];
    connection.scheme = calling.scheme;
    connection.socket = std::move(socket);
    connection.stage = Stage::connect;
    connection.place = place;
    connection.caller = true;
    connection.deadline = Clock::now() + handshake_time;
}

void Control::dial_failed(const Place& place, const Problem& problem) {
    Dial& dial = dials_.at(place).dial;
    if (dial.failed(problem)) return;
    const Error error = dial.error();
    const int peer = place.first;
    dials_.erase(place);
    events_.failed(peer, error);
}

void Control::on_ready(Id id) {
    Connection& connection = connections_.at(id);
    if (connection.stage == Stage::connect) {
        if (const int error = connect_result(connection.socket.get()); error != 0) {
            drop(id, {errno_text(error), error == ECONNREFUSED});
            return;
        }
        connection.hello = make_hello(identity_, connection.place.first, connection.place.second);
        connection.stage = Stage::reply;
        watch(connection.socket.get(), EPOLLIN, id, EPOLL_CTL_MOD);
        if (!send_message(connection.socket.get(), bytes_of(connection.hello))) drop(id, {"it hung up"});
        return;
    }
    // Several messages may have arrived; a handler may end the connection.
    while (connections_.contains(id) && receive(id, connections_.at(id))) {
    }
}

bool Control::receive(Id id, Connection& connection) {
    std::size_t want = 0;
    switch (connection.stage) {
        case Stage::connect:
            return false;
        case Stage::hello:
            want = sizeof(Hello);
            break;
        case Stage::reply:
            want = sizeof(Reply);
            break;
        case Stage::proof:
            want = sizeof(Proof);
            break;
        case Stage::closing:
            want = sizeof(Closing);
            break;
    }
    std::size_t got = 0;
    const auto room = std::span(connection.buffer).subspan(connection.have, want - connection.have);
    switch (receive_message(connection.socket.get(), room, got, connection.descriptors)) {
        case Received::nothing:
            return false;
        case Received::end:
            drop(id, {"it hung up during the handshake"});
            return false;
        case Received::some:
            break;
    }
    connection.have += got;
    // Strangers are told apart by their first bytes.
    if (connection.have >= sizeof(std::uint64_t) && connection.stage <= Stage::reply &&
        from_bytes<std::uint64_t>(connection.buffer.data()) != hello_magic) {
        drop(id, {"it does not speak this protocol"});
        return false;
    }
    if (connection.have < want) return true;
    connection.have = 0;
    switch (connection.stage) {
        case Stage::connect:
            return false;
        case Stage::hello:
            return on_hello(id, connection);
        case Stage::reply:
            return on_reply(id, connection);
        case Stage::proof:
            return on_proof(id, connection);
        case Stage::closing:
            return on_closing(id, connection);
    }
    return false;
}

bool Control::on_hello(Id id, Connection& connection) {
    connection.hello = from_bytes<Hello>(connection.buffer.data());
    Verdict verdict = judge(identity_, connection.hello);
    const Place place(connection.hello.from, connection.hello.lane);
    if (verdict == Verdict::welcome && connection.scheme != Scheme::tcp && place.second > 0) {
        verdict = Verdict::wrong_lane;
    }
    if (verdict == Verdict::welcome && linked_.contains(place)) verdict = Verdict::duplicate;
    connection.reply = make_reply(identity_, connection.hello, verdict);
    const bool sent = send_message(connection.socket.get(), bytes_of(connection.reply));
    if (!sent || verdict != Verdict::welcome) {
        drop(id, {explain(verdict)});
        return false;
    }
    connection.place = place;
    connection.stage = Stage::proof;
    return true;
}

bool Control::on_reply(Id id, Connection& connection) {
    connection.reply = from_bytes<Reply>(connection.buffer.data());
    const Verdict verdict = judge(identity_, connection.hello, connection.reply);
    if (verdict != Verdict::welcome) {
        drop(id, {explain(verdict), false, verdict, connection.reply.hello.version});
        return false;
    }
    Proof proof;
    proof.proof = prove_caller(identity_, connection.hello, connection.reply);
    std::vector<int> descriptors;
    if (connection.scheme == Scheme::shm) {
        proof.offer = make_offer(*arena_);
        descriptors = {arena_->fd(), arena_->wake_fd()};
    }
    connection.stage = Stage::closing;
    if (!send_message(connection.socket.get(), bytes_of(proof), descriptors)) {
        drop(id, {"it hung up during the handshake"});
        return false;
    }
    return true;
}

bool Control::on_proof(Id id, Connection& connection) {
    const auto proof = from_bytes<Proof>(connection.buffer.data());
    Closing closing;
    Verdict verdict = Verdict::welcome;
    if (!check_caller(identity_, connection.hello, connection.reply, proof)) verdict = Verdict::wrong_proof;
    // Two connections may have reached this point together.
    if (verdict == Verdict::welcome && linked_.contains(connection.place)) verdict = Verdict::duplicate;
    closing.verdict = static_cast<std::uint32_t>(verdict);
    std::vector<int> descriptors;
    if (verdict == Verdict::welcome && connection.scheme == Scheme::shm) {
        closing.offer = make_offer(*arena_);
        descriptors = {arena_->fd(), arena_->wake_fd()};
    }
    const bool sent = send_message(connection.socket.get(), bytes_of(closing), descriptors);
    if (!sent || verdict != Verdict::welcome) {
        drop(id, {explain(verdict)});
        return false;
    }
    establish(id, connection, proof.offer);
    return false;
}

bool Control::on_closing(Id id, Connection& connection) {
    const auto closing = from_bytes<Closing>(connection.buffer.data());
    const auto verdict = static_cast<Verdict>(closing.verdict);
    if (verdict != Verdict::welcome) {
        drop(id, {explain(verdict), false, verdict, wire_version});
        return false;
    }
    establish(id, connection, closing.offer);
    return false;
}

void Control::drop(Id id, const Problem& problem) {
    const auto place = connections_.find(id);
    if (place == connections_.end()) return;
    const Connection connection = std::move(place->second);
    connections_.erase(place);
    std::erase(pending_, id);
    if (connection.caller) dial_failed(connection.place, problem);
}

void Control::establish(Id id, Connection& connection, const Offer& offer) {
    Connected connected;
    connected.peer = connection.place.first;
    connected.lane = connection.place.second;
    connected.scheme = connection.scheme;
    if (connection.scheme == Scheme::shm) {
        if (connection.descriptors.size() != 2) {
            drop(id, {"it sent no shared memory"});
            return;
        }
        try {
            const Geometry geometry = geometry_of(offer, identity_.size);
            connected.arena = Arena::map(connection.descriptors[0].get(), geometry, offer.cookie,
                                         std::move(connection.descriptors[1]));
        } catch (const Error& error) {
            const Place place = connection.place;
            connections_.erase(id);
            std::erase(pending_, id);
            dials_.erase(place);
            events_.failed(place.first, error);
            return;
        }
        connected.pid = process_at_other_end(connection.socket.get());
        const Id watch_id = next_id_++;
        watch(connection.socket.get(), EPOLLIN | EPOLLRDHUP, watch_id, EPOLL_CTL_MOD);
        watched_.emplace(watch_id, std::pair(connection.place.first, std::move(connection.socket)));
    } else {
        watch(connection.socket.get(), 0, id, EPOLL_CTL_DEL);
        connected.socket = std::move(connection.socket);
    }
    linked_.insert(connection.place);
    dials_.erase(connection.place);
    connections_.erase(id);
    std::erase(pending_, id);
    events_.connected(std::move(connected));
}

}  // namespace collectives
