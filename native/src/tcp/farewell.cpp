#include "tcp/farewell.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>

namespace collectives {

namespace {

// The number arrives together with the end of the data connections, unless a packet has to be sent again.
constexpr int patience_ms = 500;

struct Word {
    std::uint32_t magic = 0;
    std::int32_t lost = -1;
};
static_assert(sizeof(Word) == 8);

constexpr std::uint32_t word_magic = 0x57465950;  // "PYFW"

}  // namespace

void Farewell::say(std::optional<int> lost) {
    if (lost) {
        const Word word{word_magic, *lost};
        [[maybe_unused]] const auto n =
            ::send(socket_.get(), &word, sizeof(word), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    ::shutdown(socket_.get(), SHUT_WR);
}

std::optional<int> Farewell::hear() const {
    pollfd polled{socket_.get(), POLLIN, 0};
    if (::poll(&polled, 1, patience_ms) <= 0) return std::nullopt;
    Word word;
    const ssize_t n = ::recv(socket_.get(), &word, sizeof(word), MSG_PEEK | MSG_DONTWAIT);
    if (n != sizeof(word) || word.magic != word_magic || word.lost < 0) return std::nullopt;
    return word.lost;
}

}  // namespace collectives
