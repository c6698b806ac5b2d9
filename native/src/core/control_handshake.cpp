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

// Sends message and offer by one call, so that descriptors arrive with the first byte.
template <typename T>
bool send_with_offer(int fd, const T& message, const Offer& offer) {
    std::vector<std::byte> all(bytes_of(message).begin(), bytes_of(message).end());
    all.insert(all.end(), offer.bytes.begin(), offer.bytes.end());
    return send_message(fd, all, offer.descriptors);
}

// The head of the offer that follows a message; empty if the message is not complete.
template <typename T>
OfferHead head_behind(const std::byte* data, std::size_t have) {
    return have < sizeof(T) ? OfferHead{} : from_bytes<T>(data).offer;
}

}  // namespace

void Control::on_ready(Id id) {
    Handshake& connection = connections_.at(id);
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

bool Control::receive(Id id, Handshake& connection) {
    std::size_t want = 0;
    OfferHead offer;
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
            offer = head_behind<Proof>(connection.buffer.data(), connection.have);
            want = sizeof(Proof) + offer.length;
            break;
        case Stage::closing:
            offer = head_behind<Closing>(connection.buffer.data(), connection.have);
            want = sizeof(Closing) + offer.length;
            break;
    }
    if (!offer.is_possible()) {
        drop(id, {"it offers more than a handshake carries"});
        return false;
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
    // A peer with another protocol is recognised by its first bytes.
    const bool begins = connection.stage == Stage::hello || connection.stage == Stage::reply;
    if (connection.have >= sizeof(std::uint64_t) && begins &&
        from_bytes<std::uint64_t>(connection.buffer.data()) != hello_magic) {
        drop(id, {"it does not speak this protocol"});
        return false;
    }
    if (connection.have < want) return true;
    // The size of the offer that follows the message is known only now.
    const bool offers = connection.stage == Stage::proof || connection.stage == Stage::closing;
    if (offers && offer.length == 0) {
        const auto head = connection.stage == Stage::proof
                              ? head_behind<Proof>(connection.buffer.data(), connection.have)
                              : head_behind<Closing>(connection.buffer.data(), connection.have);
        if (head.length > 0) return true;
    }
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

bool Control::on_hello(Id id, Handshake& connection) {
    const Hello& hello = connection.hello;
    Registration* group = find(hello.group);
    Verdict verdict = group != nullptr ? judge(group->identity, hello) : verdict_on_unknown(hello);
    if (verdict == Verdict::welcome &&
        (group == nullptr || group->transport(connection.transport) == nullptr)) {
        connection.stage = Stage::group;
        return false;
    }
    const Channel channel(hello.from, hello.connection);
    Transport* const transport =
        verdict == Verdict::welcome ? group->transport(connection.transport) : nullptr;
    if (transport != nullptr && channel.second >= transport->connections())
        verdict = Verdict::wrong_connection;
    if (verdict == Verdict::welcome && group->linked.contains(channel)) verdict = Verdict::duplicate;
    connection.reply = make_reply(group != nullptr ? group->identity : first_, hello, verdict);
    const bool sent = send_message(connection.socket.get(), bytes_of(connection.reply));
    if (!sent || verdict != Verdict::welcome) {
        drop(id, {explain(verdict)});
        return false;
    }
    connection.group = group;
    connection.channel = channel;
    connection.by = transport;
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

bool Control::on_reply(Id id, Handshake& connection) {
    const Registration& group = *connection.group;
    connection.reply = from_bytes<Reply>(connection.buffer.data());
    const Verdict verdict = judge(group.identity, connection.hello, connection.reply);
    if (verdict != Verdict::welcome) {
        drop(id, {explain(verdict), false, verdict, connection.reply.hello.version});
        return false;
    }
    Offer offer;
    try {
        offer = connection.by->offer(connection.channel.first, connection.channel.second);
        connection.proof =
            prove_caller(group.identity, connection.hello, connection.reply, head_of(offer), offer.bytes);
    } catch (const Error& error) {
        fail(id, error);
        return false;
    }
    connection.stage = Stage::closing;
    // Once the peer has the proof it may have made the link, and would refuse another call. It answers, or
    // hangs up after its own deadline.
    connection.deadline = Clock::time_point::max();
    if (!send_with_offer(connection.socket.get(), connection.proof, offer)) {
        drop(id, {"it hung up during the handshake"});
        return false;
    }
    return true;
}

bool Control::on_proof(Id id, Handshake& connection) {
    const Registration& group = *connection.group;
    connection.proof = from_bytes<Proof>(connection.buffer.data());
    const std::span<const std::byte> theirs = offer_behind(connection, sizeof(Proof));
    Verdict verdict = Verdict::welcome;
    if (!check_caller(group.identity, connection.hello, connection.reply, connection.proof, theirs)) {
        verdict = Verdict::wrong_proof;
    }
    // Two connections for the same link may have reached this point at the same time.
    if (verdict == Verdict::welcome && group.linked.contains(connection.channel)) {
        verdict = Verdict::duplicate;
    }
    Closing closing;
    closing.verdict = static_cast<std::uint32_t>(verdict);
    Offer offer;
    if (verdict == Verdict::welcome) {
        try {
            offer = connection.by->offer(connection.channel.first, connection.channel.second);
            const bool kept = !connection.by->capabilities().takes_sockets;
            connection.watched = kept && !is_watched(group.job_rank(connection.channel.first));
            closing = close_with(group.identity, connection.hello, connection.reply, connection.proof,
                                 connection.watched, head_of(offer), offer.bytes);
        } catch (const Error& error) {
            fail(id, error);
            return false;
        }
    }
    const bool sent = send_with_offer(connection.socket.get(), closing, offer);
    if (!sent || verdict != Verdict::welcome) {
        drop(id, {explain(verdict)});
        return false;
    }
    establish(id, connection, connection.proof.offer, theirs);
    return false;
}

bool Control::on_closing(Id id, Handshake& connection) {
    const auto closing = from_bytes<Closing>(connection.buffer.data());
    const auto verdict = static_cast<Verdict>(closing.verdict);
    if (verdict != Verdict::welcome) {
        drop(id, {explain(verdict), false, verdict, wire_version});
        return false;
    }
    const std::span<const std::byte> theirs = offer_behind(connection, sizeof(Closing));
    if (!check_closing(connection.group->identity, connection.hello, connection.reply, connection.proof,
                       closing, theirs)) {
        drop(id, {explain(Verdict::wrong_proof), false, Verdict::wrong_proof, wire_version});
        return false;
    }
    connection.watched = closing.watched != 0;
    establish(id, connection, closing.offer, theirs);
    return false;
}

std::span<const std::byte> Control::offer_behind(const Handshake& connection, std::size_t message) {
    const auto head = message == sizeof(Proof) ? from_bytes<Proof>(connection.buffer.data()).offer
                                               : from_bytes<Closing>(connection.buffer.data()).offer;
    return std::span(connection.buffer).subspan(message, head.length);
}

void Control::fail(Id id, const Error& error) {
    Handshake& connection = connections_.at(id);
    Registration& group = *connection.group;
    const Channel channel = connection.channel;
    erase(id);
    group.dials.erase(channel);
    group.events.failed(channel.first, error);
}

void Control::erase(Id id) {
    connections_.erase(id);
    std::erase(pending_, id);
}

void Control::drop(Id id, const Problem& problem) {
    const auto place = connections_.find(id);
    if (place == connections_.end()) return;
    const Handshake connection = std::move(place->second);
    erase(id);
    if (connection.caller) dial_failed(*connection.group, connection.channel, problem);
}

void Control::establish(Id id, Handshake& connection, const OfferHead& head,
                        std::span<const std::byte> offer) {
    Registration& group = *connection.group;
    const Channel channel = connection.channel;
    if (connection.descriptors.size() != head.descriptors) {
        drop(id, {"descriptors that it offered did not come"});
        return;
    }
    Connected connected;
    connected.peer = channel.first;
    connected.number = channel.second;
    connected.transport = connection.by;
    connected.connection.offer = {
        head.version, {offer.begin(), offer.end()}, std::move(connection.descriptors), {}};
    if (connection.by->meeting() == Meeting::local) {
        connected.connection.pid = process_at_other_end(connection.socket.get());
    }
    if (connection.by->capabilities().takes_sockets) {
        watch(connection.socket.get(), 0, id, EPOLL_CTL_DEL);
        connected.connection.socket = std::move(connection.socket);
    } else if (connection.watched) {
        // Watched also if no link is made, because other communicators notice by it that the peer has ended.
        const Id watch_id = next_id_++;
        watch(connection.socket.get(), EPOLLIN | EPOLLRDHUP, watch_id, EPOLL_CTL_MOD);
        watched_.emplace(watch_id, std::pair(group.job_rank(channel.first), std::move(connection.socket)));
    }
    group.linked.insert(channel);
    group.dials.erase(channel);
    erase(id);
    group.events.connected(std::move(connected));
}

}  // namespace collectives
