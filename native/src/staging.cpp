#include "staging.hpp"

#include "copy.hpp"

namespace collectives {

void StagingCopy::operator()(std::byte* dst, const std::byte* src, std::size_t n) {
    if (n < smallest_timed) return copy_bytes(dst, src, n);
    const std::size_t way = faster_.next(n);
    const auto began = Faster::Clock::now();
    if (way == 0) {
        copy_bytes(dst, src, n);
    } else {
        copy_streaming(dst, src, n);
    }
    faster_.took(n, way, Faster::Clock::now() - began);
}

}  // namespace collectives
