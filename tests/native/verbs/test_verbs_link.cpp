// Links between two RDMA devices of this machine, both ends in one process. Without devices nothing is
// tested, and the reason is printed.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "link/lasting_memory.hpp"
#include "verbs/link.hpp"
#include "verbs/regions.hpp"
#include "verbs/tuning.hpp"

using namespace collectives;
using namespace collectives::verbs;

namespace {

constexpr std::size_t most_payload = record_bytes - sizeof(RecordHead);
constexpr std::size_t never = std::size_t{1} << 40;

// The ports at the two ends; nothing if there are none.
std::optional<std::array<Port, 2>> two_ports() {
    try {
        return std::array{choose_port(0), choose_port(1)};
    } catch (const Error& error) {
        MESSAGE("skipped: " << error.what());
        return std::nullopt;
    }
}

struct Pair {
    // Messages are long from `direct_from` bytes on. `spoil`: changes what end 0 is told of end 1.
    explicit Pair(
        const std::array<Port, 2>& ports, const Pieces& pieces = {}, std::size_t direct_from = never,
        const std::function<void(Endpoint&)>& spoil = [](Endpoint&) {}) {
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
            ends[i] = std::make_unique<VerbsLink>(peer, static_cast<int>(i), std::move(own[i]),
                                                  described[1 - i], UniqueFd(sockets[i]), pieces);
        }
    }

    std::array<std::unique_ptr<VerbsLink>, 2> ends;
};

Context operation(std::uint64_t sequence) {
    Call call;
    call.sequence = sequence;
    return Context(call);
}

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
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

bool within(double seconds, const std::function<bool()>& done) {
    const Deadline deadline(seconds);
    while (!done()) {
        if (deadline.passed()) return false;
    }
    return true;
}

void carry(VerbsLink& from, VerbsLink& to, const Context& context, const std::vector<std::byte>& data,
           bool lends) {
    Transfer transfer(from, to, context, data, lends);
    REQUIRE(within(20, [&] { return transfer.step(); }));
    REQUIRE(transfer.got == data);
}

}  // namespace

TEST_CASE("a short message is one work request, in either direction") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    std::uint64_t sequence = 0;
    for (int i = 0; i < 1000; ++i) {
        for (const std::size_t n : {0, 1, 8, 64}) {
            for (const std::size_t from : {0, 1}) {
                const Context context = operation(++sequence);
                carry(*pair.ends[from], *pair.ends[1 - from], context, random_bytes(n, 1), i % 2 == 0);
            }
        }
    }
    for (const auto& end : pair.ends) {
        CHECK(end->posted().requests == 4000);
        CHECK(end->posted().reports == 0);  // credits go with the messages
        CHECK(end->posted().payload == 1000 * (1 + 8 + 64));
    }
}

TEST_CASE("messages of all lengths arrive, one after the other, and cost little more than their bytes") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    std::uint64_t sequence = 0;
    for (const std::size_t n :
         {most_payload - 1, most_payload, most_payload + 1, ring_bytes, std::size_t{1000003}}) {
        for (const bool lends : {false, true}) {
            carry(*pair.ends[0], *pair.ends[1], operation(++sequence), random_bytes(n, 2), lends);
            carry(*pair.ends[1], *pair.ends[0], operation(++sequence), random_bytes(n, 3), !lends);
        }
    }
    const Posted before = pair.ends[0]->posted();
    const std::uint64_t sent_before = pair.ends[0]->bytes_sent();
    constexpr std::size_t large = 8 << 20;
    carry(*pair.ends[0], *pair.ends[1], operation(++sequence), random_bytes(large, 4), true);
    const Posted after = pair.ends[0]->posted();
    CHECK(after.payload - before.payload == large);
    CHECK(pair.ends[0]->bytes_sent() - sent_before < large * 1.03);
    CHECK(after.requests - before.requests == (large + most_payload - 1) / most_payload);
}

