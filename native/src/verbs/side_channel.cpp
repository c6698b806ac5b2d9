#include "verbs/side_channel.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace collectives::verbs {

namespace {

constexpr std::byte ready{'R'};
constexpr std::uint32_t goodbye_magic = 0x56465950;  // "PYFV"

}  // namespace

void SideChannel::say_ready() {
    [[maybe_unused]] const auto n = ::send(socket_.get(), &ready, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void SideChannel::say_goodbye(std::uint64_t sent, std::optional<int> lost) {
    const Goodbye last{sent, lost.value_or(-1), goodbye_magic};
    [[maybe_unused]] const auto n = ::send(socket_.get(), &last, sizeof(last), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::shutdown(socket_.get(), SHUT_WR);
}

bool SideChannel::look() {
    bool any = false;
    while (!has_ended_) {
        // One byte more than can come shows whether the peer says more than it may.
        std::array<std::byte, sizeof(buffer_) + 1> bytes;
        const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size() - have_, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
        any = true;
        has_ended_ = n <= 0 || have_ + static_cast<std::size_t>(n) > buffer_.size();
        if (has_ended_) break;
        std::memcpy(buffer_.data() + have_, bytes.data(), static_cast<std::size_t>(n));
        have_ += static_cast<std::size_t>(n);
    }
    is_ready_ = have_ > 0 && buffer_[0] == ready;
    if (have_ == buffer_.size() && !goodbye_) {
        Goodbye last;
        std::memcpy(&last, buffer_.data() + 1, sizeof(last));
        if (last.magic == goodbye_magic) goodbye_ = last;
    }
    return any;
}

}  // namespace collectives::verbs
