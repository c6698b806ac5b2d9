#include "link/sockets.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.hpp"

namespace collectives {

namespace {

constexpr std::size_t most_descriptors = 2;
constexpr int most_questions = 5;         // of keepalive without an answer
constexpr std::uint8_t few_attempts = 3;  // that a busy network may lose

}  // namespace

UniqueFd connect_tcp(const std::string& address, int& error) {
    const std::size_t space = address.rfind(' ');
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (space == std::string::npos || ::getaddrinfo(address.substr(0, space).c_str(),
                                                    address.substr(space + 1).c_str(), &hints, &found) != 0) {
        throw Error(ErrorKind::invalid, "\"" + address + "\" is not a numeric address and a port");
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    error = 0;
    if (!fd || (::connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS))
        error = errno;
    return fd;
}

UniqueFd connect_local(const std::string& name, int& error) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (name.empty() || name.size() > sizeof(address.sun_path) - 1) {
        throw Error(ErrorKind::invalid, "\"" + name + "\" is not the name of a local socket");
    }
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // the leading zero means "abstract"
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    error = 0;
    if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) error = errno;
    return fd;
}

int connect_result(int fd) {
    int error = 0;
    socklen_t length = sizeof(error);
    return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

UniqueFd accept_from(int listener, int& error) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    error = fd ? 0 : errno;
    return fd;
}

void prepare_stream(int fd, bool tcp, std::chrono::nanoseconds silence) {
    if (!tcp) return;
    const auto set = [fd](int level, int name, int value) {
        ::setsockopt(fd, level, name, &value, sizeof(value));
    };
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    if (silence <= std::chrono::nanoseconds(0)) return;
    // Half of the time without a question, then one question a second; one lost answer does not count.
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(silence).count();
    const auto half = static_cast<int>(std::clamp<std::int64_t>(seconds / 2, 1, 7200));
    set(IPPROTO_TCP, TCP_KEEPIDLE, half);
    set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, half / most_questions));
    set(IPPROTO_TCP, TCP_KEEPCNT, std::clamp<int>(half, few_attempts, most_questions));
}

bool is_unanswered(int fd, std::chrono::nanoseconds silence) {
    // Not by TCP_USER_TIMEOUT, which also ends a connection whose peer answers but reads nothing.
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
    const bool insists =
        (info.tcpi_unacked > 0 && info.tcpi_retransmits >= few_attempts) || info.tcpi_probes >= few_attempts;
    return insists && std::chrono::milliseconds(info.tcpi_last_ack_recv) >= silence;
}

void set_interest(int epoll, int fd, std::uint64_t id, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    ::epoll_ctl(epoll, operation, fd, &event);
}

bool stays_on_this_machine(int fd) {
    std::array<sockaddr_storage, 2> ends{};
    std::array<socklen_t, 2> lengths{sizeof(sockaddr_storage), sizeof(sockaddr_storage)};
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&ends[0]), &lengths[0]) != 0 ||
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&ends[1]), &lengths[1]) != 0 ||
        ends[0].ss_family != ends[1].ss_family) {
        return false;
    }
    if (ends[0].ss_family == AF_INET) {
        const auto* v4 = reinterpret_cast<const sockaddr_in*>(ends.data());
        const auto* peer = reinterpret_cast<const sockaddr_in*>(&ends[1]);
        return v4->sin_addr.s_addr == peer->sin_addr.s_addr;
    }
    if (ends[0].ss_family != AF_INET6) return false;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(ends.data());
    const auto* peer = reinterpret_cast<const sockaddr_in6*>(&ends[1]);
    return std::memcmp(&v6->sin6_addr, &peer->sin6_addr, sizeof(in6_addr)) == 0;
}

pid_t process_at_other_end(int fd) {
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0;
    return known ? credentials.pid : 0;
}

void limit_send_buffer(int fd, int bytes) { ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)); }

void do_not_pace(int fd) {
    constexpr std::string_view built_in = "reno";  // available in every kernel, to every process
    ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, built_in.data(), built_in.size());
}

void limit_unsent(int fd, int bytes) {
    ::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
}

bool send_message(int fd, std::span<const std::byte> message, std::span<const int> descriptors) {
    iovec part{const_cast<std::byte*>(message.data()), message.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(most_descriptors * sizeof(int))> control{};
    if (!descriptors.empty()) {
        header.msg_control = control.data();
        header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
        cmsghdr* rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
        std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
    }
    return ::sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

Received receive_message(int fd, std::span<std::byte> room, std::size_t& got,
                         std::vector<UniqueFd>& descriptors) {
    iovec part{room.data(), room.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(most_descriptors * sizeof(int))> control{};
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    got = 0;
    const ssize_t n = ::recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? Received::nothing : Received::end;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            UniqueFd owned(descriptor);
            if (descriptors.size() < most_descriptors) descriptors.push_back(std::move(owned));
        }
    }
    if (n == 0) return Received::end;
    got = static_cast<std::size_t>(n);
    return Received::some;
}

}  // namespace collectives
