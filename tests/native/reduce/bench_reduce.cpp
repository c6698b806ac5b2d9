// Prints how fast the kernels and copies are, per instruction set and size; not a test.
//
// bench_reduce [FILTER]   only lines whose "isa dtype op" contains FILTER
//
// Invariant: figures of one line were measured in turns, each the best of many repetitions, so that a ratio
// within a line holds even where the machine's speed drifts. GB/s counts every byte read or written by the
// program; "copy" is memcpy of one source.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/copy.hpp"
#include "reduce/reduce.hpp"

namespace {

using namespace collectives;
using Clock = std::chrono::steady_clock;

constexpr std::size_t max_sources = 8;
constexpr std::size_t max_bytes = std::size_t{64} << 20;

// Pages of one large mapping: `offset` shifts it as NumPy's arrays are shifted by malloc's header.
std::byte* allocate(std::size_t offset) {
    void* p = mmap(nullptr, max_bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    madvise(p, max_bytes + 4096, MADV_HUGEPAGE);
    std::memset(p, 0, max_bytes + 4096);
    return static_cast<std::byte*>(p) + offset;
}

double once(const std::function<void()>& f, int repetitions) {
    const auto begin = Clock::now();
    for (int i = 0; i < repetitions; ++i) f();
    return std::chrono::duration<double>(Clock::now() - begin).count() / repetitions;
}

// Best seconds per call of each function, measured in turns.
std::vector<double> measure(const std::vector<std::function<void()>>& functions, std::size_t bytes) {
    const int repetitions = static_cast<int>(std::max<std::size_t>(1, (std::size_t{1} << 20) / (bytes + 64)));
    std::vector<double> best(functions.size(), std::numeric_limits<double>::infinity());
    for (int round = 0; round < 25; ++round)
        for (std::size_t f = 0; f < functions.size(); ++f)
            best[f] = std::min(best[f], once(functions[f], repetitions));
    return best;
}

struct Case {
    DType dtype;
    Op op;
};

constexpr Case cases[] = {
    {DType::float32, Op::sum},    {DType::float64, Op::sum},  {DType::bfloat16, Op::sum},
    {DType::float16, Op::sum},    {DType::int32, Op::sum},    {DType::int8, Op::sum},
    {DType::float32, Op::avg},    {DType::bfloat16, Op::avg}, {DType::float32, Op::max},
    {DType::float32, Op::prod},   {DType::int8, Op::prod},    {DType::int64, Op::prod},
    {DType::uint64, Op::min},     {DType::int32, Op::bxor},   {DType::int32, Op::land},
    {DType::complex64, Op::prod}, {DType::boolean, Op::sum},  {DType::int8, Op::avg},
    {DType::int32, Op::avg},      {DType::int64, Op::avg},
};

constexpr std::size_t sizes[] = {8, 64, 1 << 10, 8 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20};

void print_bytes(std::size_t bytes) {
    if (bytes >= 1 << 20)
        std::printf("%7zu Mi", bytes >> 20);
    else if (bytes >= 1 << 10)
        std::printf("%7zu Ki", bytes >> 10);
    else
        std::printf("%7zu B ", bytes);
}

}  // namespace

int main(int argc, char** argv) {
    const std::string filter = argc > 1 ? argv[1] : "";
    std::byte* const dst = allocate(16);
    std::vector<std::byte*> buffers;
    std::vector<const std::byte*> sources;
    for (std::size_t i = 0; i < max_sources; ++i) {
        buffers.push_back(allocate(16 + 1024 * (i + 1)));
        sources.push_back(buffers.back());
    }
    std::printf("%-32s%10s%10s%10s%10s%10s%10s%10s%10s%10s\n", "GB/s", "source", "memcpy", "copy", "copy nt",
                "n=2", "n=3", "n=4", "n=8", "n=2 nt");
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (!has(isa)) continue;
        for (const auto [dtype, op] : cases) {
            const std::string label =
                std::string(name(isa)) + " " + std::string(name(dtype)) + " " + std::string(name(op));
            if (label.find(filter) == std::string::npos) continue;
            const ReduceFn cached = reduce_kernel(dtype, op, Stores::cached, isa);
            const ReduceFn streaming = reduce_kernel(dtype, op, Stores::streaming, isa);
            for (const std::size_t bytes : sizes) {
                const std::size_t count = bytes / size_of(dtype);
                std::vector<std::function<void()>> runs{
                    [&] { std::memcpy(dst, sources[0], bytes); },
                    [&] { copy_bytes(dst, sources[0], bytes); },
                    [&] { copy_streaming(dst, sources[0], bytes); },
                };
                std::vector<double> moved(3, 2.0);
                for (const std::size_t n : {2, 3, 4, 8}) {
                    runs.push_back([=, &sources] { cached(dst, sources.data(), n, count, 1.0 / n); });
                    moved.push_back(static_cast<double>(n + 1));
                }
                runs.push_back([&] { streaming(dst, sources.data(), 2, count, 0.5); });
                moved.push_back(3.0);
                const std::vector<double> seconds = measure(runs, bytes);
                std::printf("%-32s", label.c_str());
                print_bytes(bytes);
                for (std::size_t i = 0; i < seconds.size(); ++i)
                    std::printf("%10.1f", moved[i] * static_cast<double>(bytes) / seconds[i] / 1e9);
                std::printf("   n=2: %.1f ns\n", seconds[3] * 1e9);
                std::fflush(stdout);
            }
        }
    }
}