TEST_CASE("both directions at once, in small records") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {3 * unit_bytes, 3 * unit_bytes});
    const auto there = random_bytes(300'000, 5);
    const auto back = random_bytes(200'001, 6);
    const Context first = operation(1);
    const Context second = operation(2);
    Transfer one(*pair.ends[0], *pair.ends[1], first, there, true);
    Transfer two(*pair.ends[1], *pair.ends[0], second, back, false);
    REQUIRE(within(60, [&] {
        const bool first_done = one.step();
        return two.step() && first_done;
    }));
    CHECK(one.got == there);
    CHECK(two.got == back);
}

namespace {

// Memory that lasts while this exists.
struct Lasting {
    explicit Lasting(std::vector<std::byte>& bytes) : id(LastingMemory::of_process().begin(bytes)) {}
    ~Lasting() { LastingMemory::of_process().end(id); }
    std::uint64_t id;
};

// A mapping that devices refuse: of a file that may be read only.
class ReadOnly {
  public:
    explicit ReadOnly(std::size_t n) : file_(::memfd_create("read-only", MFD_CLOEXEC)), size_(n) {
        const std::vector<std::byte> content = random_bytes(n, 20);
        REQUIRE(::write(file_.get(), content.data(), n) == static_cast<ssize_t>(n));
        memory_ = ::mmap(nullptr, n, PROT_READ, MAP_SHARED, file_.get(), 0);
        REQUIRE(memory_ != MAP_FAILED);
    }
    ReadOnly(const ReadOnly&) = delete;
    ReadOnly& operator=(const ReadOnly&) = delete;
    ~ReadOnly() { ::munmap(memory_, size_); }
    std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(memory_), size_}; }

  private:
    UniqueFd file_;
    std::size_t size_;
    void* memory_ = nullptr;
};

// What devices have locked of this process's memory, as the kernel writes it.
std::string pinned_memory() {
    std::ifstream status("/proc/self/status");
    std::string line;
    while (std::getline(status, line) && !line.starts_with("VmPin:")) continue;
    REQUIRE(line.starts_with("VmPin:"));
    return line;
}

constexpr std::size_t long_from = 4 << 10;

}  // namespace

TEST_CASE("a long message goes from one array to the other without a copy, if it is not reduced") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, long_from);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    std::uint64_t sequence = 0;
    for (const std::size_t n : {long_from, piece_bytes + 1, std::size_t{3'000'001}}) {
        for (const bool lends : {false, true}) {
            auto data = random_bytes(n, 10);
            const Context context = operation(++sequence);
            Transfer transfer(from, to, context, data, lends);
            const Lasting source(data);
            const Lasting destination(transfer.got);
            const Posted before = from.posted();
            const Posted answers = to.posted();
            REQUIRE(within(20, [&] { return transfer.step(); }));
            CHECK(transfer.got == data);
            const Posted after = from.posted();
            CHECK(after.payload - before.payload == n);
            CHECK(after.straight - before.straight == (lends ? 0 : n));
            CHECK(after.copied == 0);
            CHECK(to.posted().copied == 0);
            CHECK(to.posted().grants == answers.grants + 1);
            const std::size_t piece = lends ? most_payload : piece_bytes;
            const std::uint64_t requests =
                after.requests - before.requests - (after.reports - before.reports);
            CHECK(requests == 1 + (n + piece - 1) / piece);
        }
    }
    CHECK(from.lost() == nullptr);
    CHECK(to.lost() == nullptr);
}

TEST_CASE("memory that does not last is copied, or registered for one message if that is long") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, long_from);
    const auto regions = Regions::of(Device::open(ports->at(0).device));
    std::uint64_t sequence = 0;
    for (const std::size_t n : {std::size_t{100'000}, 2 * registered_once_from}) {
        const Posted before = pair.ends[0]->posted();
        const std::uint64_t made = regions->use().made;
        carry(*pair.ends[0], *pair.ends[1], operation(++sequence), random_bytes(n, 11), false);
        const bool is_registered = n >= registered_once_from;
        CHECK(pair.ends[0]->posted().copied - before.copied == (is_registered ? 0 : n));
        CHECK((regions->use().made > made) == is_registered);
        CHECK(regions->use().kept == 0);
    }
}

TEST_CASE("a destination that was granted in vain is out of the peer's reach when the message is there") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, long_from);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    // The device refuses to read this, so the message goes through the ring.
    const ReadOnly source(2 * registered_once_from);
    std::vector<std::byte> got(source.bytes().size());
    const std::string pinned = pinned_memory();
    for (std::uint64_t i = 1; i <= 2; ++i) {
        const Context context = operation(i);
        from.begin(context, got.size());
        to.expect(context, got.size());
        std::size_t written = 0;
        std::size_t read = 0;
        REQUIRE(within(20, [&] {
            written += from.write(source.bytes().data() + written, got.size() - written);
            read += to.read(got.data() + read, got.size() - read, Stores::cached);
            return from.finished() && to.received();
        }));
        CHECK(std::equal(got.begin(), got.end(), source.bytes().begin()));
        CHECK(from.posted().straight == 0);
        CHECK(to.posted().grants == i);
        CHECK(pinned_memory() == pinned);
        CHECK(to.read(got.data() + read, 0, Stores::cached) == 0);
        CHECK(to.posted().grants == i);
    }
    // So giving up finds nothing that it has to end.
    CHECK(to.quiesce());
    CHECK(to.lost() == nullptr);
}

