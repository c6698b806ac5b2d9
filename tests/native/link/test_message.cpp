// Messages from one rank to another: from whom they are and how long, whoever may send.
#include <latch>
#include <optional>
#include <set>

#include "groups.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

// Of n floats: to one peer, or from one of several.
std::shared_ptr<const Operation> message(StepKind kind, int rank, int size, std::vector<int> peers,
                                         std::size_t n, DType dtype = DType::float32) {
    const bool sends = kind == StepKind::send;
    Step step{kind, false, {sends ? buffer_in : buffer_out, 0, 1}, std::move(peers), {}, {}};
    auto program = std::make_shared<const Program>(rank, size, 1, 1, std::vector<std::vector<Block>>{},
                                                   std::vector<Step>{std::move(step)});
    Call call;
    call.collective = static_cast<std::uint8_t>(Collective::send);
    call.count = n;
    call.dtype = static_cast<std::uint8_t>(dtype);
    return std::make_shared<const Operation>(std::move(program), dtype, Op::sum, Bounds(sends ? n : 0, 1),
                                             Bounds(sends ? 0 : n, 1), call);
}

std::vector<int> all(int size) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    return ranks;
}

void put(Group& group, int rank, int size, int dest, std::vector<float> data) {
    group.run(message(StepKind::send, rank, size, {dest}, data.size()), raw(data), nullptr, 30.0, {});
}

Receipt get(Group& group, int rank, int size, std::vector<int> sources, std::vector<float>& into) {
    Receipt receipt;
    group.run(message(StepKind::recv, rank, size, std::move(sources), into.size()), nullptr, raw(into), 30.0,
              {}, nullptr, &receipt);
    return receipt;
}

// Empty, in a line, in staging, longer than a slot, in parts.
const std::vector<std::size_t> lengths{0, 1, 14, 15, 1'000, 40'000, 100'000};

}  // namespace

TEST_CASE("from whoever sends first, with room for more than comes") {
    for (const std::string& scheme : all_schemes) {
        constexpr int size = 4;
        World world(size, scheme);
        world.each([&](int rank, Group& group) {
            if (rank > 0) {
                for (const std::size_t n : lengths) {
                    put(group, rank, size, 0, std::vector<float>(n, static_cast<float>(rank)));
                }
                return;
            }
            std::vector<std::vector<std::size_t>> seen(size);
            for (std::size_t i = 0; i < lengths.size() * (size - 1); ++i) {
                std::vector<float> into(lengths.back() + 5, -1.0F);
                const Receipt receipt = get(group, rank, size, all(size), into);
                const auto n = static_cast<std::ptrdiff_t>(receipt.count);
                const auto sender = static_cast<float>(receipt.source);
                CHECK(std::all_of(into.begin(), into.begin() + n, [&](float x) { return x == sender; }));
                CHECK(std::all_of(into.begin() + n, into.end(), [](float x) { return x == -1.0F; }));
                seen[static_cast<std::size_t>(receipt.source)].push_back(receipt.count);
            }
            CHECK(seen[0].empty());
            for (int sender = 1; sender < size; ++sender)
                CHECK(seen[static_cast<std::size_t>(sender)] == lengths);
        });
    }
}

TEST_CASE("several in the background are received in the order in which they were started") {
    for (const std::string& scheme : all_schemes) {
        World world(3, scheme);
        world.each([&](int rank, Group& group) {
            if (rank > 0) {
                for (float turn = 0; turn < 4; ++turn)
                    put(group, rank, 3, 0, {static_cast<float>(rank), turn});
                return;
            }
            std::vector<std::vector<float>> into(8, std::vector<float>(2));
            std::vector<std::shared_ptr<Work>> works;
            for (auto& one : into) {
                works.push_back(
                    group.start(message(StepKind::recv, 0, 3, all(3), 2), nullptr, raw(one), 30.0));
            }
            std::vector<float> turns(3, 0.0F);
            for (std::size_t i = 0; i < works.size(); ++i) {
                REQUIRE(group.wait(*works[i], 30.0, {}));
                CHECK(works[i]->receipt.count == 2);
                const auto sender = static_cast<std::size_t>(works[i]->receipt.source);
                CHECK(into[i] == std::vector<float>{static_cast<float>(sender), turns[sender]++});
            }
        });
    }
}

TEST_CASE("a rank's messages to itself wait for it") {
    World world(2, "tcp");
    world.each([&](int rank, Group& group) {
        for (const std::size_t n : lengths) put(group, rank, 2, rank, values(rank, n));
        for (const std::size_t n : lengths) {
            std::vector<float> into(n);
            const Receipt receipt = get(group, rank, 2, n % 2 == 0 ? all(2) : std::vector{rank}, into);
            CHECK(receipt.source == rank);
            CHECK(receipt.count == n);
            CHECK(into == values(rank, n));
        }
        std::vector<float> into(1);
        const std::optional<Error> error = error_of([&] { get(group, rank, 2, {rank}, into); });
        REQUIRE(error.has_value());
        CHECK(error->kind() == ErrorKind::invalid);
    });
}

