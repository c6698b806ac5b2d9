// Operations whose input arrives, and whose output leaves, while they run: on one rank, without the others.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "groups.hpp"
#include "schedule/access.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

// Copies a few bytes of `from` each time that it is asked; results go to `to`.
class Trickle final : public Transfer {
  public:
    Trickle(const std::vector<float>& from, std::vector<float>& in, const std::vector<float>& out,
            std::size_t results)
        : to(results, unwritten), from_(from), in_(in), out_(out), times_(results) {}

    std::uint64_t there(const std::byte* at, std::uint64_t n) override {
        const auto begin = offset(at, in_);
        if (!begin) return n;
        const std::size_t more = std::min<std::size_t>(each, from_.size() - arrived_);
        std::copy_n(from_.begin() + static_cast<std::ptrdiff_t>(arrived_), more,
                    in_.begin() + static_cast<std::ptrdiff_t>(arrived_));
        arrived_ += more;
        const std::uint64_t bytes = arrived_ * sizeof(float);
        return bytes <= *begin ? 0 : std::min(n, bytes - *begin);
    }

    void leave(const std::byte* at, std::uint64_t n) override {
        const auto begin = offset(at, out_);
        REQUIRE(begin);
        REQUIRE(*begin % sizeof(float) == 0);
        for (std::size_t i = *begin / sizeof(float); i < (*begin + n) / sizeof(float); ++i) {
            to[i] = out_[i];
            is_once &= ++times_[i] == 1;
        }
        ++left;
    }

    bool is_coming() override { return arrived_ < from_.size(); }

    static constexpr float unwritten = -1;
    static constexpr std::size_t each = 1001;  // elements
    std::vector<float> to;
    std::size_t left = 0;  // times that results left
    bool is_once = true;   // no byte has left twice

  private:
    static std::optional<std::uint64_t> offset(const std::byte* at, const std::vector<float>& memory) {
        const auto* const begin = reinterpret_cast<const std::byte*>(memory.data());
        if (at < begin || at >= begin + memory.size() * sizeof(float)) return std::nullopt;
        return static_cast<std::uint64_t>(at - begin);
    }

    const std::vector<float>& from_;
    std::vector<float>& in_;
    const std::vector<float>& out_;
    std::vector<int> times_;
    std::size_t arrived_ = 0;
};

std::uint64_t total(std::span<const Bytes> reads) {
    std::uint64_t bytes = 0;
    for (const Bytes& read : reads) bytes += read.size();
    return bytes;
}

void run(Group& group, const std::shared_ptr<const Operation>& operation, std::vector<float>& in,
         std::vector<float>& out, Transfer* transfer, Receipt* receipt = nullptr) {
    const Item item{operation, in.empty() ? nullptr : raw(in), out.empty() ? nullptr : raw(out), receipt,
                    transfer};
    group.run_all({&item, 1}, 30.0, {});
}

std::shared_ptr<const Operation> message(StepKind kind, int rank, int peer, std::size_t n) {
    const Chunk whole{kind == StepKind::send ? buffer_in : buffer_out, 0, 1};
    Step step = kind == StepKind::send ? send({peer}, whole) : recv(peer, whole);
    auto program = std::make_shared<const Program>(rank, 2, 1, 1, std::vector<std::vector<Block>>{},
                                                   std::vector<Step>{std::move(step)});
    Call call;
    call.collective = static_cast<std::uint8_t>(Collective::send);
    return std::make_shared<const Operation>(std::move(program), DType::float32, Op::sum, Bounds(n, 1),
                                             Bounds(n, 1), call);
}

}  // namespace

