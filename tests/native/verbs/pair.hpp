// Both ends of a link between two RDMA devices of this machine, and messages over it. Without devices nothing
// is tested, and the reason is printed: ctest counts the test as skipped.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "link/lasting_memory.hpp"
#include "verbs/link.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs::testing {

inline constexpr std::size_t most_payload = record_bytes - sizeof(RecordHead);
inline constexpr std::size_t never = std::size_t{1} << 40;

// The ports at the two ends; nothing if there are none.
inline std::optional<std::array<Port, 2>> two_ports() {
    try {
        return std::array{choose_port(0), choose_port(1)};
    } catch (const Error& error) {
        MESSAGE("skipped: " << std::string(error.what()));
        return std::nullopt;
    }
}

struct Pair {
    // Messages are long from `direct_from` bytes on. `spoil`: changes what end 0 is told of end 1.
    // `giving_up`: of end 0; null: its own.
    explicit Pair(
        const std::array<Port, 2>& ports, const Pieces& pieces = {}, std::size_t direct_from = never,
        const std::function<void(Endpoint&)>& spoil = [](Endpoint&) {}, GivingUp* giving_up = nullptr) {
        Settings settings;
        settings.direct_from = direct_from;
        std::array<int, 2> sockets{};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()) == 0);
        std::array<std::unique_ptr<OwnEnd>, 2> own;
        std::array<Endpoint, 2> described;
        for (std::size_t i = 0; i < 2; ++i) {
            own[i] = std::make_unique<OwnEnd>(Device::open(ports[i].device), ports[i], settings);
            described[i] = own[i]->describe();
        }
        spoil(described[1]);
        for (std::size_t i = 0; i < 2; ++i) {
            const Peer peer{static_cast<int>(1 - i), "there", "rank " + std::to_string(i)};
            ends[i] = std::make_unique<VerbsLink>(
                peer, static_cast<int>(i), std::move(own[i]), described[1 - i], UniqueFd(sockets[i]),
                giving_up != nullptr && i == 0 ? *giving_up : own_giving_up[i], pieces);
        }
    }

    std::array<GivingUp, 2> own_giving_up;
    std::array<std::unique_ptr<VerbsLink>, 2> ends;
};

inline Context operation(std::uint64_t sequence) {
    Call call;
    call.sequence = sequence;
    return Context(call);
}

inline std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(n);
    for (std::byte& one : bytes) one = static_cast<std::byte>(random());
    return bytes;
}

// A message on its way: what is left to send, and what has come.
struct Transfer {
    Transfer(VerbsLink& from, VerbsLink& to, const Context& context, const std::vector<std::byte>& data,
             bool lends)
        : from_(from), to_(to), data_(data), lends_(lends), got(data.size()) {
        from_.begin(context, data.size());
        to_.expect(context, data.size());
    }
    bool step() {
        if (!from_.finished()) {
            written_ += from_.write(data_.data() + written_, data_.size() - written_);
        }
        if (to_.received()) return from_.finished();
        if (!lends_) {
            read_ += to_.read(got.data() + read_, got.size() - read_, Stores::cached);
            return false;
        }
        const std::span<const std::byte> seen = to_.lend(std::min<std::size_t>(16, got.size() - read_));
        std::copy(seen.begin(), seen.end(), got.begin() + static_cast<std::ptrdiff_t>(read_));
        to_.consume(seen.size());
        read_ += seen.size();
        return false;
    }

    VerbsLink& from_;
    VerbsLink& to_;
    const std::vector<std::byte>& data_;
    bool lends_;
    std::size_t written_ = 0;
    std::size_t read_ = 0;
    std::vector<std::byte> got;
};

inline bool within(double seconds, const std::function<bool()>& done) {
    const Deadline deadline(seconds);
    while (!done()) {
        if (deadline.passed()) return false;
    }
    return true;
}

inline void carry(VerbsLink& from, VerbsLink& to, const Context& context, const std::vector<std::byte>& data,
                  bool lends) {
    Transfer transfer(from, to, context, data, lends);
    REQUIRE(within(20, [&] { return transfer.step(); }));
    REQUIRE(transfer.got == data);
}

// Memory that lasts while this exists.
struct Lasting {
    explicit Lasting(std::vector<std::byte>& bytes) : id(LastingMemory::of_process().begin(bytes)) {}
    ~Lasting() { LastingMemory::of_process().end(id); }
    std::uint64_t id;
};

inline constexpr std::size_t long_from = 4 << 10;

}  // namespace collectives::verbs::testing
