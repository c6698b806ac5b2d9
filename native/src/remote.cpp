#include "remote.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace collectives {

bool Remote::read(std::byte* data, std::uint64_t address, std::size_t n) const {
    return move(::process_vm_readv, data, address, n);
}

bool Remote::write(const std::byte* data, std::uint64_t address, std::size_t n) const {
    return move(::process_vm_writev, const_cast<std::byte*>(data), address, n);
}

template <typename Call>
bool Remote::move(Call call, std::byte* data, std::uint64_t address, std::size_t n) const {
    if (pid_ <= 0) return false;
    while (n > 0) {
        const iovec here{data, n};
        const iovec there{reinterpret_cast<void*>(address), n};
        const ssize_t moved = call(pid_, &here, 1, &there, 1, 0);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return false;
        data += moved;
        address += static_cast<std::uint64_t>(moved);
        n -= static_cast<std::size_t>(moved);
    }
    return true;
}

bool Remote::is_wanted() {
    static const bool wanted = [] {
        const char* const said = std::getenv("COLLECTIVES_PULL");
        return said == nullptr || std::strcmp(said, "0") != 0;
    }();
    return wanted;
}

}  // namespace collectives
