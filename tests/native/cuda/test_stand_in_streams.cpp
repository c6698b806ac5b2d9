// Streams, signals and checks of addresses, on the stand-in for the CUDA driver.
#include <array>
#include <thread>

#include "base/error.hpp"
#include "cuda/device.hpp"
#include "cuda/signal.hpp"
#include "cuda/stream.hpp"
#include "device_memory.hpp"

using namespace collectives;

namespace {

std::string refusal(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

int registered() { return driver_function<int (*)()>("stand_in_registered")(); }

// A word by which a test holds up a stream.
class Gate {
  public:
    explicit Gate(std::shared_ptr<const cuda::PrimaryContext> context)
        : memory_(std::move(context), words_.data(), sizeof(words_)) {}
    void hold(cuda::StreamHandle stream) const { cuda::wait_value(stream, memory_.on_device(), 1); }
    void open() { words_[0].store(1); }

  private:
    std::array<std::atomic<std::uint32_t>, 1024> words_{};
    cuda::RegisteredMemory memory_;
};

}  // namespace

TEST_CASE("each device has its own uuid") {
    const auto all = cuda::devices();
    REQUIRE(all.size() == 8);
    CHECK(all[0].uuid != all[1].uuid);
    CHECK(all[3].number == 3);
    CHECK(all[3].capability == 90);
    CHECK(has(refusal([] { cuda::device(8); }), "there are 8"));
}

TEST_CASE("a context is shared and released with its last user") {
    const auto one = cuda::PrimaryContext::of(1);
    CHECK(cuda::PrimaryContext::of(1) == one);
    CHECK(cuda::PrimaryContext::of(2) != one);
    const cuda::Current current(*one);
    cuda::DeviceNumber device = -1;
    REQUIRE(cuda::driver().context_get_device(&device) == 0);
    CHECK(device == 1);
}

TEST_CASE("a signal is set when the stream has come to it, and not before") {
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    const TestStream stream;
    Gate gate(context);
    const auto signals = std::make_shared<cuda::Signals>(context);
    gate.hold(stream.handle());
    cuda::Signal signal = signals->take();
    signal.set_by(stream.handle());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(signal.is_set());
    gate.open();
    stream.synchronize();
    CHECK(signal.is_set());
}

TEST_CASE("signals come back and need no more memory, however many there are") {
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    const TestStream stream;
    const int before = registered();
    {
        const auto signals = std::make_shared<cuda::Signals>(context);
        for (int i = 0; i < 5000; ++i) {
            cuda::Signal signal = signals->take();
            CHECK_FALSE(signal.is_set());
            signal.set_by(stream.handle());
            if (i % 100 == 0) stream.synchronize();
        }
        stream.synchronize();
        CHECK(registered() == before + 1);
    }
    CHECK(registered() == before);
}

TEST_CASE("memory that a stream may still write stays registered") {
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    const TestStream stream;
    Gate gate(context);
    const int before = registered();
    gate.hold(stream.handle());
    {
        const auto signals = std::make_shared<cuda::Signals>(context);
        signals->take().set_by(stream.handle());
    }
    CHECK(registered() == before + 1);
    gate.open();
    stream.synchronize();
}

TEST_CASE("a stream waits for what another had at that moment") {
    const auto context = cuda::PrimaryContext::of(0);
    const cuda::Current current(*context);
    const TestStream earlier;
    const TestStream later;
    Gate gate(context);
    const auto signals = std::make_shared<cuda::Signals>(context);
    gate.hold(earlier.handle());
    cuda::order(earlier.handle(), later.handle());
    cuda::Signal signal = signals->take();
    signal.set_by(later.handle());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(signal.is_set());
    gate.open();
    later.synchronize();
    CHECK(signal.is_set());
}

TEST_CASE("addresses are checked before anything uses them") {
    const auto context = cuda::PrimaryContext::of(1);
    const cuda::Current current(*context);
    const DeviceFloats array({1, 2, 3, 4});
    std::array<float, 4> host{};
    const auto on_host = reinterpret_cast<cuda::Pointer>(host.data());
    CHECK_NOTHROW(cuda::check_on_device(array.address(), 16, 1, "x"));
    CHECK_NOTHROW(cuda::check_on_device(0, 0, 1, "x"));
    CHECK(has(refusal([&] { cuda::check_on_device(on_host, 16, 1, "x"); }), "not memory of a CUDA device"));
    CHECK(has(refusal([&] { cuda::check_on_device(array.address(), 16, 0, "x"); }), "memory of device 1"));
    CHECK(has(refusal([&] { cuda::check_on_device(array.address() + 4, 16, 1, "out"); }), "12 bytes"));
}

TEST_CASE("streams are checked, too") {
    const auto context = cuda::PrimaryContext::of(1);
    const auto other = cuda::PrimaryContext::of(2);
    const cuda::Current current(*context);
    CHECK_NOTHROW(cuda::check_stream(cuda::legacy_stream, *context));
    void* gone = nullptr;
    {
        const TestStream stream;
        gone = stream.handle();
        CHECK_NOTHROW(cuda::check_stream(stream.handle(), *context));
        CHECK(has(refusal([&] { cuda::check_stream(stream.handle(), *other); }), "device 2"));
        REQUIRE(driver_function<int (*)(void*, int)>("stand_in_capture")(stream.handle(), 1) == 0);
        CHECK_NOTHROW(cuda::check_stream(stream.handle(), *context));  // a graph may have the call
        CHECK(has(refusal([&] { cuda::refuse_capture(stream.handle(), *context, "which"); }), "captured"));
    }
    CHECK(has(refusal([&] { cuda::check_stream(gone, *context); }), "does not exist any more"));
}
