// The handshakes of the control thread, see link/hello.hpp: one function for each message.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/control.hpp"
#include "link/frame.hpp"

namespace collectives {

namespace {

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

void Control::on_ready(Id id) {
    Connection& connection = connections_.at(id);
    if (connection.stage == Stage::connect) {
        if (const int error = connect_result(connection.socket.get()); error != 0) {
            drop(id, {errno_text(error), error == ECONNREFUSED});
            return;
        }
        connection.hello =
            make_hello(connection.group->identity, connection.channel.first, connection.channel.second);
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
        case Stage::group:
            drop(id, {"it did not wait for an answer"});
            return false;
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
    // Whoever speaks another protocol is known by the first bytes.
    const bool begins = connection.stage == Stage::hello || connection.stage == Stage::reply;
    if (connection.have >= sizeof(std::uint64_t) && begins &&
        from_bytes<std::uint64_t>(connection.buffer.data()) != hello_magic) {
        drop(id, {"it does not speak this protocol"});
        return false;
    }
    if (connection.have < want) return true;
    connection.have = 0;
    switch (connection.stage) {
        case Stage::connect:
        case Stage::group:
            return false;
        case Stage::hello:
            connection.hello = from_bytes<Hello>(connection.buffer.data());
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

Verdict Control::verdict_on_unknown(const Hello& hello) const {
    if (hello.version != wire_version) return Verdict::other_version;
    if (expected_.contains(hello.group)) return Verdict::welcome;
    const bool ended = std::find(ended_.begin(), ended_.end(), hello.group) != ended_.end();
    return ended ? Verdict::closed : Verdict::other_group;
}

bool Control::on_hello(Id id, Connection& connection) {
    const Hello& hello = connection.hello;
    Registration* group = find(hello.group);
    Verdict verdict = group != nullptr ? judge(group->identity, hello) : verdict_on_unknown(hello);
    if (verdict == Verdict::welcome && (group == nullptr || !group->is_ready(connection.scheme))) {
        connection.stage = Stage::group;
        return false;
    }
    const Channel channel(hello.from, hello.lane);
    if (verdict == Verdict::welcome && connection.scheme != Scheme::tcp && channel.second > 0) {
        verdict = Verdict::wrong_lane;
    }
    if (verdict == Verdict::welcome && group->linked.contains(channel)) verdict = Verdict::duplicate;
    connection.reply = make_reply(group != nullptr ? group->identity : first_, hello, verdict);
    const bool sent = send_message(connection.socket.get(), bytes_of(connection.reply));
    if (!sent || verdict != Verdict::welcome) {
        drop(id, {explain(verdict)});
        return false;
    }
    connection.group = group;
    connection.channel = channel;
    connection.stage = Stage::proof;
    return true;
}

void Control::admit_waiting(const GroupId& group) {
    std::vector<Id> waiting;
    for (const auto& [id, connection] : connections_) {
        if (connection.stage == Stage::group && connection.hello.group == group) waiting.push_back(id);
    }
    for (const Id id : waiting) on_hello(id, connections_.at(id));
}

bool Control::on_reply(Id id, Connection& connection) {
    const Registration& group = *connection.group;
    connection.reply = from_bytes<Reply>(connection.buffer.data());
    const Verdict verdict = judge(group.identity, connection.hello, connection.reply);
    if (verdict != Verdict::welcome) {
        drop(id, {explain(verdict), false, verdict, connection.reply.hello.version});
        return false;
    }
    Proof proof;
    proof.proof = prove_caller(group.identity, connection.hello, connection.reply);
    std::vector<int> descriptors;
    if (connection.scheme == Scheme::shm) {
        proof.offer = make_offer(*group.arena);
        descriptors = {group.arena->fd(), group.arena->wake_fd()};
    }
    connection.stage = Stage::closing;
    if (!send_message(connection.socket.get(), bytes_of(proof), descriptors)) {
        drop(id, {"it hung up during the handshake"});
        return false;
    }
    return true;
}

bool Control::on_proof(Id id, Connection& connection) {
    const Registration& group = *connection.group;
    const auto proof = from_bytes<Proof>(connection.buffer.data());
    Closing closing;
    Verdict verdict = Verdict::welcome;
    if (!check_caller(group.identity, connection.hello, connection.reply, proof)) {
        verdict = Verdict::wrong_proof;
    }
    // Two connections may have reached this point together.
    if (verdict == Verdict::welcome && group.linked.contains(connection.channel)) {
        verdict = Verdict::duplicate;
    }
    closing.verdict = static_cast<std::uint32_t>(verdict);
    std::vector<int> descriptors;
    if (verdict == Verdict::welcome && connection.scheme == Scheme::shm) {
        closing.offer = make_offer(*group.arena);
        connection.watched = !is_watched(group.job_rank(connection.channel.first));
        closing.watched = connection.watched ? 1 : 0;
        descriptors = {group.arena->fd(), group.arena->wake_fd()};
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
    connection.watched = closing.watched != 0;
    establish(id, connection, closing.offer);
    return false;
}

void Control::erase(Id id) {
    connections_.erase(id);
    std::erase(pending_, id);
}

void Control::drop(Id id, const Problem& problem) {
    const auto place = connections_.find(id);
    if (place == connections_.end()) return;
    const Connection connection = std::move(place->second);
    erase(id);
    if (connection.caller) dial_failed(*connection.group, connection.channel, problem);
}

void Control::establish(Id id, Connection& connection, const Offer& offer) {
    Registration& group = *connection.group;
    const Channel channel = connection.channel;
    Connected connected;
    connected.peer = channel.first;
    connected.lane = channel.second;
    connected.scheme = connection.scheme;
    if (connection.scheme == Scheme::shm) {
        if (connection.descriptors.size() != 2) {
            drop(id, {"it sent no shared memory"});
            return;
        }
        connected.pid = process_at_other_end(connection.socket.get());
        // Also where the memory cannot be mapped: other communicators notice by it when the peer ends.
        if (connection.watched) {
            const Id watch_id = next_id_++;
            watch(connection.socket.get(), EPOLLIN | EPOLLRDHUP, watch_id, EPOLL_CTL_MOD);
            watched_.emplace(watch_id,
                             std::pair(group.job_rank(channel.first), std::move(connection.socket)));
        }
        try {
            const Geometry geometry = geometry_of(offer, group.identity.size);
            connected.arena = Arena::map(connection.descriptors[0].get(), geometry, offer.cookie,
                                         std::move(connection.descriptors[1]));
        } catch (const Error& error) {
            erase(id);
            group.dials.erase(channel);
            group.events.failed(channel.first, error);
            return;
        }
    } else {
        watch(connection.socket.get(), 0, id, EPOLL_CTL_DEL);
        connected.socket = std::move(connection.socket);
    }
    group.linked.insert(channel);
    group.dials.erase(channel);
    erase(id);
    group.events.connected(std::move(connected));
}

}  // namespace collectives
