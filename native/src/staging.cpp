#include "staging.hpp"

#include <algorithm>
#include <bit>
#include <chrono>

#include "copy.hpp"

namespace collectives {

namespace {

constexpr std::size_t smallest_timed = 8 << 10;  // below, streaming stores do not pay anywhere
constexpr std::uint32_t retry_after = 128;       // copies until the slower method is tried again
constexpr double weight = 0.25;                  // of a new sample
constexpr double disturbed = 1.0 / 16;           // a sample this far below the best was interrupted

}  // namespace

void StagingCopy::operator()(std::byte* dst, const std::byte* src, std::size_t n) {
    if (n < smallest_timed) return copy_bytes(dst, src, n);
    const auto size_class =
        std::min<std::size_t>(std::bit_width(n / smallest_timed) / 2, choices_.size() - 1);
    Choice& choice = choices_[size_class];
    std::size_t method = choice.rate[1] > choice.rate[0] ? 1 : 0;
    if (choice.rate[1 - method] == 0 || ++choice.copies % retry_after == 0) method = 1 - method;

    const auto begin = std::chrono::steady_clock::now();
    if (method == 0) {
        copy_bytes(dst, src, n);
    } else {
        copy_streaming(dst, src, n);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    const double rate = static_cast<double>(n) / std::max(taken.count(), 1e-9);
    double& known = choice.rate[method];
    if (known == 0) {
        known = rate;
    } else if (rate > std::max(choice.rate[0], choice.rate[1]) * disturbed) {
        known += weight * (rate - known);
    }
}

}  // namespace collectives
