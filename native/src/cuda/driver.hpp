// The CUDA driver of this process: found and initialised at the first use, or the reason why there is none.
//
// Invariant: looking for the driver has no effect but loading its library. The driver is initialised only for
// a program that uses a device, since that takes long, and a process that has done so can no longer use
// devices in children that it forks.
#pragma once

#include <string>

#include "cuda/api.hpp"

namespace collectives::cuda {

// The oldest driver that the library uses, as cuDriverGetVersion counts: 12.0.
inline constexpr int oldest_driver = 12000;

// "12.4" for 12040
std::string version_text(int version);

// Why no driver can be used; empty if one was found. Does not initialise it.
const std::string& why_no_driver();
// The newest version of CUDA that the driver supports, such as 13000, 0 without a driver. Does not initialise
// it.
int driver_version();
// The path of the driver's library; empty without a driver.
const std::string& driver_file();

// The functions of the driver, which is initialised at the first call. Throws Error(transport_unavailable)
// that names the reason and the cure.
const Api& driver();

// What to do when a device has no memory left.
inline constexpr const char* cure_for_full_memory =
    "the device's memory is full: free arrays, or empty the memory pool of their library";

// Throws an Error that names the failed function, the device if `device` is not negative, and the cure.
[[noreturn]] void throw_failure(Result result, const char* function, int device = -1);
inline void check(Result result, const char* function, int device = -1) {
    if (result != success) throw_failure(result, function, device);
}

}  // namespace collectives::cuda
