// Memory of a device that this library allocates, exports and stages, on the stand-in for the CUDA driver.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "cuda/array_transfer.hpp"
#include "cuda/heap.hpp"
#include "cuda/staging.hpp"
#include "device_memory.hpp"

using namespace collectives;

namespace {

// Memory that is exported in that way: 0 by a handle, 1 by a descriptor, 2 not at all.
cuda::Pointer allocated(std::size_t bytes, int kind) {
    cuda::Pointer address = 0;
    REQUIRE(driver_function<int (*)(std::uint64_t*, std::size_t, int)>("stand_in_allocate")(&address, bytes,
                                                                                            kind) == 0);
    return address;
}

void* bytes_at(cuda::Pointer address) { return reinterpret_cast<void*>(address); }

}  // namespace

TEST_CASE("an allocation is described as a whole, and how it can be exported") {
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    for (const int kind : {0, 1, 2}) {
        const cuda::Pointer start = allocated(10'000, kind);
        cuda::Exported found = cuda::describe(start + 5000, 100, 0);
        CHECK(found.start == start);
        CHECK(found.bytes == 10'000);
        constexpr std::array routes{cuda::Route::handle, cuda::Route::descriptor, cuda::Route::none};
        CHECK(found.route == routes[static_cast<std::size_t>(kind)]);
        const UniqueFd descriptor = cuda::complete(found);
        CHECK(static_cast<bool>(descriptor) == (kind == 1));
        CHECK(cuda::describe(start + 5000, 5001, 0).route == cuda::Route::none);  // beyond its end
    }
    const cuda::Exported one = cuda::describe(allocated(16, 0), 16, 0);
    CHECK(one.buffer != cuda::describe(allocated(16, 0), 16, 0).buffer);
}

TEST_CASE("a descriptor is mapped at another place of the same memory") {
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    const cuda::Pointer start = allocated(5000, 1);
    cuda::Exported exported = cuda::describe(start, 5000, 0);
    UniqueFd descriptor = cuda::complete(exported);
    const cuda::Imported imported(context, exported, std::move(descriptor));
    CHECK(imported.start() != start);
    std::memset(bytes_at(start), 7, 5000);
    CHECK(static_cast<const char*>(bytes_at(imported.start()))[4999] == 7);
}

TEST_CASE("blocks are used again, when nobody has them any more, for arrays of about their size") {
    const auto context = cuda::PrimaryContext::of(1);
    auto one = cuda::allocate(context, 1000, cuda::For::all_processes);
    const cuda::Pointer first = one->address();
    CHECK(cuda::block_of(first + 900, 100) == one);
    CHECK(cuda::block_of(first + 900, 5000) == nullptr);
    const std::size_t before = cuda::heap_bytes(1);
    CHECK(cuda::allocate(context, 1000, cuda::For::all_processes)->address() != first);
    one.reset();
    CHECK(cuda::block_of(first, 1) == nullptr);
    std::vector<std::shared_ptr<const cuda::Block>> again{
        cuda::allocate(context, 900, cuda::For::all_processes),
        cuda::allocate(context, 900, cuda::For::all_processes)};
    CHECK((again[0]->address() == first || again[1]->address() == first));
    CHECK(cuda::allocate(context, 10, cuda::For::all_processes)->address() != first);
    CHECK(cuda::heap_bytes(1) < before + 3000);
}

TEST_CASE("arrays pass through staging memory in the order of the caller's stream") {
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    const TestStream stream;
    const DeviceFloats from({1, 2, 3, 4});
    const DeviceFloats to({0, 0, 0, 0});
    std::vector<float> memory(1024);
    cuda::Staging staging(context, reinterpret_cast<std::byte*>(memory.data()), 4096);
    staging.begin(stream.handle());
    const std::array<cuda::Staging::Copy, 2> in{{{16, from.address(), 8}, {32, from.address() + 8, 8}}};
    const cuda::Signal there = staging.fetch(in);
    while (!there.is_set()) std::this_thread::yield();
    CHECK(memory[4] == 1);
    CHECK(memory[8] == 3);
    const std::array<cuda::Staging::Copy, 2> out{{{16, to.address(), 8}, {32, to.address() + 8, 8}}};
    staging.put(out);
    staging.end(stream.handle());
    stream.synchronize();
    CHECK(to.values() == from.values());
    CHECK(staging.is_free());
    const std::array<cuda::Staging::Copy, 1> beyond{{{4090, to.address(), 16}}};
    CHECK_THROWS_AS(staging.put(beyond), Error);
    CHECK(staging.drain());
}

TEST_CASE("staging memory is used again only when its bytes are on the device") {
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    const TestStream stream;
    const DeviceFloats from({1, 2});
    const DeviceFloats to({0, 0});
    std::vector<float> memory(1024);
    cuda::Staging staging(context, reinterpret_cast<std::byte*>(memory.data()), 4096);
    staging.begin(stream.handle());
    const std::array<cuda::Staging::Copy, 1> first{{{0, from.address(), 4}}};
    const std::array<cuda::Staging::Copy, 1> second{{{0, from.address() + 4, 4}}};
    const std::array<cuda::Staging::Copy, 1> back{{{0, to.address(), 4}}};
    staging.fetch(first);
    staging.reuse();
    const cuda::Signal there = staging.fetch(second);
    while (!there.is_set()) std::this_thread::yield();
    CHECK(memory[0] == 2);
    staging.put(back);
    staging.reuse();
    const cuda::Signal again = staging.fetch(first);
    while (!again.is_set()) std::this_thread::yield();
    staging.end(stream.handle());
    stream.synchronize();
    CHECK(memory[0] == 1);
    CHECK(to.values() == std::vector<float>{2, 0});
    CHECK(staging.drain());
}

TEST_CASE("arrays are copied in the order in which they are read, and results as soon as they are final") {
    constexpr std::size_t each = 1 << 18;  // floats in a slice
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    std::vector<float> numbers(3 * each);
    std::iota(numbers.begin(), numbers.end(), 1.0F);
    for (const bool early : {true, false}) {
        const TestStream stream;
        const DeviceFloats from(numbers);
        const DeviceFloats to(std::vector<float>(3 * each, -1));
        std::vector<float> in(3 * each, -2), out(3 * each, -3);
        const auto bytes = [](std::vector<float>& all, std::size_t begin, std::size_t n) {
            return std::span(reinterpret_cast<const std::byte*>(all.data() + begin), n * sizeof(float));
        };
        const auto staging = [&](std::vector<float>& all) {
            return cuda::Staging(context, reinterpret_cast<std::byte*>(all.data()),
                                 all.size() * sizeof(float));
        };
        cuda::Staging staged_in = staging(in);
        cuda::Staging staged_out = staging(out);
        const std::array<cuda::ArrayTransfer::Array, 2> arrays{
            {{&staged_in, bytes(in, 0, 1).data(), from.address(), from.bytes(), stream.handle(), true, false},
             {&staged_out, bytes(out, 0, 1).data(), to.address(), to.bytes(), stream.handle(), false, true}}};
        cuda::ArrayTransfer transfer(arrays, true);
        // The last slice is not read.
        const std::array reads{bytes(in, each, each), bytes(in, 0, each)};
        transfer.begin(reads, early);
        const auto wait_for = [&](std::span<const std::byte> part) {
            while (transfer.there(part.data(), part.size()) < part.size()) std::this_thread::yield();
        };
        wait_for(reads[0]);
        CHECK(in[each] == numbers[each]);
        wait_for(reads[1]);
        CHECK(in[each - 1] == numbers[each - 1]);
        while (transfer.is_coming()) std::this_thread::yield();
        CHECK(in[2 * each] == (early ? -2 : numbers[2 * each]));
        CHECK(transfer.there(bytes(out, 0, each).data(), 100) == 100);
        std::copy_n(numbers.begin(), 3 * each, out.begin());
        transfer.leave(bytes(out, each, each).data(), each * sizeof(float));
        transfer.finish();
        stream.synchronize();
        CHECK(to.values()[each] == numbers[each]);
        CHECK(to.values()[2 * each - 1] == numbers[2 * each - 1]);
        CHECK(to.values()[0] == (early ? -1 : numbers[0]));  // an early one leaves only what it has written
        CHECK(staged_in.is_free());
        CHECK(staged_in.drain());
        CHECK(staged_out.drain());
    }
}
