#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "shm/joint.hpp"

using collectives::JointCopy;

namespace {

constexpr std::size_t kib = 1 << 10;

std::vector<unsigned char> some_bytes(std::size_t n) {
    std::vector<unsigned char> bytes(n);
    std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(1));
    return bytes;
}

// Copy what `take` gives until there is nothing; how many bytes.
template <typename Take, typename Then>
std::size_t copy_all(const std::vector<unsigned char>& from, std::vector<unsigned char>& to, Take take,
                     Then then) {
    std::size_t copied = 0;
    for (JointCopy::Part part = take(); part.n > 0; part = take()) {
        std::memcpy(to.data() + part.from, from.data() + part.from, part.n);
        copied += part.n;
        then(part);
    }
    return copied;
}

const auto nothing = [](const JointCopy::Part&) {};

}  // namespace

TEST_CASE("two copy every byte once, whoever is faster") {
    JointCopy::Shared shared{};
    std::uint64_t number = 0;
    for (int round = 0; round < 50; ++round) {
        for (const std::size_t n : {1UL, 16 * kib, 16 * kib + 1, 64 * kib, 700 * kib + 3, 1024 * kib}) {
            const auto from = some_bytes(n);
            std::vector<unsigned char> to(n);
            ++number;
            std::size_t helped = 0;
            std::thread helper([&] {
                JointCopy copy(shared, number, n);
                // It may come before the copy is open, and then only looks.
                helped = copy_all(
                    from, to, [&] { return copy.take_back(); },
                    [&](const JointCopy::Part& part) { copy.tell_written(part); });
            });
            JointCopy copy(shared, number, n);
            copy.open(0, 0);
            const std::size_t own = copy_all(from, to, [&] { return copy.take_front(); }, nothing);
            while (!copy.is_complete()) std::this_thread::yield();
            CHECK(to == from);
            helper.join();
            CHECK(own + helped == n);
        }
    }
}

TEST_CASE("who can't write gives back what it took, and the other one does it") {
    constexpr std::size_t n = 200 * kib;
    const auto from = some_bytes(n);
    std::vector<unsigned char> to(n);
    JointCopy::Shared shared{};
    JointCopy sender(shared, 7, n);
    JointCopy receiver(shared, 7, n);
    CHECK(sender.take_back().n == 0);  // not open yet
    receiver.open(42, 3);
    const JointCopy::Part first = sender.take_back();
    REQUIRE(first.n > 0);
    CHECK(first.from + first.n == n);
    CHECK(sender.place() == 42);
    CHECK(sender.grant() == 3);
    std::memcpy(to.data() + first.from, from.data() + first.from, first.n);
    sender.tell_written(first);
    const JointCopy::Part second = sender.take_back();
    CHECK(second.from + second.n == first.from);
    const auto take = [&] { return receiver.take_front(); };
    CHECK(copy_all(from, to, take, nothing) == second.from);
    CHECK_FALSE(receiver.is_complete());  // the second one is neither written nor free
    sender.give_back(second);
    CHECK_FALSE(receiver.is_complete());
    CHECK(copy_all(from, to, take, nothing) == second.n);
    CHECK(receiver.is_complete());
    CHECK(to == from);
    CHECK(sender.take_back().n == 0);
}

TEST_CASE("after it is closed nobody takes anything, and what was taken is waited for") {
    constexpr std::size_t n = 200 * kib;
    JointCopy::Shared shared{};
    JointCopy sender(shared, 8, n);
    JointCopy receiver(shared, 8, n);
    receiver.open(1, 0);
    const JointCopy::Part part = sender.take_back();
    REQUIRE(part.n > 0);
    const std::uint64_t theirs = receiver.close();
    CHECK(theirs > 0);
    CHECK_FALSE(receiver.is_written(theirs));
    CHECK(sender.take_back().n == 0);
    CHECK(receiver.take_front().n == 0);
    sender.tell_written(part);
    CHECK(receiver.is_written(theirs));
    // Who could not write says so as well.
    JointCopy closed(shared, 10, n);
    closed.open(1, 0);
    JointCopy refused(shared, 10, n);
    const JointCopy::Part missing = refused.take_back();
    const std::uint64_t taken = closed.close();
    CHECK_FALSE(closed.is_written(taken));
    refused.give_back(missing);
    CHECK(closed.is_written(taken));
    CHECK(closed.take_front().n == 0);
    // The next copy counts from the beginning.
    JointCopy next(shared, 11, n);
    next.open(1, 0);
    CHECK_FALSE(next.is_complete());
    while (next.take_front().n > 0) {
    }
    CHECK(next.is_complete());
}
