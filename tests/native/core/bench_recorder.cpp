// What recording costs an operation: all that an operation of one wait does, and the reads of the clock in
// it.
#include <algorithm>
#include <cstdio>

#include "core/recorder.hpp"

using namespace collectives;

namespace {

template <typename Work>
double nanoseconds_each(Work work) {
    // Short rounds, of which some are not interrupted.
    constexpr int repeats = 2'000;
    double best = 1e9;
    for (int round = 0; round < 5'000; ++round) {
        const std::uint64_t began = ticks::monotonic();
        for (int i = 0; i < repeats; ++i) work(i);
        best = std::min(best, static_cast<double>(ticks::monotonic() - began) / repeats);
    }
    return best;
}

}  // namespace

int main() {
    Recorder recorder;
    Call call;
    volatile std::uint64_t sink = 0;
    const double clock = nanoseconds_each([&](int) { sink = ticks::now(); });
    const double all = nanoseconds_each([&](int i) {
        call.sequence = static_cast<std::uint64_t>(i);
        const std::uint64_t begun = ticks::now();
        const std::uint64_t number = recorder.add(call, {}, begun, "board", begun);
        const std::uint64_t since = ticks::now();
        recorder.wait(number, 0, since);
        const std::uint64_t ended = ticks::now();
        recorder.wait(number, ended - since, 0);
        recorder.first(number, begun);
        recorder.finish(number, "board", 8, 8, ended);
    });
    std::printf("%s: a read of the clock %.1f ns, an operation with one wait %.1f ns (three reads)\n",
                ticks::from_counter ? "processor's counter" : "CLOCK_MONOTONIC", clock, all);
}
