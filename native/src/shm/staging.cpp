#include "shm/staging.hpp"

#include <algorithm>
#include <chrono>

#include "base/copy.hpp"
#include "base/cpu.hpp"

namespace collectives {

namespace {

constexpr float weight = 0.25F;  // of a new sample
constexpr float worst = 2.0F;    // times what is known: who reads may have been interrupted
// So often are the reader's costs looked at: its core has just written them.
constexpr std::uint32_t asked_after = 16;

}  // namespace

bool ReadCosts::are_noted(Staged how, std::size_t n) {
    return how >= Staged::cached && how <= Staged::handed_over && n >= smallest_noted;
}

void ReadCosts::note(Staged how, std::size_t staged, std::size_t n, Faster::Clock::duration taken) {
    const std::size_t way = how == Staged::streamed ? 1 : 0;
    std::atomic<float>& cost = costs_[Faster::class_of(staged, StagingCopy::smallest_timed)][way];
    const float known = cost.load(std::memory_order_relaxed);
    const auto found = std::chrono::duration<float>(taken).count() / static_cast<float>(n);
    const float kept = known > 0 ? known + weight * (std::min(found, known * worst) - known) : found;
    cost.store(kept, std::memory_order_relaxed);
}

std::array<double, 2> ReadCosts::of(std::size_t size_class) const {
    return {costs_[size_class][0].load(std::memory_order_relaxed),
            costs_[size_class][1].load(std::memory_order_relaxed)};
}

void read_staged(Staged how, Stores stores, std::byte* dst, std::byte* src, std::size_t n) {
    if (how == Staged::handed_over) return copy_and_take(stores, dst, src, n);
    if (how == Staged::streamed) return copy_from_far(stores, dst, src, n);
    copy_by(stores)(dst, src, n);
}

Staged StagingCopy::operator()(std::byte* dst, const std::byte* src, std::size_t n, const ReadCosts& reader,
                               bool on_one_core, Second second) {
    if (n < smallest_timed) {
        copy_twice(Stores::cached, dst, second, src, n);
        return Staged::unsaid;
    }
    if (uses_++ % asked_after == 0) {
        for (std::size_t c = 0; c < ReadCosts::classes; ++c) faster_.add(c, reader.of(c));
    }
    const std::size_t way = faster_.next(n);
    const auto began = Faster::Clock::now();
    copy_twice(way == 0 ? Stores::cached : Stores::streaming, dst, second, src, n);
    const auto taken = Faster::Clock::now() - began;
    faster_.took(n, way, second.place == nullptr ? taken : taken / 2);
    if (way == 1) return Staged::streamed;
    return on_one_core && hands_lines_over() ? Staged::handed_over : Staged::cached;
}

}  // namespace collectives
