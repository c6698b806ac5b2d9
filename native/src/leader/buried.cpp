#include "leader/buried.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <mutex>

namespace collectives::leader {

namespace {

struct Graves {
    std::mutex mutex;
    std::vector<Grave> all;
};

Graves& graves() {
    static Graves& one = *new Graves;  // the driver may be gone when objects of the process end
    return one;
}

bool has_ended(const UniqueFd& socket) {
    std::array<char, 64> unread{};
    ssize_t got = 0;
    do {
        got = ::recv(socket.get(), unread.data(), unread.size(), MSG_DONTWAIT);
    } while (got > 0);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

std::size_t unearth() {
    std::vector<Grave> over;  // blocks return to their heap without the lock
    Graves& g = graves();
    const std::lock_guard lock(g.mutex);
    std::erase_if(g.all, [&](Grave& grave) {
        std::erase_if(grave.sockets, has_ended);
        std::erase_if(grave.pending, [](const auto& signal) { return signal->is_set(); });
        if (!grave.sockets.empty() || !grave.pending.empty()) return false;
        over.push_back(std::move(grave));
        return true;
    });
    return g.all.size();
}

void bury(Grave grave) {
    for (const UniqueFd& socket : grave.sockets) ::shutdown(socket.get(), SHUT_WR);
    {
        Graves& g = graves();
        const std::lock_guard lock(g.mutex);
        g.all.push_back(std::move(grave));
    }
    unearth();
}

}  // namespace collectives::leader
