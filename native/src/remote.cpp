#include "remote.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "copy.hpp"

namespace collectives {

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t moved_at_once = 64 << 10;  // through memory in between: stays in the cache

// What is found holds for the life of the process, and others may start at the same time, so it is tried
// often. Quick is the kernel if it reads that many bytes a second some times, or, where the processor is slow
// just now, at that share of the speed of a copy that it need not look up pages for.
constexpr int tries = 200;
constexpr int enough = 10;
constexpr double quick_rate = 14e9;
constexpr double quick_share = 0.42;

// `work` for each part of n bytes, until it fails: where the part begins, and how long it is.
template <typename Work>
bool in_parts(std::size_t n, Work work) {
    for (std::size_t at = 0; at < n; at += moved_at_once) {
        if (!work(at, std::min(n - at, moved_at_once))) return false;
    }
    return true;
}

}  // namespace

bool Remote::read(std::byte* data, std::uint64_t address, std::size_t n) {
    if (n < page || !copies_slowly(reinterpret_cast<std::uintptr_t>(data), address)) {
        return move(::process_vm_readv, data, address, n);
    }
    std::byte* const between = this->between(address);
    return in_parts(n, [&](std::size_t at, std::size_t part) {
        if (!move(::process_vm_readv, between, address + at, part)) return false;
        copy_bytes(data + at, between, part);
        return true;
    });
}

bool Remote::write(const std::byte* data, std::uint64_t address, std::size_t n) {
    if (n < page || !copies_slowly(address, reinterpret_cast<std::uintptr_t>(data))) {
        return move(::process_vm_writev, const_cast<std::byte*>(data), address, n);
    }
    std::byte* const between = this->between(address);
    return in_parts(n, [&](std::size_t at, std::size_t part) {
        copy_bytes(between, data + at, part);
        return move(::process_vm_writev, between, address + at, part);
    });
}

std::byte* Remote::between(std::uint64_t address) {
    if (!between_) between_ = std::make_unique_for_overwrite<std::byte[]>(moved_at_once + page);
    // Half a page from both ends, modulo a page: they are less than a line apart.
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(between_.get());
    return between_.get() + (address + page / 2 - begin) % page;
}

bool Remote::is_quick() {
    const std::vector<std::byte> there(moved_at_once);
    const auto address = reinterpret_cast<std::uintptr_t>(there.data());
    std::byte* const data = between(address);
    using Seconds = std::chrono::duration<double>;
    constexpr Seconds quickly(moved_at_once / quick_rate);
    Seconds least = Seconds::max();
    Seconds least_of_copy = Seconds::max();
    int quick = 0;
    for (int i = 0; i < tries && quick < enough; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        if (!move(::process_vm_readv, data, address, there.size())) return false;
        const auto read = std::chrono::steady_clock::now();
        copy_bytes(data, there.data(), there.size());
        const Seconds taken = read - begin;
        if (taken <= quickly) ++quick;
        least = std::min(least, taken);
        least_of_copy = std::min<Seconds>(least_of_copy, std::chrono::steady_clock::now() - read);
    }
    return quick == enough || least_of_copy >= quick_share * least;
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

Reads Remote::ours() {
    const char* const said = std::getenv("COLLECTIVES_PULL");
    const std::string_view value = said == nullptr ? "" : said;
    if (value == "0") return Reads::never;
    if (value == "1") return Reads::quickly;
    static const bool quick = Remote(::getpid()).is_quick();
    return quick ? Reads::quickly : Reads::slowly;
}

}  // namespace collectives
