// The link of examples/plugins/link_vm_write against a peer that writes what it should not, or is stopped.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "groups.hpp"
#include "link.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

// One end, and the other one by hand.
struct Pair {
    Pair() {
        std::array<int, 2> sockets{};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()) == 0);
        other = UniqueFd(sockets[1]);
        auto block = std::make_unique<vm_write::Block>();
        own = block.get();
        link = std::make_unique<vm_write::Link>(
            Peer{1, "host1"}, std::make_shared<vm_write::Shared>(), std::move(block),
            reinterpret_cast<std::uintptr_t>(theirs.get()), ::getpid(), UniqueFd(sockets[0]));
    }

    // As the peer writes it; `words`: so many of them only.
    template <typename T>
    static void store(vm_write::Record<T>& record, const T& value, std::size_t words = 99) {
        const auto image = vm_write::Record<T>::image(value);
        std::memcpy(static_cast<void*>(&record), image.data(), std::min(words * 8, sizeof(image)));
    }

    std::unique_ptr<vm_write::Block> theirs = std::make_unique<vm_write::Block>();
    UniqueFd other;
    vm_write::Block* own = nullptr;
    std::unique_ptr<vm_write::Link> link;
};

Context context_of(std::uint64_t count) {
    Call call;
    call.count = count;
    return Context(call);
}

const Context context = context_of(100);
constexpr std::uint64_t length = 400;

// Where the peer wants the whole message.
vm_write::Landing landing_at(std::byte* place) {
    return {1,
            length,
            context.fingerprint,
            context.call,
            reinterpret_cast<std::uintptr_t>(place),
            ~std::uint64_t{0},
            0,
            length,
            0};
}

vm_write::Heading heading_of(const Context& of, std::uint64_t n) { return {1, n, of.fingerprint, of.call}; }

}  // namespace

TEST_CASE("a message goes where the peer wants it, once that is known") {
    Pair pair;
    const std::vector<std::byte> data(length, std::byte{5});
    std::vector<std::byte> place(length);
    pair.link->begin(context, length);
    CHECK(pair.link->write(data.data(), length) == 0);
    REQUIRE(pair.theirs->headings[1].load());
    CHECK(pair.theirs->headings[1].load()->length == length);
    vm_write::Landing landing = landing_at(place.data());
    Pair::store(pair.own->landing, landing, 5);  // it is just being written
    CHECK(pair.link->write(data.data(), length) == 0);
    landing.number = 2;
    Pair::store(pair.own->landing, landing);
    CHECK(pair.link->write(data.data(), length) == 0);
    landing.number = 1;
    landing.end = 100;
    Pair::store(pair.own->landing, landing);
    CHECK(pair.link->write(data.data(), length) == 100);
    landing.end = length;
    Pair::store(pair.own->landing, landing);
    CHECK(pair.link->write(data.data() + 100, length - 100) == length - 100);
    CHECK(pair.link->finished());
    CHECK(place == data);
    CHECK(pair.theirs->progress.load()->arrived == length);
}

TEST_CASE("what a peer cannot have meant is refused") {
    const std::vector<std::byte> data(length);
    std::vector<std::byte> place(length);
    const auto write_to = [&](auto change) {
        Pair pair;
        vm_write::Landing landing = landing_at(place.data());
        change(landing);
        Pair::store(pair.own->landing, landing);
        pair.link->begin(context, length);
        return error_of([&] { pair.link->write(data.data(), length); });
    };
    using Landing = vm_write::Landing;
    CHECK_FALSE(write_to([](Landing&) {}).has_value());
    CHECK(write_to([](Landing& it) { it.end = length + 1; })->kind() == ErrorKind::peer_lost);
    CHECK(write_to([](Landing& it) { it.from = 1; })->kind() == ErrorKind::peer_lost);
    CHECK(write_to([](Landing& it) { it.period = 0; })->kind() == ErrorKind::peer_lost);
    CHECK(write_to([](Landing& it) { it.fingerprint ^= 1; })->kind() == ErrorKind::desync);
    CHECK(write_to([](Landing& it) { it.length = 1; })->kind() == ErrorKind::desync);

    const auto read_after = [&](const vm_write::Heading& heading, std::vector<std::uint64_t> arrived) {
        Pair pair;
        pair.link->expect(context, length);
        Pair::store(pair.own->headings[1], heading);
        return error_of([&] {
            for (const std::uint64_t n : arrived) {
                Pair::store(pair.own->progress, {1, n});
                pair.link->read(place.data(), length / 2, Stores::cached);
            }
        });
    };
    CHECK_FALSE(read_after(heading_of(context, length), {0, 10}).has_value());
    CHECK(read_after(heading_of(context, length), {length})->kind() == ErrorKind::peer_lost);
    CHECK(read_after(heading_of(context, length), {~std::uint64_t{0}})->kind() == ErrorKind::peer_lost);
    CHECK(read_after(heading_of(context, length + 1), {0})->kind() == ErrorKind::desync);
    CHECK(read_after(heading_of(context_of(101), length), {0})->kind() == ErrorKind::desync);
}

TEST_CASE("a place that cannot be written to makes the peer count as gone") {
    Pair pair;
    const std::vector<std::byte> data(length);
    Pair::store(pair.own->landing, landing_at(nullptr));
    pair.link->begin(context, length);
    CHECK(pair.link->write(data.data(), length) == 0);
    CHECK(pair.link->bytes_sent() == 0);
    CHECK(pair.link->lost() != nullptr);
}

TEST_CASE("after quiesce the peer writes nothing, and a peer in the middle of a write is waited for") {
    std::vector<std::byte> place(length);
    const auto quiesce = [&](std::uint64_t writes) {
        Pair pair;
        pair.link->expect(context, length);
        CHECK(pair.link->read(place.data(), length, Stores::cached) == 0);
        CHECK(pair.theirs->landing.load()->end == length);
        pair.theirs->writes = writes;
        const bool alone = pair.link->quiesce();
        CHECK(pair.theirs->revoked == 1);
        pair.theirs->writes = 2;
        return alone;
    };
    CHECK(quiesce(2));
    const auto before = Clock::now();
    CHECK_FALSE(quiesce(3));
    CHECK(seconds_since(before) > 0.9);

    Pair pair;
    const std::vector<std::byte> data(length, std::byte{5});
    pair.own->revoked = 1;
    Pair::store(pair.own->landing, landing_at(place.data()));
    pair.link->begin(context, length);
    CHECK(pair.link->write(data.data(), length) == 0);
    CHECK(place == std::vector<std::byte>(length));
    CHECK_FALSE(pair.theirs->headings[1].load());
}
