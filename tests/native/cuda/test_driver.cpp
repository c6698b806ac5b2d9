// The driver, where there is one and where there is none.
#include <doctest/doctest.h>

#include "base/error.hpp"
#include "base/shared_object.hpp"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"

using namespace collectives;

TEST_CASE("a library that is not there is named, with the reason") {
    std::string why;
    const SharedObject none = SharedObject::open("libcollectives-none.so.1", why);
    CHECK_FALSE(none);
    CHECK(none.symbol("cuInit") == nullptr);
    CHECK(why.find("libcollectives-none.so.1") != std::string::npos);
}

TEST_CASE("a loaded library is found by the beginning of its name") {
    int count = 0;
    CHECK(SharedObject::loaded("libc.so", &count).ends_with("/libc.so.6"));
    CHECK(count == 1);
    CHECK(SharedObject::loaded("libcollectives-none", &count).empty());
    CHECK(count == 0);
}

TEST_CASE("versions are written as NVIDIA writes them") {
    CHECK(cuda::version_text(12040) == "12.4");
    CHECK(cuda::version_text(13000) == "13.0");
}

TEST_CASE("without a driver the reason and a cure are given, with one its version") {
    const std::string& why = cuda::why_no_driver();
    if (why.empty()) {
        CHECK(cuda::driver_version() >= cuda::oldest_driver);
        CHECK_FALSE(cuda::driver_file().empty());
        return;
    }
    CHECK(why.find("driver") != std::string::npos);
    CHECK(why.find("install") != std::string::npos);
    try {
        cuda::devices();
        FAIL("there are devices without a driver");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::transport_unavailable);
        CHECK(error.what() == why);
    }
    CHECK_THROWS_AS(cuda::device(0), Error);
    CHECK_THROWS_AS(cuda::check_on_device(4096, 4, 0, "x"), Error);
}

TEST_CASE("a failure names function, device, code and cure") {
    try {
        cuda::throw_failure(cuda::error_out_of_memory, "cuMemAlloc", 3);
    } catch (const Error& error) {
        const std::string text = error.what();
        for (const char* part : {"cuMemAlloc", "device 3", "(2)", "free arrays"}) {
            CHECK_MESSAGE(text.find(part) != std::string::npos, text);
        }
    }
}
