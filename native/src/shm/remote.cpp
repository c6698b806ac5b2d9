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

namespace collectives {

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t moved_at_once = 64 << 10;  // through memory in between: stays in the cache

// What is found first decides how small messages go for the life of the process, and others may start at the
// same time, so it is tried often. Quick is the kernel if it reads that many bytes a second some times, or,
// where the processor is slow just now, at that share of the speed of a copy that it need not look up pages
// for.
constexpr int tries_first = 200;
constexpr int tries_later = 20;
constexpr std::uint64_t longest_interval = std::uint64_t{4} << 30;
constexpr int enough = 10;
constexpr double quick_rate = 14e9;
constexpr double quick_share = 0.38;

// `work` for each part of n bytes, until it fails: where the part begins, and how long it is.
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
    return begin + (address + page / 2 - reinterpret_cast<std::uintptr_t>(begin)) % page;
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
    // From both ends: they are less than a line apart.
    return half_a_page_off(between_.get(), address);
}

void ReadingPace::look(int tries) {
    const std::vector<std::byte> there(moved_at_once);
    std::vector<std::byte> here(moved_at_once + page);
    const auto address = reinterpret_cast<std::uintptr_t>(there.data());
    std::byte* const data = half_a_page_off(here.data(), address);
    Remote self(::getpid());
    constexpr Seconds quickly(moved_at_once / quick_rate);
    for (int i = 0; i < tries && quick_ < enough; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        if (!self.read(data, address, there.size())) return;
        const auto read = std::chrono::steady_clock::now();
        copy_bytes(data, there.data(), there.size());
        const Seconds taken = read - begin;
        if (taken <= quickly) ++quick_;
        least_ = std::min(least_, taken);
        least_of_copy_ = std::min<Seconds>(least_of_copy_, std::chrono::steady_clock::now() - read);
    }
}

bool ReadingPace::is_quick() const {
    if (least_ == Seconds::max()) return false;
    return quick_ == enough || least_of_copy_ >= quick_share * least_;
}

bool SecondLook::is_due(std::uint64_t n) {
    since_ += n;
    if (since_ < interval_) return false;
    since_ = 0;
    interval_ = std::min(2 * interval_, longest_interval);
    return true;
}

bool SecondLook::finds_quick() {
    pace_.look(tries_later);
    return pace_.is_quick();
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
    static const bool quick = [] {
        ReadingPace pace;
        pace.look(tries_first);
        return pace.is_quick();
    }();
    return quick ? Reads::quickly : Reads::slowly;
}

}  // namespace collectives
