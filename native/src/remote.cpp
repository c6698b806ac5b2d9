#include "remote.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace collectives {

bool Remote::read(std::byte* data, std::uint64_t address, std::size_t n) const {
    if (pid_ <= 0) return false;
    while (n > 0) {
        const iovec here{data, n};
        const iovec there{reinterpret_cast<void*>(address), n};
        const ssize_t got = ::process_vm_readv(pid_, &here, 1, &there, 1, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        data += got;
        address += static_cast<std::uint64_t>(got);
        n -= static_cast<std::size_t>(got);
    }
    return true;
}

bool Remote::can_be_read(const std::byte* data, std::size_t n) {
    std::array<std::byte, 2> ends{};
    const iovec here{ends.data(), ends.size()};
    const std::array<iovec, 2> there{
        {{const_cast<std::byte*>(data), 1}, {const_cast<std::byte*>(data + n - 1), 1}}};
    return n > 0 && ::process_vm_readv(::getpid(), &here, 1, there.data(), there.size(), 0) == 2;
}

bool Remote::is_wanted() {
    static const bool wanted = [] {
        const char* const said = std::getenv("COLLECTIVES_PULL");
        return said == nullptr || std::strcmp(said, "0") != 0;
    }();
    return wanted;
}

}  // namespace collectives
