#include "shm/joint.hpp"

#include <algorithm>

namespace collectives {

namespace {

constexpr std::size_t smallest_chunk = 16 << 10;
constexpr std::size_t most_chunks = 32;

// A word: 32 bits of the copy's number, 16 of chunks taken from the back, 16 of those from the front.
constexpr unsigned number_shift = 32;
constexpr std::uint64_t one_back = std::uint64_t{1} << 16;
constexpr std::uint64_t one_front = 1;
constexpr std::uint64_t count_mask = 0xffff;
// No copy's: numbers begin with 1, and there are chunks in each.
constexpr std::uint64_t closed = 0;

std::uint64_t back_of(std::uint64_t word) { return word >> 16 & count_mask; }
std::uint64_t front_of(std::uint64_t word) { return word & count_mask; }

}  // namespace

JointCopy::JointCopy(Shared& shared, std::uint64_t number, std::size_t n)
    : shared_(shared),
      number_(number << number_shift),
      n_(n),
      chunk_(std::max((n + most_chunks - 1) / most_chunks, smallest_chunk)) {}

JointCopy::Part JointCopy::part(std::uint64_t first, std::uint64_t last) const {
    const std::size_t from = static_cast<std::size_t>(first) * chunk_;
    return {from, std::min(static_cast<std::size_t>(last) * chunk_, n_) - from};
}

void JointCopy::open(std::uint64_t place, std::int32_t grant) {
    shared_.place.store(place, std::memory_order_relaxed);
    shared_.grant.store(grant, std::memory_order_relaxed);
    shared_.taken.store(number_, std::memory_order_release);
}

std::uint64_t JointCopy::take(std::uint64_t unit, std::uint64_t& before) {
    before = shared_.taken.load(std::memory_order_acquire);
    while (true) {
        if (before >> number_shift != number_ >> number_shift) return 0;
        const std::uint64_t mine = (left(before) + 1) / 2;
        if (mine == 0) return 0;
        if (shared_.taken.compare_exchange_weak(before, before + mine * unit, std::memory_order_acq_rel)) {
            return mine;
        }
    }
}

std::uint64_t JointCopy::left(std::uint64_t word) const { return chunks() - back_of(word) - front_of(word); }

JointCopy::Part JointCopy::take_front() {
    std::uint64_t before = 0;
    const std::uint64_t mine = take(one_front, before);
    return mine == 0 ? Part{} : part(front_of(before), front_of(before) + mine);
}

JointCopy::Part JointCopy::take_back() {
    std::uint64_t before = 0;
    const std::uint64_t mine = take(one_back, before);
    const std::uint64_t end = chunks() - back_of(before);
    return mine == 0 ? Part{} : part(end - mine, end);
}

void JointCopy::tell_written(const Part& part) {
    const std::uint64_t there = shared_.written.load(std::memory_order_relaxed);
    const std::uint64_t before = there >> number_shift == number_ >> number_shift ? there : number_;
    shared_.written.store(before + chunks_in(part) * one_back, std::memory_order_release);
}

void JointCopy::give_back(const Part& part) {
    std::uint64_t found = shared_.taken.load(std::memory_order_acquire);
    while (found >> number_shift == number_ >> number_shift) {
        const std::uint64_t less = found - chunks_in(part) * one_back;
        if (shared_.taken.compare_exchange_weak(found, less, std::memory_order_acq_rel)) return;
    }
    tell_written(part);  // it is closed, and its receiver waits until nobody writes
}

bool JointCopy::is_complete() const {
    const std::uint64_t taken = shared_.taken.load(std::memory_order_acquire);
    return left(taken) == 0 && is_written(back_of(taken));
}

bool JointCopy::is_written(std::uint64_t chunks) const {
    if (chunks == 0) return true;
    const std::uint64_t written = shared_.written.load(std::memory_order_acquire);
    return written >> number_shift == number_ >> number_shift && back_of(written) == chunks;
}

std::uint64_t JointCopy::close() {
    return back_of(shared_.taken.exchange(closed, std::memory_order_acq_rel));
}

}  // namespace collectives