TEST_CASE("a peer writes no further than it was granted, and nothing after the connection has ended") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, long_from);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    auto data = random_bytes(1 << 20, 12);
    std::vector<std::byte> got(data.size());
    const Lasting source(data);
    const Lasting destination(got);
    const Context context = operation(1);
    from.begin(context, data.size());
    to.expect(context, data.size());
    const std::size_t first = 100'000;
    std::size_t written = 0;
    std::size_t read = 0;
    const auto step = [&](std::size_t up_to) {
        written += from.write(data.data() + written, data.size() - written);
        from.released();
        read += to.read(got.data() + read, up_to - read, Stores::cached);
    };
    const auto is_clean = [&](std::size_t begin) {
        return std::all_of(got.begin() + static_cast<std::ptrdiff_t>(begin), got.end(),
                           [](std::byte one) { return one == std::byte{0}; });
    };
    REQUIRE(within(5, [&] { return step(first), read == first; }));
    const Deadline deadline(0.2);
    while (!deadline.passed()) step(first);
    CHECK(written == first);
    CHECK(is_clean(first));
    // More may come now, but the operation fails first.
    const std::uint64_t grants = to.posted().grants;
    REQUIRE(within(5, [&] {
        read += to.read(got.data() + read, data.size() - 1 - read, Stores::cached);
        return to.posted().grants > grants;
    }));
    CHECK(to.quiesce());
    const std::vector<std::byte> then = got;
    const Deadline watched(0.5);
    while (!watched.passed()) from.write(data.data() + written, 1), from.released();
    CHECK(got == then);
    CHECK(to.lost() != nullptr);
}

TEST_CASE("a write that the peer's device refuses is an error at both ends, which names the ports") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, never, [](Endpoint& theirs) { theirs.ring_key ^= 1; });
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    const Context context = operation(1);
    const std::array<std::byte, 8> data{};
    from.begin(context, data.size());
    REQUIRE(within(10, [&] {
        if (!from.finished()) from.write(data.data(), data.size());
        const bool is_lost_there = to.lost() != nullptr;
        return from.lost() != nullptr && is_lost_there;
    }));
    const std::string here = from.lost();
    CHECK(here.find("remote access error") != std::string::npos);
    CHECK(here.find(ports->at(0).name()) != std::string::npos);
    CHECK(here.find(ports->at(1).name() + " of rank 1") != std::string::npos);
    CHECK(std::string(to.lost()).find(ports->at(1).name()) != std::string::npos);
    CHECK(from.path() == ports->at(0).name() + " to " + ports->at(1).name());
}

TEST_CASE("a rank that only waits finds that the peer's queue pair is gone, without a word from its socket") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, long_from);
    VerbsLink& waits = *pair.ends[0];
    VerbsLink& other = *pair.ends[1];
    const auto both_work = [&] {
        const char* const one = waits.lost();
        return one == nullptr && other.lost() == nullptr;
    };
    const Context context = operation(1);
    waits.expect(context, 8);
    const Deadline idle(2.5);
    while (!idle.passed()) REQUIRE(both_work());
    CHECK(waits.posted().probes >= 1);
    CHECK(waits.posted().probes <= 2);
    CHECK(waits.posted().requests == 0);
    // It has permitted a write that does not come, so giving up ends the connection; its socket stays open.
    std::vector<std::byte> got(1 << 20);
    other.expect(context, got.size());
    REQUIRE(within(5, [&] {
        other.read(got.data(), got.size(), Stores::cached);
        return other.posted().grants > 0;
    }));
    while (waits.queue().taken_up() < waits.posted().probes + 1) REQUIRE(waits.lost() == nullptr);
    CHECK(other.quiesce());
    REQUIRE(other.lost() != nullptr);
    const auto begun = Clock::now();
    REQUIRE(within(12, [&] { return waits.lost() != nullptr; }));
    CHECK(Clock::now() - begun < std::chrono::seconds(9));
    CHECK(waits.posted().requests == 0);
    const std::string why = waits.lost();
    CHECK(why.find(ports->at(1).name() + " of rank 1") != std::string::npos);
}

