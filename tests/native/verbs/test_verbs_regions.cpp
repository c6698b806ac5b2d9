// Memory that an RDMA device reads and writes: what is registered, and for how long.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "verbs/pair.hpp"
#include "verbs/regions.hpp"

using namespace collectives;
using namespace collectives::verbs;
using namespace collectives::verbs::testing;

namespace {

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

}  // namespace

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

TEST_CASE("what is kept has no more bytes than its bound, and what is longer is not kept") {
    const auto ports = two_ports();
    if (!ports) return;
    constexpr std::size_t n = registered_once_from;
    const auto regions =
        Regions::make(Device::open(ports->at(0).device), {.regions = most_kept, .bytes = 2 * n + n / 2});
    std::vector<std::vector<std::byte>> arrays(3, std::vector<std::byte>(n));
    std::vector<std::byte> longer(3 * n);
    std::vector<std::unique_ptr<Lasting>> lasting;
    for (auto& array : arrays) {
        lasting.push_back(std::make_unique<Lasting>(array));
        REQUIRE(regions->find(array, true));
    }
    CHECK(regions->use().made == 3);
    CHECK(regions->use().kept == 2);  // the first had to go
    CHECK(regions->use().kept_bytes == 2 * n);
    REQUIRE(regions->find(arrays[1], true));
    CHECK(regions->use().reused == 1);
    REQUIRE(regions->find(arrays[0], true));  // in place of the one that was used longest ago
    REQUIRE(regions->find(arrays[1], true));
    CHECK(regions->use().made == 4);
    CHECK(regions->use().reused == 2);
    lasting.push_back(std::make_unique<Lasting>(longer));
    REQUIRE(regions->find(longer, true));  // for one message
    CHECK(regions->use().made == 5);
    CHECK(regions->use().kept == 2);
    CHECK(regions->use().kept_bytes == 2 * n);
    lasting.clear();
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
