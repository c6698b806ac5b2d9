// The devices that the driver shows to this process, and what it knows about addresses.
//
// Invariant: nothing here makes a context, which takes hundreds of megabytes of a device's memory.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/api.hpp"

namespace collectives::cuda {

// `number`: as CUDA_VISIBLE_DEVICES numbers it, from 0.
struct Device {
    int number = 0;
    std::string name;
    std::string uuid;  // 32 hexadecimal digits: the same in every process, and on no other device
    int multiprocessors = 0;
    int capability = 0;  // 90 for compute capability 9.0
};

// Throws Error(transport_unavailable) without a driver, and if a device cannot be asked.
std::vector<Device> devices();
// Throws Error(invalid) if there is no such device.
Device device(int number);

// Whether kernels on `device` can read and write memory of `other`, both as this process numbers them.
bool can_access_peer(int device, int other);
// Bytes that are free on the device of the current context; 0 if the driver does not tell.
std::size_t free_memory();

// What the driver knows about an address. All members are zero for memory that it does not know.
struct Place {
    MemoryType type = MemoryType::unknown;
    bool is_managed = false;
    int device = -1;
    Pointer start = 0;  // of the allocation; 0 if the driver does not tell
    std::size_t bytes = 0;
};

Place place_of(Pointer address);

// Throws Error(invalid), which calls the memory `what`, unless `bytes` bytes from `address` on are memory of
// that device, in one allocation.
void check_on_device(Pointer address, std::size_t bytes, int device, const char* what);

}  // namespace collectives::cuda