TEST_CASE("registrations that are kept end with their memory, and stay within bounds") {
    const auto ports = two_ports();
    if (!ports) return;
    const auto regions = Regions::of(Device::open(ports->at(0).device));
    const Regions::Use before = regions->use();
    std::vector<std::vector<std::byte>> arrays(most_kept + 10, std::vector<std::byte>(8192));
    std::vector<std::unique_ptr<Lasting>> lasting;
    for (auto& array : arrays) {
        lasting.push_back(std::make_unique<Lasting>(array));
        REQUIRE(regions->find(std::span(array).subspan(100, 200), true));
    }
    CHECK(regions->use().made - before.made == arrays.size());
    CHECK(regions->use().kept == most_kept);
    CHECK(regions->use().kept_bytes == most_kept * 8192);
    REQUIRE(regions->find(arrays.back(), true));
    CHECK(regions->use().reused - before.reused == 1);
    REQUIRE(regions->find(arrays.front(), true));  // registered anew, since it was dropped
    CHECK(regions->use().made - before.made == arrays.size() + 1);
    CHECK(!regions->find(std::span(arrays.front().data(), 8193), true));  // more than the array
    lasting.clear();
    CHECK(regions->use().kept == 0);
    CHECK(regions->use().kept_bytes == 0);
}

TEST_CASE("memory that ends while it is being registered is not kept") {
    const auto ports = two_ports();
    if (!ports) return;
    const auto regions = Regions::of(Device::open(ports->at(0).device));
    REQUIRE(regions->use().kept == 0);
    std::vector<std::byte> array(4 << 20);  // of many pages, so that it takes its time
    std::atomic<std::uint64_t> begun{0};
    std::atomic<std::uint64_t> ended{0};
    constexpr int rounds = 200;
    std::thread ends([&] {
        std::uint64_t last = 0;
        for (int i = 0; i < rounds; ++i) {
            while (begun == last) std::this_thread::yield();
            last = begun;
            std::this_thread::sleep_for(std::chrono::microseconds(i * 10));
            LastingMemory::of_process().end(last);
            ended = last;
        }
    });
    int found = 0;
    for (int i = 0; i < rounds; ++i) {
        begun = LastingMemory::of_process().begin(array);
        found += regions->find(std::span(array).first(100), true) != nullptr;
        while (ended != begun) std::this_thread::yield();
        CHECK(regions->use().kept == 0);
        CHECK(regions->use().kept_bytes == 0);
    }
    ends.join();
    CHECK(found > 0);
}

TEST_CASE("what a device only reads needs no right to be written") {
    const auto ports = two_ports();
    if (!ports) return;
    const auto regions = Regions::of(Device::open(ports->at(0).device));
    constexpr std::size_t n = registered_once_from;
    void* const memory = ::mmap(nullptr, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    CHECK(regions->find({static_cast<std::byte*>(memory), n}, false));
    ::munmap(memory, n);
}

TEST_CASE("a receiver that does not read holds the sender up, and nothing is lost") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    const auto data = random_bytes(3 * ring_bytes, 7);
    const Context context = operation(1);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    REQUIRE(within(5, [&] {
        return to.lost() == nullptr && from.lost() == nullptr && from.queue().failure() == nullptr;
    }));
    Transfer transfer(from, to, context, data, false);
    std::size_t written = 0;
    REQUIRE(
        within(5, [&] { return (written += from.write(data.data() + written, data.size() - written)) > 0; }));
    const Deadline deadline(0.5);
    while (!deadline.passed()) written += from.write(data.data() + written, data.size() - written);
    CHECK(written <= ring_bytes);
    transfer.written_ = written;
    REQUIRE(within(20, [&] { return transfer.step(); }));
    CHECK(transfer.got == data);

    // The same with messages that take no space, but a receive each.
    int sent = 0;
    std::vector<Context> contexts;
    for (std::uint64_t i = 0; i < 2 * record_slots; ++i) contexts.push_back(operation(2 + i));
    const std::byte nothing{};
    const auto send_more = [&] {
        from.begin(contexts[static_cast<std::size_t>(sent)], 0);
        from.write(&nothing, 0);
        return from.finished();
    };
    while (send_more()) ++sent;
    CHECK(sent <= static_cast<int>(record_slots));
    CHECK(from.lost() == nullptr);
}

