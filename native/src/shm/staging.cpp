#include "shm/staging.hpp"

#include "base/cpu.hpp"
#include "base/mechanisms.hpp"

namespace collectives {

Staged StagingCopy::operator()(std::byte* dst, const std::byte* src, std::size_t n, bool on_one_core) {
    if (n < tuning::timed_from) {
        copy_bytes(dst, src, n);
        return Staged::shared;
    }
    const bool streams = uses(Mechanism::streaming) && modes_.next(n) == 1;
    const auto began = Faster::Clock::now();
    copy_by(streams ? Stores::streaming : Stores::cached)(dst, src, n);
    modes_.took(n, streams ? 1 : 0,
                (Faster::Clock::now() - began) * (streams ? tuning::streaming_penalty : 1.0));
    const bool owned = !streams && on_one_core && hands_lines_over() && uses(Mechanism::line_ownership);
    return owned ? Staged::single_core : Staged::shared;
}

void read_staged(Staged how, Stores stores, std::byte* dst, std::byte* src, std::size_t n) {
    if (how == Staged::single_core && stores == Stores::cached) return copy_and_own(dst, src, n);
    copy_by(stores)(dst, src, n);
}

}  // namespace collectives
