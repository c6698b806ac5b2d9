// Memory and streams of a device, for tests that run on the stand-in for the CUDA driver.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/shared_object.hpp"
#include "cuda/driver.hpp"

namespace collectives {

// A function of the loaded driver that the library itself does not use. Without a message, as in all that a
// destructor calls: while an exception unwinds, doctest keeps messages in a list that threads share without a
// lock.
template <typename Function>
Function driver_function(const char* name) {
    std::string why;
    const SharedObject driver = SharedObject::open("libcuda.so.1", why);
    REQUIRE(driver);
    if (void* const own = driver.symbol(name); own != nullptr) return reinterpret_cast<Function>(own);
    const auto address = reinterpret_cast<int (*)(const char*, void**, int, std::uint64_t, int*)>(
        driver.symbol("cuGetProcAddress_v2"));
    void* found = nullptr;
    REQUIRE(address(name, &found, 12000, 0, nullptr) == 0);
    return reinterpret_cast<Function>(found);
}

// An array on the device of the current context. In the stand-in, that is host memory.
class DeviceFloats {
  public:
    explicit DeviceFloats(const std::vector<float>& values) : count_(values.size()) {
        REQUIRE(driver_function<int (*)(std::uint64_t*, std::size_t)>("cuMemAlloc")(&address_, bytes()) == 0);
        std::memcpy(reinterpret_cast<void*>(address_), values.data(), bytes());
    }
    DeviceFloats(const DeviceFloats&) = delete;
    DeviceFloats& operator=(const DeviceFloats&) = delete;
    ~DeviceFloats() { driver_function<int (*)(std::uint64_t)>("cuMemFree")(address_); }

    cuda::Pointer address() const { return address_; }
    std::size_t bytes() const { return count_ * sizeof(float); }
    std::vector<float> values() const {
        const auto* const data = reinterpret_cast<const float*>(address_);
        return {data, data + count_};
    }

  private:
    std::size_t count_;
    cuda::Pointer address_ = 0;
};

class TestStream {
  public:
    TestStream() { REQUIRE(cuda::driver().stream_create(&handle_, cuda::stream_non_blocking) == 0); }
    TestStream(const TestStream&) = delete;
    TestStream& operator=(const TestStream&) = delete;
    ~TestStream() { cuda::driver().stream_destroy(handle_); }

    cuda::StreamHandle handle() const { return handle_; }
    void synchronize() const {
        REQUIRE(driver_function<int (*)(void*)>("stand_in_synchronize")(handle_) == 0);
    }

  private:
    cuda::StreamHandle handle_ = nullptr;
};

}  // namespace collectives