TEST_CASE("a rank that sleeps is woken by a message, and by credits") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    carry(from, to, operation(1), random_bytes(8, 1), false);
    for (std::uint64_t i = 2; i < 50; ++i) {
        const Context context = operation(i);
        to.expect(context, 8);
        std::vector<pollfd> polled;
        while (to.arm(false, polled)) polled.clear();
        REQUIRE(::poll(polled.data(), polled.size(), 0) == 0);
        std::thread sender([&] {
            const std::array<std::byte, 8> data{};
            from.begin(context, 8);
            CHECK(
                within(5, [&] { return from.finished() || (from.write(data.data(), 8), from.finished()); }));
        });
        CHECK(::poll(polled.data(), polled.size(), 5000) == 1);
        sender.join();
        std::array<std::byte, 8> got{};
        REQUIRE(within(5, [&] { return to.read(got.data(), 8, Stores::cached) == 8; }));
    }
}

TEST_CASE("another operation at the other end is found before anything is read") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    const Context mine = operation(1);
    const Context theirs = operation(2);
    const std::array<std::byte, 8> data{};
    pair.ends[0]->begin(theirs, 8);
    pair.ends[1]->expect(mine, 8);
    std::optional<ErrorKind> kind;
    CHECK(within(5, [&] {
        pair.ends[0]->write(data.data(), pair.ends[0]->finished() ? 0 : 8);
        try {
            pair.ends[1]->ready(1);
        } catch (const Error& error) {
            kind = error.kind();
        }
        return kind.has_value();
    }));
    CHECK(kind == ErrorKind::desync);
}

TEST_CASE("what was sent before a link was closed arrives, and then the peer is gone") {
    const auto ports = two_ports();
    if (!ports) return;
    for (const int lost : {-1, 7}) {
        Pair pair(*ports);
        const auto data = random_bytes(200'000, 8);  // enough for the receiver to return credits
        const Context context = operation(1);
        VerbsLink& from = *pair.ends[0];
        VerbsLink& to = *pair.ends[1];
        from.begin(context, data.size());
        std::size_t written = 0;
        REQUIRE(within(5, [&] {
            written += from.write(data.data() + written, data.size() - written);
            return from.finished();
        }));
        from.shut_down(lost < 0 ? std::nullopt : std::optional(lost));
        pair.ends[0].reset();
        to.expect(context, data.size());
        std::vector<std::byte> got(data.size());
        std::size_t read = 0;
        REQUIRE(within(5, [&] {
            read += to.read(got.data() + read, got.size() - read, Stores::cached);
            return read == got.size();
        }));
        CHECK(got == data);
        REQUIRE(within(5, [&] { return to.lost() != nullptr; }));
        CHECK(std::string(to.lost()) == "it closed the communicator");
        const Deadline fails(lost < 0 ? 3.0 : 0.0);  // what is sent to the peer now fails before that
        while (!fails.passed()) CHECK(std::string(to.lost()) == "it closed the communicator");
        CHECK(to.queue().failure() == nullptr);
        CHECK(to.posted().requests == 0);
        try {
            to.throw_lost(context.call, to.lost());
        } catch (const Error& error) {
            CHECK(error.ranks() == std::vector<int>{lost < 0 ? 0 : lost});
        }
    }
}

TEST_CASE("a peer whose queue pair is gone is an error within seconds, which names the ports") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    VerbsLink& from = *pair.ends[0];
    carry(from, *pair.ends[1], operation(1), random_bytes(8, 9), false);
    // Its socket stays open in this process, so that only the queue pair tells.
    const int kept = ::dup(0);
    pair.ends[1].reset();
    const Context context = operation(2);
    const std::array<std::byte, 8> data{};
    from.begin(context, 8);
    from.write(data.data(), 8);
    REQUIRE(from.lost() != nullptr);  // the socket tells at once
    CHECK(std::string(from.lost()).find(from.path()) != std::string::npos);
    ::close(kept);
    const auto begun = std::chrono::steady_clock::now();
    REQUIRE(within(10, [&] {
        from.lost();
        return from.queue().failure() != nullptr;
    }));
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(8));
    const std::string why = from.queue().failure();
    CHECK(why.find(ports->at(0).name()) != std::string::npos);
    CHECK(why.find(ports->at(1).name() + " of rank 1") != std::string::npos);
}
