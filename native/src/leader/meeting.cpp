#include "leader/meeting.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <thread>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "link/sockets.hpp"

namespace collectives::leader {

using namespace std::chrono_literals;

namespace {

constexpr auto look_while_meeting = 1ms;

std::string name_for(const Token& token) {
    constexpr std::array digits{'0', '1', '2', '3', '4', '5', '6', '7',
                                '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};
    std::string name = "collectives-leader-";
    for (const std::uint8_t byte : token) {
        name += digits[byte >> 4];
        name += digits[byte & 15];
    }
    return name;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
}

}  // namespace

Token random_token() {
    Token token{};
    if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
        throw_system("getrandom", errno);
    }
    return token;
}

Meeting::Meeting(int size, const Token& token)
    : size_(size), token_(token), peers_(static_cast<std::size_t>(size)) {
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener_) throw_system("socket", errno);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // An abstract name, which begins with a zero and vanishes with the socket.
    const std::string name = name_for(token);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
        throw_system("bind", errno);
    }
    if (::listen(listener_.get(), size) != 0) throw_system("listen", errno);
}

Meeting::Meeting(int rank, int size, const Token& token)
    : rank_(rank), size_(size), token_(token), peers_(1) {}

UniqueFd Meeting::meet(int descriptor, const Patience& patience) {
    const auto rest = [&] {
        patience();
        std::this_thread::sleep_for(look_while_meeting);
    };
    if (rank_ != 0) {
        UniqueFd& leader = peers_.front();
        const std::string name = name_for(token_);
        int error = 0;
        for (leader = connect_local(name, error); error != 0; leader = connect_local(name, error)) {
            if (error != EAGAIN && error != EINTR) throw_system("connect", error);
            rest();
        }
        const Hello hello{token_, rank_};
        while (!send_message(leader.get(), bytes_of(hello))) rest();
        std::vector<UniqueFd> got;
        while (true) {
            std::array<std::byte, 8> room{};
            std::size_t bytes = 0;
            const Received received = receive_message(leader.get(), room, bytes, got);
            if (!got.empty()) return std::move(got.front());
            if (received == Received::end) {
                throw Error(ErrorKind::transport_unavailable, "rank 0 has closed its socket");
            }
            rest();
        }
    }
    // Whoever connects without saying a rank and the token is dropped.
    std::vector<UniqueFd> silent;
    int missing = size_ - 1;
    while (missing > 0) {
        int error = 0;
        for (UniqueFd one = accept_from(listener_.get(), error); one;
             one = accept_from(listener_.get(), error)) {
            silent.push_back(std::move(one));
        }
        std::erase_if(silent, [&](UniqueFd& one) {
            Hello hello{};
            std::size_t bytes = 0;
            std::vector<UniqueFd> none;
            const Received received =
                receive_message(one.get(), std::as_writable_bytes(std::span(&hello, 1)), bytes, none);
            if (received == Received::nothing) return false;
            if (received == Received::end || bytes != sizeof(hello) || hello.token != token_ ||
                hello.rank < 1 || hello.rank >= size_) {
                return true;
            }
            UniqueFd& place = peers_[static_cast<std::size_t>(hello.rank)];
            if (place) return true;
            const std::uint64_t nothing = 0;
            if (!send_message(one.get(), bytes_of(nothing), std::span(&descriptor, 1))) return true;
            place = std::move(one);
            --missing;
            return true;
        });
        if (missing > 0) rest();
    }
    listener_.reset();
    return {};
}

bool Meeting::send(std::uint64_t buffer, int descriptor) const {
    return send_message(peers_.front().get(), bytes_of(buffer), std::span(&descriptor, 1));
}

void Meeting::receive(int rank) {
    while (true) {
        std::uint64_t buffer = 0;
        std::size_t bytes = 0;
        std::vector<UniqueFd> got;
        const Received received = receive_message(peers_[static_cast<std::size_t>(rank)].get(),
                                                  std::as_writable_bytes(std::span(&buffer, 1)), bytes, got);
        if (received != Received::some) return;
        if (bytes == sizeof(buffer) && got.size() == 1) {
            sent_.push_back({rank, buffer, std::move(got.front())});
        }
    }
}

std::optional<UniqueFd> Meeting::take(int rank, std::uint64_t buffer) {
    receive(rank);
    const auto found = std::ranges::find_if(
        sent_, [&](const Sent& one) { return one.rank == rank && one.buffer == buffer; });
    if (found == sent_.end()) return std::nullopt;
    UniqueFd descriptor = std::move(found->descriptor);
    sent_.erase(found);
    return descriptor;
}

std::vector<UniqueFd> Meeting::release() {
    std::vector<UniqueFd> sockets;
    for (UniqueFd& one : peers_) {
        if (one) sockets.push_back(std::move(one));
    }
    peers_.clear();
    return sockets;
}

}  // namespace collectives::leader