TEST_CASE("steps wait for their input, and results leave when they are final") {
    constexpr std::size_t n = 700'003;  // more than two parts of the output
    for (const std::string& scheme : all_schemes) {
        for (const auto make :
             {one_shot, static_cast<std::shared_ptr<const Program> (*)(int, int)>(two_shot), ring}) {
            World world(3, scheme);
            world.each([&](int rank, Group& group) {
                std::vector<float> expected = values(0, n);
                for (const int other : {1, 2}) {
                    const std::vector<float> more = values(other, n);
                    for (std::size_t i = 0; i < n; ++i) expected[i] += more[i];
                }
                const auto operation = sum_of_floats(make(rank, 3), n);
                for (int round = 0; round < fewer(3); ++round) {
                    const std::vector<float> from = values(rank, n);
                    std::vector<float> in(n, std::numeric_limits<float>::quiet_NaN());
                    std::vector<float> out(n);
                    Trickle trickle(from, in, out, n);
                    const bool trickles = rank != round;  // the others have all input at the beginning
                    if (!trickles) in = from;
                    run(group, operation, in, out, trickles ? &trickle : nullptr);
                    CHECK(same(out, expected));
                    if (!trickles) continue;
                    CHECK(same(trickle.to, expected));
                    CHECK(trickle.left > 1);
                    CHECK(trickle.is_once);
                }
            });
        }
    }
}

TEST_CASE("an operation reads its input once, in the order of its steps") {
    std::vector<float> in(99), out(99);
    for (int rank = 0; rank < 3; ++rank) {
        for (const auto& program : {one_shot(rank, 3), two_shot(rank, 3), ring(rank, 3)}) {
            const auto reads = first_reads(*sum_of_floats(program, 99), raw(in), raw(out));
            CHECK(total(reads) == 99 * sizeof(float));
            for (const Bytes& read : reads) {
                CHECK(read.data() >= raw(in));
                CHECK(read.data() + read.size() <= raw(in) + 99 * sizeof(float));
            }
        }
    }
    // The ring begins with a block that depends on the rank.
    const auto first = [&](int rank) {
        return first_reads(*sum_of_floats(ring(rank, 3), 99), raw(in), raw(out)).front().data();
    };
    CHECK(first(0) != first(1));
}

TEST_CASE("an operation in sections reads one section after the other") {
    std::vector<float> in(1000), out(1000);
    const Operation whole = Operation::in_sections(two_shot(0, 2), DType::float32, Op::sum, 1000, 256,
                                                   sum_of_floats(two_shot(0, 2), 1)->call());
    REQUIRE(whole.sections() > 1);
    CHECK(total(first_reads(whole, raw(in), raw(out))) == 1000 * sizeof(float));
}

TEST_CASE("of a message that is shorter than its memory only what has come leaves") {
    for (const std::string& scheme : all_schemes) {
        World world(2, scheme);
        world.each([&](int rank, Group& group) {
            std::vector<float> nothing;
            const std::vector<float> from = values(0, 300'000);
            if (rank == 0) {
                std::vector<float> in(from.size());
                Trickle trickle(from, in, nothing, 0);
                run(group, message(StepKind::send, 0, 1, in.size()), in, nothing, &trickle);
                return;
            }
            std::vector<float> out(400'000);
            Trickle trickle(nothing, nothing, out, out.size());
            Receipt receipt;
            run(group, message(StepKind::recv, 1, 0, out.size()), nothing, out, &trickle, &receipt);
            CHECK(receipt.count == from.size());
            CHECK(std::equal(from.begin(), from.end(), trickle.to.begin()));
            CHECK(std::all_of(trickle.to.begin() + static_cast<std::ptrdiff_t>(from.size()), trickle.to.end(),
                              [](float x) { return x == Trickle::unwritten; }));
        });
    }
}

TEST_CASE("bytes that a step writes before they are read are no input") {
    // A rank that passes a broadcast on reads its output only after it was received.
    const Chunk whole{buffer_out, 0, 1};
    std::vector<Step> steps;
    steps.push_back(recv(0, whole));
    steps.push_back(send({2}, whole, {{0, buffer_out, 0, 0}}));
    const auto passes_on =
        std::make_shared<const Program>(1, 3, 0, 1, std::vector<std::vector<Block>>{}, steps);
    const auto root = std::make_shared<const Program>(0, 3, 0, 1, std::vector<std::vector<Block>>{},
                                                      std::vector<Step>{send({1}, whole)});
    std::vector<float> out(100);
    const auto reads = [&](const std::shared_ptr<const Program>& program) {
        const Operation operation(program, DType::float32, Op::sum, Bounds(0, 0), Bounds(100, 1), Call{});
        return total(first_reads(operation, nullptr, raw(out)));
    };
    CHECK(reads(passes_on) == 0);
    CHECK(reads(root) == 100 * sizeof(float));
}
