// Registrations with an RDMA device of this machine. Without devices nothing is tested, and the reason is
// printed: ctest counts the test as skipped.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "verbs/dma_buf.hpp"
#include "verbs/library.hpp"
#include "verbs/port.hpp"
#include "verbs/regions.hpp"

using namespace collectives;
using namespace collectives::verbs;

namespace {

std::shared_ptr<Device> any_device() {
    try {
        return Device::open(choose_port(0).device);
    } catch (const Error& error) {
        MESSAGE("skipped: " << std::string(error.what()));
        return nullptr;
    }
}

}  // namespace

TEST_CASE("memory of another device is registered, or refused with a reason") {
    const std::shared_ptr<Device> device = any_device();
    if (!device) return;
    // An ordinary file in memory is no dma-buf, and soft-RoCE of older kernels knows none at all.
    const UniqueFd file(::memfd_create("not a dma-buf", MFD_CLOEXEC));
    REQUIRE(::ftruncate(file.get(), 8192) == 0);
    std::string why;
    try {
        register_dma_buf(device, {.descriptor = file.get(), .offset = 0, .address = 0, .length = 8192});
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::transport_unavailable);
        why = error.what();
    }
    CHECK(why.find("RDMA device " + device->name() + " cannot register 8192 bytes of a dma-buf: ") == 0);
    MESSAGE(why);
}

TEST_CASE("a device pages on demand if it says so, and then only") {
    const std::shared_ptr<Device> device = any_device();
    if (!device) return;
    std::vector<std::byte> bytes(1 << 16);
    errno = 0;
    abi::Region* const region =
        library().reg_mr(device->domain(), bytes.data(), bytes.size(),
                         abi::access_local_write | abi::access_remote_write | abi::access_on_demand);
    MESSAGE(device->name() << " says that it pages on demand: " << device->pages_on_demand());
    CHECK((region != nullptr) == device->pages_on_demand());
    if (region != nullptr) CHECK(library().dereg_mr(region) == 0);
}