TEST_CASE("what does not fit is refused with nothing overwritten") {
    for (const std::string& scheme : all_schemes) {
        for (const std::size_t n : {std::size_t{2}, std::size_t{100'000}}) {
            for (const bool open : {false, true}) {
                World world(2, scheme);
                std::vector<std::optional<Error>> errors(2);
                world.each([&](int rank, Group& group) {
                    errors[static_cast<std::size_t>(rank)] = error_of([&] {
                        if (rank == 0) return put(group, 0, 2, 1, std::vector<float>(n));
                        std::vector<float> into(n - 1, -1.0F);
                        const auto error =
                            error_of([&] { get(group, 1, 2, open ? all(2) : std::vector{0}, into); });
                        CHECK(std::all_of(into.begin(), into.end(), [](float x) { return x == -1.0F; }));
                        if (error) throw Error(*error);
                    });
                });
                REQUIRE(errors[1].has_value());
                CHECK(errors[1]->kind() == ErrorKind::desync);
                CHECK((!errors[0] || errors[0]->kind() == ErrorKind::peer_lost ||
                       errors[0]->kind() == ErrorKind::desync));
            }
        }
    }
}

TEST_CASE("a rank raises what it has found itself, although another has reported less of it") {
    for (const std::string scheme : {"inproc", "shm"}) {
        CAPTURE(scheme);
        World world(3, scheme);
        std::vector<std::optional<Error>> errors(3);
        std::latch over(2);
        world.each([&](int rank, Group& group) {
            const auto sum = sum_of_floats(ring(rank, 3), 3);
            std::vector<float> data(3, 1.0F);
            group.run(sum, raw(data), raw(data), 30.0, {});
            if (rank == 0) {
                put(group, 0, 3, 1, {1.0F, 2.0F});
                while (!errors[0]) errors[0] = error_of([&] { group.confirm(0.0); });
            } else if (rank == 1) {
                // The second one does not fit, which is its error once the first one is over; that waits.
                const auto first =
                    group.start(message(StepKind::recv, 1, 3, {2}, 1), nullptr, raw(data), 30.0);
                std::vector<float> into(1);
                const auto second =
                    group.start(message(StepKind::recv, 1, 3, {0}, 1), nullptr, raw(into), 30.0);
                errors[1] = error_of([&] { group.wait(*first, 30.0, {}); });
                errors[2] = error_of([&] { group.wait(*second, 30.0, {}); });
            }
            if (rank < 2) over.count_down();
            over.wait();
        });
        for (const auto& error : errors) {
            REQUIRE(error.has_value());
            CAPTURE(error->what());
            CHECK(error->kind() == ErrorKind::desync);
            const bool is_finder = &error != errors.data();
            const bool says_bytes = std::string(error->what()).ends_with("with 8 bytes for an array of 4");
            CHECK(says_bytes == is_finder);
        }
    }
}

TEST_CASE("the other rank of a message that does not fit learns what the receiver has found") {
    for (const std::string& scheme : all_schemes) {
        CAPTURE(scheme);
        World world(2, scheme);
        std::vector<std::optional<Error>> errors(2);
        world.each([&](int rank, Group& group) {
            std::vector<float> data(100'000, 1.0F);
            errors[static_cast<std::size_t>(rank)] = error_of([&] {
                if (rank == 0) put(group, 0, 2, 1, data);
                data.pop_back();
                get(group, rank, 2, {1 - rank}, data);
            });
        });
        for (const auto& error : errors) {
            REQUIRE(error.has_value());
            CAPTURE(error->what());
            CHECK(error->kind() == ErrorKind::desync);
            CHECK(std::string(error->what()).find("400000 bytes for an array of 399996") !=
                  std::string::npos);
        }
    }
}

TEST_CASE("both ways at once, however long") {
    for (const std::string& scheme : all_schemes) {
        World world(3, scheme);
        world.each([&](int rank, Group& group) {
            const int right = (rank + 1) % 3, left = (rank + 2) % 3;
            for (const std::size_t n : lengths) {
                std::vector<float> x = values(rank, n), into(n);
                Receipt receipt;
                const auto send = message(StepKind::send, rank, 3, {right}, n);
                const auto recv = message(StepKind::recv, rank, 3, {left}, n);
                const std::array<Item, 2> both{Item{send, raw(x), nullptr, nullptr},
                                               Item{recv, nullptr, raw(into), &receipt}};
                group.run_all(both, 30.0, {});
                CHECK(receipt.source == left);
                CHECK(into == values(left, n));
            }
        });
    }
}
