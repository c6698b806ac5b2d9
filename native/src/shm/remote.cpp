#include "shm/remote.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/copy.hpp"
#include "base/mechanisms.hpp"
#include "base/page.hpp"
#include "shm/tuning.hpp"

namespace collectives {

namespace {

constexpr std::size_t moved_at_once = 64 << 10;  // bytes that go through the buffer at a time

// Calls `work(begin, length)` for each part of n bytes, until a call fails.
template <typename Work>
bool in_parts(std::size_t n, Work work) {
    for (std::size_t at = 0; at < n; at += moved_at_once) {
        if (!work(at, std::min(n - at, moved_at_once))) return false;
    }
    return true;
}

// The first byte from `begin` on that is half a page from the address, modulo a page, so that copies from
// there are fast.
std::byte* half_a_page_off(std::byte* begin, std::uint64_t address) {
    return begin + (address + page_size / 2 - reinterpret_cast<std::uintptr_t>(begin)) % page_size;
}

// Whether the kernel reads this process's own memory at the required share of the speed of a copy. The
// fastest of many tries counts, since other processes may be starting at the same time.
bool reads_quickly() {
    using Clock = std::chrono::steady_clock;
    const std::vector<std::byte> there(moved_at_once);
    std::vector<std::byte> here(moved_at_once + page_size);
    const auto address = reinterpret_cast<std::uintptr_t>(there.data());
    std::byte* const data = half_a_page_off(here.data(), address);
    Remote self(::getpid());
    auto read = Clock::duration::max();
    auto copied = Clock::duration::max();
    for (int i = 0; i < tuning::reading_tries; ++i) {
        const auto begin = Clock::now();
        if (!self.read(data, address, there.size())) return false;
        const auto middle = Clock::now();
        copy_bytes(data, there.data(), there.size());
        read = std::min(read, middle - begin);
        copied = std::min(copied, Clock::now() - middle);
    }
    return copied >= tuning::quick_share * std::chrono::duration<double>(read);
}

}  // namespace

bool Remote::read(std::byte* data, std::uint64_t address, std::size_t n) {
    if (n < page_size || !copies_slowly(reinterpret_cast<std::uintptr_t>(data), address)) {
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
    if (n < page_size || !copies_slowly(address, reinterpret_cast<std::uintptr_t>(data))) {
        return move(::process_vm_writev, const_cast<std::byte*>(data), address, n);
    }
    std::byte* const between = this->between(address);
    return in_parts(n, [&](std::size_t at, std::size_t part) {
        copy_bytes(between, data + at, part);
        return move(::process_vm_writev, between, address + at, part);
    });
}

std::byte* Remote::between(std::uint64_t address) {
    if (!between_) between_ = std::make_unique_for_overwrite<std::byte[]>(moved_at_once + page_size);
    // Half a page from both addresses, which are less than a cache line apart, modulo a page.
    return half_a_page_off(between_.get(), address);
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
    const char* const set = std::getenv("COLLECTIVES_PULL");
    const std::string_view value = set == nullptr ? "" : set;
    if (value == "0" || !uses(Mechanism::cma)) return Reads::never;
    if (value == "1") return Reads::quickly;
    static const bool quick = reads_quickly();
    return quick ? Reads::quickly : Reads::slowly;
}

}  // namespace collectives
