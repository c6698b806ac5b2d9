#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "data.hpp"
#include "shm/joint.hpp"

using collectives::JointCopy;

namespace {

constexpr std::size_t kib = 1 << 10;

std::vector<unsigned char> some_bytes(std::size_t n) {
    std::vector<unsigned char> bytes(n);
    std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(1));
    return bytes;
}

}  // namespace

TEST_CASE("the halves are all of it, and meet where a page begins") {
    for (const std::size_t n :
         {1UL, 4 * kib, 8 * kib - 1, 8 * kib, 64 * kib + 3, 700 * kib + 3, 1024 * kib}) {
        const std::size_t middle = JointCopy::middle(n);
        CHECK(middle <= n / 2);
        CHECK(middle + 4 * kib > n / 2);
        CHECK(middle % (4 * kib) == 0);
    }
}

TEST_CASE("two copy every byte once, whoever is faster") {
    JointCopy::Shared shared{};
    std::uint64_t number = 0;
    for (int round = 0; round < testing::fewer(50); ++round) {
        for (const std::size_t n : {1UL, 16 * kib, 16 * kib + 1, 64 * kib, 700 * kib + 3, 1024 * kib}) {
            const auto from = some_bytes(n);
            std::vector<unsigned char> to(n);
            const std::size_t middle = JointCopy::middle(n);
            ++number;
            const auto copy_back = [&] { std::memcpy(to.data() + middle, from.data() + middle, n - middle); };
            bool helped = false;
            std::thread helper([&] {
                JointCopy copy(shared, number);
                // It may come before the copy is open, and then only looks.
                helped = copy.take_as_sender();
                if (!helped) return;
                copy_back();
                copy.end(true);
            });
            JointCopy copy(shared, number);
            copy.open(0, 0);
            std::memcpy(to.data(), from.data(), middle);
            const bool own = copy.take_as_receiver();
            if (own) copy_back();
            while (!own && !copy.is_written()) std::this_thread::yield();
            CHECK(to == from);
            helper.join();
            CHECK(own != helped);
        }
    }
}

TEST_CASE("a sender that cannot write gives its half back, and the receiver copies it") {
    JointCopy::Shared shared{};
    JointCopy sender(shared, 7);
    JointCopy receiver(shared, 7);
    CHECK_FALSE(sender.take_as_sender());  // not open yet
    receiver.open(42, 3);
    REQUIRE(sender.take_as_sender());
    CHECK_FALSE(sender.take_as_sender());
    CHECK(sender.place() == 42);
    CHECK(sender.grant() == 3);
    CHECK(receiver.is_being_written());
    CHECK_FALSE(receiver.take_as_receiver());
    CHECK_FALSE(receiver.is_written());
    sender.end(false);
    CHECK_FALSE(receiver.is_written());
    CHECK_FALSE(receiver.is_being_written());
    CHECK(receiver.take_as_receiver());
    CHECK_FALSE(sender.take_as_sender());
}

TEST_CASE("what the receiver has taken the sender does not, nor a half of another copy") {
    JointCopy::Shared shared{};
    JointCopy receiver(shared, 8);
    receiver.open(1, 0);
    CHECK(receiver.take_as_receiver());
    CHECK_FALSE(JointCopy(shared, 8).take_as_sender());
    CHECK_FALSE(receiver.is_being_written());
    JointCopy next(shared, 9);
    next.open(1, 0);
    CHECK_FALSE(JointCopy(shared, 8).take_as_sender());
    CHECK_FALSE(JointCopy(shared, 10).take_as_sender());
    JointCopy sender(shared, 9);
    REQUIRE(sender.take_as_sender());
    CHECK(next.is_being_written());
    sender.end(true);
    CHECK(next.is_written());
    CHECK_FALSE(receiver.is_written());
    CHECK_FALSE(next.take_as_receiver());
}
